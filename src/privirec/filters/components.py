"""What a recommender needs to know of everybody: degrees, P~ and the low-pass basis.

`Components` is the boundary between where filters come from (one machine, or a federation) and
what models do with them. A model never sees the histories of others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.data.interactions import Interactions
from privirec.errors import UsageError
from privirec.filters.eigen import Progress, leading_eigenpairs, orthonormalize, power_method
from privirec.filters.normalize import SYMMETRIC, Normalisation, degree_power, item_scales
from privirec.filters.operators import (
    FactoredOperator,
    Float32,
    ItemOperator,
    LowRankOperator,
    NotKept,
    WeightedOperator,
    history_coordinates,
)

# Eigenvalues below this are zero up to single-precision rounding (the largest is one).
NULL = 1e-6


@dataclass(frozen=True)
class LowPass:
    """F_IDL = V^-1/2 S S^T V^1/2, kept as its two thin factors."""

    left: Float32
    right: Float32

    @classmethod
    def from_basis(cls, basis: NDArray, item_degrees: NDArray[Any]) -> LowPass:
        inverse_root = degree_power(item_degrees, -0.5)[:, None]
        root = degree_power(item_degrees, 0.5)[:, None]
        return cls(
            np.ascontiguousarray(inverse_root * basis, np.float32),
            np.ascontiguousarray((root * basis).T, np.float32),
        )

    def coordinates(self, histories: sp.csr_array) -> Float32:
        """x V^-1/2 S: (users, rank)."""
        return history_coordinates(histories, self.left)

    def rows(self, histories: sp.csr_array) -> Float32:
        """x F_IDL for every history x: (users, items)."""
        return self.coordinates(histories) @ self.right


@dataclass(frozen=True)
class Components:
    """The released filters. `basis` (S_k) has orthonormal columns, the most important first."""

    item_degrees: NDArray[Any]
    """How many people have each item (int64); of weighted interactions, sums of weights (float64).
    """
    item_item: ItemOperator
    basis: Float32 | None = None
    normalisation: Normalisation = SYMMETRIC
    head: int | None = None
    """Matrix and basis are of so many of the most popular items only; None: of all."""
    noise_deviation: float = 0.0
    """Of the noise in each entry off the diagonal of the item-item matrix; 0: there is none."""
    eigenvalues: NDArray[np.float64] | None = None
    """Of the vectors in the basis, where the solver knows them; see `eigenpairs`."""

    @property
    def n_items(self) -> int:
        return len(self.item_degrees)

    @property
    def is_weighted(self) -> bool:
        """Whether they were computed from weighted interactions."""
        return self.item_degrees.dtype.kind == "f"

    def low_pass(self, rank: int) -> LowPass:
        """The ideal low-pass filter of the leading `rank` vectors."""
        if self.basis is None or self.basis.shape[1] < rank:
            held = 0 if self.basis is None else self.basis.shape[1]
            raise UsageError(f"a low-pass filter of rank {rank} needs more than {held} vectors")
        return LowPass.from_basis(self.basis[:, :rank], self.item_degrees)

    def eigenpairs(self, rank: int) -> tuple[NDArray[np.float64], Float32]:
        """The leading eigenvalues of P~ and their vectors. Where nobody has kept the values, they
        are the lengths of what P~ makes of the vectors, along these."""
        if self.basis is None or self.basis.shape[1] < rank:
            held = 0 if self.basis is None else self.basis.shape[1]
            raise UsageError(f"a filter of rank {rank} needs more than {held} vectors")
        basis = self.basis[:, :rank]
        if self.eigenvalues is not None:
            return self.eigenvalues[:rank], basis
        if isinstance(self.item_item, LowRankOperator) and self.item_item.basis is self.basis:
            return self.item_item.eigenvalues[:rank], basis
        images = self.item_item.times(np.ascontiguousarray(basis))
        return np.einsum("ij,ij->j", basis, images, dtype=np.float64), basis

    def without_item_item(self) -> Components:
        """The same, for a model that no longer needs the item-item matrix."""
        return replace(self, item_item=NotKept(self.n_items))

    def written_out(self) -> Components:
        """Without the histories themselves, in whatever form they are kept for speed."""
        if isinstance(self.item_item, FactoredOperator):
            return replace(self, item_item=self.item_item.written_out())
        return self


def factored(
    train: Interactions,
    normalisation: Normalisation = SYMMETRIC,
    user_degrees: NDArray[np.int64] | None = None,
    item_degrees: NDArray[np.int64] | None = None,
) -> FactoredOperator:
    """The item-item matrix of all histories, in factors; by other degrees than theirs if given.

    Weights of the interactions count where there are any, in the matrix and in the degrees.
    """
    own_users, own_items = degrees_of(train)
    users = own_users if user_degrees is None else user_degrees
    items = own_items if item_degrees is None else item_degrees
    scales = degree_power(users, -normalisation.user), *item_scales(items, normalisation)
    if train.weights is None:
        return FactoredOperator(train.matrix, *scales)
    return WeightedOperator(train.weighted_matrix().astype(np.float32), *scales)


def degrees_of(train: Interactions) -> tuple[NDArray[Any], NDArray[Any]]:
    """Of users and items: how many interactions they have, or what these weigh."""
    if train.weights is None:
        return train.user_degrees, train.item_degrees
    matrix = train.weighted_matrix()
    return np.asarray(matrix.sum(axis=1)), np.asarray(matrix.sum(axis=0))


def centralized(
    train: Interactions,
    *,
    rank: int = 0,
    normalisation: Normalisation = SYMMETRIC,
    seed: int = 0,
    progress: Progress | None = None,
) -> Components:
    """All components from all histories on one machine, with converged singular vectors.

    The item-item matrix stays in factors; `rank` 0 means no low-pass basis.
    """
    operator = factored(train, normalisation)
    basis = values = None
    if rank:
        if normalisation != SYMMETRIC:
            raise UsageError("the low-pass filter is defined for alpha = 1/2")
        if rank > train.n_items:
            raise UsageError(f"rank {rank} does not fit a catalogue of {train.n_items} items")
        values, basis = leading_eigenpairs(operator, rank, seed=seed, progress=progress)
        # Beyond the rank of P~ any vector of its null space would do, and none means anything.
        null = values < NULL * max(float(values[0]), 1.0)
        basis[:, null] = values[null] = 0
    _, items = degrees_of(train)
    return Components(items, operator, basis, normalisation, eigenvalues=values)


def randomized(
    train: Interactions, *, rank: int, steps: int, qr_per_step: int = 2, seed: int = 0
) -> Components:
    """As `centralized`, with the randomised power method as the baselines run it."""
    if not 1 <= rank <= train.n_items:
        raise UsageError(f"rank {rank} does not fit a catalogue of {train.n_items} items")
    operator = factored(train)
    rng = np.random.Generator(np.random.Philox(seed))
    omega = rng.standard_normal((train.n_users, rank))
    scaled = np.sqrt(operator.user_weights)[:, None] * orthonormalize(omega)[0]
    start = operator.left_scale[:, None] * (train.matrix.T @ scaled)
    basis, _ = power_method(operator, start, steps, qr_per_step)
    return Components(train.item_degrees, operator, np.asarray(basis, np.float32))
