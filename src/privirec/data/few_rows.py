"""A small 0/1 matrix in compressed sparse rows, with the operations that a client needs.

It replaces `scipy.sparse.csr_array` on devices, because importing SciPy takes fifteen megabytes of
memory. It has the same names for the same arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_INDEX = np.int32


class FewRows:
    """Rows of sorted column numbers; every entry is one."""

    def __init__(self, indptr: NDArray[Any], indices: NDArray[Any], shape: tuple[int, int]) -> None:
        self.indptr = indptr.astype(_INDEX, copy=False)
        self.indices = indices.astype(_INDEX, copy=False)
        self.shape = shape

    @classmethod
    def from_entries(
        cls, rows: NDArray[Any], columns: NDArray[Any], shape: tuple[int, int]
    ) -> FewRows:
        """Return a matrix from row and column numbers; repeated pairs count once."""
        if len(rows) and not (
            0 <= rows.min() <= rows.max() < shape[0]
            and 0 <= columns.min() <= columns.max() < shape[1]
        ):
            raise ValueError(f"an entry outside a matrix of shape {shape}")
        places = np.sort(rows.astype(np.int64) * shape[1] + columns.astype(np.int64))
        # np.unique would import masked arrays, which take six megabytes of a device's memory.
        places = places[np.diff(places, prepend=-1) > 0]
        found, indices = np.divmod(places, max(shape[1], 1))
        counts = np.bincount(found, minlength=shape[0])
        return cls(np.concatenate(([0], np.cumsum(counts))), indices, shape)

    @property
    def nnz(self) -> int:
        return len(self.indices)

    @property
    def data(self) -> NDArray[np.float32]:
        return np.ones(self.nnz, np.float32)

    @property
    def row(self) -> NDArray[Any]:
        """Row number of each entry."""
        return np.repeat(np.arange(self.shape[0], dtype=_INDEX), np.diff(self.indptr))

    @property
    def col(self) -> NDArray[Any]:
        """Column number of each entry."""
        return self.indices

    def tocoo(self) -> FewRows:
        return self

    @property
    def T(self) -> FewRows:
        return FewRows.from_entries(self.indices, self.row, (self.shape[1], self.shape[0]))

    def __getitem__(self, key: Any) -> FewRows:
        """Return the selected rows, or the selected columns for a key [:, columns]."""
        if isinstance(key, tuple):
            rows, columns = key
            if rows != slice(None):
                raise TypeError("rows or columns, not both")
            return self._of_columns(np.asarray(columns))
        chosen = np.arange(self.shape[0])[key]
        place = np.full(self.shape[0], -1)
        place[chosen] = np.arange(len(chosen))
        kept = place[self.row] >= 0
        return FewRows.from_entries(
            place[self.row[kept]], self.indices[kept], (len(chosen), self.shape[1])
        )

    def _of_columns(self, columns: NDArray[Any]) -> FewRows:
        place = np.full(self.shape[1], -1)
        place[columns] = np.arange(len(columns))
        found = place[self.indices]
        kept = found >= 0
        return FewRows.from_entries(self.row[kept], found[kept], (self.shape[0], len(columns)))
