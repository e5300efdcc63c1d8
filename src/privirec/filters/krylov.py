"""Block Krylov method for blocks that are only nearly orthonormal.

Every block X_l that was multiplied with P~ is kept with its image Y_l. The next block is the part
of the last image outside the span of all blocks so far. In the end one small eigenproblem over
*all* columns gives the eigenpairs. No summed product is discarded, whereas the power method
discards all but its last one.

Blocks are used as they were sent, after rounding. The images belong to these rounded blocks, so
rounding slightly changes the space but causes no error in the computation within it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privirec.compiled import Later
from privirec.filters.eigen import Matrix, orthonormalize

sl = Later("scipy.linalg")

Eigenpairs = tuple[NDArray[np.float64], NDArray[np.float32]]

# A column with at most this share outside a space lies in it up to rounding.
INSIDE = 1e-5
# Directions of the collected columns that are this short are rounding noise.
SHORT = 1e-6


class KrylovSpace:
    """Columns X and images Y = P~ X in single precision; their inner products in double."""

    def __init__(self, n_items: int, most_columns: int) -> None:
        self._x = np.zeros((most_columns, n_items), np.float32)
        self._y = np.zeros((most_columns, n_items), np.float32)
        self._gram = np.zeros((most_columns, most_columns))
        self._projected = np.zeros((most_columns, most_columns))
        self._last = slice(0, 0)
        self.columns = 0

    def add(self, block: Matrix, image: Matrix) -> None:
        """Add a block and its image, both scaled so that columns have length one on average."""
        size = float(np.sqrt((np.asarray(block, np.float64) ** 2).sum() / block.shape[1])) or 1.0
        self._last = slice(self.columns, self.columns + block.shape[1])
        self.columns = self._last.stop
        self._x[self._last] = block.T / size
        self._y[self._last] = image.T / size
        x, y = self._x[: self.columns], self._y[: self.columns]
        for products, others in ((self._gram, x), (self._projected, y)):
            part = x @ others[self._last].T
            products[: self.columns, self._last] = part
            products[self._last, : self.columns] = part.T
        # P~ is symmetric, but its products with rounded sums are only nearly so.
        square = self._projected[self._last, self._last]
        self._projected[self._last, self._last] = (square + square.T) / 2

    def next_block(self, columns: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return orthonormal columns to multiply next.

        They span the part of the last image outside the space: its strongest directions if it has
        more than `columns`, and additional random directions if it has fewer.
        """
        image = self._y[self._last].astype(np.float64).T
        outside = self._outside(image)
        if columns < outside.shape[1]:
            _, directions = np.linalg.eigh(outside.T @ outside)
            outside = outside @ directions[:, ::-1][:, :columns]
        elif columns > outside.shape[1]:
            missing = columns - outside.shape[1]
            fresh = rng.standard_normal((len(image), missing))
            fresh[np.abs(image).max(axis=1) == 0] = 0  # items without users
            outside = np.hstack((outside, self._outside(fresh)))
        return orthonormalize(outside)[0]

    def _outside(self, block: NDArray[np.float64]) -> NDArray[np.float64]:
        before = np.linalg.norm(block, axis=0)
        x = self._x[: self.columns]
        for _ in range(2):
            parts = self._solve(x @ block.astype(np.float32))
            block = block - x.T @ parts.astype(np.float32)
        inside = np.flatnonzero(np.linalg.norm(block, axis=0) <= INSIDE * before)
        block[:, inside] = 0
        return block

    def _solve(self, right: NDArray) -> NDArray[np.float64]:
        """Return (X^T X)^-1 right, or a pseudo-inverse if columns are dependent."""
        whitening = self._whitening()
        return np.asarray(whitening @ (whitening.T @ right), np.float64)

    def _whitening(self) -> NDArray[np.float64]:
        """Return T such that X T has orthonormal columns, as many as X has independent ones."""
        gram = self._gram[: self.columns, : self.columns]
        try:
            factor = np.linalg.cholesky(gram)
            if np.diagonal(factor).min(initial=1.0) > 1e-2:
                return np.asarray(sl.lapack.dtrtri(factor, lower=1)[0].T, np.float64)
        except np.linalg.LinAlgError:
            pass
        values, vectors = np.linalg.eigh(gram)
        some = values > SHORT * max(float(values[-1]), 1.0)
        return np.asarray(vectors[:, some] / np.sqrt(values[some]), np.float64)

    def _ritz(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return all Ritz values, descending, and the matrix that maps columns to Ritz vectors."""
        whitening = self._whitening()
        projected = self._projected[: self.columns, : self.columns]
        values, rotation = np.linalg.eigh(whitening.T @ projected @ whitening)
        return values[::-1], whitening @ rotation[:, ::-1]

    def ritz_sum(self, rank: int) -> float:
        """Return the sum of the `rank` leading Ritz values.

        Up to rounding, more columns never reduce it.
        """
        whitening = self._whitening()
        projected = self._projected[: self.columns, : self.columns]
        values = np.linalg.eigvalsh(whitening.T @ projected @ whitening)
        return float(values[::-1][:rank].sum())

    def rayleigh_ritz(self, rank: int) -> Eigenpairs:
        """Return the leading eigenpairs of P~ in the span of X, padded with zeros if too few."""
        values, mixture = self._ritz()
        vectors = self._x[: self.columns].T @ mixture[:, :rank].astype(np.float32)
        return _padded(values[:rank], vectors, rank)

    def nystrom(self, rank: int, least: float) -> Eigenpairs:
        """Return the leading eigenpairs of Y (X^T Y)^+ Y^T.

        They gain half a multiplication with P~, and are more sensitive to rounding. Directions
        with Ritz values up to `least`, which rounding dominates, are left out.
        """
        values, mixture = self._ritz()
        some = values > least
        roots = (mixture[:, some] / np.sqrt(values[some])).astype(np.float32)
        images = self._y[: self.columns].T @ roots
        squares, rotation = np.linalg.eigh((images.T @ images).astype(np.float64))
        squares, rotation = squares[::-1][:rank], rotation[:, ::-1][:, :rank]
        lengths = np.sqrt(np.maximum(squares, SHORT))
        return _padded(squares, images @ (rotation / lengths).astype(np.float32), rank)


def _padded(values: NDArray[np.float64], vectors: NDArray[np.float32], rank: int) -> Eigenpairs:
    """Return exactly `rank` pairs, with eigenvalues clipped to [0, 1], the range of P~."""
    found = len(values)
    padded = np.zeros((len(vectors), rank), np.float32)
    padded[:, :found] = vectors
    return np.concatenate((np.clip(values, 0.0, 1.0), np.zeros(rank - found))), padded
