"""The sum that all trained methods use: each person adds one row, weighted, to some of the items.

A person u adds c_u^T q_u: the row q_u on each of some items, times a weight for each item. Clients
send all rows of the sum, because the rows that are not zero would reveal which items the person
has. This makes training expensive. Entries are clipped to a public bound, scaled by the number of
people who may add to a row, and rounded up or down at random without bias. The sum of the integers
is therefore right on average in a ring of any width.

These sums are only for comparisons in a simulation. People's rows come from floating-point
arithmetic that another machine may round differently, so they are not registered for networks.
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
"""Local computation: returns weights of items (users, rows) and rows (users, columns)."""
ROW_SCALE_BYTES = 4


@dataclass(frozen=True)
class WeightedRows(Contribution):
    """The sum over users u of c_u^T q_u, of shape (rows, columns)."""

    name: ClassVar[str] = "weighted-rows"
    gives_away: ClassVar[str] = "an exact sum of gradients, which is not proven safe"
    at_home: AtHome
    columns: int
    most_people: Integers
    """Largest number of terms in each row of the sum; public."""
    clip: float
    """Bound on the absolute value of an entry c_ui q_uc."""
    width: int
    dither: int
    """Public seed of the random rounding."""
    told_bytes: int = 0
    """Size of the public inputs that every client receives first."""

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
        """Encoding of rows divided by `reach`, so that sums are bounded by one.

        Random rounding moves a term by less than one unit. `for_sum` assumes half a unit, hence
        the factor of two.
        """
        roundings = 2 * (int(self.most_people.max(initial=0)) + 1)
        return FixedPoint.for_sum(self.width, 1.0, roundings, signed=True)

    @property
    def reach(self) -> NDArray[np.float64]:
        """Bound on the absolute values in each row of the sum."""
        return self.clip * np.maximum(self.most_people, 1).astype(np.float64)

    def check(self, context: ClientContext) -> None:
        """Accept everything: clients on a network are never asked for this sum."""

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
        """Return the sum as real numbers, with the scale of each row restored."""
        scaled = self.encoding.decode(total) * self.reach[:, None]
        return np.asarray(scaled, np.float32)


@njit(cache=True)
def add_weighted_rows(  # type: ignore[no-untyped-def]
    indptr, indices, weights, rows, scales, clip, seed, first_user, out
):
    """Add floor(scale_i clip(c_i q) + dither) to out[i] for each person's items i.

    The dither is one number in [0, 1) per person and column, the same for all items.
    """
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
class ToldToClients:
    """A matrix as clients receive it: integers of a given width, and one scale per row."""

    values: Float32
    n_bytes: int

    @classmethod
    def of(cls, matrix: NDArray, bits: int) -> ToldToClients:
        largest = 2 ** (bits - 1) - 1
        scale = np.abs(matrix).max(axis=1, initial=0.0, keepdims=True).astype(np.float32) / largest
        scale = np.where(scale > 0, scale, np.float32(1))
        values = (np.rint(matrix / scale) * scale).astype(np.float32)
        return cls(values, -(-matrix.size * bits // 8) + ROW_SCALE_BYTES * len(matrix))
