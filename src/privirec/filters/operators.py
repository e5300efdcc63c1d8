"""The item-item matrix P as an operator, in its three forms.

`rows` takes histories x and returns scores x P, one row per user: P is applied from the right.
`times` takes dense columns and returns P columns. If P is symmetric (see `Normalisation`), this is
also y P for states y held as one column per user, the layout in which repeated application runs at
memory speed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.compiled import LANES, Later
from privirec.errors import UsageError

kernels = Later("privirec.filters.kernels")

Float32 = NDArray[np.float32]
LARGEST_BYTE = 127
STATES = 4 * LANES
"""Dense states (one per user) that are multiplied at once."""


class ItemOperator(Protocol):
    """An |I| x |I| matrix that may be implicit."""

    @property
    def n_items(self) -> int: ...

    @property
    def entries(self) -> int:
        """Count of numbers that one product with a column touches."""
        ...

    def rows(self, histories: sp.csr_array, onto: Float32 | None = None) -> Float32:
        """Return x P for every history x: (users, items), added to `onto` in place if given."""
        ...

    def times(self, columns: Float32) -> Float32:
        """Return P columns: (items, columns)."""
        ...

    def among(self, items: NDArray[np.int64]) -> Float32:
        """Return P between some items, in ascending order, as a new dense matrix."""
        ...

    @property
    def state_scale(self) -> Float32:
        """Scale c of states: `entered` and `stepped` hold c y for a state y, a row per item."""
        ...

    def entered(self, histories: sp.csr_array, factors: Float32) -> Float32:
        """Return the states c P y of histories y whose items count by their factors."""
        ...

    def stepped(self, states: Float32, share: float, step: float) -> Float32:
        """Return `share` y + `step` P y for the states y."""
        ...


class _PlainStates:
    """States without a scale, multiplied by `times`."""

    @property
    def state_scale(self: ItemOperator) -> Float32:
        return np.ones(self.n_items, np.float32)

    def entered(self: ItemOperator, histories: sp.csr_array, factors: Float32) -> Float32:
        return self.times(as_columns(histories) * factors[:, None])

    def stepped(self: ItemOperator, states: Float32, share: float, step: float) -> Float32:
        out = self.times(states)
        out *= np.float32(step)
        out += np.float32(share) * states
        return out


@dataclass(frozen=True)
class SparseOperator(_PlainStates):
    """P as an explicit sparse matrix, the form that PriviRec releases."""

    matrix: sp.csr_array

    @property
    def n_items(self) -> int:
        return int(self.matrix.shape[0])

    @property
    def entries(self) -> int:
        return int(self.matrix.nnz)

    def rows(self, histories: sp.csr_array, onto: Float32 | None = None) -> Float32:
        scores = _scores(histories, self.n_items) if onto is None else onto
        matrix = self.matrix
        kernels.add_sparse_rows(
            histories.indptr, histories.indices, matrix.indptr, matrix.indices, matrix.data, scores
        )
        return scores

    def times(self, columns: Float32) -> Float32:
        out = np.empty_like(columns)
        matrix = self.matrix
        kernels.sparse_times_columns(matrix.indptr, matrix.indices, matrix.data, columns, out)
        return out

    def among(self, items: NDArray[np.int64]) -> Float32:
        some = self.matrix
        if len(items) < self.n_items:
            some = sp.csr_array(self.matrix[items][:, items])
        dense = np.empty((len(items), len(items)), np.float32)
        for start in range(0, len(items), ROWS_AT_ONCE):
            dense[start : start + ROWS_AT_ONCE] = some[start : start + ROWS_AT_ONCE].toarray()
        return dense

    def power(self, exponent: float) -> SparseOperator:
        """Return the operator with every entry raised to a power (Turbo-CF's P-bar)."""
        if exponent == 1:
            return self
        matrix = sp.csr_array(
            (self.matrix.data**exponent, self.matrix.indices, self.matrix.indptr),
            shape=self.matrix.shape,
        )
        return SparseOperator(matrix)


# Rows of a sparse matrix that are converted to dense at once.
ROWS_AT_ONCE = 512

# Above this many products the item-item matrix is applied in factors and not computed.
MOST_PRODUCTS = 1_500_000_000

# Costs of adding an entry of P to a score, and one to the state of a user, in cache lines (a number
# of 16 users) that are added up.
FROM_MATRIX = 4
TO_USER = 6


@dataclass(frozen=True)
class FactoredOperator:
    """P = C R^T W R D with diagonal W (users), C and D (items).

    The factors touch far fewer entries than P has. For few or short histories the explicit P is
    faster; it is computed on first use unless it would be too large. This form needs all histories,
    so only the centralised computation and a simulation can have it.
    """

    histories: sp.csr_array
    user_weights: NDArray[np.float64]
    left_scale: NDArray[np.float64]
    right_scale: NDArray[np.float64]
    released: SparseOperator | None = None
    """The explicit matrix, if it has been computed already."""

    @cached_property
    def _by_item(self) -> sp.csr_array:
        return sp.csr_array(self.histories.T)

    @property
    def n_items(self) -> int:
        return int(self.histories.shape[1])

    @property
    def entries(self) -> int:
        return 2 * int(self.histories.nnz)

    def rows(self, histories: sp.csr_array, onto: Float32 | None = None) -> Float32:
        if not self._pays_in_factors(histories):
            return self.written_out().rows(histories, onto)
        scores = np.empty((histories.shape[0], self.n_items), np.float32)
        for start in range(0, len(scores), STATES):
            some = slice(start, start + STATES)
            scores[some] = self._multiplied(histories[some], self._left, self._right).T
        if onto is None:
            return scores
        onto += scores
        return onto

    def _pays_in_factors(self, histories: sp.csr_array) -> bool:
        """Return True if the factors touch less than the rows of P, or P is too large."""
        if self.released is None and self._products > MOST_PRODUCTS:
            return True
        lines = -(-histories.shape[0] // LANES) * self.histories.nnz
        users = np.diff(self._by_item.indptr)[histories.indices].sum()
        entries = self._row_lengths[histories.indices].sum()
        return bool(lines + TO_USER * users < FROM_MATRIX * entries)

    @cached_property
    def _products(self) -> int:
        """Products that computing P takes."""
        lengths = np.diff(self.histories.indptr).astype(np.int64)
        return int((lengths**2).sum())

    @cached_property
    def _row_lengths(self) -> NDArray[np.int64]:
        """Number of entries in each row of P."""
        if self.released is not None:
            return np.diff(self.released.matrix.indptr).astype(np.int64)
        users, items = self.histories, self._by_item
        counts = np.empty(self.n_items, np.int64)
        kernels.count_neighbours(users.indptr, users.indices, items.indptr, items.indices, counts)
        return counts

    def _multiplied(self, histories: sp.csr_array, first: Float32, last: Float32) -> Float32:
        """Return diag(last) R^T W R diag(first) x^T for histories x: (items, users)."""
        items = self._by_item
        users = kernels.aligned((self.histories.shape[0], histories.shape[0]))
        users[:] = 0
        weights = self.user_weights.astype(np.float32)
        x = histories.indptr, histories.indices
        kernels.spread(*x, items.indptr, items.indices, first, weights, users)
        out = kernels.aligned((self.n_items, histories.shape[0]))
        kernels.gather_sum(items.indptr, items.indices, users, last, out)
        return out

    @property
    def state_scale(self) -> Float32:
        return self._left

    def entered(self, histories: sp.csr_array, factors: Float32) -> Float32:
        scale = self._left
        return self._multiplied(histories, scale * factors, scale * scale)

    def stepped(self, states: Float32, share: float, step: float) -> Float32:
        rows, items, scale = self.histories, self._by_item, self._left
        weights = self.user_weights.astype(np.float32)
        users = kernels.aligned((rows.shape[0], states.shape[1]))
        kernels.gather_sum(rows.indptr, rows.indices, states, weights, users)
        out, last = kernels.aligned(states.shape), np.float32(step) * scale * scale
        kernels.gather_sum(items.indptr, items.indices, users, last, out, states, share)
        return out

    def times(self, columns: Float32) -> Float32:
        return self._product(self._right, self._left, columns)

    @property
    def _left(self) -> Float32:
        return self.left_scale.astype(np.float32)

    @property
    def _right(self) -> Float32:
        return self.right_scale.astype(np.float32)

    def _product(self, first: Float32, last: Float32, columns: Float32) -> Float32:
        """Return diag(last) R^T W R diag(first) columns: P columns, or P^T columns if swapped."""
        out = np.multiply(columns, first[:, None], out=kernels.aligned(columns.shape))
        users = kernels.aligned((self.histories.shape[0], columns.shape[1]))
        weights = self.user_weights.astype(np.float32)
        kernels.gather_sum(self.histories.indptr, self.histories.indices, out, weights, users)
        kernels.gather_sum(self._by_item.indptr, self._by_item.indices, users, last, out)
        return out

    def among(self, items: NDArray[np.int64]) -> Float32:
        if self.released is not None:
            return self.released.among(items)
        some = replace(
            self,
            histories=sp.csr_array(self.histories[:, items]),
            left_scale=self.left_scale[items],
            right_scale=self.right_scale[items],
        )
        return some.written_out().among(np.arange(len(items)))

    def written_out(self) -> SparseOperator:
        """Return P as an explicit sparse matrix."""
        return self._written_out if self.released is None else self.released

    @cached_property
    def _written_out(self) -> SparseOperator:
        users, items = self.histories, self._by_item
        shape = users.indptr, users.indices, items.indptr, items.indices
        indptr = np.concatenate([[0], np.cumsum(self._row_lengths)])
        kind = np.int32 if indptr[-1] < 2**31 else np.int64
        indices, data = np.empty(indptr[-1], kind), np.empty(indptr[-1], np.float32)
        weights = self.user_weights.astype(np.float32)
        scales = self._left, self._right
        kernels.weighted_gram(*shape, weights, *scales, indptr, indices, data)
        matrix = sp.csr_array((data, indices, indptr.astype(kind)), shape=(self.n_items,) * 2)
        return SparseOperator(matrix)


@dataclass(frozen=True)
class WeightedOperator(FactoredOperator):
    """A factored operator in which R holds weights above zero instead of ones.

    The kernels use positions alone, so products are SciPy's: also in single precision, but on one
    core.
    """

    def _multiplied(self, histories: sp.csr_array, first: Float32, last: Float32) -> Float32:
        return self._product(first, last, as_columns(histories))

    def stepped(self, states: Float32, share: float, step: float) -> Float32:
        scale = self._left
        out = self._product(
            np.ones(len(scale), np.float32), np.float32(step) * scale * scale, states
        )
        out += np.float32(share) * states
        return out

    def _product(self, first: Float32, last: Float32, columns: Float32) -> Float32:
        users = self.histories @ (columns * first[:, None])
        users *= self.user_weights.astype(np.float32)[:, None]
        out = self._by_item @ users
        out *= last[:, None]
        return np.asarray(out, np.float32)

    @cached_property
    def _written_out(self) -> SparseOperator:
        # The root on both sides makes the product symmetric to the last bit.
        roots = np.sqrt(self.user_weights).astype(np.float32)
        half = self.histories.copy()
        half.data *= np.repeat(roots, np.diff(half.indptr))
        matrix = sp.csr_array(half.T) @ half
        kernels.scale_sparse(matrix.indptr, matrix.indices, matrix.data, self._left, self._right)
        return SparseOperator(matrix)


@dataclass(frozen=True)
class LowRankOperator(_PlainStates):
    """P ~ S diag(eigenvalues) S^T, symmetric: the form that PriviRec-k releases."""

    basis: Float32
    eigenvalues: NDArray[np.float64]

    @property
    def n_items(self) -> int:
        return int(self.basis.shape[0])

    @property
    def entries(self) -> int:
        return 2 * int(self.basis.size)

    def rows(self, histories: sp.csr_array, onto: Float32 | None = None) -> Float32:
        coordinates = history_coordinates(histories, self.basis)
        coordinates *= self.eigenvalues.astype(np.float32)
        scores = coordinates @ self.basis.T
        if onto is None:
            return scores
        onto += scores
        return onto

    def times(self, columns: Float32) -> Float32:
        coordinates = self.basis.T @ columns
        coordinates *= self.eigenvalues.astype(np.float32)[:, None]
        return self.basis @ coordinates

    def among(self, items: NDArray[np.int64]) -> Float32:
        some = self.basis[items]
        return (some * self.eigenvalues.astype(np.float32)) @ some.T


@dataclass(frozen=True)
class NotKept(_PlainStates):
    """Placeholder for the item-item matrix in a model that scores from derived arrays only."""

    n_items: int
    entries: ClassVar[int] = 0

    def rows(self, histories: sp.csr_array, onto: Float32 | None = None) -> Float32:
        raise UsageError("this model keeps no item-item matrix, only what it derived from it")

    def times(self, columns: Float32) -> Float32:
        raise UsageError("this model keeps no item-item matrix, only what it derived from it")

    def among(self, items: NDArray[np.int64]) -> Float32:
        raise UsageError("this model keeps no item-item matrix, only what it derived from it")


def as_columns(histories: sp.csr_array) -> Float32:
    """Return histories as a dense 0/1 block, one column per user."""
    columns = np.zeros((histories.shape[1], histories.shape[0]), np.float32)
    users = np.repeat(np.arange(histories.shape[0]), np.diff(histories.indptr))
    columns[histories.indices, users] = 1
    return columns


def _scores(histories: sp.csr_array, n_items: int) -> Float32:
    return np.zeros((histories.shape[0], n_items), np.float32)


def history_coordinates(histories: sp.csr_array, vectors: Float32) -> Float32:
    """Return x vectors for every history x; `vectors` has the shape (items, rank)."""
    out = np.empty((histories.shape[0], vectors.shape[1]), np.float32)
    ones = np.ones(histories.shape[0], np.float32)
    kernels.gather_sum(histories.indptr, histories.indices, vectors, ones, out)
    return out


def in_bytes(matrix: Float32) -> tuple[NDArray[np.int8], Float32]:
    """Quantise a matrix to integers from -127 to 127 with a unit for each row.

    Raises UsageError for numbers that are not finite, which no byte can represent.
    """
    tops = np.abs(np.maximum(matrix.max(axis=1, initial=0.0), -matrix.min(axis=1, initial=0.0)))
    if not np.isfinite(tops).all():
        raise UsageError(
            f"row {int(np.argmin(np.isfinite(tops)))} has numbers that are not finite: nothing was "
            "made of it"
        )
    units = np.asarray(tops.astype(np.float64) / LARGEST_BYTE, np.float32)
    small = np.empty(matrix.shape, np.int8)
    for row, unit in enumerate(units.astype(np.float64)):  # avoids another matrix of doubles
        small[row] = np.clip(np.rint(matrix[row] / (unit or 1.0)), -LARGEST_BYTE, LARGEST_BYTE)
    return small, units
