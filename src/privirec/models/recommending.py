"""What people ask of a fitted model: the best items, similar ones, similar people, and why.

Items are named as in what the model was fitted on: by their column after a matrix, by their own ids
after `Interactions` or a DataFrame. So are the items that answers name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from privirec.compiled import Later
from privirec.data.frames import frame_like, is_frame
from privirec.data.given import (
    UserItems,
    as_interactions,
    check_no_column,
    count_of,
    framed,
    rows_over,
    warn_of_weights,
)
from privirec.data.interactions import Interactions, sparse_rows
from privirec.errors import UsageError, warn_of_data
from privirec.filters.operators import Float32
from privirec.filters.parts import Parts
from privirec.models.naming import look_up, named, places_of, rows_of

kernels = Later("privirec.filters.kernels")

# Small enough that the scores of a batch stay in the cache, and their memory in the process.
USERS_AT_ONCE = 64
# Items of a history that are scored alone at once: a dense block of so many rows.
_ITEMS_AT_ONCE = 64
_USERS_NAMED = 4
"""So many are named in a message."""


class Explanation(NamedTuple):
    """A score, and what each item of the history adds to it, the strongest first."""

    score: float
    because: list[tuple[Any, float]]


class Recommending(ABC):
    """Needs `parts` and the ids of its items."""

    item_ids: NDArray | None

    @property
    @abstractmethod
    def n_items(self) -> int:
        """Size of the catalogue."""

    @abstractmethod
    def parts(self, user_items: sp.sparray) -> Parts:
        """Scores of every item for each history, in parts."""

    @abstractmethod
    def ready_for(self, histories: int, interactions: int) -> None:
        """Prepare for so many histories, with so many interactions in all."""

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
        """The N best items for one user or several, best first, equal scores by lower item number.

        Parameters
        ----------
        userid
            One user or an array of them. In Interactions and in a DataFrame they are looked up by
            their ids. A matrix has a row for each, in this order, and no others: `R[7]` for user 7,
            `R[[7, 8]]` for two.
        user_items
            The histories, of any kind that `fit` takes. Items that the model does not know are left
            out, and a DataWarning says how many. A matrix goes with a model that was fitted on a
            matrix: columns do not say which of a model's named items they are. An empty history has
            no best items: unless the model falls back on popularity, all score 0 and come in the
            order of the catalogue, and a DataWarning says so.
        N
            How many items.
        filter_already_liked_items
            Leave out what is in the history.
        filter_items
            Leave out these items too.
        recalculate_user
            Taken for the sake of code written for `implicit`, without effect: recommendations
            always come from the history that is given, as the model keeps no users.
        items
            Rank these items only.
        weighted
            Each item of a history counts by its weight: the value in the matrix, the weight in
            Interactions; in a DataFrame what stands in the column of which this is the name.
            Otherwise all count alike, and a DataWarning says so if values differ.

        Returns
        -------
        Items and scores, of shape (N,) for one user and (users, N) for an array of users. Where
        there are not enough items the rest is -1 (for names, an empty one) with a score of minus
        infinity.
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
        """The best items of each row, by their ids, and their scores."""
        if items is not None and filter_items is not None:
            raise UsageError("give items or filter_items, not both")
        only = None if items is None else np.unique(self.columns_of(items))
        without = None if filter_items is None else np.unique(self.columns_of(filter_items))
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
        """The best columns of each history and their scores; `only` and `without` ascending."""
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
        """Recommendations as a DataFrame: user, item, score, rank, and title if there are titles.

        The frame is of the library of `user_items` (pandas for Interactions), with its names for
        the columns of users and items.

        Parameters
        ----------
        user_items
            The histories.
        users
            For whom; by default everybody in `user_items`.
        N
            How many items for each.
        titles
            Item id: title, for example from `read_titles`.
        **more
            As for `recommend`.
        """
        weighted = more.get("weighted", False)
        names, interactions, frame = framed(self._with_columns_of_model(user_items), weighted)
        if weighted:
            more["weighted"] = True  # the column, if one was named, has been read
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

    # --- similar ones -------------------------------------------------------------------------

    def similar_items(
        self,
        itemid: ArrayLike,
        N: int = 10,
        *,
        filter_items: ArrayLike | None = None,
        items: ArrayLike | None = None,
    ) -> tuple[NDArray, Float32]:
        """Items that the filter raises for somebody who has touched only this one.

        For one item, or for each of an array; the item itself is not among them. `items` and
        `filter_items` as for `recommend`.
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
        """Users of `user_items` whose scores point the same way: the cosine of what the filter
        makes of their histories. It takes histories in one place; the model keeps none.

        `userid` is one user or an array: row numbers of a matrix, or ids. Returns users and
        cosines, of shape (N,) or (users, N), the user itself left out; `filter_users` are left out
        too, and `users` are the only ones to choose from. `weighted` as for `recommend`.
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
        """What histories add to the scores of everybody, with length one (or zero)."""
        parts = self.weighted_parts(histories) if weighted else self.parts(histories)
        scores = parts.scores() - self._empty()
        lengths = np.linalg.norm(scores, axis=1, keepdims=True)
        return np.asarray(scores / np.where(lengths > 0, lengths, 1), np.float32)

    # --- why ----------------------------------------------------------------------------------

    def explain(
        self,
        userid: int | str,
        user_items: UserItems,
        itemid: int | str,
        N: int = 10,
        *,
        weighted: bool | str = False,
    ) -> Explanation:
        """Why an item has its score for a user: the N items of the history that add most to it.

        Every model scores linearly, so the parts of all items of the history add up to the score,
        less what an empty history gets (zero but for models that fall back on popularity). The
        user is one, with a history and `weighted` as for `recommend`, whose score this is.
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
        """What each item of a history adds to the score of each column: (history, columns)."""
        out = np.empty((len(history), len(columns)), np.float32)
        for start in range(0, len(history), _ITEMS_AT_ONCE):
            items = history[start : start + _ITEMS_AT_ONCE]
            scores = self.parts(_alone(items, self.n_items)).scores()
            out[start : start + len(items)] = scores[:, columns]
        return out - self._empty()[columns]

    def weighted_parts(self, histories: sp.csr_array) -> Parts:
        """Scores of every item for histories of which each item counts by its value."""
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
        """The scores of an empty history."""
        nobody = sp.csr_array((1, self.n_items), dtype=np.float32)
        return self.parts(nobody).scores()[0].copy()

    # --- ids ----------------------------------------------------------------------------------

    def columns_of(self, items: ArrayLike) -> NDArray[np.int64]:
        """The columns of items by their ids."""
        ids = np.arange(self.n_items) if self.item_ids is None else self.item_ids
        return look_up(items, ids, "item", f"in a catalogue of {len(ids)}")

    def _ids_of(self, columns: NDArray[np.int64]) -> NDArray:
        return columns if self.item_ids is None else named(self.item_ids, columns)

    def _histories(
        self, userid: ArrayLike, user_items: UserItems, weighted: bool | str = False
    ) -> sp.csr_array:
        """A row for each user over the model's columns, values as they were given."""
        users = np.asarray(userid)
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
        """The same, once it is sure that the columns of a matrix are the model's."""
        if _names_its_items(user_items):
            return user_items
        self._check_items_are_columns()
        rows = sparse_rows(user_items)
        return rows_over(rows, self.n_items) if rows.ndim == 2 else rows

    def _check_items_are_columns(self) -> None:
        """Refuse a matrix where items have names: it does not say in which order they stand."""
        ids = self.item_ids
        if ids is not None and not np.array_equal(ids, np.arange(self.n_items)):
            several = ", ".join(map(str, ids[:3].tolist()))
            raise UsageError(
                f"this model has items with ids ({several} ...), of which the columns of a matrix "
                "say nothing: give a DataFrame or Interactions, such as "
                "Interactions.from_matrix(matrix, item_ids=...)"
            )

    def _warn_of_empty(self, histories: sp.csr_array) -> None:
        """Say who gets a list that means nothing."""
        empty = int((np.diff(histories.indptr) == 0).sum())
        if empty and not self._empty().any():
            warn_of_data(
                f"{empty:,} of {histories.shape[0]:,} histories have nothing that the model knows: "
                "every item scores 0 there, and lists are in the order of the catalogue"
            )

    def _known(self, interactions: Interactions) -> sp.csr_array:
        """The same histories over the model's columns; what it does not know is counted aloud."""
        ids = np.arange(self.n_items) if self.item_ids is None else self.item_ids
        if np.array_equal(ids, interactions.item_ids):
            return interactions.weighted_matrix()
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
    """Whether items go by ids, and not by their columns."""
    return isinstance(user_items, Interactions) or is_frame(user_items)


def _alone(columns: NDArray, n_items: int) -> sp.csr_array:
    """For each column somebody who has touched nothing else."""
    count = len(columns)
    ones = np.ones(count, np.float32)
    return sp.csr_array((ones, columns, np.arange(count + 1)), shape=(count, n_items))


def _with_columns(
    seen: sp.csr_array | None, without: NDArray | None, part: sp.csr_array
) -> sp.csr_array | None:
    """What is left out of each row: what was seen, and some columns of everybody."""
    if without is None:
        return seen
    rows = part.shape[0]
    ends = np.arange(rows + 1) * len(without)
    common = sp.csr_array(
        (np.ones(rows * len(without), np.float32), np.tile(without, rows), ends), shape=part.shape
    )
    return common if seen is None else sp.csr_array(common + seen)
