"""Popularity: the same most popular items for every user, the baseline that others have to beat.

For weighted interactions these are the items with the largest sums of weights.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from privirec.data.given import UserItems
from privirec.data.interactions import Interactions
from privirec.errors import UsageError
from privirec.filters.components import Components, degrees_of
from privirec.filters.eigen import Progress
from privirec.filters.operators import Float32, NotKept
from privirec.models.base import Config, Derived, Recommender


class PopularityConfig(Config):
    """Settings of the popularity model, which has none."""

    @property
    def needs(self) -> dict[str, Any]:
        return {}


class Popularity(Recommender):
    """Items by their number of users, whatever the history: the simplest baseline."""

    name = "popularity"
    title = "Popularity"
    config_type = PopularityConfig
    published: ClassVar[dict[str, Config]] = {}
    derives: ClassVar[dict[str, tuple[str, int]]] = {"scores": ("<f4", 1)}
    keeps_item_item = False
    config: PopularityConfig

    @property
    def _adds_up(self) -> bool:
        return True

    def _components_of(
        self, train: Interactions, seed: int, progress: Progress | None
    ) -> Components:
        return Components(degrees_of(train)[1], NotKept(train.n_items))

    def _check_normalisation(self, components: Components) -> None:
        """Accept any normalisation: the model uses degrees alone."""

    def _derive(self, components: Components) -> Derived:
        return {"scores": components.item_degrees.astype(np.float32)}

    def _prepare(self, components: Components, derived: Derived) -> None:
        self._scores = derived["scores"]
        if len(self._scores) != components.n_items:
            raise UsageError("the scores do not fit the catalogue of the model")

    def similar_items(
        self,
        itemid: ArrayLike,
        N: int = 10,
        *,
        filter_items: ArrayLike | None = None,
        items: ArrayLike | None = None,
    ) -> tuple[NDArray, Float32]:
        """Raise UsageError: the same items are recommended for any history."""
        raise UsageError("popularity gives everybody the same scores: it knows no similar items")

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
        """Raise UsageError: all users have the same scores, whatever their histories."""
        raise UsageError("popularity gives everybody the same scores: it knows no similar users")

    def _score(self, histories: sp.csr_array) -> Float32:
        return np.repeat(self._scores[None], histories.shape[0], axis=0)
