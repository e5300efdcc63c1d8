"""Interactions of users and items: a sparse 0/1 matrix with external ids, times and weights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from privirec.compiled import goes_without
from privirec.data.few_rows import FewRows
from privirec.data.ids import clean_ids, clean_weights, in_lines
from privirec.errors import DataError, UsageError, warn_of_data


@dataclass(frozen=True, repr=False)
class Interactions:
    """Interactions as a sparse matrix of ones, with a row for each user and a column for each item.

    Use `from_frame`, `from_matrix`, `from_pairs` or `read_interactions` to make one.
    """

    matrix: sp.csr_array
    """Users x items; every stored entry is one, sorted, without duplicates. In a process without
    SciPy it is a `FewRows`."""
    user_ids: NDArray
    """External ids of the rows, integers or strings."""
    item_ids: NDArray
    """External ids of the columns."""
    times: NDArray | None = None
    """Times of the entries, in storage order, if known."""
    weights: NDArray[np.float64] | None = None
    """Weights of the entries, in storage order, all above zero; None: every entry counts as one.
    Only `fit(..., weighted=True)` and `recommend(..., weighted=True)` use them."""

    def __repr__(self) -> str:
        more = [name for name in ("times", "weights") if getattr(self, name) is not None]
        also = f", with {' and '.join(more)}" if more else ""
        return (
            f"Interactions({self.n_users:,} users, {self.n_items:,} items, "
            f"{self.n_interactions:,} interactions{also})"
        )

    def __post_init__(self) -> None:
        for name in ("times", "weights"):
            held = getattr(self, name)
            if held is not None and len(held) != self.matrix.nnz:
                raise DataError(f"{len(held)} {name} for {self.matrix.nnz} interactions")
        if self.matrix.shape != (len(self.user_ids), len(self.item_ids)):
            raise DataError(
                f"matrix of shape {self.matrix.shape} with {len(self.user_ids)} user ids "
                f"and {len(self.item_ids)} item ids"
            )

    @classmethod
    def of(cls, user_items: Any) -> Interactions:
        """Make interactions from a DataFrame, a list of pairs (user, item) or a matrix.

        >>> Interactions.of([("ann", "tea"), ("bob", "tea"), ("bob", "milk")])
        Interactions(2 users, 2 items, 3 interactions)
        """
        from privirec.data.frames import is_frame  # noqa: PLC0415 - few need it

        if isinstance(user_items, Interactions):
            return user_items
        if is_frame(user_items):
            return cls.from_frame(user_items)
        if is_pairs(user_items):
            return cls.from_pairs(*map(list, zip(*user_items, strict=True)))
        return cls.from_matrix(sparse_rows(user_items))

    @classmethod
    def from_pairs(
        cls,
        users: ArrayLike,
        items: ArrayLike,
        *,
        user_ids: NDArray | None = None,
        item_ids: NDArray | None = None,
        times: ArrayLike | None = None,
        weights: ArrayLike | None = None,
    ) -> Interactions:
        """Make interactions from two columns of external ids.

        If given, `user_ids` and `item_ids` (sorted, unique) fix rows and columns; otherwise these
        are the ids that occur, in ascending order. A repeated pair counts once, with its latest
        time and the sum of its weights.
        """
        users, items = clean_ids(users, "users"), clean_ids(items, "items")
        if len(users) != len(items):
            raise DataError(f"{len(users)} users and {len(items)} items do not make pairs")
        user_rows, user_ids = _factorize(users, user_ids, "user")
        item_columns, item_ids = _factorize(items, item_ids, "item")
        moments = None if times is None else np.asarray(times)
        heavy = None if weights is None else clean_weights(weights, "weights")
        return cls.from_indices(user_rows, item_columns, user_ids, item_ids, moments, heavy)

    @classmethod
    def from_indices(
        cls,
        rows: NDArray,
        columns: NDArray,
        user_ids: NDArray,
        item_ids: NDArray,
        times: NDArray | None = None,
        weights: NDArray | None = None,
    ) -> Interactions:
        """Make interactions from row and column numbers.

        A repeated pair counts once, with its latest time and the sum of its weights.
        """
        shape = (len(user_ids), len(item_ids))
        if goes_without():
            return cls(FewRows.from_entries(rows, columns, shape), user_ids, item_ids)
        weighted = weights is not None
        if weights is not None and len(weights) != len(rows):
            raise DataError(f"{len(weights)} weights for {len(rows)} interactions")
        values = np.ones(len(rows), np.float32) if weights is None else weights
        matrix = sp.csr_array((values, (rows, columns)), shape=shape)
        if times is None:
            return cls.from_matrix(matrix, user_ids, item_ids, weighted=weighted)
        if len(times) != len(rows):
            raise DataError(f"{len(times)} times for {len(rows)} interactions")
        pairs = np.asarray(rows, np.int64) * max(len(item_ids), 1) + columns
        order = np.lexsort((times, pairs))
        latest = np.diff(pairs[order], append=-1) != 0
        moments = times[order][latest]
        return cls.from_matrix(matrix, user_ids, item_ids, moments, weighted=weighted)

    @classmethod
    def from_matrix(
        cls,
        matrix: sp.sparray,
        user_ids: NDArray | None = None,
        item_ids: NDArray | None = None,
        times: NDArray | None = None,
        *,
        weighted: bool = False,
    ) -> Interactions:
        """Make interactions from any SciPy sparse matrix or dense array.

        Every non-zero entry becomes one interaction; its value is the weight if `weighted` is true.
        Negative values, NaN and infinity raise DataError, because they have another meaning.
        """
        kind = np.float64 if weighted else np.float32
        csr = sp.csr_array(sparse_rows(matrix), dtype=kind, copy=True)
        csr.sum_duplicates()
        csr.eliminate_zeros()
        weights = csr.data if weighted else None
        csr.data = np.ones(csr.nnz, np.float32)
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
            weights,
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
        weight: str | None = None,
    ) -> Interactions:
        """Make interactions from a pandas or polars DataFrame with a row for each interaction.

        Columns with usual names (user_id, item_id, customer, product ...) are detected. Rows rated
        lower than `min_rating` are left out. `weight` names the column of weights, which is never
        detected; the weights of a repeated pair are added up.
        """
        from privirec.data.frames import FrameOptions, rows_of_frame  # noqa: PLC0415 - few need it

        options = FrameOptions(user, item, rating, time, min_rating, weight_column=weight)
        rows = rows_of_frame(frame, options)
        return cls.from_pairs(rows.users, rows.items, times=rows.times, weights=rows.weights)

    @property
    def n_users(self) -> int:
        """Number of rows, including users without any item."""
        return int(self.matrix.shape[0])

    @property
    def n_items(self) -> int:
        """Number of columns: the size of the catalogue."""
        return int(self.matrix.shape[1])

    @property
    def n_interactions(self) -> int:
        """Number of ones in the matrix."""
        return int(self.matrix.nnz)

    @cached_property
    def user_degrees(self) -> NDArray[np.int64]:
        """d_u: number of items of each user."""
        return np.diff(self.matrix.indptr).astype(np.int64)

    @cached_property
    def item_degrees(self) -> NDArray[np.int64]:
        """V: number of users of each item."""
        return np.bincount(self.matrix.indices, minlength=self.n_items).astype(np.int64)

    def rows(self, start: int, stop: int) -> Interactions:
        """Return the users from `start` up to, not including, `stop`, on the same catalogue."""
        matrix = self.matrix[start:stop]
        first = int(self.matrix.indptr[min(max(start, 0), self.n_users)])
        more = self._of_entries(slice(first, first + matrix.nnz))
        return Interactions(matrix, self.user_ids[start:stop], self.item_ids, *more)

    def _of_entries(self, chosen: Any) -> tuple[NDArray | None, NDArray | None]:
        """Return times and weights of some entries, in storage order."""
        times, weights = (
            None if held is None else held[chosen] for held in (self.times, self.weights)
        )
        return times, weights

    def without_idle_users(self) -> Interactions:
        """Return the interactions without users who have no item."""
        return self.of_users(self.user_degrees > 0)

    def of_users(self, chosen: NDArray[np.bool_]) -> Interactions:
        """Return only the marked users, on the same catalogue."""
        more = self._of_entries(np.repeat(chosen, self.user_degrees))
        return Interactions(self.matrix[chosen], self.user_ids[chosen], self.item_ids, *more)

    def select(self, keep: NDArray[np.bool_]) -> Interactions:
        """Return the interactions marked in `keep`, one flag per entry in storage order."""
        matrix = select_entries(self.matrix, keep)
        return Interactions(matrix, self.user_ids, self.item_ids, *self._of_entries(keep))

    def over(self, user_ids: NDArray, item_ids: NDArray) -> Interactions:
        """Return the interactions over larger sets of users and items (ids sorted, unique)."""
        rows, _ = _factorize(self.user_ids, user_ids, "user")
        columns, _ = _factorize(self.item_ids, item_ids, "item")
        entries = np.repeat(rows, self.user_degrees)
        items = columns[self.matrix.indices]
        more = self.times, self.weights
        return Interactions.from_indices(entries, items, user_ids, item_ids, *more)

    def fingerprint(self) -> str:
        """Return the SHA-256 of ids and entries, which identifies data in manifests and logs."""
        digest = hashlib.sha256(b"privirec/interactions/1\0")
        for ids in (self.user_ids, self.item_ids):
            for text in in_lines(ids):
                digest.update(text.encode())
            digest.update(b"\0")
        digest.update(self.matrix.indptr.astype("<i8").tobytes())
        digest.update(self.matrix.indices.astype("<i4").tobytes())
        if self.weights is not None:
            digest.update(self.weights.astype("<f8").tobytes())
        return digest.hexdigest()

    def unweighted(self) -> Interactions:
        """Return the interactions with every entry counted as one."""
        return self if self.weights is None else replace(self, weights=None)

    def weighted_matrix(self) -> sp.csr_array:
        """Return the matrix with weights instead of ones, or with ones if there are no weights."""
        if self.weights is None:
            return self.matrix
        matrix = self.matrix
        return sp.csr_array((self.weights, matrix.indices, matrix.indptr), shape=matrix.shape)


@dataclass(frozen=True, repr=False)
class Dataset:
    """A train and a test set over the same users and items."""

    name: str
    """Name for reports."""
    train: Interactions
    """Interactions that models are fitted on, and recommend from."""
    test: Interactions
    """Held-out interactions, used for measuring."""

    def __post_init__(self) -> None:
        if self.train.matrix.shape != self.test.matrix.shape:
            raise DataError(f"{self.name}: train and test differ in their users or items")

    @classmethod
    def of(cls, train: Any, test: Any, *, name: str = "data") -> Dataset:
        """Make a data set from two DataFrames, Interactions or matrices.

        Rows are the users of train, who must include those of test; columns are the items of both.

        >>> Dataset.of([("ann", "tea"), ("bob", "milk")], [("ann", "milk")])
        Dataset('data', 2 users, 2 items, 2 train and 1 test interactions)
        """
        train, test = _alike(*(Interactions.of(part) for part in (train, test)))
        strangers = np.setdiff1d(test.user_ids, train.user_ids)
        if len(strangers):
            raise UnknownUsers(strangers)
        items = np.union1d(train.item_ids, test.item_ids)
        return cls(name, *(part.over(train.user_ids, items) for part in (train, test)))

    def check_apart(self) -> None:
        """Raise DataError if all of test is also in train; warn once if some of it is."""
        _ = self._in_both

    @cached_property
    def _in_both(self) -> int:
        """Number of test interactions that are also in train."""
        both = int(self.train.matrix.multiply(self.test.matrix).nnz)
        total = self.test.n_interactions
        if total and both == total:
            raise DataError(f"{self.name}: the whole test set is in train too")
        if both:
            warn_of_data(
                f"{self.name}: {both:,} of {total:,} test interactions are in train too: items in "
                "a history are never recommended, so each counts as missed"
            )
        return both

    def together(self) -> Interactions:
        """Return all interactions of train and test."""
        both = (self.train, self.test)
        entries = [part.matrix.tocoo() for part in both]
        rows, columns = (
            np.concatenate([getattr(matrix, axis) for matrix in entries]) for axis in ("row", "col")
        )
        ids = self.train.user_ids, self.train.item_ids
        times = _joined([part.times for part in both])
        weights = _joined([part.weights for part in both])
        return Interactions.from_indices(rows, columns, *ids, times, weights)

    def __repr__(self) -> str:
        train, test = self.train, self.test
        return (
            f"Dataset({self.name!r}, {train.n_users:,} users, {train.n_items:,} items, "
            f"{train.n_interactions:,} train and {test.n_interactions:,} test interactions)"
        )


class UnknownUsers(DataError):
    """Users of a test set who are not in train."""

    def __init__(self, users: NDArray) -> None:
        super().__init__(f"{len(users):,} users of test are not in train, such as {users[0]}")
        self.users = users


def _alike(train: Interactions, test: Interactions) -> tuple[Interactions, Interactions]:
    """Give both parts the same kind of ids: numbers become names if the other part has names."""

    def named(part: Interactions, users: bool, items: bool) -> Interactions:
        rows = np.repeat(part.user_ids, part.user_degrees)
        columns = part.item_ids[part.matrix.indices]
        return Interactions.from_pairs(
            rows.astype(str) if users else rows,
            columns.astype(str) if items else columns,
            times=part.times,
            weights=part.weights,
        )

    users, items = (
        getattr(train, ids).dtype.kind != getattr(test, ids).dtype.kind
        and {getattr(train, ids).dtype.kind, getattr(test, ids).dtype.kind} > {"U"}
        for ids in ("user_ids", "item_ids")
    )
    if users or items:
        return named(train, users, items), named(test, users, items)
    return train, test


def _joined(parts: list[NDArray | None]) -> NDArray | None:
    """Concatenate the arrays if none is missing, otherwise return None."""
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if len(known) == len(parts) else None


def is_pairs(user_items: object) -> bool:
    """Return True for a list of pairs (user, item); raise UsageError for longer tuples."""
    if not isinstance(user_items, list) or not user_items:
        return False
    if not all(isinstance(row, tuple) for row in user_items):
        return False
    if any(len(row) != 2 for row in user_items):
        raise UsageError("a list of tuples holds pairs (user, item); weights go with a DataFrame")
    return True


def sparse_rows(user_items: object) -> sp.csr_array:
    """Return any matrix as sparse rows, sharing memory if it has that form already.

    Raises UsageError for anything that is not a matrix, and DataError for negative or non-finite
    values.
    """
    if isinstance(user_items, Dataset):
        raise UsageError("user_items is a Dataset: give its .train, or .together() for all of it")
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
    # Compiled loops would read and write outside their arrays.
    if rows.nnz and (rows.indices.min() < 0 or rows.indices.max() >= rows.shape[-1]):
        raise DataError("user_items names columns that it does not have: its indices are damaged")
    if rows.dtype.kind == "f" and not np.isfinite(rows.data).all():
        raise DataError("user_items holds NaN or infinity: leave out what is not known")
    if rows.dtype.kind in "fi" and rows.nnz and rows.data.min() < 0:
        raise DataError(
            f"user_items holds {rows.data.min():g}: negative values are no interactions, leave "
            "them out"
        )
    return rows


def select_entries(matrix: sp.csr_array, keep: NDArray[np.bool_]) -> sp.csr_array:
    """Return the entries marked in `keep`, one flag per entry in storage order."""
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
