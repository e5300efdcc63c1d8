"""Recommendations on the device, from a local store and an artifact, without network access."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.data.catalogue import Catalogue
from privirec.device.installed import Installed
from privirec.device.store import Store
from privirec.device.titles import clean_title
from privirec.errors import DataError, DataWarning, UsageError
from privirec.models import Recommender

DISLIKE = 0.5
"""Share of the best score that an item loses if it is most like one of no interest."""


@dataclass(frozen=True)
class Cause:
    """An item of the user's history, or one of no interest, and its contribution to a score."""

    item: str
    title: str | None
    contribution: float


@dataclass(frozen=True)
class Recommendation:
    item: str
    title: str | None
    score: float
    because: tuple[Cause, ...] = ()
    """All items of the history and those of no interest, the strongest first, if requested.

    Their contributions add up to the score.
    """

    def strongest(self, n: int) -> list[tuple[Cause, float]]:
        """Return the items with the largest positive contributions, and their shares.

        Shares are relative to the sum of all positive contributions. Some items of a history
        contribute negatively, so shares of the score itself could exceed one.
        """
        speaking = [cause for cause in self.because if cause.contribution > 0]
        total = sum(cause.contribution for cause in speaking)
        return [(cause, cause.contribution / total) for cause in speaking[:n]]


def load_model(folder: str | Path) -> Recommender:
    """Load the model in a folder of installed artifacts, or in an artifact's own folder."""
    return Installed(folder).load(verify=True) if Installed.at(folder) else Recommender.load(folder)


class Device:
    """One client's store together with its model."""

    def __init__(
        self, store: Store, model: Recommender, titles: Mapping[str, str] | None = None
    ) -> None:
        """Prepare a device; `titles` of items take precedence over those in the store."""
        self._titles = titles or {}
        self.store = store
        self.model = model
        ids = np.arange(model.components.n_items) if model.item_ids is None else model.item_ids
        self.catalogue = Catalogue(ids)

    def user(self, name: object | None = None) -> str:
        """Return the named user, or the only user of the store."""
        if name is not None:
            if not self.store.items(name):
                raise DataError(f"{self.store.path}: no user {name}")
            return str(name)
        users = self.store.users()
        if not users:
            raise DataError(
                f"{self.store.path}: an empty history; add to it with: privirec device add"
            )
        if len(users) > 1:
            raise UsageError(
                f"{self.store.path}: {len(users)} users, so say which with --user "
                f"(such as {users[0]})"
            )
        return users[0]

    def recommend(
        self,
        user: object | None = None,
        n: int = 10,
        *,
        include_seen: bool = False,
        explain: bool = False,
    ) -> list[Recommendation]:
        """Return the n best items for a user of the store, best first.

        Items of no interest are left out, and items like them come later.
        """
        name = self.user(user)
        found, ignored = self.store.interactions(self.catalogue, name)
        if not found.n_interactions:
            raise DataError(
                f"{self.store.path}: the model knows none of the {ignored} items of user {name}"
            )
        if ignored:
            warnings.warn(
                f"the model does not know {ignored:,} of the {ignored + found.n_interactions:,} "
                f"items of user {name}; they are left out",
                DataWarning,
                stacklevel=2,
            )
        history = found.matrix
        named = history.indices
        dislikes = np.setdiff1d(self.catalogue.columns(self.store.dislikes(name)), [-1, *named])
        if len(dislikes):
            columns, scores, less = self._away_from(dislikes, history, n, include_seen)
            named = np.concatenate([named, dislikes])
        else:
            (columns,), (scores,) = self.model.best_columns(history, n, include_seen=include_seen)
            columns, scores = columns[columns >= 0], scores[columns >= 0]
            less = np.zeros((0, len(columns)))
        parts = None
        if explain:
            parts = np.vstack([self.model.contributions(history.indices, columns), -less])
        return [
            self._recommendation(
                column, score, named, None if parts is None else parts[:, position]
            )
            for position, (column, score) in enumerate(
                zip(columns.tolist(), scores.tolist(), strict=True)
            )
        ]

    def _away_from(
        self, dislikes: NDArray, history: sp.csr_array, n: int, include_seen: bool
    ) -> tuple[NDArray, NDArray, NDArray]:
        """Return the best columns, their scores, and what each disliked item takes off them.

        The item that is most like a disliked one loses `DISLIKE` of the best score, and others in
        proportion. Of several disliked items the nearest counts.
        """
        scores = self.model.score(history)[0].astype(np.float64)
        out = dislikes if include_seen else np.concatenate([dislikes, history.indices])
        rest = np.setdiff1d(np.arange(len(scores)), out)
        alike = np.zeros((len(dislikes), len(scores)))
        for at, column in enumerate(dislikes.tolist()):
            alone = sp.csr_array(([1.0], ([0], [column])), shape=history.shape)
            near = np.maximum(self.model.score(alone)[0], 0)
            near[column] = 0
            alike[at] = near / (near.max() or 1)
        nearest = alike.argmax(axis=0)
        less = np.zeros_like(alike)
        least = DISLIKE * max(scores[rest].max(initial=0), 0)
        less[nearest, np.arange(len(scores))] = least * alike.max(axis=0)
        after = scores - less.sum(axis=0)
        columns = rest[np.lexsort((rest, -after[rest]))][:n]
        return columns, after[columns], less[:, columns]

    def people(self, items: Iterable[str]) -> dict[str, float]:
        """Return how many people have each item, as the model knows it."""
        names = list(items)
        degrees = self.model.components.item_degrees
        return {
            name: float(degrees[at])
            for name, at in zip(names, self.catalogue.columns(names).tolist(), strict=True)
        }

    def why(self, item: str, user: object | None = None) -> Recommendation | None:
        """Return an item with its score for a user and the reasons; None without a history."""
        found, _ = self.store.interactions(self.catalogue, self.user(user))
        column = self.catalogue.column(item)
        if column is None or not found.n_interactions:
            return None
        history = found.matrix
        parts = self.model.contributions(history.indices, np.array([column]))[:, 0]
        return self._recommendation(column, float(parts.sum()), history.indices, parts)

    def similar(self, item: object, n: int = 10) -> list[Recommendation]:
        """Return the n items that the filters score highest for a history of this item alone."""
        column = self.catalogue.column(str(item))
        if column is None:
            raise DataError(f"the model knows no item {item}")
        alone = sp.csr_array(([1.0], ([0], [column])), shape=(1, len(self.catalogue)))
        (columns,), (scores,) = self.model.best_columns(alone, n)
        return [
            self._recommendation(column, score)
            for column, score in zip(columns.tolist(), scores.tolist(), strict=True)
            if column >= 0
        ]

    def _recommendation(
        self,
        column: int,
        score: float,
        history: NDArray | None = None,
        parts: NDArray | None = None,
    ) -> Recommendation:
        because: tuple[Cause, ...] = ()
        if history is not None and parts is not None:
            because = tuple(
                Cause(*self._named(int(history[at])), float(parts[at]))
                for at in np.argsort(-parts, kind="stable")
            )
        return Recommendation(*self._named(column), score, because)

    def _named(self, column: int) -> tuple[str, str | None]:
        item = self.catalogue.names[column]
        return item, self.title(item)

    def title(self, item: str) -> str | None:
        """Return the title of an item, or None."""
        given = self._titles.get(item)
        return self.store.title(item) if given is None else clean_title(given)


@dataclass(frozen=True)
class FoundItem:
    item: str
    title: str | None


def find_items(store: Store, items: Iterable[str], text: str, n: int = 20) -> list[FoundItem]:
    """Return the n items that match a text best, among `items` and all with a title in the store.

    Every word of the text must be in the title or the id, ignoring case. Exact titles and ids come
    first, then titles and ids that start with the text, then titles with a later word that does.
    """
    wanted = " ".join(text.casefold().split())
    if not wanted:
        return []
    titles = store.titles()
    ranked = []
    for item in dict.fromkeys([*items, *titles]):
        title = titles.get(item)
        place = _place(wanted, item.casefold(), " ".join((title or "").casefold().split()))
        if place is not None:
            ranked.append((place, len(title or item), title or item, item))
    return [FoundItem(item, titles.get(item)) for *_, item in sorted(ranked)[:n]]


def _place(wanted: str, item: str, title: str) -> int | None:
    """Return the rank of a match, 0 for the best; None for no match."""
    if wanted in (item, title):
        return 0
    if title.startswith(wanted) or item.startswith(wanted):
        return 1
    if f" {wanted}" in title:
        return 2
    if all(word in title or word in item for word in wanted.split()):
        return 3
    return None
