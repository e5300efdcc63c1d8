"""The noisy sum that all peers use: each person adds one row, weighted, to each of their items.

A person adds the matrix a z^T, where a holds the weights of the person's items and z is a row
computed from them. Both have length at most one, so the matrix has Frobenius norm at most one.
Entries are rounded towards zero, and a margin covers floating-point errors, as in the power steps
of `protected`.

These sums are only for comparisons in a simulation. Their rows come from floating-point arithmetic
that another machine may round differently, so they are not registered for networks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numba import njit
from numpy.typing import NDArray

from privirec.federated.contributions import Histories, NoiseShare, PlannedSum
from privirec.federated.contributions.base import Integers
from privirec.federated.contributions.noisy import HeadSum

Floats = NDArray[np.float64]
PEOPLE_AT_ONCE = 4096


@dataclass(frozen=True)
class RowSum(HeadSum):
    """sum_u a_u z_u^T with noise."""

    weights: Floats
    """Weight of each head item, in arbitrary units."""
    least_length: float
    """Least length by which a person's weights are divided, in the units of `weights`.

    A person whose weights are shorter contributes less than a full unit. At 0, nobody does.
    """
    everybody: float
    """Share of a person's squared length that goes into one extra row, to which all people add."""

    @classmethod
    def planned(cls, n_items: int, n_users: int, share: NoiseShare, **sizes: Any) -> PlannedSum:
        fixed = {"n_items": n_items, "n_users": n_users, **asdict(share)}
        return PlannedSum(cls, cls.sized(fixed, sizes).shape, fixed)

    @classmethod
    @abstractmethod
    def sized(cls, fixed: Mapping[str, Any], sizes: Mapping[str, Any]) -> Self:
        """Return a placeholder of these sizes, from which the shape of the sum follows."""

    @abstractmethod
    def rows(self, matrix: sp.csr_array) -> Floats:
        """Return z_u for each person. `add_rows` scales rows longer than one to length one."""

    @abstractmethod
    def chosen(self, histories: Histories) -> sp.csr_array:
        """Return each person's head items that receive a row."""

    @property
    @abstractmethod
    def row_length(self) -> int: ...

    @property
    def n_rows(self) -> int:
        return len(self.items) + (self.everybody > 0)

    @property
    def row_entries(self) -> int:
        return self.row_length

    @property
    def _length(self) -> int:
        return self.n_rows * self.row_length

    def exact_blocks(self, histories: Histories) -> Iterator[Integers]:
        total = np.zeros((self.n_rows, self.row_length), np.int64)
        matrix = self.chosen(histories)
        everything = self.on_head(histories).matrix
        for start in range(0, matrix.shape[0], PEOPLE_AT_ONCE):
            part = matrix[start : start + PEOPLE_AT_ONCE]
            rows = self.rows(everything[start : start + PEOPLE_AT_ONCE])
            add_rows(
                part.indptr,
                part.indices,
                self.weights,
                self.least_length,
                self.everybody,
                rows,
                float(self._unit),
                total,
            )
        return self.pieces(total)

    def collect(self, blocks: Iterable[Integers]) -> Integers:
        summed: Integers = super().collect(blocks)
        return summed.reshape(self.n_rows, self.row_length)


@njit(cache=True)
def add_rows(  # type: ignore[no-untyped-def]
    indptr, indices, weights, least_length, everybody, rows, unit, out
):
    """Add a_i z to out[i] for each person's items i, in units and rounded towards zero.

    |a| and |z| are at most one. Rows of zeros, and rows that are not finite, are skipped.
    """
    columns = rows.shape[1]
    for person in range(len(indptr) - 1):
        first, last = indptr[person], indptr[person + 1]
        row = rows[person]
        squares = 0.0
        for position in range(first, last):
            weight = weights[indices[position]]
            squares += weight * weight
        length = 0.0
        for column in range(columns):
            length += row[column] * row[column]
        if not (0.0 < length < np.inf):  # Zero, infinite or NaN.
            continue
        margin = 1.0 - (last - first + columns + 32) * 2.0**-52
        scale = unit * margin / max(1.0, np.sqrt(length))
        if everybody > 0.0:
            target = out[out.shape[0] - 1]
            for column in range(columns):
                target[column] += np.int64(np.sqrt(everybody) * scale * row[column])
        if not (0.0 < squares < np.inf):
            continue
        scale *= np.sqrt(1.0 - everybody) / max(least_length, np.sqrt(squares))
        for position in range(first, last):
            factor = scale * weights[indices[position]]
            target = out[indices[position]]
            for column in range(columns):
                target[column] += np.int64(factor * row[column])
