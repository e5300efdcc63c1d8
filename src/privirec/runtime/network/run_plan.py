"""What a run will do, signed by the operator before anybody answers."""

from __future__ import annotations

from itertools import accumulate
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from privirec.federated.programs import FederatedSettings
from privirec.privacy.policy import Aggregator, Terms
from privirec.runtime.local.secure import shape_of
from privirec.runtime.plan import PlannedSum, plan, planned_sums
from privirec.secagg import ServerSettings, Statement, VectorShape
from privirec.secagg.protocol import DEFAULT_BLOCK_ENTRIES
from privirec.version import __version__

MOST_USERS = 1 << 32
"""Of one client."""


class RunTerms(BaseModel):
    """What an operator chooses for a run, besides who takes part."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: FederatedSettings
    aggregator: Aggregator = "secagg+"
    corrupt_share: float = Field(0.05, ge=0, lt=1)
    """Clients that may work for the server."""
    dropped_share: float = Field(0.2, ge=0, lt=1)
    """Clients that may drop out before the first sum is opened."""
    security_bits: int = 40
    correctness_bits: int = 30
    smallest_cohort: int = Field(3, ge=2)
    block_entries: int = Field(DEFAULT_BLOCK_ENTRIES, gt=0)
    """Entries in one message of an upload."""
    part_bytes: int = Field(1 << 26, gt=0)
    """About how much of an upload, or of an artifact, goes into one carried message."""

    def statement(self, clients: int, sums: int) -> Statement:
        """What secure aggregation must withstand with a roster of so many."""
        return Statement.of(
            clients,
            self.corrupt_share,
            self.dropped_share,
            security_bits=self.security_bits,
            correctness_bits=self.correctness_bits,
            rounds=sums,
        )

    def least_clients(self, roster: int) -> int:
        """Fewest that can begin a run: those who do not come count as dropped out."""
        return max(self.smallest_cohort, roster - self.statement(roster, 1).dropped)


class RunPlan(BaseModel):
    """A run: terms, catalogue and cohort, the same for everybody."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str = Field(pattern="^[0-9a-f]{32}$")
    version: str
    terms: RunTerms
    n_items: int = Field(gt=0)
    catalogue: str
    """Fingerprint of the item ids in their order."""
    roster: str
    """Digest of the roster."""
    clients: int = Field(gt=0)
    """Clients in the roster."""
    users: dict[int, Annotated[int, Field(ge=0, lt=MOST_USERS)]]
    """Users of each client that said it is there; numbered client after client."""

    @property
    def n_users(self) -> int:
        return sum(self.users.values())

    def first_user(self, client: int) -> int:
        """Where the users of a client stand in the cohort's numbering."""
        starts = accumulate((self.users[key] for key in sorted(self.users)), initial=0)
        return dict(zip(sorted(self.users), starts, strict=False))[client]

    def sums(self) -> list[PlannedSum]:
        return planned_sums(self.terms.settings, self.n_users, self.n_items)

    def shapes(self) -> list[VectorShape]:
        return [shape_of(planned) for planned in self.sums()]

    def statement(self) -> Statement:
        return self.terms.statement(self.clients, len(self.sums()))

    def server_settings(self) -> ServerSettings:
        return ServerSettings(self.terms.smallest_cohort, self.terms.block_entries)

    def for_policy(self) -> Terms:
        """What a client's policy looks at."""
        ledger = plan(self.terms.settings, self.n_users, self.n_items)
        opened = sum(planned.length for planned in self.sums() if planned.name != "item-item")
        return Terms(
            len(self.users),
            tuple(planned.name for planned in self.sums()),
            ledger.bytes_up,
            ledger.bytes_down,
            self.terms.corrupt_share,
            self.terms.security_bits,
            self.terms.aggregator,
            opened / (self.n_items * (self.n_items + 1) // 2),
        )


def same_version(other: str) -> bool:
    """Whether programs of this and another version may take part in one run."""
    return other.split(".")[:2] == __version__.split(".")[:2]
