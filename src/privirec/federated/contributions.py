"""What a client may be asked for: a closed set, each a pure function of (its histories, public
inputs).

Every contribution is a vector of integers and is defined user by user: a client with many users
(a silo) sends the sum of what its users would have sent, so a total does not depend on who sits
with whom. Only integers are added, and each number is rounded once, by operations that IEEE 754
defines exactly: every runtime gets the same bits in any order and with any number of threads.

Each kind knows three things: `blocks`, what one client sends, as a stream; `total`, the sum over
all clients computed at once from all histories (a simulation; tests hold it equal to the stream);
and `collect`, how a stream of summed blocks becomes that same total on a server.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.errors import FederationError, OverflowRefused
from privirec.federated import kernels
from privirec.federated.fixed_point import FixedPoint
from privirec.filters.normalize import degree_power

# Entries in one block of a stream: 32 MB of 64-bit integers.
BLOCK_ENTRIES = 1 << 22

# Entries of broadcast matrices stay below 2^BROADCAST_BITS, inside a 32-bit integer.
BROADCAST_BITS = 30

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Histories:
    """The users of one client, and where they stand in the cohort's numbering."""

    matrix: sp.csr_array
    first_user: int = 0

    @property
    def n_users(self) -> int:
        return int(self.matrix.shape[0])

    @property
    def n_items(self) -> int:
        return int(self.matrix.shape[1])

    @cached_property
    def degrees(self) -> Integers:
        return np.diff(self.matrix.indptr).astype(np.int64)

    @cached_property
    def by_item(self) -> sp.csr_array:
        """The transpose: for each item, who touched it, in ascending order."""
        return sp.csr_array(self.matrix.T)


class Contribution(Protocol):
    """One secure sum: what is asked, in which ring, after which broadcast."""

    name: ClassVar[str]

    @property
    def length(self) -> int:
        """Entries of the vector."""
        ...

    @property
    def encoding(self) -> FixedPoint: ...

    @property
    def broadcast_bytes(self) -> int:
        """Size of the public inputs that every client receives first."""
        ...

    def blocks(self, histories: Histories) -> Iterator[Integers]:
        """A client's vector, in consecutive pieces of at most BLOCK_ENTRIES."""
        ...

    def block_lengths(self) -> Iterator[int]:
        """How long each of these pieces is."""
        ...

    def total(self, histories: Histories) -> Any:
        """The sum over all users at once."""
        ...

    def collect(self, blocks: Iterable[Integers]) -> Any:
        """The same total from summed and decoded blocks."""
        ...


@dataclass(frozen=True)
class ItemDegrees:
    """V: how many users touched each item. Whole numbers up to the number of users."""

    name: ClassVar[str] = "item-degrees"
    n_items: int
    n_users: int

    @property
    def length(self) -> int:
        return self.n_items

    @property
    def encoding(self) -> FixedPoint:
        return FixedPoint.counting(self.n_users)

    @property
    def broadcast_bytes(self) -> int:
        return 0

    def blocks(self, histories: Histories) -> Iterator[Integers]:
        for start in range(0, self.n_items, BLOCK_ENTRIES):
            yield self.total(histories)[start : start + BLOCK_ENTRIES]

    def block_lengths(self) -> Iterator[int]:
        for start in range(0, self.n_items, BLOCK_ENTRIES):
            yield min(BLOCK_ENTRIES, self.n_items - start)

    def total(self, histories: Histories) -> Integers:
        counts = np.bincount(histories.matrix.indices, minlength=self.n_items)
        return counts.astype(np.int64)

    def collect(self, blocks: Iterable[Integers]) -> Integers:
        return np.concatenate([np.zeros(0, np.int64), *blocks])


@dataclass(frozen=True)
class ItemItem:
    """P' = sum_u d_u^(-2 alpha) r_u^T r_u, its upper triangle row by row.

    An entry is a sum of at most max(V) weights of at most one, which bounds it. The total is a
    symmetric sparse matrix of integers.
    """

    name: ClassVar[str] = "item-item"
    n_items: int
    largest_degree: int
    """max(V), public after the first round."""
    alpha: float = 0.5
    width: int = 32

    @property
    def length(self) -> int:
        return self.n_items * (self.n_items + 1) // 2

    @cached_property
    def encoding(self) -> FixedPoint:
        if not self.alpha >= 0:
            raise OverflowRefused(f"alpha = {self.alpha} lets weights exceed one")
        # The rounding of a weight is part of it: the weight of a single item is exactly one.
        return FixedPoint.for_sum(self.width, float(self.largest_degree), 0, signed=False)

    @property
    def broadcast_bytes(self) -> int:
        return 8

    def weights(self, degrees: Integers) -> Integers:
        """The integer that stands for d_u^(-2 alpha)."""
        scale = 2.0**self.encoding.fraction_bits
        if self.alpha == 0.5:
            shares = np.zeros(len(degrees))
            np.divide(1.0, degrees, out=shares, where=degrees > 0)
        else:
            shares = _powers(degrees, -2 * self.alpha)
        return np.rint(shares * scale).astype(np.int64)

    def blocks(self, histories: Histories) -> Iterator[Integers]:
        weights = self.weights(histories.degrees)
        for (first, last), length in zip(self._row_ranges(), self.block_lengths(), strict=True):
            yield self._rows(histories, weights, first, last, length)

    def _rows(
        self, histories: Histories, weights: Integers, first: int, last: int, length: int
    ) -> Integers:
        """Rows first..last of the triangle, one after the other."""
        matrix, by_item = histories.matrix, histories.by_item
        block = np.zeros(length, np.int64)
        kernels.add_triangle_rows(
            first,
            last,
            by_item.indptr,
            by_item.indices,
            matrix.indptr,
            matrix.indices,
            weights,
            self.n_items,
            block,
        )
        return block

    def total(self, histories: Histories) -> sp.csr_array:
        weighted = sp.csr_array(
            (
                np.repeat(self.weights(histories.degrees), histories.degrees),
                histories.matrix.indices,
                histories.matrix.indptr,
            ),
            shape=histories.matrix.shape,
        )
        ones = sp.csr_array(histories.by_item, dtype=np.int64)
        return _canonical(sp.csr_array(ones @ weighted))

    def collect(self, blocks: Iterable[Integers]) -> sp.csr_array:
        rows, columns, data = [], [], []
        for (first, last), block in zip(self._row_ranges(), blocks, strict=True):
            filled = np.flatnonzero(block)
            lengths = np.arange(self.n_items - first, self.n_items - last, -1)
            ends = np.cumsum(lengths)
            local = np.searchsorted(ends, filled, side="right")
            rows.append((first + local).astype(np.int32))
            columns.append((self.n_items - (ends[local] - filled)).astype(np.int32))
            data.append(block[filled])
        row, column, value = (np.concatenate(parts) for parts in (rows, columns, data))
        off = row != column
        shape = (self.n_items, self.n_items)
        upper = sp.coo_array((value, (row, column)), shape=shape).tocsr()
        lower = sp.coo_array((value[off], (column[off], row[off])), shape=shape).tocsr()
        return _canonical(sp.csr_array(upper + lower))

    def block_lengths(self) -> Iterator[int]:
        for first, last in self._row_ranges():
            yield (last - first) * (2 * self.n_items - first - last + 1) // 2

    def _row_ranges(self) -> Iterator[tuple[int, int]]:
        first = 0
        while first < self.n_items:
            last = first + max(1, BLOCK_ENTRIES // (self.n_items - first))
            last = min(last, self.n_items)
            yield first, last
            first = last


class _Outer(ABC):
    """Contributions r_u^T q_u: every item of a history receives the same row q_u.

    In this form ("P' space") a user rounds p numbers once, whatever the length of the history,
    and the error of the sum is the same for rare and popular items once the server has applied
    V^-1/2.
    """

    n_items: int
    columns: int

    @abstractmethod
    def rows_per_user(self, histories: Histories) -> Integers:
        """q_u, (users, columns)."""

    @property
    def length(self) -> int:
        return self.n_items * self.columns

    def blocks(self, histories: Histories) -> Iterator[Integers]:
        sent = self.rows_per_user(histories)
        first = 0
        for length in self.block_lengths():
            last = first + length // self.columns
            yield _summed(histories.by_item[first:last], sent).reshape(-1)
            first = last

    def block_lengths(self) -> Iterator[int]:
        """Whole rows."""
        step = max(1, BLOCK_ENTRIES // self.columns)
        for first in range(0, self.n_items, step):
            yield min(step, self.n_items - first) * self.columns

    def total(self, histories: Histories) -> Integers:
        """(items, columns), a few columns at a time so that a block stays in the cache."""
        out = np.empty((self.n_items, self.columns), np.int64)
        sent = self.rows_per_user(histories)
        for first in range(0, self.columns, kernels.COLUMNS):
            part = np.ascontiguousarray(sent[:, first : first + kernels.COLUMNS])
            out[:, first : first + kernels.COLUMNS] = _summed(histories.by_item, part)
        return out

    def collect(self, blocks: Iterable[Integers]) -> Integers:
        return np.concatenate([np.zeros(0, np.int64), *blocks]).reshape(self.n_items, self.columns)


@dataclass(frozen=True)
class _BroadcastBlock(_Outer):
    """Contributions that depend on a matrix which everybody receives first."""

    item_degrees: Integers
    block: NDArray[np.int32]
    """In units of 2^-block_bits; one row an item or a user."""
    block_bits: int
    width: int = 32

    def __post_init__(self) -> None:
        # Compiled loops do not check where they read.
        if self.block.ndim != 2 or self.block.dtype != np.int32:
            raise FederationError("a block must be a matrix of 32-bit integers")

    @property
    def n_items(self) -> int:  # type: ignore[override]
        return len(self.item_degrees)

    @property
    def columns(self) -> int:  # type: ignore[override]
        return int(self.block.shape[1])

    @property
    def broadcast_bytes(self) -> int:
        return self.block.nbytes

    @property
    def largest_degree(self) -> int:
        return int(self.item_degrees.max(initial=0))

    def bound_by_norm(self, row_weights: Integers | None = None) -> float:
        """sqrt(V_max) max_c |X_c|, where |X_c|^2 is the weighted sum of squares of column c."""
        weights = np.ones(len(self.block)) if row_weights is None else row_weights.astype(float)
        squares = np.zeros(self.columns)
        # Not a matrix product: clients find the scale themselves and must find the same one.
        kernels.add_squares(self.block, weights, squares)
        norm = float(np.ldexp(np.sqrt(squares.max(initial=0.0)), -self.block_bits))
        return float(np.sqrt(self.largest_degree)) * norm * (1 + 1e-9)


@dataclass(frozen=True)
class PowerStep(_BroadcastBlock):
    """P' W for a broadcast block W = V^-1/2 X: q_u = (1/d_u) r_u W.

    Two bounds on an entry of row i, whichever is smaller. Each q_u is a mean of entries of W, so
    V_i max|W| bounds the sum. And |(P' W)_ic| = sqrt(V_i) |(P~ X)_ic| <= sqrt(V_i) |X_c|, since
    the spectral norm of P~ is at most one, for any part of the cohort.
    """

    name: ClassVar[str] = "power-step"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.block) != self.n_items:
            raise FederationError(f"a block of {len(self.block)} rows for {self.n_items} items")

    @classmethod
    def of(cls, x: NDArray[np.float64], item_degrees: Integers, width: int) -> PowerStep:
        """The step that multiplies X with P~."""
        block, bits = _quantize(degree_power(item_degrees, -0.5)[:, None] * x)
        return cls(item_degrees, block, bits, width)

    @cached_property
    def encoding(self) -> FixedPoint:
        largest = self.largest_degree
        top = int(max(self.block.max(initial=0), -int(self.block.min(initial=0))))
        by_mean = largest * float(np.ldexp(float(top), -self.block_bits))
        bound = min(by_mean, self.bound_by_norm(self.item_degrees))
        return FixedPoint.for_sum(self.width, bound, largest, signed=True)

    def rows_per_user(self, histories: Histories) -> Integers:
        shift = self.encoding.fraction_bits - self.block_bits
        sent = np.empty((histories.n_users, self.columns), np.int64)
        for first in range(0, self.columns, kernels.COLUMNS):
            part = np.ascontiguousarray(self.block[:, first : first + kernels.COLUMNS])
            sums = np.empty((histories.n_users, part.shape[1]), np.int64)
            matrix = histories.matrix
            kernels.mean_rows(matrix.indptr, matrix.indices, part, 2.0**shift, sums)
            sent[:, first : first + kernels.COLUMNS] = sums
        return sent


@dataclass(frozen=True)
class SeededStep(_Outer):
    """The first power step, from a start block that everybody derives from 32 public bytes.

    X_0 has entries +1 and -1, drawn by SHAKE-256, so that a seed replaces a broadcast matrix.
    """

    name: ClassVar[str] = "seeded-step"
    item_degrees: Integers
    seed: bytes
    columns: int
    width: int = 32

    def start(self) -> NDArray[np.float64]:
        """X_0."""
        return start_signs(self.seed, len(self.item_degrees), self.columns).astype(np.float64)

    @cached_property
    def _step(self) -> PowerStep:
        return PowerStep.of(self.start(), self.item_degrees, self.width)

    @property
    def n_items(self) -> int:  # type: ignore[override]
        return len(self.item_degrees)

    @property
    def encoding(self) -> FixedPoint:
        return self._step.encoding

    @property
    def broadcast_bytes(self) -> int:
        return len(self.seed)

    def rows_per_user(self, histories: Histories) -> Integers:
        return self._step.rows_per_user(histories)


@dataclass(frozen=True)
class UserStart(_BroadcastBlock):
    """The paper's start: sum_u A_u^T X_0[u, :] with one broadcast row per user.

    q_u = d_u^-1/2 X_0[u, :]. By Cauchy and Schwarz an entry of row i is at most sqrt(V_i) |X_c|.
    """

    name: ClassVar[str] = "user-start"

    @classmethod
    def of(cls, x: NDArray[np.float64], item_degrees: Integers, width: int) -> UserStart:
        block, bits = _quantize(x)
        return cls(item_degrees, block, bits, width)

    @cached_property
    def encoding(self) -> FixedPoint:
        bound = self.bound_by_norm()
        return FixedPoint.for_sum(self.width, bound, self.largest_degree, signed=True)

    def rows_per_user(self, histories: Histories) -> Integers:
        last = histories.first_user + histories.n_users
        if last > len(self.block):
            raise OverflowRefused(f"user {last - 1} has no row in a start block of this cohort")
        roots = np.sqrt(np.maximum(histories.degrees, 1).astype(np.float64))[:, None]
        scale = 2.0 ** (self.encoding.fraction_bits - self.block_bits)
        rows = self.block[histories.first_user : last]
        return np.rint(rows / roots * scale).astype(np.int64)


REGISTRY: dict[str, type] = {
    kind.name: kind for kind in (ItemDegrees, ItemItem, PowerStep, SeededStep, UserStart)
}


def start_signs(seed: bytes, n_items: int, columns: int) -> NDArray[np.int8]:
    """+1 and -1, (items, columns): column c is SHAKE-256 of the seed and c, bit i for item i."""
    signs = np.empty((n_items, columns), np.int8)
    for column in range(columns):
        stream = hashlib.shake_256(b"privirec/start/1\0" + seed + column.to_bytes(4, "little"))
        bits = np.unpackbits(
            np.frombuffer(stream.digest(-(-n_items // 8)), np.uint8), bitorder="little"
        )
        signs[:, column] = 1 - 2 * bits[:n_items].astype(np.int8)
    return signs


def _quantize(matrix: NDArray[np.float64]) -> tuple[NDArray[np.int32], int]:
    """A matrix as 32-bit integers in units of 2^-bits, as fine as the largest entry allows."""
    top = float(np.abs(matrix).max(initial=0.0))
    bits = BROADCAST_BITS - (int(np.frexp(top)[1]) if top > 0 else 0)
    return np.rint(np.ldexp(matrix, bits)).astype(np.int32), bits


def _powers(degrees: Integers, exponent: float) -> NDArray[np.float64]:
    """degrees ** exponent, zero for zero, in decimals: libraries round powers of doubles unlike."""
    context = Context(prec=40)
    known, where = np.unique(degrees, return_inverse=True)
    powers = [float(context.power(d, Decimal(exponent))) if d else 0.0 for d in known.tolist()]
    return np.array(powers)[where]


def _summed(by_item: sp.csr_array, sent: Integers) -> Integers:
    """For each item, the sum of what its users send: (items, columns)."""
    out = np.empty((by_item.shape[0], sent.shape[1]), np.int64)
    kernels.sum_rows(by_item.indptr, by_item.indices, sent, out)
    return out


def _canonical(matrix: sp.csr_array) -> sp.csr_array:
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix
