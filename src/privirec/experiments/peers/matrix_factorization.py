"""Federated matrix factorisation for implicit feedback.

The loss (Hu et al. 2008, weights as in Rendle et al. 2022) is the sum over touched pairs of
(x_u v_i - 1)^2, plus w times the sum over all pairs of (x_u v_i)^2, plus a ridge that grows with
the number of occurrences of a person or an item. A person solves for their vector x_u exactly and
locally, and adds

    (x_u v_i - 1) x_u   on each of the person's items, and   x_u x_u^T   once.

These two sums give the gradient of the item side over all pairs, without sampling. The server
divides it by H_i = w sum x x^T + (V_i mean |x|^2 + ridge) I, an approximate upper bound on the
second derivative: the vectors of an item's people may all have the same direction. Federated
collaborative filtering (Ammad-ud-din et al. 2019) sums the same gradient from all people for all
items, and follows it with Adam.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numba import njit
from numpy.typing import NDArray

from privirec.experiments.peers.als import solve_people
from privirec.experiments.peers.training import Float32, Training, TrainingSteps
from privirec.experiments.peers.training_sums import ToldToClients, WeightedRows
from privirec.federated.contributions import Histories, ItemDegrees
from privirec.federated.contributions.base import Integers
from privirec.federated.programs import Broadcast
from privirec.federated.programs.power import item_degrees_told

CLIP_IN_DEVIATIONS = 6.0
"""Clipping bound of a person's contribution, in root mean squares of people's vectors."""
SQUARES_BITS = 32
_LARGEST_START = 1.0


@dataclass(frozen=True)
class PersonSide:
    """Local solver for people's vectors, given the public item vectors."""

    vectors: Float32
    unobserved: float
    ridge: float

    def solve(self, histories: sp.csr_array) -> Float32:
        """Return (sum of v v^T + w V^T V + ridge (d + w items) I)^-1 (sum of v) per person."""
        vectors = self.vectors.astype(np.float64)
        size = vectors.shape[1]
        everything = vectors.T @ vectors + self.ridge * len(vectors) * np.eye(size)
        everything *= self.unobserved
        rows = solve_people(histories.indptr, histories.indices, vectors, everything, self.ridge)
        return np.asarray(rows, np.float32)

    def score(self, user_items: sp.csr_array) -> Float32:
        return np.asarray(self.solve(user_items) @ self.vectors.T, np.float32)


@njit(cache=True)
def residuals(indptr, indices, rows, vectors):  # type: ignore[no-untyped-def]
    """Return x_u v_i - 1 for each touched pair."""
    found = np.empty(len(indices), np.float32)
    for person in range(len(indptr) - 1):
        row = rows[person]
        for position in range(indptr[person], indptr[person + 1]):
            vector = vectors[indices[position]]
            product = np.float32(0)
            for column in range(len(row)):
                product += row[column] * vector[column]
            found[position] = product - np.float32(1)
    return found


class MatrixFactorization(Training):
    name: ClassVar[str] = "mf"
    title: ClassVar[str] = "federated MF"

    def __init__(
        self,
        people: Histories,
        *,
        seed: int = 0,
        columns: int = 64,
        unobserved: float = 0.01,
        ridge: float = 0.003,
        step: float = 1.0,
        momentum: float = 0.0,
        ring_bits: int = 16,
        told_bits: int = 16,
    ) -> None:
        """Draw the initial item vectors.

        `step` is the step length along the divided gradient, and `momentum` is the share of a step
        that is added to the next. `ring_bits` and `told_bits` are the bits of an entry that a
        client sends and receives, respectively. Only the number of people is kept, because their
        vectors follow from what they are told.
        """
        self.n_users, self.n_items, self.columns = people.n_users, people.n_items, columns
        self.unobserved, self.ridge = unobserved, ridge
        self.step, self.momentum = step, momentum
        self.ring_bits, self.told_bits = ring_bits, told_bits
        generator = np.random.Generator(np.random.Philox(seed))
        start = generator.standard_normal((self.n_items, columns)) / np.sqrt(columns)
        self._vectors = np.asarray(start, np.float32)
        self._moved = np.zeros_like(self._vectors)
        self._clip = _LARGEST_START
        self._dither = generator
        self._degrees: Integers = np.zeros(0, np.int64)
        self._tell()

    def start(self) -> TrainingSteps:
        self._degrees = yield ItemDegrees(self.n_items, self.n_users)
        yield item_degrees_told(self.n_items)
        yield Broadcast("item vectors", self._told.n_bytes)

    def epoch(self) -> TrainingSteps:
        gradient_sum, squares_sum = self.asks()
        of_touched = gradient_sum.decode((yield gradient_sum))
        squares = squares_sum.decode((yield squares_sum)).astype(np.float64)
        squares = (squares + squares.T) / 2
        deviation = np.sqrt(max(1e-30, float(np.diag(squares).max()) / self.n_users))
        self._clip = CLIP_IN_DEVIATIONS * float(deviation)
        self._moved = self.momentum * self._moved - self.step * self._direction(of_touched, squares)
        self._vectors += self._moved
        self._tell()
        yield Broadcast("item vectors", self._told.n_bytes)

    def asks(self) -> tuple[WeightedRows, WeightedRows]:
        """Return the two sums of an epoch: the gradient, and the squares x x^T."""
        side = self.scorer()

        solved: list[tuple[Histories, Float32]] = []  # The last result; both sums need it.

        def vectors_of(histories: Histories) -> Float32:
            if not solved or solved[-1][0] is not histories:
                solved[:] = [(histories, side.solve(histories.matrix))]
            return solved[-1][1]

        def gradient(histories: Histories) -> tuple[sp.csr_array, Float32]:
            matrix, rows = histories.matrix, vectors_of(histories)
            data = residuals(matrix.indptr, matrix.indices, rows, side.vectors)
            return sp.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape), rows

        def squares(histories: Histories) -> tuple[sp.csr_array, Float32]:
            rows = vectors_of(histories)
            people, size = rows.shape
            places = np.tile(np.arange(size, dtype=np.int32), people)
            starts = np.arange(0, people * size + 1, size)
            return sp.csr_array((rows.reshape(-1), places, starts), shape=rows.shape), rows

        everybody = np.full(self.columns, self.n_users)
        return (
            self._sum(gradient, self._degrees, self._clip, self.ring_bits),
            self._sum(squares, everybody, self._clip**2, SQUARES_BITS),
        )

    def _sum(self, at_home: Any, most: NDArray, clip: float, width: int) -> WeightedRows:
        dither = int(self._dither.integers(2**63))
        return WeightedRows(at_home, self.columns, most, clip, width, dither)

    def gradient(self, of_touched: Float32, squares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return half the derivative of the loss by the item vectors that clients received."""
        told = self._told.values.astype(np.float64)
        rest = self.unobserved * told @ squares + self._ridges[:, None] * told
        return np.asarray(of_touched + rest, np.float64)

    @property
    def _ridges(self) -> NDArray[np.float64]:
        return self.ridge * (self._degrees + self.unobserved * self.n_users).astype(np.float64)

    def _direction(self, of_touched: Float32, squares: NDArray[np.float64]) -> Float32:
        values, basis = np.linalg.eigh(squares)
        values = np.maximum(values, 0)
        own = self._degrees * values.sum() / self.n_users
        curvature = self.unobserved * values + (own + self._ridges)[:, None]
        slopes = self.gradient(of_touched, squares) @ basis
        return np.asarray((slopes / np.maximum(curvature, 1e-30)) @ basis.T, np.float32)

    def _tell(self) -> None:
        self._told = ToldToClients.of(self._vectors, self.told_bits)

    def scorer(self) -> PersonSide:
        return PersonSide(self._told.values, self.unobserved, self.ridge)
