"""Base of all contributions: histories, shapes, plans, and a client's view of a run.

Every contribution is a vector of integers and is defined user by user. A client with many users (a
silo) sends the sum of its users' vectors, so a total does not depend on how users are grouped into
clients. Only integers are added, and each number is rounded once, by operations that IEEE 754
defines exactly. Every runtime therefore gets the same bits, in any order and with any number of
threads.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.data.few_rows import FewRows
from privirec.data.interactions import select_entries
from privirec.data.splits import held_out_entries
from privirec.errors import DataError, FederationError
from privirec.federated.dp.loss import Protection
from privirec.federated.fixed_point import FixedPoint
from privirec.federated.noise import NO_NOISE, Noise
from privirec.federated.randomness import (
    NO_RANDOMNESS,
    ClientRandomness,
    ClientStream,
    HeldOutWords,
    RandomStream,
)
from privirec.federated.settings import MethodSettings

# Entries in one block of a stream: 32 MB of 64-bit integers.
BLOCK_ENTRIES = 1 << 22

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Histories:
    """Histories of one client's users, and the position of these users in the cohort."""

    matrix: sp.csr_array
    first_user: int = 0
    held_out: sp.csr_array | None = None
    """Items that these users hold out for validation. They enter no other sum."""

    def holding_out(self, share: float, words: Iterable[HeldOutWords]) -> Histories:
        """Return the same users with a share of each user's items held out.

        The random words come from the clients that the users belong to. No user holds out all
        items.
        """
        rows, entries = (np.concatenate(each) for each in zip(*words, strict=True))
        held = held_out_entries(self.matrix.indptr, share, rows, entries)
        kept, kept_back = (select_entries(self.matrix, some) for some in (~held, held))
        return replace(self, matrix=kept, held_out=kept_back)

    def split_by(self, randomness: ClientRandomness, share: float) -> Histories:
        """Return `holding_out` for users of a single client, or `self` if the share is zero."""
        if not share:
            return self
        return self.holding_out(share, [randomness.held_out_words(self.n_users, self.matrix.nnz)])

    def distinct(self) -> Histories:
        """Return `self` if every history names its items in ascending order, each once.

        Sums with noise need this: a hundred copies of one item have length ten, not one. Readers
        and stores leave out copies. If one slips through, the client must not answer.
        """
        ascends = np.diff(self.matrix.indices) > 0
        first_of_rows = self.matrix.indptr[1:-1]
        inside = (first_of_rows > 0) & (first_of_rows < self.matrix.nnz)
        ascends[first_of_rows[inside] - 1] = True
        if not ascends.all():
            raise DataError("a history that names an item twice, or not in ascending order")
        return self

    @property
    def n_users(self) -> int:
        return int(self.matrix.shape[0])

    @property
    def n_items(self) -> int:
        return int(self.matrix.shape[1])

    @cached_property
    def degrees(self) -> Integers:
        """Number of items of each user."""
        return np.diff(self.matrix.indptr).astype(np.int64)

    @property
    def item_degrees(self) -> Integers:
        """Number of these users per item.

        Not cached: the array is as long as the catalogue, and a cohort may have one client per
        user.
        """
        return np.bincount(self.matrix.indices, minlength=self.n_items).astype(np.int64)

    @cached_property
    def by_item(self) -> sp.csr_array:
        """Transpose of the matrix: the users of each item, in ascending order."""
        turned = self.matrix.T
        return turned if isinstance(turned, FewRows) else sp.csr_array(turned)


@dataclass(frozen=True)
class SumShape:
    """Shape of a sum, as needed for set-up, and the size of its public inputs."""

    length: int
    """Number of entries in the vector."""
    ring_bits: int
    signed: bool
    broadcast_bytes: int = 0
    """Size of the public inputs that every client receives first."""


@dataclass(frozen=True)
class Aim:
    """Concentration of a server-chosen block on a single item, for a policy to judge."""

    items: int
    """Number of items in the catalogue.

    The number of items in use is only the server's claim, and a client cannot dispute it without
    revealing what it has.
    """
    columns: int
    share: float
    """Largest share of one item in a column. An item's share is its squared entry; the shares in a
    column add up to one."""
    leverage: float
    """Largest sum of one item's shares over all columns; it cannot exceed one."""


@dataclass(frozen=True)
class ClientContext:
    """A client's knowledge of a run when it receives a request for a contribution."""

    n_users: int
    """Planned number of users in the whole cohort."""
    n_items: int
    settings: MethodSettings
    histories: Histories
    """Histories of this client only."""
    pinned: dict[str, str] = field(default_factory=dict)
    """Digests of the public inputs of earlier sums, by description. A client keeps them for one
    run."""
    contradictions: list[str] = field(default_factory=list)
    """Claims in public inputs that this client's histories show to be false; see `contradict`."""

    def pin(self, what: str, value: Integers) -> None:
        """Refuse a public input that differs from the one in an earlier sum of this run."""
        digest = hashlib.sha256(value.tobytes()).hexdigest()
        if self.pinned.setdefault(what, digest) != digest:
            raise FederationError(f"other {what} than in an earlier sum of this run")

    def contradict(self, claim: str) -> None:
        """Record, for the client's owner, a claim that the client's own histories show to be false.

        Nothing that the client sends may depend on it. A refusal would reveal what the client has:
        a server could claim that nobody has an item and see which clients object. Zeros instead of
        the vector would reveal even more: the sum would lack exactly the clients that have the
        item, and with item degrees the difference is their histories. The client therefore answers
        as if it had not looked (`FixedPoint.wrapped` wraps values that do not fit).
        """
        self.contradictions.append(claim)

    def check_item_degrees(self, item_degrees: Integers) -> None:
        """Refuse item degrees that no cohort can have.

        If no cohort that includes this client can have them, only record the contradiction.
        """
        if item_degrees.shape != (self.n_items,):
            raise FederationError("item degrees of another catalogue than this client's")
        if int(item_degrees.min(initial=0)) < 0:
            raise FederationError("item degrees that cannot be: below zero")
        if int(item_degrees.max(initial=0)) > self.n_users:
            raise FederationError("item degrees that cannot be: more than there are users")
        self.pin("item degrees", item_degrees)
        if (item_degrees < self.histories.item_degrees).any():
            self.contradict("item degrees below this client's own")


class Contribution(ABC):
    """A secure sum: the request, its ring and its broadcast.

    A kind is a frozen dataclass whose fields are sent by the server. It has three main methods.
    `blocks` streams the vector of one client. `total` computes the sum over all clients at once
    from all histories, for simulations; tests check that it equals the stream. `collect` turns a
    stream of summed blocks into the same total on a server.
    """

    name: ClassVar[str]
    gives_away: ClassVar[str]
    """One sentence on what an observer of the sum learns."""
    is_item_item: ClassVar[bool] = False
    """True if the sum is the item-item matrix itself.

    The numbers in all other sums count as equations from which that matrix could be solved; see
    `PlannedSum.opened`.
    """
    counts_hits: ClassVar[bool] = False
    """True if the sum tells how well a model chosen by the server guesses people's items.

    A policy limits how often a server may request such a sum.
    """
    per_item: ClassVar[bool] = False
    """True if the sum has the same number of entries per item, zeros for items not in use."""

    n_items: int

    @property
    @abstractmethod
    def shape(self) -> SumShape: ...

    @property
    @abstractmethod
    def encoding(self) -> FixedPoint:
        """Scale and ring, derived from a proven bound.

        Raises OverflowRefused if the sum could leave its ring.
        """

    @property
    def noise(self) -> Noise:
        """Noise in the sum. It is part of the bound used for `encoding`."""
        return NO_NOISE

    @property
    def items_in_use(self) -> int | None:
        """Number of items that at least one user has, if the public inputs tell."""
        return None

    @property
    def aim(self) -> Aim | None:
        """Concentration of the block in the public inputs, if the server chose one."""
        return None

    @classmethod
    def protection(cls, shape: SumShape, fixed: Mapping[str, Any]) -> Protection | None:
        """Return the privacy guarantee of the noise for each person, or None if the sum is exact.

        It depends only on what is known of the sum before the run.
        """
        return None

    @property
    def protected(self) -> Protection | None:
        """Privacy guarantee of this request's noise, or None if the sum is exact."""
        return self.protection(self.shape, vars(self))

    @abstractmethod
    def check(self, context: ClientContext) -> None:
        """Refuse public inputs that cannot be true, before this client answers.

        `PlannedSum.check` has already checked that the request is the planned one. The server
        learns of a refusal, so no refusal may depend on `context.histories`; see
        `ClientContext.contradict`.
        """

    def rows_of(self, histories: Histories) -> Integers | None:
        """Return the rows of `row_entries` entries outside which these users' vector is zero.

        They depend on the items of the users alone. None: the vector has no such rows.
        """
        return None

    def most_rows(self, items: int) -> int:
        """Return the rows to allow for a history of this many items."""
        return items

    @property
    def row_space(self) -> bytes:
        """Name of what the rows stand for; sums of the same name and length have the same rows."""
        return b"catalogue"

    @abstractmethod
    def blocks(
        self, histories: Histories, randomness: RandomStream = NO_RANDOMNESS
    ) -> Iterator[Integers]:
        """Yield a client's vector, noise included, in pieces of `block_lengths`.

        The noise of entry i comes from the stream's words for that entry, so it does not depend on
        how the vector is cut into pieces.
        """

    @abstractmethod
    def total(
        self, histories: Histories, randomness: Iterable[ClientStream] = NO_RANDOMNESS
    ) -> Any:
        """Return the sum over all users, plus the noise of all clients that they belong to."""

    def collect(self, blocks: Iterable[Integers]) -> Any:
        """Return the same total as `total`, from summed and decoded blocks."""
        return np.concatenate([np.zeros(0, np.int64), *blocks])

    @classmethod
    def of(cls, **parameters: Any) -> Self:
        """Return a request made from planned and newly known values; see `PlannedSum.ask`."""
        return cls(**parameters)

    @property
    def length(self) -> int:
        return self.shape.length

    @property
    def broadcast_bytes(self) -> int:
        return self.shape.broadcast_bytes

    @property
    def row_entries(self) -> int:
        """Number of consecutive entries that a block boundary must not split."""
        return 1

    def pieces(self, whole: Integers) -> Iterator[Integers]:
        """Yield a complete vector in pieces of `block_lengths`."""
        flat, start = whole.reshape(-1), 0
        for length in self.block_lengths():
            yield flat[start : start + length]
            start += length

    def block_lengths(self) -> Iterator[int]:
        """Yield the lengths of consecutive pieces, each at most BLOCK_ENTRIES or one row."""
        step = max(1, BLOCK_ENTRIES // self.row_entries) * self.row_entries
        for start in range(0, self.length, step):
            yield min(step, self.length - start)


@dataclass(frozen=True)
class Opened:
    """Count of the numbers that a sum reveals, against the unknowns of the item-item matrix.

    `numbers` excludes the item-item matrix itself. `unknowns` counts the entries of that matrix
    between items in use. As many numbers as unknowns allow solving for the matrix.
    """

    numbers: int
    unknowns: int

    @property
    def share(self) -> float:
        return self.numbers / self.unknowns if self.unknowns else 0.0


@dataclass(frozen=True)
class PlannedSum:
    """A secure sum that a program will request, as far as it is known before the run."""

    kind: type[Contribution]
    shape: SumShape
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of `kind.of` that are known before the run."""
    optional: bool = False
    """True if a run may end without this sum and all later ones."""

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def payload_bytes(self) -> int:
        """Bytes that a client sends, packed and unmasked."""
        return -(-self.shape.length * self.shape.ring_bits // 8)

    @property
    def protection(self) -> Protection | None:
        """Privacy guarantee of the noise for each person, or None if there is none."""
        return self.kind.protection(self.shape, self.fixed)

    def opened(self, n_items: int, in_use: int) -> Opened:
        """Return what the sum reveals if `in_use` items of the catalogue are in use.

        A sum with a privacy guarantee counts as revealing no numbers.
        """
        numbers = self.shape.length
        if self.kind.is_item_item or self.protection:
            numbers = 0
        elif self.kind.per_item:
            numbers = numbers // n_items * in_use
        return Opened(numbers, in_use * (in_use + 1) // 2)

    def ask(self, **known: Any) -> Contribution:
        """Return the request, completed with values that became known during the run."""
        return self.kind.of(**self.fixed, **known)

    def check(self, ask: object) -> None:
        """Refuse anything but a request made from this plan."""
        if not isinstance(ask, Contribution) or type(ask) is not self.kind:
            raise FederationError(f"the request is not the {self.name} of the plan")
        agreed = (self.shape.length, self.shape.ring_bits, self.shape.signed)
        if (ask.length, ask.encoding.width, ask.encoding.signed) != agreed:
            raise FederationError(
                f"the {self.name} that is asked is not the {self.name} of the plan: it has another "
                "length, ring or sign"
            )
        self._check_fixed(ask)

    def _check_fixed(self, ask: Contribution) -> None:
        for parameter, value in self.fixed.items():
            if getattr(ask, parameter) != value:
                counted = parameter.startswith("n_")
                what = f"number of {parameter[2:]}" if counted else parameter.replace("_", " ")
                raise FederationError(f"{self.name} with another {what} than planned")


@dataclass(frozen=True)
class LaterSum(PlannedSum):
    """A secure sum whose kind and size are decided during the run, within bounds.

    `shape` is the largest shape, in the ring that all of these sums have. `fixed` are the
    parameters that are known before the run.
    """

    kinds: tuple[type[Contribution], ...] = ()
    """Kinds that a client admits at this place."""
    most: Protection | None = None
    """Guarantee of the noise if this sum alone spends what the plan leaves to it."""

    @property
    def name(self) -> str:
        return " or ".join(kind.name for kind in self.kinds)

    @property
    def protection(self) -> Protection | None:
        return self.most

    def check(self, ask: object) -> None:
        """Refuse anything but a request within the bounds of this plan."""
        if not isinstance(ask, Contribution) or type(ask) not in self.kinds:
            raise FederationError(f"the request is not the {self.name} of the plan")
        self._check_fixed(ask)
        if not 0 < ask.length <= self.shape.length:
            raise FederationError(
                f"a {ask.name} of {ask.length:,} entries, where the plan allows 1 to "
                f"{self.shape.length:,}"
            )
        if ask.broadcast_bytes > self.shape.broadcast_bytes:
            raise FederationError(f"a {ask.name} with longer public inputs than planned")
        if (ask.encoding.width, ask.encoding.signed) != (self.shape.ring_bits, self.shape.signed):
            raise FederationError(f"a {ask.name} in another ring than planned")
