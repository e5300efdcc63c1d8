"""The plan of a run, signed by the server before any client answers."""

from __future__ import annotations

import hashlib
import re
from functools import cached_property
from itertools import accumulate
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from privirec.errors import FederationError
from privirec.federated.contributions import PlannedSum
from privirec.federated.programs import Program, program_of
from privirec.federated.settings import first_fault
from privirec.privacy.ledger import Ledger
from privirec.privacy.policy import Terms
from privirec.runtime.pledges import Pledges
from privirec.runtime.spec import RunSpec, vector_shape
from privirec.secagg import Statement, Step, VectorShape, protocol
from privirec.version import __version__


class RunPlan(BaseModel):
    """Terms, catalogue and cohort of a run, the same for all clients."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str = Field(pattern="^[0-9a-f]{32}$")
    version: str
    spec: RunSpec
    n_items: int = Field(gt=0)
    catalogue: str
    """Fingerprint of the item ids in order."""
    roster: str
    """Digest of the roster."""
    clients: int = Field(gt=0)
    """Number of clients in the roster."""
    pledges: Pledges
    """Pledges of the clients that announced themselves."""

    @field_validator("spec")
    @classmethod
    def _asks_clients(cls, spec: RunSpec) -> RunSpec:
        if spec.federated is None:
            raise ValueError(f"the method {spec.method} asks no clients")
        return spec

    @classmethod
    def parse(cls, text: bytes) -> RunPlan:
        """Parse JSON; raise FederationError with a one-line message if it is not a plan."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise FederationError(f"a plan that cannot be read: {first_fault(error)}") from None

    @cached_property
    def text(self) -> bytes:
        """Plan as sent to clients, in JSON."""
        return self.model_dump_json().encode()

    @cached_property
    def users(self) -> dict[int, int]:
        """Number of users of each client."""
        return self.pledges.users()

    @cached_property
    def n_users(self) -> int:
        return sum(self.users.values())

    def first_user(self, client: int) -> int:
        """Return the number of a client's first user; users are numbered client after client."""
        users = sorted(self.users.items())
        starts = accumulate((count for _, count in users), initial=0)
        return dict(zip((key for key, _ in users), starts, strict=False))[client]

    @cached_property
    def program(self) -> Program[Any]:
        """Program of the run; it keeps its results, so only one computation may execute it."""
        return program_of(self.spec.program, self.n_users, self.n_items)

    @cached_property
    def sums(self) -> tuple[PlannedSum, ...]:
        return tuple(self.program.sums())

    @property
    def number_of_sums(self) -> str:
        """Number of sums in words; a run may leave out the last ones."""
        return f"{'at most ' if any(one.optional for one in self.sums) else ''}{len(self.sums)}"

    @cached_property
    def protected(self) -> bool:
        """True if noise protects every sum."""
        return all(planned.protection for planned in self.sums)

    @cached_property
    def shapes(self) -> tuple[VectorShape, ...]:
        return tuple(vector_shape(planned) for planned in self.sums)

    @cached_property
    def statement(self) -> Statement:
        return self.spec.statement(self.clients, len(self.sums))

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """All exchanges of the run in order."""
        schedule = protocol(self.spec.aggregator).schedule_for(self.statement)
        return schedule.steps(self.statement.rounds)

    def for_policy(self) -> Terms:
        """Return the properties of the run that a client's policy judges."""
        program = self.program
        bytes_up, bytes_down = most_bytes(program)
        return Terms(
            sum(users > 0 for users in self.users.values()),
            tuple(planned.name for planned in self.sums if not planned.protection),
            len(self.sums),
            bytes_up,
            bytes_down,
            self.spec.corrupt_share,
            self.spec.security_bits,
            self.spec.aggregator,
            program.opened_share(),
            self.spec.server_model,
        )


def most_bytes(program: Program[Any]) -> tuple[int, int]:
    """Return the most bytes of vectors up and of public values down that a client may expect."""
    ledger = Ledger.planned(program.outline())
    return program.bounds.upload_bytes if program.bounds else ledger.bytes_up, ledger.bytes_down


def asked_digest(plan_text: bytes, ask: bytes) -> bytes:
    """Return a digest of the plan and the request for a sum, as a client received them.

    Clients for which this digest differs are never in one sum together.
    """
    return hashlib.sha256(
        b"privirec-asked" + hashlib.sha256(plan_text).digest() + hashlib.sha256(ask).digest()
    ).digest()


def same_version(other: str) -> bool:
    """Return True if this version and another one may take part in the same run."""
    return other.split(".")[:2] == __version__.split(".")[:2]


def is_run_number(text: str) -> bool:
    return re.fullmatch("[0-9a-f]{32}", text) is not None
