"""Queries to a fitted model: the best items, similar items, similar users, and explanations.

Items have the ids of the data that the model was fitted on: column numbers for a matrix, external
ids for `Interactions` or a DataFrame. Results use the same ids.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from privirec.compiled import Later
from privirec.data.frames import frame_like, is_frame, rows_of_users
from privirec.data.given import (
    UserItems,
    as_interactions,
    check_no_column,
    count_of,
    framed,
    is_history,
    rows_over,
    warn_of_weights,
)
from privirec.data.ids import places_of
from privirec.data.interactions import Interactions, is_pairs, sparse_rows
from privirec.errors import UsageError, warn_of_data
from privirec.filters.operators import Float32
from privirec.filters.parts import Parts
from privirec.models.ids import as_ids, look_up, named, rows_of

kernels = Later("privirec.filters.kernels")

# Small enough that the scores of a batch stay in the cache and the process reuses their memory.
USERS_AT_ONCE = 64
# Items of a history that are scored at once, each as a history of its own, in a dense block.
_ITEMS_AT_ONCE = 64
_USERS_NAMED = 4
"""Largest number of users that a message names."""


class Explanation(NamedTuple):
    """A score and the contribution of each item of the history, the strongest first."""

    score: float
    because: list[tuple[Any, float]]


class Recommending(ABC):
    """Queries on top of `parts` and the item ids, which subclasses provide."""

    item_ids: NDArray | None

    @property
    @abstractmethod
    def n_items(self) -> int:
        """Size of the catalogue."""

    @abstractmethod
    def parts(self, user_items: sp.sparray) -> Parts:
        """Return the scores of every item for each history, in parts."""

    @abstractmethod
    def ready_for(self, histories: int, interactions: int) -> None:
        """Prepare for this number of histories and of interactions."""

    # --- recommending -------------------------------------------------------------------------

    def recommend(
        self,
        userid: ArrayLike,
        user_items: UserItems,
        N: int = 10,
        filter_already_liked_items: bool = True,
        filter_items: ArrayLike | None = None,
        recalculate_user: bool = False,
        items: ArrayLike | None = None,
        *,
        weighted: bool | str = False,
    ) -> tuple[NDArray, Float32]:
        """Return the N best items for one user or several, best first, ties by lower item number.

        Parameters
        ----------
        userid
            One user or an array of them. In Interactions and in a DataFrame they are looked up by
            their ids. A matrix has exactly one row for each, in this order: `R[7]` for user 7,
            `R[[7, 8]]` for two.
        user_items
            The histories, in any form that `fit` accepts, or for one user a list of items, so that
            `recommend("new", ["tea", "milk"])` serves somebody new. Items unknown to the model are
            left out, and a DataWarning says how many. A matrix is accepted only by a model that was
            fitted on a matrix, because columns do not identify the items of a model with ids. An
            empty history has no best items: unless the model falls back on popularity, all items
            score 0 and come in the order of the catalogue, and a DataWarning says so.
        N
            Number of items per user.
        filter_already_liked_items
            If true, leave out items in the history.
        filter_items
            Leave out these items too. Items that the model does not know are left out anyway.
        recalculate_user
            Accepted for compatibility with `implicit`, without effect: recommendations are always
            computed from the given history, because the model keeps no users.
        items
            Rank these items only.
        weighted
            If true, each item of a history counts by its weight: the value in the matrix, or the
            weight in Interactions. For a DataFrame, the name of the column of weights. If false,
            all items count equally, and a DataWarning says so if values differ.

        Returns
        -------
        Items and scores, of shape (N,) for one user and (users, N) for an array of users. If there
        are fewer than N items, the other places hold -1 (for names, an empty one) with a score of
        minus infinity.
        """
        count = count_of(N, "N")
        histories = self._histories(userid, user_items, weighted)
        self._warn_of_empty(histories)
        ids, scores = self._recommend_to(
            histories, count, filter_already_liked_items, weighted, filter_items, items
        )
        return (ids[0], scores[0]) if np.ndim(userid) == 0 else (ids, scores)

    def _recommend_to(
        self,
        histories: sp.csr_array,
        count: int,
        filter_already_liked_items: bool,
        weighted: bool | str,
        filter_items: ArrayLike | None,
        items: ArrayLike | None,
    ) -> tuple[NDArray, Float32]:
        """Return the best items of each row, by their ids, and their scores."""
        if items is not None and filter_items is not None:
            raise UsageError("give items or filter_items, not both")
        only = None if items is None else np.unique(self.columns_of(items))
        without = None if filter_items is None else self._known_columns(filter_items)
        columns, scores = self.best_columns(
            histories,
            count,
            include_seen=not filter_already_liked_items,
            only=only,
            without=without,
            weighted=bool(weighted),
        )
        return self._ids_of(columns), scores

    def best_columns(
        self,
        histories: sp.csr_array,
        count: int,
        *,
        include_seen: bool = False,
        only: NDArray | None = None,
        without: NDArray | None = None,
        weighted: bool = False,
    ) -> tuple[NDArray[np.int64], Float32]:
        """Return the best columns of each history and their scores.

        `only` and `without` are in ascending order.
        """
        columns = np.empty((histories.shape[0], count), np.int64)
        scores = np.empty((histories.shape[0], count), np.float32)
        if not weighted:
            self.ready_for(histories.shape[0], histories.nnz)
        for start in range(0, len(columns), USERS_AT_ONCE):
            batch = slice(start, start + USERS_AT_ONCE)
            part = histories[batch]
            parts = self.weighted_parts(part) if weighted else self.parts(part)
            seen = None if include_seen else part
            if only is not None:
                among = Parts(np.ascontiguousarray(parts.scores()[:, only]))
                found, scores[batch] = among.best(count, None if seen is None else seen[:, only])
                columns[batch] = np.where(found >= 0, only[found], -1) if len(only) else -1
            else:
                columns[batch], scores[batch] = parts.best(
                    count, _with_columns(seen, without, part)
                )
        return columns, scores

    def recommend_frame(
        self,
        user_items: UserItems,
        users: ArrayLike | None = None,
        N: int = 10,
        *,
        titles: Mapping[Any, str] | None = None,
        **more: Any,
    ) -> Any:
        """Return recommendations as a DataFrame of user, item, score, rank, and title if given.

        The frame is of the same library as `user_items` (pandas for Interactions) and uses its
        names for the columns of users and items.

        Parameters
        ----------
        user_items
            The histories.
        users
            Users to recommend to; by default all users in `user_items`.
        N
            Number of items per user.
        titles
            Map from item id to title, for example from `read_titles`.
        **more
            Further arguments of `recommend`.
        """
        weighted = more.get("weighted", False)
        names, interactions, frame = framed(self._with_columns_of_model(user_items), weighted)
        if weighted:
            more["weighted"] = True  # the column, if one was named, has been read already
        chosen = interactions.user_ids if users is None else np.atleast_1d(np.asarray(users))
        ids, scores = self.recommend(chosen, interactions, N, **more)
        rows, places = np.nonzero(np.isfinite(scores))
        found = ids[rows, places]
        table: dict[str, Any] = {
            names[0]: chosen[rows],
            names[1]: found,
            "score": scores[rows, places],
            "rank": places + 1,
        }
        if titles is not None:
            table["title"] = [titles.get(item, titles.get(str(item))) for item in found.tolist()]
        return frame_like(frame, table)

    # --- similar items and users --------------------------------------------------------------

    def similar_items(
        self,
        itemid: ArrayLike,
        N: int = 10,
        *,
        filter_items: ArrayLike | None = None,
        items: ArrayLike | None = None,
    ) -> tuple[NDArray, Float32]:
        """Return the items that the filter scores highest for a history of this item alone.

        `itemid` is one item or an array; the item itself is left out. `items` and `filter_items`
        work as in `recommend`.
        """
        count = count_of(N, "N")
        alone = _alone(self.columns_of(itemid), self.n_items)
        ids, scores = self._recommend_to(alone, count, True, False, filter_items, items)
        return (ids[0], scores[0]) if np.ndim(itemid) == 0 else (ids, scores)

    def similar_users(
        self,
        userid: ArrayLike,
        user_items: UserItems,
        N: int = 10,
        *,
        filter_users: ArrayLike | None = None,
        users: ArrayLike | None = None,
        weighted: bool | str = False,
    ) -> tuple[NDArray, Float32]:
        """Return the users of `user_items` with the most similar scores.

        Similarity is the cosine between the scores that the filter gives to two histories. All
        histories have to be in one place; the model keeps none.

        `userid` is one user or an array: row numbers of a matrix, or ids. Returns users and
        cosines, of shape (N,) or (users, N), without the user itself. `filter_users` are left out
        too, and only `users` are considered if given. `weighted` works as in `recommend`.
        """
        count = count_of(N, "N")
        if users is not None and filter_users is not None:
            raise UsageError("give users or filter_users, not both")
        interactions = as_interactions(self._with_columns_of_model(user_items), weighted)
        everybody = self._known(interactions)
        asked = rows_of(userid, interactions.user_ids)
        cosines = np.zeros((len(asked), everybody.shape[0]), np.float32)
        directions = self._directions(everybody[asked], bool(weighted))
        for start in range(0, everybody.shape[0], USERS_AT_ONCE):
            batch = slice(start, start + USERS_AT_ONCE)
            others = self._directions(everybody[batch], bool(weighted))
            cosines[:, batch] = directions @ others.T
        cosines[np.arange(len(asked)), asked] = -np.inf
        if filter_users is not None:
            cosines[:, rows_of(filter_users, interactions.user_ids)] = -np.inf
        if users is not None:
            left_out = np.ones(everybody.shape[0], bool)
            left_out[rows_of(users, interactions.user_ids)] = False
            cosines[:, left_out] = -np.inf
        rows = np.empty((len(asked), count), np.int64)
        scores = np.empty((len(asked), count), np.float32)
        kernels.top_items(cosines, rows, scores)
        found = named(interactions.user_ids, np.where(np.isneginf(scores), -1, rows))
        return (found[0], scores[0]) if np.ndim(userid) == 0 else (found, scores)

    def _directions(self, histories: sp.csr_array, weighted: bool) -> Float32:
        """Return what histories add to the scores of an empty one, scaled to norm one (or zero)."""
        parts = self.weighted_parts(histories) if weighted else self.parts(histories)
        scores = parts.scores() - self._empty()
        lengths = np.linalg.norm(scores, axis=1, keepdims=True)
        return np.asarray(scores / np.where(lengths > 0, lengths, 1), np.float32)

    # --- explanations -------------------------------------------------------------------------

    def explain(
        self,
        userid: int | str,
        user_items: UserItems,
        itemid: int | str,
        N: int = 10,
        *,
        weighted: bool | str = False,
    ) -> Explanation:
        """Explain an item's score for a user by the N items of the history that add most to it.

        Every model scores linearly, so the contributions of all items of the history add up to the
        score minus that of an empty history (zero except for models that fall back on popularity).
        The arguments for the user, the history and `weighted` work as in `recommend`, for one user.
        """
        count = count_of(N, "N")
        for asked, kind in ((userid, "user"), (itemid, "item")):
            if np.size(asked) != 1:
                raise UsageError(f"explain takes one {kind} at a time, not {np.size(asked)}")
        history = self._histories(userid, user_items, weighted)
        (column,) = self.columns_of(itemid).tolist()
        of_all = self.weighted_parts(history) if weighted else self.parts(history)
        score = float(of_all.scores()[0, column])
        parts = self.contributions(history.indices, np.array([column]))[:, 0]
        if weighted:
            parts = history.data.astype(np.float32) * parts
        strongest = np.argsort(-parts, kind="stable")[:count]
        items = self._ids_of(history.indices[strongest].astype(np.int64)).tolist()
        return Explanation(score, list(zip(items, parts[strongest].tolist(), strict=True)))

    def contributions(self, history: NDArray, columns: NDArray) -> Float32:
        """Return what each history item adds to the score of each column: (history, columns)."""
        out = np.empty((len(history), len(columns)), np.float32)
        for start in range(0, len(history), _ITEMS_AT_ONCE):
            items = history[start : start + _ITEMS_AT_ONCE]
            scores = self.parts(_alone(items, self.n_items)).scores()
            out[start : start + len(items)] = scores[:, columns]
        return out - self._empty()[columns]

    def weighted_parts(self, histories: sp.csr_array) -> Parts:
        """Return the scores of every item for histories whose items count by their values."""
        scores = np.repeat(self._empty()[None], histories.shape[0], axis=0)
        everything = np.arange(self.n_items)
        for row in range(histories.shape[0]):
            of_row = slice(histories.indptr[row], histories.indptr[row + 1])
            weights = histories.data[of_row].astype(np.float32)
            for start in range(0, len(weights), _ITEMS_AT_ONCE):
                some = slice(start, start + _ITEMS_AT_ONCE)
                parts = self.contributions(histories.indices[of_row][some], everything)
                scores[row] += weights[some] @ parts
        return Parts(scores)

    def _empty(self) -> Float32:
        """Return the scores of an empty history."""
        return self.parts(self._nobody()).scores()[0].copy()

    def _nobody(self) -> sp.csr_array:
        return sp.csr_array((1, self.n_items), dtype=np.float32)

    # --- ids ----------------------------------------------------------------------------------

    def columns_of(self, items: ArrayLike) -> NDArray[np.int64]:
        """Return the columns of items by their ids."""
        ids = np.arange(self.n_items) if self.item_ids is None else self.item_ids
        return look_up(items, ids, "item", f"in a catalogue of {len(ids)}")

    def _known_columns(self, items: ArrayLike) -> NDArray[np.int64]:
        """Return the columns of those items that the model knows, in ascending order."""
        ids = np.arange(self.n_items) if self.item_ids is None else self.item_ids
        place = places_of(as_ids(items), ids)
        return np.unique(place[place >= 0])

    def _ids_of(self, columns: NDArray[np.int64]) -> NDArray:
        return columns if self.item_ids is None else named(self.item_ids, columns)

    def _histories(
        self, userid: ArrayLike, user_items: UserItems, weighted: bool | str = False
    ) -> sp.csr_array:
        """Return one row per user over the model's columns, with the given values."""
        _ = self.n_items  # a model without any was not fitted, which is the first thing to say
        users = np.asarray(userid)
        if is_history(user_items):
            if users.size != 1 or weighted:
                raise UsageError("a list of items is the history of one user, without weights")
            items = list(user_items)
            history = Interactions.from_pairs(np.zeros(len(items), np.int64), items)
            return self._known(history) if items else self._nobody()
        if is_frame(user_items):
            user_items = rows_of_users(user_items, as_ids(users))
        if _names_its_items(user_items):
            interactions = as_interactions(user_items, weighted)
            asked = rows_of(users, interactions.user_ids)
            chosen = interactions.weighted_matrix()[asked]
            ids = interactions.user_ids[asked], interactions.item_ids
            return self._known(
                Interactions(chosen, *ids, weights=chosen.data if weighted else None)
            )
        if users.dtype.kind not in "iu" and users.size:
            raise UsageError(
                f"user {users.reshape(-1)[0]} is no row of a matrix; give Interactions or a "
                "DataFrame to ask by id"
            )
        check_no_column(weighted)
        self._check_items_are_columns()
        histories = rows_over(user_items, self.n_items)
        if histories.shape[0] != users.size:
            which = str(users.tolist()) if users.size <= _USERS_NAMED else "users"
            raise UsageError(
                f"{users.size} users but {histories.shape[0]} histories: a matrix has a row for "
                f"each user that is asked for, so give user_items[{which}]"
            )
        if not weighted:
            warn_of_weights(histories)
        return histories

    def _with_columns_of_model(self, user_items: UserItems) -> UserItems:
        """Return the input after checking that the columns of a matrix are the model's."""
        _ = self.n_items
        if _names_its_items(user_items):
            return user_items
        self._check_items_are_columns()
        rows = sparse_rows(user_items)
        return rows_over(rows, self.n_items) if rows.ndim == 2 else rows

    def _check_items_are_columns(self) -> None:
        """Raise UsageError if items have ids: a matrix does not say which columns they are."""
        ids = self.item_ids
        if ids is not None and not np.array_equal(ids, np.arange(self.n_items)):
            several = ", ".join(map(str, ids[:3].tolist()))
            raise UsageError(
                f"this model has items with ids ({several} ...), which the columns of a matrix do "
                "not name: give a DataFrame or Interactions, such as "
                "Interactions.from_matrix(matrix, item_ids=...)"
            )

    def _warn_of_empty(self, histories: sp.csr_array) -> None:
        """Warn how many lists are meaningless because their histories are empty."""
        empty = int((np.diff(histories.indptr) == 0).sum())
        if empty and not self._empty().any():
            warn_of_data(
                f"{empty:,} of {histories.shape[0]:,} histories have nothing that the model knows: "
                "every item scores 0 there, and lists are in the order of the catalogue"
            )

    def _known(self, interactions: Interactions) -> sp.csr_array:
        """Return the histories over the model's columns; warn how many interactions are unknown."""
        ids = np.arange(self.n_items) if self.item_ids is None else self.item_ids
        if np.array_equal(ids, interactions.item_ids):
            return interactions.weighted_matrix()
        if interactions.n_interactions and len(ids):
            _check_kinds(ids, interactions.item_ids)
        place = places_of(interactions.item_ids, ids)
        entries = interactions.matrix.tocoo()
        known = place[entries.col] >= 0
        if not known.all():
            strange = len(np.unique(entries.col[~known]))
            warn_of_data(
                f"{int((~known).sum()):,} of {len(known):,} interactions are left out; items that "
                f"the model does not know: {strange:,}"
            )
        rows, columns = entries.row[known], place[entries.col[known]]
        weights = None if interactions.weights is None else interactions.weights[known]
        users = interactions.user_ids
        return Interactions.from_indices(
            rows, columns, users, ids, weights=weights
        ).weighted_matrix()


def _names_its_items(user_items: UserItems) -> bool:
    """Return True if the input identifies items by ids and not by columns."""
    return isinstance(user_items, Interactions) or is_frame(user_items) or is_pairs(user_items)


def _check_kinds(ours: NDArray, theirs: NDArray) -> None:
    """Raise UsageError if one side numbers its items and the other names them."""
    if (ours.dtype.kind == "U") != (theirs.dtype.kind == "U"):
        raise UsageError(
            f"the items of this model are {ours[0]!s}, {ours[-1]!s} ..., and those of the history "
            f"{theirs[0]!s} ...: numbers and names differ. use(components, item_ids) names them"
        )


def _alone(columns: NDArray, n_items: int) -> sp.csr_array:
    """Return one history per column that contains only this column."""
    count = len(columns)
    ones = np.ones(count, np.float32)
    return sp.csr_array((ones, columns, np.arange(count + 1)), shape=(count, n_items))


def _with_columns(
    seen: sp.csr_array | None, without: NDArray | None, part: sp.csr_array
) -> sp.csr_array | None:
    """Return the entries to leave out of each row: those seen, plus `without` for every row."""
    if without is None:
        return seen
    rows = part.shape[0]
    ends = np.arange(rows + 1) * len(without)
    common = sp.csr_array(
        (np.ones(rows * len(without), np.float32), np.tile(without, rows), ends), shape=part.shape
    )
    return common if seen is None else sp.csr_array(common + seen)
