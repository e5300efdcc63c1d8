"""Private alternating least squares: DPALS (Chien et al. 2021), Ada-DPALS (Krichene et al. 2023).

Each person solves for their own vector u, which never leaves the device. The server solves for the
item vectors from two kinds of noisy sums: w u u^T and w u over the people who have an item, and
u u^T over all people (the loss of untouched pairs). |u| is clipped to one, and a person's weights
w over the items share one unit of squared length.

Plain DPALS keeps at most `items_each` items per person, all with weight items_each^-1/2. The
adaptive version keeps all items and weights them by noisy popularity to the power -adapt,
normalised per person so that each person uses the whole unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from numba import njit
from numpy.typing import NDArray

from privirec.experiments.peers.base import ByPopularity, Float32, Floats, PeerInRounds, PeerSteps
from privirec.experiments.peers.sums import RowSum
from privirec.federated.contributions import Histories, PlannedSum

GOLDEN = (math.sqrt(5) - 1) / 2


def triangle(size: int) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Return row and column indices of the upper triangle, and a factor for each entry.

    The factor is sqrt(2) off the diagonal, so that the triangle of a symmetric matrix has the
    Frobenius norm of the whole matrix.
    """
    rows, columns = np.triu_indices(size)
    return rows, columns, np.where(rows == columns, 1.0, math.sqrt(2))


@dataclass(frozen=True)
class UserSide:
    """Local solver for people's vectors, given the public item vectors."""

    vectors: Floats
    unobserved: float
    """Weight of untouched pairs in the loss."""
    ridge: float

    def solve(self, histories: sp.csr_array) -> Floats:
        size = self.vectors.shape[1]
        everything = self.unobserved * self.vectors.T @ self.vectors + self.ridge * np.eye(size)
        return solve_people(histories.indptr, histories.indices, self.vectors, everything, 0.0)


@njit(cache=True)
def solve_people(indptr, indices, vectors, everything, ridge_for_each):  # type: ignore[no-untyped-def]
    """Return (sum of v v^T + count * ridge_for_each * I + everything)^-1 (sum of v) per person.

    Sums and the count are over the person's items. The systems are solved by Cholesky factors.
    NaN in `vectors` gives NaN in the result, which `add_rows` skips.
    """
    size = vectors.shape[1]
    found = np.zeros((len(indptr) - 1, size))
    lower = np.empty((size, size))
    for person in range(len(indptr) - 1):
        own = found[person]
        lower[:] = everything
        for row in range(size):
            lower[row, row] += ridge_for_each * (indptr[person + 1] - indptr[person])
        for position in range(indptr[person], indptr[person + 1]):
            vector = vectors[indices[position]]
            for row in range(size):
                own[row] += vector[row]
                for column in range(row + 1):
                    lower[row, column] += vector[row] * vector[column]
        for row in range(size):
            for column in range(row + 1):
                value = lower[row, column]
                for inner in range(column):
                    value -= lower[row, inner] * lower[column, inner]
                if row > column:
                    lower[row, column] = value / lower[column, column]
                else:
                    lower[row, row] = np.sqrt(value)
        for row in range(size):
            for inner in range(row):
                own[row] -= lower[row, inner] * own[inner]
            own[row] /= lower[row, row]
        for row in range(size - 1, -1, -1):
            for inner in range(row + 1, size):
                own[row] -= lower[inner, row] * own[inner]
            own[row] /= lower[row, row]
    return found


@dataclass(frozen=True)
class AlsSum(RowSum):
    """Sum whose row z_u holds the triangle of u u^T, and u.

    u is clipped, and both parts share one unit of squared length.
    """

    name: ClassVar[str] = "peer-als-step"
    gives_away: ClassVar[str] = "noisy sums over the people of an item of what they solved for"
    side: UserSide
    clip: float
    outer: float
    """Share of the squared length for u u^T; u has the rest."""
    items_each: int | None

    @classmethod
    def sized(cls, fixed: Mapping[str, Any], sizes: Mapping[str, Any]) -> Self:
        head, columns, everybody = sizes["head"], sizes["columns"], sizes["everybody"]
        return cls(
            **fixed,
            items=np.arange(head),
            weights=np.ones(head),
            least_length=0.0,
            everybody=everybody,
            side=UserSide(np.zeros((head, columns)), 1.0, 1.0),
            clip=1.0,
            outer=0.5,
            items_each=None,
        )

    @property
    def row_length(self) -> int:
        size = self.side.vectors.shape[1]
        return int(size * (size + 1) // 2 + size)

    @property
    def _broadcast_bytes(self) -> int:
        return super()._broadcast_bytes + 4 * (self.side.vectors.size + len(self.items))

    def chosen(self, histories: Histories) -> sp.csr_array:
        """Return at most `items_each` head items per person.

        They are the first in a public order that differs from person to person.
        """
        matrix = self.on_head(histories).matrix
        if self.items_each is None:
            return matrix
        people = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        numbers = np.random.Generator(np.random.Philox(1)).random(matrix.shape[1])
        keys = (numbers[matrix.indices] + GOLDEN * (people + histories.first_user)) % 1.0
        order = np.lexsort((keys, people))
        rank = np.arange(len(people)) - matrix.indptr[people]
        kept = order[rank < self.items_each]
        pairs = people[kept], matrix.indices[kept]
        return sp.csr_array((np.ones(len(kept)), pairs), shape=matrix.shape)

    def rows(self, matrix: sp.csr_array) -> Floats:
        found = self.side.solve(matrix)
        lengths = np.linalg.norm(found, axis=1)
        found /= np.maximum(lengths, self.clip)[:, None]
        first, second, factor = triangle(found.shape[1])
        pairs = found[:, first] * found[:, second] * factor
        return np.hstack([math.sqrt(self.outer) * pairs, math.sqrt(1 - self.outer) * found])


@dataclass(frozen=True)
class PrivateAls(PeerInRounds):
    """DPALS: at most `items_each` items per person, with equal weights."""

    name: ClassVar[str] = "dpals"
    title: ClassVar[str] = "DPALS"
    head: int = 1000
    columns: int = 16
    clip: float = 0.3
    outer: float = 0.3
    everybody: float = 0.02
    unobserved: float = 0.1
    """Weight of untouched pairs when people solve for their vectors."""
    item_unobserved: float = 0.1
    """Weight of untouched pairs when the server solves for the item vectors.

    Touched items have weights below one in that step.
    """
    user_ridge: float = 1.0
    noise_ridge: float = 2.0
    """Ridge of the item side, in units of the noise in an item's matrix."""
    items_each: int | None = 20
    adapt: float = 0.0
    lift: float = 0.0
    """Power of popularity by which scores are multiplied."""

    @property
    def lengths(self) -> list[int]:
        row = self.columns * (self.columns + 1) // 2 + self.columns
        return [self.n_items, *[(self.items_on_top + 1) * row] * self.rounds]

    def later_sums(self) -> list[PlannedSum]:
        sizes: dict[str, Any] = {"head": self.items_on_top, "columns": self.columns}
        return [
            AlsSum.planned(self.n_items, self.n_users, share, everybody=self.everybody, **sizes)
            for share in self.calibration.shares[1:]
        ]

    def later_steps(self, sums: list[PlannedSum], popularity: Floats) -> PeerSteps:
        items, on_head = self.head_of(popularity, self.items_on_top)
        generator = np.random.Generator(np.random.Philox(0))
        vectors = unit_on_average(generator.standard_normal((self.items_on_top, self.columns)))
        for planned in sums:
            side = UserSide(vectors, self.unobserved, self.user_ridge)
            ask: Any = planned.ask(
                items=items,
                weights=on_head**-self.adapt,
                least_length=math.sqrt(self.items_each) if self.items_each else 0.0,
                everybody=self.everybody,
                side=side,
                clip=self.clip,
                outer=self.outer,
                items_each=self.items_each,
            )
            total = ask.encoding.decode((yield ask))
            vectors = self._item_side(total, ask.share.opened_deviation)
        side = UserSide(vectors, self.unobserved, self.user_ridge)
        return Factors(popularity, items, side, on_head**self.lift)

    def _item_side(self, total: Floats, deviation: float) -> Floats:
        """Return the item vectors (A_i + c K + ridge)^-1 b_i, scaled to mean squared length one.

        A_i and K are first projected to positive semidefinite matrices by setting their negative
        eigenvalues, which only noise can cause, to zero.
        """
        size = self.columns
        rows, columns, factor = triangle(size)
        pairs = len(rows)
        matrices = np.empty((len(total), size, size))
        matrices[:, rows, columns] = total[:, :pairs] / factor / math.sqrt(self.outer)
        matrices[:, columns, rows] = matrices[:, rows, columns]
        values, directions = np.linalg.eigh(matrices)
        matrices = (directions * np.maximum(values, 0)[:, None, :]) @ directions.swapaxes(1, 2)
        of_items = matrices[:-1] / math.sqrt(1 - self.everybody)
        of_all = matrices[-1] / math.sqrt(self.everybody)
        targets = total[:-1, pairs:] / math.sqrt((1 - self.outer) * (1 - self.everybody))
        noise = deviation * math.sqrt(size / self.outer / (1 - self.everybody))
        added = self.item_unobserved * of_all + self.noise_ridge * noise * np.eye(size)
        return unit_on_average(np.linalg.solve(of_items + added, targets[:, :, None])[:, :, 0])


@dataclass(frozen=True)
class AdaptivePrivateAls(PrivateAls):
    """Ada-DPALS: all items, weighted by noisy popularity; each person uses the whole unit."""

    name: ClassVar[str] = "ada-dpals"
    title: ClassVar[str] = "Ada-DPALS"
    items_each: int | None = None
    adapt: float = 0.25


def unit_on_average(vectors: Floats) -> Floats:
    """Return the vectors scaled to mean squared length one.

    Only products of user and item vectors matter, so either side may be rescaled.
    """
    return vectors / math.sqrt(max(1e-300, float(np.square(vectors).sum(axis=1).mean())))


@dataclass(frozen=True)
class Factors(ByPopularity):
    """Scorer by products of a person's vector with the head's item vectors.

    Items outside the head are ranked after them, by popularity.
    """

    items: NDArray[np.int64]
    side: UserSide
    lifted: Floats

    def score(self, user_items: sp.csr_array) -> Float32:
        known = sp.csr_array(user_items[:, self.items])
        on_head = self.side.solve(known) @ (self.lifted[:, None] * self.side.vectors).T
        return self.with_head(self.items, on_head)
