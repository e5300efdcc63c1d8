"""What a run will do, signed by the operator before anybody answers."""

from __future__ import annotations

import hashlib
import re
from functools import cached_property
from itertools import accumulate
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from privirec.errors import FederationError
from privirec.federated.contributions import PlannedSum
from privirec.federated.programs import Program, program_of
from privirec.privacy.ledger import Ledger
from privirec.privacy.policy import Terms
from privirec.runtime.network.pledges import Pledges
from privirec.runtime.spec import RunSpec, vector_shape
from privirec.secagg import Statement, Step, VectorShape, protocol
from privirec.version import __version__


class RunPlan(BaseModel):
    """A run: terms, catalogue and cohort, the same for everybody."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str = Field(pattern="^[0-9a-f]{32}$")
    version: str
    spec: RunSpec
    n_items: int = Field(gt=0)
    catalogue: str
    """Fingerprint of the item ids in their order."""
    roster: str
    """Digest of the roster."""
    clients: int = Field(gt=0)
    """Clients in the roster."""
    pledges: Pledges
    """Of each client that said it is there."""

    @classmethod
    def parse(cls, text: bytes) -> RunPlan:
        """From JSON; a plan that cannot be read is refused in one line."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise FederationError(f"a plan that cannot be read: {where}: {first['msg']}") from None

    def text(self) -> bytes:
        """As it is sent."""
        return self.model_dump_json().encode()

    @cached_property
    def users(self) -> dict[int, int]:
        """Users of each client; numbered client after client."""
        return self.pledges.users()

    @property
    def n_users(self) -> int:
        return sum(self.users.values())

    def first_user(self, client: int) -> int:
        """Where the users of a client stand in the cohort's numbering."""
        users = sorted(self.users.items())
        starts = accumulate((count for _, count in users), initial=0)
        return dict(zip((key for key, _ in users), starts, strict=False))[client]

    def program(self) -> Program[Any]:
        return program_of(self.spec.program, self.n_users, self.n_items)

    def sums(self) -> list[PlannedSum]:
        return self.program().sums()

    @property
    def protected(self) -> bool:
        """Whether noise protects every sum."""
        return all(planned.protection for planned in self.sums())

    def shapes(self) -> list[VectorShape]:
        return [vector_shape(planned) for planned in self.sums()]

    def statement(self) -> Statement:
        return self.spec.statement(self.clients, len(self.sums()))

    def steps(self) -> tuple[Step, ...]:
        """Every exchange of the run, in order."""
        statement = self.statement()
        return protocol(self.spec.aggregator).schedule_for(statement).steps(statement.rounds)

    def for_policy(self) -> Terms:
        """What a client's policy looks at."""
        program = self.program()
        ledger = Ledger.planned(program.plan())
        return Terms(
            sum(users > 0 for users in self.users.values()),
            tuple(planned.name for planned in program.sums() if not planned.protection),
            len(program.sums()),
            ledger.bytes_up,
            ledger.bytes_down,
            self.spec.corrupt_share,
            self.spec.security_bits,
            self.spec.aggregator,
            program.opened_share(),
            self.spec.server,
        )


def asked_digest(plan_text: bytes, ask: bytes) -> bytes:
    """What a client was asked for in a sum, and what it was told before: the plan and the ask, as
    they came. Clients for whom it differs are in no sum together."""
    return hashlib.sha256(
        b"privirec-asked" + hashlib.sha256(plan_text).digest() + hashlib.sha256(ask).digest()
    ).digest()


def same_version(other: str) -> bool:
    """Whether programs of this and another version may take part in one run."""
    return other.split(".")[:2] == __version__.split(".")[:2]


def is_run_number(text: str) -> bool:
    return re.fullmatch("[0-9a-f]{32}", text) is not None
