"""P', the item-item matrix."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import scipy.sparse as sp

from privirec.errors import FederationError, OverflowRefused
from privirec.federated.contributions import base
from privirec.federated.contributions.base import (
    ClientContext,
    Contribution,
    Histories,
    Integers,
    PlannedSum,
    SumShape,
)
from privirec.federated.contributions.outer import kernels
from privirec.federated.fixed_point import FixedPoint
from privirec.federated.randomness import NO_RANDOMNESS, ClientStream, RandomStream
from privirec.filters import exact


@dataclass(frozen=True)
class ItemItem(Contribution):
    """P' = sum_u d_u^(-2 alpha) r_u^T r_u, its upper triangle row by row.

    An entry is a sum of at most max(V) weights of at most one, which bounds it. The total is a
    symmetric sparse matrix of integers.
    """

    name: ClassVar[str] = "item-item"
    gives_away: ClassVar[str] = (
        "every history: the entries of an item with few users are sums of a handful of weights, "
        "and what they give away can be taken out to find the next"
    )
    is_item_item: ClassVar[bool] = True
    n_items: int
    largest_degree: int
    """max(V), public after the first round."""
    alpha: float = 0.5
    width: int = 32

    @classmethod
    def planned(cls, n_items: int, alpha: float, width: int) -> PlannedSum:
        fixed = {"n_items": n_items, "alpha": alpha, "width": width}
        return PlannedSum(cls, cls.shape_of(n_items, width), fixed)

    @staticmethod
    def shape_of(n_items: int, width: int) -> SumShape:
        return SumShape(n_items * (n_items + 1) // 2, width, signed=False, broadcast_bytes=8)

    @property
    def shape(self) -> SumShape:
        return self.shape_of(self.n_items, self.width)

    @cached_property
    def encoding(self) -> FixedPoint:
        if not self.alpha >= 0:
            raise OverflowRefused(f"alpha = {self.alpha} lets weights exceed one")
        # No allowance for rounding is needed: one is exact in whole units, so no rounded weight
        # exceeds it.
        bound = float(self.largest_degree)
        return FixedPoint.for_sum(self.width, bound, 0, signed=self.shape.signed)

    def check(self, context: ClientContext) -> None:
        if not 0 <= self.largest_degree <= context.n_users:
            raise FederationError("a largest item degree that cannot be")
        if self.largest_degree < int(context.histories.item_degrees.max(initial=0)):
            context.contradict("a largest item degree below this client's own")

    def weights(self, degrees: Integers) -> Integers:
        """Return the integers that represent d_u^(-2 alpha)."""
        scale = math.ldexp(1.0, self.encoding.fraction_bits)
        if self.alpha == 0.5:
            shares = np.zeros(len(degrees))
            np.divide(1.0, degrees, out=shares, where=degrees > 0)
        else:
            shares = exact.powers(degrees, -2 * self.alpha)
        return np.rint(shares * scale).astype(np.int64)

    def blocks(
        self, histories: Histories, randomness: RandomStream = NO_RANDOMNESS
    ) -> Iterator[Integers]:
        yield from self.weighted_blocks(histories, self.weights(histories.degrees))

    def weighted_blocks(self, histories: Histories, weights: Integers) -> Iterator[Integers]:
        """Yield a client's vector for users with these weights."""
        for (first, last), length in zip(self.row_ranges(), self.block_lengths(), strict=True):
            yield self._rows(histories, weights, first, last, length)

    def _rows(
        self, histories: Histories, weights: Integers, first: int, last: int, length: int
    ) -> Integers:
        """Return rows first..last of the triangle, concatenated."""
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

    def total(
        self, histories: Histories, randomness: Iterable[ClientStream] = NO_RANDOMNESS
    ) -> sp.csr_array:
        return self.weighted_total(histories, self.weights(histories.degrees))

    def weighted_total(self, histories: Histories, weights: Integers) -> sp.csr_array:
        """Return the sum over all users with these weights."""
        weighted = sp.csr_array(
            (
                np.repeat(weights, histories.degrees),
                histories.matrix.indices,
                histories.matrix.indptr,
            ),
            shape=histories.matrix.shape,
        )
        ones = sp.csr_array(histories.by_item, dtype=np.int64)
        return _canonical(sp.csr_array(ones @ weighted))

    def collect(self, blocks: Iterable[Integers]) -> sp.csr_array:
        rows, columns, data = [], [], []
        for (first, last), block in zip(self.row_ranges(), blocks, strict=True):
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
        """Yield the lengths of blocks of whole rows of the triangle, which become shorter."""
        for first, last in self.row_ranges():
            yield (last - first) * (2 * self.n_items - first - last + 1) // 2

    def row_ranges(self) -> Iterator[tuple[int, int]]:
        first = 0
        while first < self.n_items:
            last = first + max(1, base.BLOCK_ENTRIES // (self.n_items - first))
            last = min(last, self.n_items)
            yield first, last
            first = last


def _canonical(matrix: sp.csr_array) -> sp.csr_array:
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix
