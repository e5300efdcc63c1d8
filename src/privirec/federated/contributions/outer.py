"""Contributions of the form r_u^T q_u: every item of a history receives the same row q_u.

In this form ("P' space") a user rounds p numbers once, whatever the length of the history. The
error of the sum is the same for rare and popular items once the server has applied V^-1/2.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privirec.compiled import Loops
from privirec.errors import FederationError
from privirec.federated.contributions.base import (
    ClientContext,
    Contribution,
    Histories,
    Integers,
    SumShape,
)
from privirec.federated.randomness import NO_RANDOMNESS, ClientStream, RandomStream

kernels = Loops("privirec.federated.kernels", in_numpy="privirec.federated.kernels_in_numpy")

# Number of columns processed at a time. A block of a Gowalla-sized matrix then fits into the
# last-level cache.
COLUMNS = 64


# Entries of broadcast matrices stay below 2^BROADCAST_BITS, inside a 32-bit integer.
BROADCAST_BITS = 30
MOST_BLOCK_BITS = 2048
"""Bound on |block_bits|: units lie between 2^-MOST_BLOCK_BITS and its inverse, a wider range than
that of double precision."""
BROADCAST_ENTRY = 4
"""Bytes per entry of a broadcast matrix."""


class PerItem(Contribution):
    """Sums with the same number of entries per item, once V is known."""

    per_item: ClassVar[bool] = True
    item_degrees: Integers
    """V, public after the first round."""

    @property
    def n_items(self) -> int:  # type: ignore[override]
        return len(self.item_degrees)

    def rows_of(self, histories: Histories) -> Integers:
        return np.unique(histories.matrix.indices).astype(np.int64)

    @property
    def items_in_use(self) -> int:
        return int(np.count_nonzero(self.item_degrees))


class OuterProducts(PerItem):
    """Sums of r_u^T q_u, of shape (items, columns)."""

    columns: int
    width: int

    @property
    def rows(self) -> int:
        return self.n_items

    @abstractmethod
    def rows_per_user(self, histories: Histories) -> Integers:
        """Return q_u, of shape (users, columns)."""

    @property
    def row_entries(self) -> int:
        return self.columns

    @staticmethod
    def shape_of(n_items: int, columns: int, width: int, broadcast_bytes: int) -> SumShape:
        return SumShape(n_items * columns, width, signed=True, broadcast_bytes=broadcast_bytes)

    def check(self, context: ClientContext) -> None:
        context.check_item_degrees(self.item_degrees)

    def blocks(
        self, histories: Histories, randomness: RandomStream = NO_RANDOMNESS
    ) -> Iterator[Integers]:
        sent = self.rows_per_user(histories)
        first = 0
        for length in self.block_lengths():
            last = first + length // self.columns
            yield self._summed(histories, sent, first, last).reshape(-1)
            first = last

    def total(
        self, histories: Histories, randomness: Iterable[ClientStream] = NO_RANDOMNESS
    ) -> Integers:
        """Return the sum of shape (rows, columns), a few columns at a time to stay in the cache."""
        out = np.empty((self.rows, self.columns), np.int64)
        sent = self.rows_per_user(histories)
        for first in range(0, self.columns, COLUMNS):
            part = np.ascontiguousarray(sent[:, first : first + COLUMNS])
            summed = self._summed(histories, part, 0, self.rows, first)
            out[:, first : first + COLUMNS] = summed
        return out

    def _summed(
        self, histories: Histories, sent: Integers, first: int, last: int, first_column: int = 0
    ) -> Integers:
        """Return, for each row from `first` to `last`, the sum of its users' rows in `sent`.

        `sent` holds all columns, or consecutive ones from `first_column` on.
        """
        out = np.empty((last - first, sent.shape[1]), np.int64)
        by_item = histories.by_item
        kernels.sum_rows(by_item.indptr[first : last + 1], by_item.indices, sent, out)
        return out

    def collect(self, blocks: Iterable[Integers]) -> Integers:
        summed: Integers = super().collect(blocks)
        return summed.reshape(self.rows, self.columns)


@dataclass(frozen=True)
class BroadcastBlock(OuterProducts):
    """Contributions that depend on a matrix broadcast to every client first."""

    item_degrees: Integers
    block: NDArray[np.int32]
    """Broadcast matrix in units of 2^-block_bits, one row per item or per user."""
    block_bits: int
    width: int = 32

    def __post_init__(self) -> None:
        # Compiled loops do not check array bounds.
        if self.block.ndim != 2 or self.block.dtype != np.int32:
            raise FederationError("a block must be a matrix of 32-bit integers")
        if abs(self.block_bits) > MOST_BLOCK_BITS:
            raise FederationError(f"a block in units of 2^{-self.block_bits}")

    @property
    def columns(self) -> int:  # type: ignore[override]
        return int(self.block.shape[1])

    @property
    def shape(self) -> SumShape:
        return self.shape_of(self.n_items, self.columns, self.width, self.block.nbytes)

    @property
    def largest_degree(self) -> int:
        return int(self.item_degrees.max(initial=0))

    def bound_by_norm(self, row_weights: Integers | None = None) -> float:
        """Return sqrt(V_max) max_c |X_c|, where |X_c|^2 is the weighted sum of squares of column
        c."""
        weights = np.ones(len(self.block)) if row_weights is None else row_weights.astype(float)
        squares = np.zeros(self.columns)
        # A matrix product could round differently on other machines. Each client computes the
        # scale, and all must get the same one.
        kernels.add_squares(self.block, weights, squares)
        norm = float(np.ldexp(np.sqrt(squares.max(initial=0.0)), -self.block_bits))
        return float(np.sqrt(self.largest_degree)) * norm * (1 + 1e-9)


def quantize(matrix: NDArray[np.float64]) -> tuple[NDArray[np.int32], int]:
    """Return the matrix as 32-bit integers in units of 2^-bits, as fine as the largest entry
    allows."""
    top = float(np.abs(matrix).max(initial=0.0))
    bits = BROADCAST_BITS - (int(np.frexp(top)[1]) if top > 0 else 0)
    return np.rint(np.ldexp(matrix, bits)).astype(np.int32), bits
