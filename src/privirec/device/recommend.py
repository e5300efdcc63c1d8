"""Recommending where the history is: from a local store and an artifact, without any network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.data.catalogue import Catalogue
from privirec.device.installed import Installed
from privirec.device.store import Store
from privirec.errors import DataError, UsageError
from privirec.filters.operators import Float32
from privirec.models import Recommender

# Items of a history explained at once: a dense block of so many rows of the catalogue's length.
_ITEMS_AT_ONCE = 64


@dataclass(frozen=True)
class Cause:
    """An item of one's own history, and what it adds to a score."""

    item: str
    title: str | None
    contribution: float


@dataclass(frozen=True)
class Recommendation:
    item: str
    title: str | None
    score: float
    because: tuple[Cause, ...] = ()
    """All items of the history, the strongest first, if asked for; they add up to the score."""

    def strongest(self, n: int) -> list[tuple[Cause, float]]:
        """The items that speak for this one most, and their shares of all that speaks for it.

        Some items of a history speak against it, so that shares of the score itself could be more
        than all of it.
        """
        speaking = [cause for cause in self.because if cause.contribution > 0]
        total = sum(cause.contribution for cause in speaking)
        return [(cause, cause.contribution / total) for cause in speaking[:n]]


def load_model(folder: str | Path) -> Recommender:
    """The model in a folder of installed artifacts, or in an artifact's own folder."""
    return Installed(folder).load(verify=True) if Installed.at(folder) else Recommender.load(folder)


class Device:
    """One client's store and the filters it holds."""

    def __init__(self, store: Store, model: Recommender) -> None:
        self.store = store
        self.model = model
        ids = np.arange(model.components.n_items) if model.item_ids is None else model.item_ids
        self.catalogue = Catalogue(ids)

    def user(self, name: object | None = None) -> str:
        """The user that is meant: the one named, or the only one."""
        if name is not None:
            if not self.store.items(name):
                raise DataError(f"{self.store.path}: no user {name}")
            return str(name)
        users = self.store.users()
        if not users:
            raise DataError(
                f"{self.store.path}: an empty history; add to it with: privirec store add"
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
        """The n best items for a user of the store, best first."""
        name = self.user(user)
        found, ignored = self.store.interactions(self.catalogue, name)
        if not found.n_interactions:
            raise DataError(
                f"{self.store.path}: the model knows none of the {ignored} items of user {name}"
            )
        history = found.matrix
        columns, scores = self.model.recommend(
            0, history, n, filter_already_liked_items=not include_seen
        )
        columns, scores = columns[columns >= 0], scores[columns >= 0]
        parts = self.contributions(history.indices, columns) if explain else None
        return [
            self._recommendation(
                column, score, history.indices, None if parts is None else parts[:, position]
            )
            for position, (column, score) in enumerate(
                zip(columns.tolist(), scores.tolist(), strict=True)
            )
        ]

    def similar(self, item: object, n: int = 10) -> list[Recommendation]:
        """The n items that the filters raise for somebody who has touched only this one."""
        column = self.catalogue.columns.get(str(item))
        if column is None:
            raise DataError(f"the model knows no item {item}")
        columns, scores = self.model.similar_items(column, n)
        return [
            self._recommendation(column, score)
            for column, score in zip(columns.tolist(), scores.tolist(), strict=True)
            if column >= 0
        ]

    def contributions(self, history: NDArray, columns: NDArray) -> Float32:
        """What each item of a history adds to the score of each column: (history, columns).

        Every model scores linearly, x F for a fixed F, so the score of a history is the sum of
        the scores of its items taken alone.
        """
        out = np.empty((len(history), len(columns)), np.float32)
        for start in range(0, len(history), _ITEMS_AT_ONCE):
            items = history[start : start + _ITEMS_AT_ONCE]
            alone = sp.csr_array(
                (np.ones(len(items), np.float32), items, np.arange(len(items) + 1)),
                shape=(len(items), len(self.catalogue)),
            )
            out[start : start + len(items)] = self.model.score(alone)[:, columns]
        return out

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
        return item, self.store.title(item)
