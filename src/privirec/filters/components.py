"""Global inputs of a recommender: item degrees, P~ and the low-pass basis.

`Components` is the boundary between the source of the filters (one machine, or a federation) and
the models that use them. A model never sees the histories of other users.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.data.interactions import Interactions
from privirec.errors import UsageError
from privirec.filters.earlier import Earlier
from privirec.filters.eigen import Progress, leading_eigenpairs, orthonormalize, power_method
from privirec.filters.normalize import SYMMETRIC, Normalisation, degree_power, item_scales
from privirec.filters.operators import (
    FactoredOperator,
    Float32,
    ItemOperator,
    LowRankOperator,
    NotKept,
    SparseOperator,
    WeightedOperator,
    history_coordinates,
)

# Eigenvalues below this are zero up to single-precision rounding (the largest is one).
NULL = 1e-6


@dataclass(frozen=True)
class LowPass:
    """The filter F_IDL = V^-1/2 S S^T V^1/2, kept as its two thin factors."""

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
        """Return x V^-1/2 S: (users, rank)."""
        return history_coordinates(histories, self.left)

    def rows(self, histories: sp.csr_array) -> Float32:
        """Return x F_IDL for every history x: (users, items)."""
        return self.coordinates(histories) @ self.right


@dataclass(frozen=True)
class Components:
    """The released filters. `basis` (S_k) has orthonormal columns, the most important first."""

    item_degrees: NDArray[Any]
    """Number of users of each item (int64); sums of weights if weighted (float64)."""
    item_item: ItemOperator
    basis: Float32 | None = None
    normalisation: Normalisation = SYMMETRIC
    head: int | None = None
    """If set, matrix and basis cover only this many of the most popular items."""
    noise_deviation: float = 0.0
    """Standard deviation of the noise in each off-diagonal entry of the matrix; 0: no noise."""
    eigenvalues: NDArray[np.float64] | None = None
    """Eigenvalues of the vectors in the basis, if the solver knows them; see `eigenpairs`."""
    origin: Mapping[str, Any] | None = None
    """Entries of a manifest that say where the components come from, such as the ledger of their
    sums (empty: all histories in one place); None: nobody said."""
    released: Earlier | None = None
    """Noisy sums of this run and of those before it, to which a later run can add."""

    @property
    def n_items(self) -> int:
        return len(self.item_degrees)

    @property
    def is_weighted(self) -> bool:
        """True if the components were computed from weighted interactions."""
        return self.item_degrees.dtype.kind == "f"

    def low_pass(self, rank: int) -> LowPass:
        """Return the ideal low-pass filter of the leading `rank` vectors."""
        if self.basis is None or self.basis.shape[1] < rank:
            held = 0 if self.basis is None else self.basis.shape[1]
            raise UsageError(f"a low-pass filter of rank {rank} needs more than {held} vectors")
        return LowPass.from_basis(self.basis[:, :rank], self.item_degrees)

    def eigenpairs(self, rank: int) -> tuple[NDArray[np.float64], Float32]:
        """Return the leading eigenvalues of P~ and their vectors.

        Eigenvalues that were not kept are computed as Rayleigh quotients s^T P~ s.
        """
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
        """Return the components for a model that no longer needs the item-item matrix."""
        return replace(self, item_item=NotKept(self.n_items))

    def written_out(self) -> Components:
        """Return the components without the histories that a factored matrix keeps for speed."""
        if isinstance(self.item_item, FactoredOperator):
            return replace(self, item_item=self.item_item.written_out())
        return self


def factored(
    train: Interactions,
    normalisation: Normalisation = SYMMETRIC,
    user_degrees: NDArray[np.int64] | None = None,
    item_degrees: NDArray[np.int64] | None = None,
) -> FactoredOperator:
    """Return the item-item matrix of all histories in factors; given degrees replace their own.

    If the interactions have weights, these count in the matrix and in the degrees.
    """
    own_users, own_items = degrees_of(train)
    users = own_users if user_degrees is None else user_degrees
    items = own_items if item_degrees is None else item_degrees
    scales = degree_power(users, -normalisation.user), *item_scales(items, normalisation)
    if train.weights is None:
        return FactoredOperator(train.matrix, *scales)
    return WeightedOperator(train.weighted_matrix().astype(np.float32), *scales)


def degrees_of(train: Interactions) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the degrees of users and items: numbers of interactions, or sums of their weights."""
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
    """Compute all components from all histories on one machine, with converged singular vectors.

    The item-item matrix stays in factors; `rank` 0 means no low-pass basis.
    """
    operator = factored(train, normalisation)
    basis = values = None
    if rank:
        if normalisation != SYMMETRIC:
            raise UsageError("the low-pass filter is defined for alpha = 1/2")
        if rank > train.n_items:
            raise UsageError(f"rank {rank} does not fit a catalogue of {train.n_items} items")
        values, basis = _eigenpairs(operator, rank, seed, progress)
    _, items = degrees_of(train)
    return Components(items, operator, basis, normalisation, eigenvalues=values)


def _eigenpairs(
    operator: ItemOperator, rank: int, seed: int, progress: Progress | None = None
) -> tuple[NDArray[np.float64], Float32]:
    values, basis = leading_eigenpairs(operator, rank, seed=seed, progress=progress)
    # Beyond the rank of P~ the solver returns arbitrary vectors of its null space.
    null = values < NULL * max(float(values[0]), 1.0)
    basis[:, null] = values[null] = 0
    return values, basis


def with_people(
    known: Components,
    places: NDArray[np.int64],
    more: Interactions,
    *,
    rank: int = 0,
    seed: int = 0,
) -> Components:
    """Return the components of the people in `known` and of `more`, who are others.

    `places` are the columns of `more` that the known items have. Both matrices are sums over
    people once the powers of item degrees are taken off; rounding aside, the result is that of all
    histories together.
    """
    if known.is_weighted:
        raise UsageError("weights are relative to those of one fit: fit anew, on all histories")
    wanted = known.normalisation
    degrees = more.item_degrees.copy()
    degrees[places] += known.item_degrees
    operator: ItemOperator = NotKept(more.n_items)
    basis = values = None
    if not isinstance(known.item_item, NotKept):
        if isinstance(known.item_item, LowRankOperator):
            raise UsageError("a low-rank matrix keeps no sums that more people can be added to")
        old = known.written_out().item_item
        assert isinstance(old, SparseOperator)  # noqa: S101 - all other forms are handled
        ours = old.matrix
        row = np.repeat(np.arange(known.n_items), np.diff(ours.indptr))  # read files defy tocoo
        left, right = item_scales(known.item_degrees, wanted)
        sums = ours.data / (left[row] * right[ours.indices])
        plain = replace(wanted, left=0.0, right=0.0)
        theirs = factored(more, plain).written_out().matrix.tocoo()
        rows = np.concatenate([places[row], theirs.row])
        columns = np.concatenate([places[ours.indices], theirs.col])
        total = sp.csr_array(
            (np.concatenate([sums, theirs.data]), (rows, columns)), shape=(more.n_items,) * 2
        )
        left, right = item_scales(degrees, wanted)
        lengths = np.diff(total.indptr)
        total.data *= np.repeat(left, lengths) * right[total.indices]
        operator = SparseOperator(total.astype(np.float32))
        if rank:
            values, basis = _eigenpairs(operator, rank, seed)
    return Components(degrees, operator, basis, wanted, eigenvalues=values, origin=known.origin)


def randomized(
    train: Interactions, *, rank: int, steps: int, qr_per_step: int = 2, seed: int = 0
) -> Components:
    """Compute components like `centralized`, with the baselines' randomised power method."""
    if not 1 <= rank <= train.n_items:
        raise UsageError(f"rank {rank} does not fit a catalogue of {train.n_items} items")
    operator = factored(train)
    rng = np.random.Generator(np.random.Philox(seed))
    omega = rng.standard_normal((train.n_users, rank))
    scaled = np.sqrt(operator.user_weights)[:, None] * orthonormalize(omega)[0]
    start = operator.left_scale[:, None] * (train.matrix.T @ scaled)
    basis, _ = power_method(operator, start, steps, qr_per_step)
    return Components(train.item_degrees, operator, np.asarray(basis, np.float32))
