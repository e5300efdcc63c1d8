"""The operator's settings for a run, and the secure-aggregation parameters that follow from them.

The defaults of a run are defined here, or in the program or model they belong to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny

from privirec.errors import OverflowRefused, UsageError
from privirec.federated.contributions import PlannedSum
from privirec.federated.programs import (
    DEFAULT_PROGRAM,
    DEFAULT_RANK,
    DEFAULT_ROUNDS,
    Program,
    ProgramSettings,
    program_class,
    settings_of,
)
from privirec.federated.programs.protected import DEFAULT_DELTA, DEFAULT_EPSILON
from privirec.privacy.policy import Aggregator
from privirec.secagg import ServerModel, Statement, VectorShape
from privirec.secagg.parameters import least_honest
from privirec.secagg.protocol import DEFAULT_BLOCK_ENTRIES

if TYPE_CHECKING:
    from privirec.models.base import Config

DEFAULT_MODEL = "gf-cf"
DEFAULT_AGGREGATOR = "secagg+"
CORRUPT_SHARE = 0.05
DROPPED_SHARE = 0.2
SMALLEST_COHORT = 3
DROPPED_SHARE_ON_ONE_MACHINE = 0.05
"""Lower than DROPPED_SHARE: clients in one process drop out only if the run asks for it."""
SERVER_ON_ONE_MACHINE = ServerModel.SEMI_HONEST
"""One process plays all roles, so there is nobody to deceive; sums and drop-outs are the same."""


def _settings(given: Any) -> Any:
    try:
        return settings_of(given) if isinstance(given, Mapping) else given
    except UsageError as error:
        raise ValueError(str(error)) from None


class Assumptions(BaseModel):
    """Shares of corrupt and dropped clients to tolerate, and the failure probabilities."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    corrupt_share: float = Field(CORRUPT_SHARE, ge=0, lt=1)
    """Share of clients that may collude with the server."""
    dropped_share: float = Field(DROPPED_SHARE, ge=0, lt=1)
    """Share of clients that may drop out before the first sum is opened."""
    security_bits: int = 40
    correctness_bits: int = 30
    server: ServerModel = ServerModel.ACTIVE
    """Behaviour of the server that secagg+ and secagg protect against."""

    def contributors(self, clients: int) -> int:
        """Return the fewest clients whose noise is in a sum and stays secret.

        At most `clients` - 1, because every client sees the model and knows its own noise.
        """
        return max(1, min(least_honest(self.statement(clients, 1)), clients - 1))

    def statement(self, clients: int, sums: int) -> Statement:
        """Return the threat and drop-out parameters for a roster of this many clients."""
        return Statement.of(
            clients,
            self.corrupt_share,
            self.dropped_share,
            security_bits=self.security_bits,
            correctness_bits=self.correctness_bits,
            rounds=sums,
            server=self.server,
        )


class RunTerms(Assumptions):
    """Settings that an operator chooses for a run, except the clients."""

    settings: Annotated[SerializeAsAny[ProgramSettings], BeforeValidator(_settings)]
    """Settings of the program, including its name."""
    aggregator: Aggregator = DEFAULT_AGGREGATOR
    smallest_cohort: int = Field(SMALLEST_COHORT, ge=2)
    block_entries: int = Field(DEFAULT_BLOCK_ENTRIES, gt=0)
    """Entries in one message of an upload."""
    part_bytes: int = Field(1 << 26, gt=0)
    """Approximate bytes of an upload, or of an artifact, in one carried message."""

    @property
    def protected(self) -> bool:
        """True if noise protects every sum."""
        return program_class(self.settings.method).protects

    def least_clients(self, roster: int) -> int:
        """Return the fewest clients that can begin a run; absent clients count as dropped out."""
        return max(self.smallest_cohort, roster - self.statement(roster, 1).dropped)


def computes(program: type[Program[Any]], config: Config) -> bool:
    """Return True if the program has all settings the model needs, and none that would alter it."""
    settings = program.settings_type.model_fields.keys()
    return config.needs.keys() <= settings and program.only_for_models_with <= config.needs.keys()


def run_defaults() -> dict[str, str | int | float]:
    """Return the settings of a run by their public names, each with its default.

    An empty model name selects the model that the method is made for.
    """
    return {
        "name": "",
        "model": "",
        "method": DEFAULT_PROGRAM,
        "epsilon": DEFAULT_EPSILON,
        "delta": DEFAULT_DELTA,
        "rank": DEFAULT_RANK,
        "rounds": DEFAULT_ROUNDS,
        "seed": 0,
        "aggregator": DEFAULT_AGGREGATOR,
        "corrupt-share": CORRUPT_SHARE,
        "dropped-share": DROPPED_SHARE,
        "smallest-cohort": SMALLEST_COHORT,
        "server-model": ServerModel.ACTIVE.value,
    }


def vector_shape(planned: PlannedSum) -> VectorShape:
    """Return the shape of a planned sum for the set-up exchange.

    The encoding proves the bound of the sum before a client answers; set-up only needs the sum to
    stay inside the ring.
    """
    shape = planned.shape
    most = 2 ** (shape.ring_bits - shape.signed) - 1
    if most < 1:
        raise OverflowRefused(f"a signed sum of {planned.name} does not fit into one bit")
    return VectorShape(shape.length, shape.ring_bits, most, shape.signed, bounds_sum=True)
