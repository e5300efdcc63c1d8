"""Block Krylov from blocks that are not quite orthonormal: products gathered, solved at the end.

Every block X_l that was multiplied with P~ is kept with its image Y_l. The next block is what the
last image has outside the span of all blocks so far; in the end one small eigenproblem over *all*
columns gives the eigenpairs. Nothing that was summed is thrown away, as the power method does with
all but its last product.

Blocks are taken as they were sent, rounded: images are of those blocks, so rounding costs a little
of what the space holds and nothing of what is computed in it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privirec.compiled import Later
from privirec.filters.eigen import Matrix, orthonormalize

sl = Later("scipy.linalg")

Eigenpairs = tuple[NDArray[np.float64], NDArray[np.float32]]

# A column of which this share is outside a space, or less, is in it but for rounding.
INSIDE = 1e-5
# Directions of the gathered columns that are this short carry rounding only.
SHORT = 1e-6


class KrylovSpace:
    """Columns X with their images Y = P~ X, in single precision; their products in double."""

    def __init__(self, n_items: int, most_columns: int) -> None:
        self._x = np.zeros((most_columns, n_items), np.float32)
        self._y = np.zeros((most_columns, n_items), np.float32)
        self._gram = np.zeros((most_columns, most_columns))
        self._projected = np.zeros((most_columns, most_columns))
        self._last = slice(0, 0)
        self.columns = 0

    def add(self, block: Matrix, image: Matrix) -> None:
        """A block and its image; both are scaled, so that columns have length one on average."""
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
        # P~ is symmetric, its products with rounded sums are not quite.
        square = self._projected[self._last, self._last]
        self._projected[self._last, self._last] = (square + square.T) / 2

    def next_block(self, columns: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """So many orthonormal columns: what the last image has outside the space, its strongest
        directions if it has more, random ones beside them if it has fewer."""
        image = self._y[self._last].astype(np.float64).T
        outside = self._outside(image)
        if columns < outside.shape[1]:
            _, directions = np.linalg.eigh(outside.T @ outside)
            outside = outside @ directions[:, ::-1][:, :columns]
        elif columns > outside.shape[1]:
            missing = columns - outside.shape[1]
            fresh = rng.standard_normal((len(image), missing))
            fresh[np.abs(image).max(axis=1) == 0] = 0  # items that nobody has
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
        """(X^T X)^-1 right, or as near to that as dependent columns allow."""
        whitening = self._whitening()
        return np.asarray(whitening @ (whitening.T @ right), np.float64)

    def _whitening(self) -> NDArray[np.float64]:
        """T such that X T has orthonormal columns, as many as X has independent ones."""
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
        """All Ritz values, descending, and what makes Ritz vectors of the columns."""
        whitening = self._whitening()
        projected = self._projected[: self.columns, : self.columns]
        values, rotation = np.linalg.eigh(whitening.T @ projected @ whitening)
        return values[::-1], whitening @ rotation[:, ::-1]

    def ritz_sum(self, rank: int) -> float:
        """Of the leading Ritz values, so many. More columns never make it less, rounding aside."""
        whitening = self._whitening()
        projected = self._projected[: self.columns, : self.columns]
        values = np.linalg.eigvalsh(whitening.T @ projected @ whitening)
        return float(values[::-1][:rank].sum())

    def rayleigh_ritz(self, rank: int) -> Eigenpairs:
        """The leading eigenpairs of P~ within the span of X; zeros if it has fewer dimensions."""
        values, mixture = self._ritz()
        vectors = self._x[: self.columns].T @ mixture[:, :rank].astype(np.float32)
        return _padded(values[:rank], vectors, rank)

    def nystrom(self, rank: int, least: float) -> Eigenpairs:
        """Those of Y (X^T Y)^+ Y^T: half a multiplication further, and more sensitive to rounding.

        Directions with Ritz values below `least`, which rounding dominates, are left out.
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
    """Exactly so many pairs, with eigenvalues that P~ can have."""
    found = len(values)
    padded = np.zeros((len(vectors), rank), np.float32)
    padded[:, :found] = vectors
    return np.concatenate((np.clip(values, 0.0, 1.0), np.zeros(rank - found))), padded
