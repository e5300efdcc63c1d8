"""What all contributions share: histories, shapes, plans, and what a client knows when asked.

Every contribution is a vector of integers and is defined user by user: a client with many users
(a silo) sends the sum of what its users would have sent, so a total does not depend on who sits
with whom. Only integers are added, and each number is rounded once, by operations that IEEE 754
defines exactly: every runtime gets the same bits in any order and with any number of threads.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.data.few_rows import FewRows
from privirec.data.interactions import select_entries
from privirec.data.splits import held_out_entries
from privirec.dp.loss import Protection
from privirec.errors import FederationError
from privirec.federated.fixed_point import FixedPoint
from privirec.federated.noise import NO_NOISE, Noise
from privirec.federated.randomness import (
    NO_RANDOMNESS,
    ClientRandomness,
    ClientStream,
    HeldOutWords,
    RandomStream,
)

if TYPE_CHECKING:
    from privirec.federated.programs.base import ProgramSettings

# Entries in one block of a stream: 32 MB of 64-bit integers.
BLOCK_ENTRIES = 1 << 22

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Histories:
    """The users of one client, and where they stand in the cohort's numbering."""

    matrix: sp.csr_array
    first_user: int = 0
    held_out: sp.csr_array | None = None
    """Items that these users keep back, to validate on: what is in here is in no other sum."""

    def holding_out(self, share: float, words: Iterable[HeldOutWords]) -> Histories:
        """The same users with a share of everybody's items kept back, by random words of the
        clients that they are dealt to. Nobody keeps back everything."""
        rows, entries = (np.concatenate(each) for each in zip(*words, strict=True))
        held = held_out_entries(self.matrix.indptr, share, rows, entries)
        kept, kept_back = (select_entries(self.matrix, some) for some in (~held, held))
        return replace(self, matrix=kept, held_out=kept_back)

    def split_by(self, randomness: ClientRandomness, share: float) -> Histories:
        """The same, if all of them are of one client; without a share nothing is kept back."""
        if not share:
            return self
        return self.holding_out(share, [randomness.held_out_words(self.n_users, self.matrix.nnz)])

    @property
    def n_users(self) -> int:
        return int(self.matrix.shape[0])

    @property
    def n_items(self) -> int:
        return int(self.matrix.shape[1])

    @cached_property
    def degrees(self) -> Integers:
        """Items of each user."""
        return np.diff(self.matrix.indptr).astype(np.int64)

    @property
    def item_degrees(self) -> Integers:
        """Users of each item, among these. Not kept: it is as long as the catalogue, and a cohort
        may have a client for each user."""
        return np.bincount(self.matrix.indices, minlength=self.n_items).astype(np.int64)

    @cached_property
    def by_item(self) -> sp.csr_array:
        """The transpose: for each item, who touched it, in ascending order."""
        turned = self.matrix.T
        return turned if isinstance(turned, FewRows) else sp.csr_array(turned)


@dataclass(frozen=True)
class SumShape:
    """What set-up has to know of a sum, and what its public inputs weigh."""

    length: int
    """Entries of the vector."""
    ring_bits: int
    signed: bool
    broadcast_bytes: int = 0
    """Size of the public inputs that every client receives first."""


@dataclass(frozen=True)
class Aim:
    """How much of a block that a server chose lies on one item: what a policy looks at."""

    items: int
    """In the catalogue. How many of them are in use is the server's word, and no client can say
    that it is false without saying what it has."""
    columns: int
    share: float
    """The largest share of an item in a column, whose squares add up to one."""
    leverage: float
    """The largest sum of an item's shares over all columns, of which one is all there can be."""


@dataclass(frozen=True)
class ClientContext:
    """What a client knows of a run when it is asked for a contribution."""

    n_users: int
    """Of the whole cohort, as planned."""
    n_items: int
    settings: ProgramSettings
    histories: Histories
    """This client's own."""
    pinned: dict[str, str] = field(default_factory=dict)
    """Digests of public inputs of earlier sums, by what they are; a client keeps them for a run."""
    contradictions: list[str] = field(default_factory=list)
    """What public inputs claim that cannot be true, by what this client has; see `contradict`."""

    def pin(self, what: str, value: Integers) -> None:
        """Refuse a public input that differs from the one of an earlier sum of this run."""
        digest = hashlib.sha256(value.tobytes()).hexdigest()
        if self.pinned.setdefault(what, digest) != digest:
            raise FederationError(f"other {what} than in an earlier sum of this run")

    def contradict(self, claim: str) -> None:
        """Note a claim that this client's own histories show to be false, for its owner.

        Nothing that leaves may depend on it. A refusal says what the client has: claim that nobody
        has an item, and see who objects. Zeros in place of its vector say even more: the sum lacks
        just those who have the item, and with item degrees the difference is their histories. So
        the client answers as if it had not looked (`FixedPoint.wrapped` keeps what does not fit).
        """
        self.contradictions.append(claim)

    def check_item_degrees(self, item_degrees: Integers) -> None:
        """Refuse item degrees that can be those of no cohort, and note it if they cannot be those
        of one with this client in it."""
        if item_degrees.shape != (self.n_items,):
            raise FederationError("item degrees of another catalogue than this client's")
        if int(item_degrees.min(initial=0)) < 0:
            raise FederationError("item degrees that cannot be: less than nobody")
        if int(item_degrees.max(initial=0)) > self.n_users:
            raise FederationError("item degrees that cannot be: more than there are users")
        self.pin("item degrees", item_degrees)
        if (item_degrees < self.histories.item_degrees).any():
            self.contradict("item degrees below this client's own")


class Contribution(ABC):
    """One secure sum: what is asked, in which ring, after which broadcast.

    A kind is a frozen dataclass whose fields are what a server sends. It has three faces: `blocks`,
    what one client sends, as a stream; `total`, the sum over all clients computed at once from all
    histories (a simulation; tests hold it equal to the stream); and `collect`, how a stream of
    summed blocks becomes that same total on a server.
    """

    name: ClassVar[str]
    gives_away: ClassVar[str]
    """What whoever sees the sum learns, in a sentence."""
    is_item_item: ClassVar[bool] = False
    """Whether the sum is the item-item matrix itself. The numbers of all other sums count as
    equations from which that matrix could be solved; see `PlannedSum.opened`."""
    counts_hits: ClassVar[bool] = False
    """Whether the sum says how well a model of the server's choice guesses what people have: a
    policy bounds how often that is asked."""
    per_item: ClassVar[bool] = False
    """Whether the sum has equally many numbers for each item, zeros where an item is not in use."""

    n_items: int

    @property
    @abstractmethod
    def shape(self) -> SumShape: ...

    @property
    @abstractmethod
    def encoding(self) -> FixedPoint:
        """Scale and ring, from a proven bound. Raises OverflowRefused where there is none."""

    @property
    def noise(self) -> Noise:
        """What noise the sum carries; part of the bound behind `encoding`."""
        return NO_NOISE

    @property
    def items_in_use(self) -> int | None:
        """Items that somebody touched, where the public inputs tell."""
        return None

    @property
    def aim(self) -> Aim | None:
        """What a block among the public inputs aims at, if the server chose one."""
        return None

    @classmethod
    def protection(cls, shape: SumShape, fixed: Mapping[str, Any]) -> Protection | None:
        """What noise promises to every person, by what is known of the sum before the run; None
        where the sum is exact and nothing is promised."""
        return None

    @abstractmethod
    def check(self, context: ClientContext) -> None:
        """Refuse public inputs that cannot be true, before this client answers.

        That the ask is the planned one has been checked (`PlannedSum.check`). The server learns of
        a refusal, so none may depend on `context.histories`: see `ClientContext.contradict`.
        """

    @abstractmethod
    def blocks(
        self, histories: Histories, randomness: RandomStream = NO_RANDOMNESS
    ) -> Iterator[Integers]:
        """A client's vector, in pieces of `block_lengths`, noise included.

        The noise of entry i comes from the stream's words for that entry, so that it does not
        depend on the pieces.
        """

    @abstractmethod
    def total(
        self, histories: Histories, randomness: Iterable[ClientStream] = NO_RANDOMNESS
    ) -> Any:
        """The sum over all users at once, and the noise of all clients that they are dealt to."""

    def collect(self, blocks: Iterable[Integers]) -> Any:
        """The same total from summed and decoded blocks."""
        return np.concatenate([np.zeros(0, np.int64), *blocks])

    @classmethod
    def of(cls, **parameters: Any) -> Self:
        """An ask from what was planned and what became known since; see `PlannedSum.ask`."""
        return cls(**parameters)

    @property
    def length(self) -> int:
        return self.shape.length

    @property
    def broadcast_bytes(self) -> int:
        return self.shape.broadcast_bytes

    @property
    def row_entries(self) -> int:
        """Entries that are not torn apart between two blocks."""
        return 1

    def pieces(self, whole: Integers) -> Iterator[Integers]:
        """A vector that is there as a whole, in pieces of `block_lengths`."""
        flat, start = whole.reshape(-1), 0
        for length in self.block_lengths():
            yield flat[start : start + length]
            start += length

    def block_lengths(self) -> Iterator[int]:
        """Lengths of consecutive pieces, at most BLOCK_ENTRIES or one row each."""
        step = max(1, BLOCK_ENTRIES // self.row_entries) * self.row_entries
        for start in range(0, self.length, step):
            yield min(step, self.length - start)


@dataclass(frozen=True)
class Opened:
    """Numbers that a sum opens, the item-item matrix itself aside, and numbers in that matrix
    between items in use: from as many as it has, it can be solved for."""

    numbers: int
    unknowns: int

    @property
    def share(self) -> float:
        return self.numbers / self.unknowns if self.unknowns else 0.0


@dataclass(frozen=True)
class PlannedSum:
    """A secure sum that a program will ask for: all of it that is known before the run."""

    kind: type[Contribution]
    shape: SumShape
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of `kind.of` that are known before the run."""
    optional: bool = False
    """Whether a run may end without this sum and all that come after it."""

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def payload_bytes(self) -> int:
        """What a client sends, packed and unmasked."""
        return -(-self.shape.length * self.shape.ring_bits // 8)

    @property
    def protection(self) -> Protection | None:
        """What noise promises to every person; None: nothing."""
        return self.kind.protection(self.shape, self.fixed)

    def opened(self, n_items: int, in_use: int) -> Opened:
        """What the sum opens if so many items of the catalogue are in use: nothing under noise with
        a promise."""
        numbers = self.shape.length
        if self.kind.is_item_item or self.protection:
            numbers = 0
        elif self.kind.per_item:
            numbers = numbers // n_items * in_use
        return Opened(numbers, in_use * (in_use + 1) // 2)

    def ask(self, **known: Any) -> Contribution:
        """The ask itself, from what became known in the run."""
        return self.kind.of(**self.fixed, **known)

    def check(self, ask: object) -> None:
        """Refuse anything but an ask made from this plan."""
        if not isinstance(ask, Contribution) or type(ask) is not self.kind:
            raise FederationError(f"what is asked is not the {self.name} of the plan")
        agreed = (self.shape.length, self.shape.ring_bits, self.shape.signed)
        if (ask.length, ask.encoding.width, ask.encoding.signed) != agreed:
            raise FederationError(
                f"the {self.name} that is asked is not the {self.name} of the plan: it has another "
                "length, ring or sign"
            )
        for parameter, value in self.fixed.items():
            if getattr(ask, parameter) != value:
                counted = parameter.startswith("n_")
                what = f"number of {parameter[2:]}" if counted else parameter.replace("_", " ")
                raise FederationError(f"{self.name} with another {what} than planned")
