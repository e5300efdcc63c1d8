"""Who touched what: a sparse 0/1 matrix with the ids that people outside use."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from privirec.compiled import goes_without
from privirec.data.columns import TableOptions
from privirec.data.few_rows import FewRows
from privirec.data.ids import clean_ids
from privirec.errors import DataError, DataWarning, UsageError


@dataclass(frozen=True, repr=False)
class Interactions:
    """Who touched what: a sparse matrix of ones, a row for each user and a column for each item.

    Made by `from_frame`, `from_matrix`, `from_pairs` or `read_interactions` rather than directly.
    """

    matrix: sp.csr_array
    """Users x items; every stored entry is one, sorted, without duplicates. In a process that goes
    without SciPy, `FewRows`."""
    user_ids: NDArray
    """The external names of the rows, integers or strings."""
    item_ids: NDArray
    """The external names of the columns."""
    times: NDArray | None = None
    """The moments of the entries, in their order, if these are known."""

    def __repr__(self) -> str:
        timed = ", with times" if self.times is not None else ""
        return (
            f"Interactions({self.n_users:,} users, {self.n_items:,} items, "
            f"{self.n_interactions:,} interactions{timed})"
        )

    def __post_init__(self) -> None:
        if self.times is not None and len(self.times) != self.matrix.nnz:
            raise DataError(f"{len(self.times)} times for {self.matrix.nnz} interactions")
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
        times: ArrayLike | None = None,
    ) -> Interactions:
        """From two columns of external ids. Given id arrays fix rows and columns (sorted, unique);
        otherwise they are the ids that occur, in ascending order. Of a repeated pair the latest
        time counts."""
        users, items = clean_ids(users, "users"), clean_ids(items, "items")
        if len(users) != len(items):
            raise DataError(f"{len(users)} users and {len(items)} items do not make pairs")
        user_rows, user_ids = _factorize(users, user_ids, "user")
        item_columns, item_ids = _factorize(items, item_ids, "item")
        moments = None if times is None else np.asarray(times)
        return cls.from_indices(user_rows, item_columns, user_ids, item_ids, moments)

    @classmethod
    def from_indices(
        cls,
        rows: NDArray,
        columns: NDArray,
        user_ids: NDArray,
        item_ids: NDArray,
        times: NDArray | None = None,
    ) -> Interactions:
        """From row and column numbers; repeated pairs count once, at their latest time."""
        shape = (len(user_ids), len(item_ids))
        if goes_without():
            return cls(FewRows.from_entries(rows, columns, shape), user_ids, item_ids)
        matrix = sp.csr_array((np.ones(len(rows), np.float32), (rows, columns)), shape=shape)
        if times is None:
            return cls.from_matrix(matrix, user_ids, item_ids)
        if len(times) != len(rows):
            raise DataError(f"{len(times)} times for {len(rows)} interactions")
        pairs = np.asarray(rows, np.int64) * max(len(item_ids), 1) + columns
        order = np.lexsort((times, pairs))
        latest = np.diff(pairs[order], append=-1) != 0
        return cls.from_matrix(matrix, user_ids, item_ids, times[order][latest])

    @classmethod
    def from_matrix(
        cls,
        matrix: sp.sparray,
        user_ids: NDArray | None = None,
        item_ids: NDArray | None = None,
        times: NDArray | None = None,
    ) -> Interactions:
        """From any scipy sparse matrix or dense 0/1 array; every non-zero becomes one.

        Values that are negative or no numbers are refused: they mean something else.
        """
        csr = sp.csr_array(sparse_rows(matrix), dtype=np.float32, copy=True)
        csr.sum_duplicates()
        csr.eliminate_zeros()
        csr.data[:] = 1.0
        # One type for both: scipy refuses some operations (tocoo) on a mixture.
        index_type = np.int32 if max(csr.nnz, *csr.shape) < 2**31 else np.int64
        csr.indices = csr.indices.astype(index_type, copy=False)
        csr.indptr = csr.indptr.astype(index_type, copy=False)
        if csr.ndim != 2:
            raise UsageError("user_items has one row of numbers and no others; rows are users")
        n_users, n_items = csr.shape
        return cls(
            csr,
            np.arange(n_users) if user_ids is None else np.asarray(user_ids),
            np.arange(n_items) if item_ids is None else np.asarray(item_ids),
            times,
        )

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        user: str | None = None,
        item: str | None = None,
        rating: str | None = None,
        time: str | None = None,
        min_rating: float | None = None,
    ) -> Interactions:
        """From a pandas or polars DataFrame with a row for each interaction.

        Columns with usual names (user_id, item_id, customer, product ...) are found without being
        named. Rows rated lower than `min_rating` are left out.
        """
        from privirec.data.frames import rows_of_frame  # noqa: PLC0415 - few need it

        rows = rows_of_frame(frame, TableOptions(user, item, rating, time, min_rating))
        return cls.from_pairs(rows.users, rows.items, times=rows.times)

    @property
    def n_users(self) -> int:
        """Rows, users without any item among them."""
        return int(self.matrix.shape[0])

    @property
    def n_items(self) -> int:
        """Columns: the size of the catalogue."""
        return int(self.matrix.shape[1])

    @property
    def n_interactions(self) -> int:
        """Ones in the matrix."""
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
        matrix = self.matrix[start:stop]
        times = self.times
        if times is not None:
            first = int(self.matrix.indptr[min(max(start, 0), self.n_users)])
            times = times[first : first + matrix.nnz]
        return Interactions(matrix, self.user_ids[start:stop], self.item_ids, times)

    def without_idle_users(self) -> Interactions:
        """The same without users who have touched nothing."""
        return self.of_users(self.user_degrees > 0)

    def of_users(self, chosen: NDArray[np.bool_]) -> Interactions:
        """Only the users that are marked, on the same catalogue."""
        times = self.times
        if times is not None:
            times = times[np.repeat(chosen, self.user_degrees)]
        return Interactions(self.matrix[chosen], self.user_ids[chosen], self.item_ids, times)

    def select(self, keep: NDArray[np.bool_]) -> Interactions:
        """The interactions marked in `keep` (one flag an entry, in storage order), same ids."""
        matrix = select_entries(self.matrix, keep)
        times = None if self.times is None else self.times[keep]
        return Interactions.from_matrix(matrix, self.user_ids, self.item_ids, times)

    def over(self, user_ids: NDArray, item_ids: NDArray) -> Interactions:
        """The same interactions over larger sets of users and items (ids sorted, unique)."""
        rows, _ = _factorize(self.user_ids, user_ids, "user")
        columns, _ = _factorize(self.item_ids, item_ids, "item")
        entries = np.repeat(rows, self.user_degrees)
        items = columns[self.matrix.indices]
        return Interactions.from_indices(entries, items, user_ids, item_ids, self.times)

    def fingerprint(self) -> str:
        """SHA-256 of ids and entries: tells two data sets apart in manifests and logs."""
        digest = hashlib.sha256(b"privirec/interactions/1\0")
        for ids in (self.user_ids, self.item_ids):
            digest.update("\n".join(map(str, ids.tolist())).encode() + b"\0")
        digest.update(self.matrix.indptr.astype("<i8").tobytes())
        digest.update(self.matrix.indices.astype("<i4").tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, repr=False)
class Dataset:
    """A train and a test set over the same users and items."""

    name: str
    """For reports."""
    train: Interactions
    """What models are fitted on, and recommend from."""
    test: Interactions
    """What was held out, to measure by."""

    def __post_init__(self) -> None:
        if self.train.matrix.shape != self.test.matrix.shape:
            raise DataError(f"{self.name}: train and test differ in their users or items")

    def check_apart(self) -> None:
        """Refuse a test set that lies in train; say, once, how much of one does."""
        _ = self._in_both

    @cached_property
    def _in_both(self) -> int:
        """Test interactions that are in train too."""
        both = int(self.train.matrix.multiply(self.test.matrix).nnz)
        total = self.test.n_interactions
        if total and both == total:
            raise DataError(f"{self.name}: the whole test set is in train too")
        if both:
            warnings.warn(
                f"{self.name}: {both:,} of {total:,} test interactions are in train too: nobody is "
                "recommended what he has, so each counts as missed",
                DataWarning,
                stacklevel=5,
            )
        return both

    def together(self) -> Interactions:
        """All interactions, of train and of test."""
        parts = [(part.matrix.tocoo(), part.times) for part in (self.train, self.test)]
        rows, columns = (
            np.concatenate([getattr(matrix, axis) for matrix, _ in parts])
            for axis in ("row", "col")
        )
        known = [times for _, times in parts if times is not None]
        times = np.concatenate(known) if len(known) == len(parts) else None
        ids = self.train.user_ids, self.train.item_ids
        return Interactions.from_indices(rows, columns, *ids, times)

    def __repr__(self) -> str:
        train, test = self.train, self.test
        return (
            f"Dataset({self.name!r}, {train.n_users:,} users, {train.n_items:,} items, "
            f"{train.n_interactions:,} train and {test.n_interactions:,} test interactions)"
        )


def sparse_rows(user_items: object) -> sp.csr_array:
    """Any matrix as sparse rows; its own memory where it is such already.

    What is no matrix, and values that are negative or no numbers, are refused.
    """
    if user_items is None or isinstance(user_items, str | bytes | dict | set):
        raise UsageError(
            f"user_items is no matrix but {type(user_items).__name__}; rows are users, columns "
            "items (privirec.read_interactions reads files)"
        )
    try:
        rows = sp.csr_array(user_items)
        rows = rows if rows.dtype.kind in "fiub" else rows.astype(np.float64)
    except (TypeError, ValueError) as error:
        kind = type(user_items).__name__
        raise UsageError(f"user_items: {kind} cannot be read as a matrix ({error})") from None
    if rows.dtype.kind == "f" and not np.isfinite(rows.data).all():
        raise DataError("user_items holds NaN or infinity: leave out what is not known")
    if rows.dtype.kind in "fi" and rows.nnz and rows.data.min() < 0:
        raise DataError(
            f"user_items holds {rows.data.min():g}: negative values are no interactions, leave "
            "them out"
        )
    return rows


def select_entries(matrix: sp.csr_array, keep: NDArray[np.bool_]) -> sp.csr_array:
    """The entries marked in `keep`, one flag each in storage order."""
    kept_before = np.concatenate(([0], np.cumsum(keep)))
    indptr = kept_before[matrix.indptr].astype(matrix.indptr.dtype)
    return sp.csr_array((matrix.data[keep], matrix.indices[keep], indptr), shape=matrix.shape)


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
