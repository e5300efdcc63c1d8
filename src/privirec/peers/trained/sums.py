"""The one kind of sum behind trained methods: every person's row of numbers, on the own items.

A person u adds c_u^T q_u: a row q_u on each of some items, times a weight for each. All rows of the
sum are sent, since which of them are not zero would tell what the person has: that is what training
costs. Entries are clipped to a public bound, scaled to how many people may add to a row, and
rounded up or down at random without bias: the sum of the integers is then right on average, however
narrow the ring.

These sums are for comparisons in a simulation: what people compute at home comes from floating
point that another machine may round otherwise, so they are not registered for networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.sparse as sp
from numba import njit
from numpy.typing import NDArray

from privirec.federated.contributions import ClientContext, Contribution, Histories, SumShape
from privirec.federated.contributions.base import Integers
from privirec.federated.fixed_point import FixedPoint
from privirec.federated.kernels import mixed
from privirec.federated.randomness import NO_RANDOMNESS, ClientStream, RandomStream

Float32 = NDArray[np.float32]
AtHome = Callable[[Histories], tuple[sp.csr_array, Float32]]
"""What people compute for themselves: weights of items (users, rows) and rows (users, columns)."""
ROW_SCALE_BYTES = 4


@dataclass(frozen=True)
class WeightedRows(Contribution):
    """sum_u c_u^T q_u, of shape (rows, columns)."""

    name: ClassVar[str] = "weighted-rows"
    gives_away: ClassVar[str] = "an exact sum of gradients, which is not proven safe"
    at_home: AtHome
    columns: int
    most_people: Integers
    """For each row of the sum, of how many terms it can be made; public."""
    clip: float
    """Of an entry c_ui q_uc."""
    width: int
    dither: int
    """Public seed of the rounding."""
    told_bytes: int = 0
    """Of what everybody is told before."""

    @property
    def n_items(self) -> int:  # type: ignore[override]
        return len(self.most_people)

    @property
    def shape(self) -> SumShape:
        return SumShape(self.n_items * self.columns, self.width, True, self.told_bytes)

    @property
    def row_entries(self) -> int:
        return self.columns

    @property
    def encoding(self) -> FixedPoint:
        """Of a row divided by the most that it can be: one. Rounding moves a term by less than a
        unit, twice what `for_sum` takes it for."""
        roundings = 2 * (int(self.most_people.max(initial=0)) + 1)
        return FixedPoint.for_sum(self.width, 1.0, roundings, signed=True)

    @property
    def reach(self) -> NDArray[np.float64]:
        """The most that each row can be."""
        return self.clip * np.maximum(self.most_people, 1).astype(np.float64)

    def check(self, context: ClientContext) -> None:
        """Nobody is asked for it over a network."""

    def blocks(
        self, histories: Histories, randomness: RandomStream = NO_RANDOMNESS
    ) -> Iterator[Integers]:
        return self.pieces(self.total(histories))

    def total(
        self, histories: Histories, randomness: Iterable[ClientStream] = NO_RANDOMNESS
    ) -> Integers:
        weights, rows = self.at_home(histories)
        out = np.zeros((self.n_items, self.columns), np.int64)
        add_weighted_rows(
            weights.indptr,
            weights.indices,
            weights.data,
            rows,
            np.ldexp(1.0, self.encoding.fraction_bits) / self.reach,
            self.clip,
            np.uint64(self.dither),
            histories.first_user,
            out,
        )
        return out

    def collect(self, blocks: Iterable[Integers]) -> Integers:
        summed: Integers = super().collect(blocks)
        return summed.reshape(self.n_items, self.columns)

    def decode(self, total: Integers) -> Float32:
        """The sum in its own values."""
        scaled = self.encoding.decode(total) * self.reach[:, None]
        return np.asarray(scaled, np.float32)


@njit(cache=True)
def add_weighted_rows(  # type: ignore[no-untyped-def]
    indptr, indices, weights, rows, scales, clip, seed, first_user, out
):
    """out[i] += floor(scale_i clip(c_i q) + dither) for each person's items i; the dither is one
    number in [0, 1) for each person and column, the same for all items."""
    columns = rows.shape[1]
    dither = np.empty(columns)
    for person in range(len(indptr) - 1):
        state = mixed(seed ^ mixed(np.uint64(first_user + person)))
        for column in range(columns):
            bits = mixed(state + np.uint64(column))
            dither[column] = np.float64(bits >> np.uint64(11)) * 2.0**-53
        row = rows[person]
        for position in range(indptr[person], indptr[person + 1]):
            weight = np.float64(weights[position])
            scale = scales[indices[position]]
            target = out[indices[position]]
            for column in range(columns):
                value = min(max(weight * row[column], -clip), clip)
                target[column] += np.int64(np.floor(value * scale + dither[column]))


@dataclass(frozen=True)
class Told:
    """A matrix as clients get it: whole numbers of so many bits, and a scale for each row."""

    values: Float32
    n_bytes: int

    @classmethod
    def of(cls, matrix: NDArray, bits: int) -> Told:
        largest = 2 ** (bits - 1) - 1
        scale = np.abs(matrix).max(axis=1, initial=0.0, keepdims=True).astype(np.float32) / largest
        scale = np.where(scale > 0, scale, np.float32(1))
        values = (np.rint(matrix / scale) * scale).astype(np.float32)
        return cls(values, -(-matrix.size * bits // 8) + ROW_SCALE_BYTES * len(matrix))
