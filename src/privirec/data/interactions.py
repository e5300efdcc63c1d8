"""Who touched what: a sparse 0/1 matrix with the ids that people outside use."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from privirec.compiled import goes_without
from privirec.data.few_rows import FewRows
from privirec.errors import DataError


@dataclass(frozen=True)
class Interactions:
    """Rows are users, columns items; every stored entry is one, sorted, without duplicates.

    `user_ids` and `item_ids` are the external names of rows and columns, integers or strings.
    """

    matrix: sp.csr_array
    """In a process that goes without SciPy, `FewRows`."""
    user_ids: NDArray = field(repr=False)
    item_ids: NDArray = field(repr=False)

    def __post_init__(self) -> None:
        if self.matrix.shape != (len(self.user_ids), len(self.item_ids)):
            raise DataError(
                f"matrix of shape {self.matrix.shape} with {len(self.user_ids)} user ids "
                f"and {len(self.item_ids)} item ids"
            )

    @classmethod
    def from_pairs(
        cls,
        users: ArrayLike,
        items: ArrayLike,
        *,
        user_ids: NDArray | None = None,
        item_ids: NDArray | None = None,
    ) -> Interactions:
        """From two columns of external ids. Given id arrays fix rows and columns (sorted, unique);
        otherwise they are the ids that occur, in ascending order."""
        user_rows, user_ids = _factorize(np.asarray(users), user_ids, "user")
        item_columns, item_ids = _factorize(np.asarray(items), item_ids, "item")
        return cls.from_indices(user_rows, item_columns, user_ids, item_ids)

    @classmethod
    def from_indices(
        cls, rows: NDArray, columns: NDArray, user_ids: NDArray, item_ids: NDArray
    ) -> Interactions:
        """From row and column numbers; repeated pairs count once."""
        shape = (len(user_ids), len(item_ids))
        if goes_without():
            return cls(FewRows.from_entries(rows, columns, shape), user_ids, item_ids)
        matrix = sp.csr_array((np.ones(len(rows), np.float32), (rows, columns)), shape=shape)
        return cls.from_matrix(matrix, user_ids, item_ids)

    @classmethod
    def from_matrix(
        cls,
        matrix: sp.sparray,
        user_ids: NDArray | None = None,
        item_ids: NDArray | None = None,
    ) -> Interactions:
        """From any scipy sparse matrix or dense 0/1 array; every non-zero becomes one."""
        csr = sp.csr_array(matrix, dtype=np.float32, copy=True)
        csr.sum_duplicates()
        csr.eliminate_zeros()
        csr.data[:] = 1.0
        # One type for both: scipy refuses some operations (tocoo) on a mixture.
        index_type = np.int32 if max(csr.nnz, *csr.shape) < 2**31 else np.int64
        csr.indices = csr.indices.astype(index_type, copy=False)
        csr.indptr = csr.indptr.astype(index_type, copy=False)
        n_users, n_items = csr.shape
        return cls(
            csr,
            np.arange(n_users) if user_ids is None else np.asarray(user_ids),
            np.arange(n_items) if item_ids is None else np.asarray(item_ids),
        )

    @property
    def n_users(self) -> int:
        return int(self.matrix.shape[0])

    @property
    def n_items(self) -> int:
        return int(self.matrix.shape[1])

    @property
    def n_interactions(self) -> int:
        return int(self.matrix.nnz)

    @cached_property
    def user_degrees(self) -> NDArray[np.int64]:
        """d_u: how many items each user touched."""
        return np.diff(self.matrix.indptr).astype(np.int64)

    @cached_property
    def item_degrees(self) -> NDArray[np.int64]:
        """V: how many users touched each item."""
        return np.bincount(self.matrix.indices, minlength=self.n_items).astype(np.int64)

    def rows(self, start: int, stop: int) -> Interactions:
        """The users from `start` up to, not including, `stop`, on the same catalogue."""
        return Interactions(self.matrix[start:stop], self.user_ids[start:stop], self.item_ids)

    def without_idle_users(self) -> Interactions:
        """The same without users who have touched nothing."""
        active = self.user_degrees > 0
        return Interactions(self.matrix[active], self.user_ids[active], self.item_ids)

    def select(self, keep: NDArray[np.bool_]) -> Interactions:
        """The interactions marked in `keep` (one flag an entry, in storage order), same ids."""
        kept_before = np.concatenate(([0], np.cumsum(keep)))
        matrix = sp.csr_array(
            (
                self.matrix.data[keep],
                self.matrix.indices[keep],
                kept_before[self.matrix.indptr].astype(self.matrix.indptr.dtype),
            ),
            shape=self.matrix.shape,
        )
        return Interactions.from_matrix(matrix, self.user_ids, self.item_ids)

    def over(self, user_ids: NDArray, item_ids: NDArray) -> Interactions:
        """The same interactions over larger sets of users and items (ids sorted, unique)."""
        rows, _ = _factorize(self.user_ids, user_ids, "user")
        columns, _ = _factorize(self.item_ids, item_ids, "item")
        entries = np.repeat(rows, self.user_degrees)
        return Interactions.from_indices(entries, columns[self.matrix.indices], user_ids, item_ids)

    def fingerprint(self) -> str:
        """SHA-256 of ids and entries: tells two data sets apart in manifests and logs."""
        digest = hashlib.sha256(b"privirec/interactions/1\0")
        for ids in (self.user_ids, self.item_ids):
            digest.update("\n".join(map(str, ids.tolist())).encode() + b"\0")
        digest.update(self.matrix.indptr.astype("<i8").tobytes())
        digest.update(self.matrix.indices.astype("<i4").tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Dataset:
    """A train and a test set over the same users and items (and a name for reports)."""

    name: str
    train: Interactions
    test: Interactions

    def __post_init__(self) -> None:
        if self.train.matrix.shape != self.test.matrix.shape:
            raise DataError(f"{self.name}: train and test differ in their users or items")


def _factorize(values: NDArray, known: NDArray | None, kind: str) -> tuple[NDArray, NDArray]:
    if known is None:
        if values.dtype.kind in "iu" and len(values) and values.min() >= 0:
            largest = int(values.max())
            if largest < 4 * len(values) + 1024:  # a table beats sorting when ids are dense
                occurs = np.zeros(largest + 1, bool)
                occurs[values] = True
                return (np.cumsum(occurs) - 1)[values], np.flatnonzero(occurs)
        ids, positions = np.unique(values, return_inverse=True)
        return positions.reshape(-1), ids
    positions = np.searchsorted(known, values)
    positions = np.minimum(positions, max(len(known) - 1, 0))
    unknown = known[positions] != values if len(known) else np.ones(len(values), bool)
    if unknown.any():
        raise DataError(f"unknown {kind} id {values[np.argmax(unknown)]}")
    return positions, known
