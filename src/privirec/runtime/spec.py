"""The description of a run, and the secure-aggregation parameters that follow from it.

The defaults of a run are defined here, or in the program or model they belong to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny

from privirec.errors import OverflowRefused, UsageError
from privirec.federated.contributions import PlannedSum
from privirec.federated.programs import (
    PROGRAMS,
    Program,
    ProgramSettings,
    settings_of,
)
from privirec.privacy.policy import Aggregator
from privirec.secagg import Phase, ServerModel, Statement, VectorShape
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


class Deadlines(BaseModel):
    """Seconds that the parts of a run may take."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hello: float = Field(120.0, gt=0)
    setup: float = Field(300.0, gt=0)
    preparation: float = Field(600.0, gt=0)
    input: float = Field(1800.0, gt=0)
    recovery: float = Field(600.0, gt=0)
    artifact: float = Field(900.0, gt=0)
    silence: float = Field(300.0, gt=0)
    """Time without an answer after which the server sends a message again."""
    retry: float = Field(2.0, gt=0)
    """Time after a reported failure after which the server sends a message again."""

    def of(self, phase: Phase) -> float:
        """Return the time for a step of this phase."""
        return {
            Phase.SETUP: self.setup,
            Phase.PREPARATION: self.preparation,
            Phase.INPUT: self.input,
            Phase.RECOVERY: self.recovery,
        }[phase]


Setting = str | int | float | bool | None | tuple[int, ...] | tuple[float, ...]
"""A value in the configuration of a model."""


class RunSpec(Assumptions):
    """Description of a federated run.

    The operator fills it in, `run.json` keeps it, the server signs it as part of the plan, each
    client's policy judges it, and the manifest of the model records it.
    """

    program: Annotated[SerializeAsAny[ProgramSettings], BeforeValidator(_settings)]
    """Settings of the program, with its name in `method`."""
    model: str = DEFAULT_MODEL
    """Name of the model that is made from the sums."""
    config: dict[str, Setting] = Field(default_factory=dict)
    """Settings of the model."""
    aggregator: Aggregator = DEFAULT_AGGREGATOR
    smallest_cohort: int = Field(SMALLEST_COHORT, ge=2)
    """Fewest clients in a sum."""
    block_entries: int = Field(DEFAULT_BLOCK_ENTRIES, gt=0)
    """Entries of a vector that are masked or added at a time."""
    part_bytes: int = Field(1 << 26, gt=0)
    """Approximate size of a message with a piece of the model."""
    deadlines: Deadlines = Deadlines()
    threads: int | None = None
    """BLAS threads of the server (default: all cores)."""
    notes: dict[str, str] = Field(default_factory=dict)
    """Further facts for the manifest of the model."""

    @property
    def protected(self) -> bool:
        """True if noise protects every sum."""
        return PROGRAMS.named(self.program.method).protects

    def least_clients(self, roster: int) -> int:
        """Return the fewest clients that can begin a run; absent clients count as dropped out."""
        return max(self.smallest_cohort, roster - self.statement(roster, 1).dropped)


def computes(program: type[Program[Any]], config: Config) -> bool:
    """Return True if the program has all settings the model needs, and none that would alter it."""
    settings = program.settings_type.model_fields.keys()
    return config.needs.keys() <= settings and program.only_for_models_with <= config.needs.keys()


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
