"""What everybody likes, for everybody: the least that any recommender has to beat.

Of weighted interactions, the items with the largest sums of weights.
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
    """There is nothing to set."""

    @property
    def needs(self) -> dict[str, Any]:
        return {}


class Popularity(Recommender):
    """Items by how many people have them, whatever one's own history: the least to beat."""

    name = "popularity"
    title = "Popularity"
    config_type = PopularityConfig
    published: ClassVar[dict[str, Config]] = {}
    derives: ClassVar[dict[str, tuple[str, int]]] = {"scores": ("<f4", 1)}
    keeps_item_item = False
    config: PopularityConfig

    def _components_of(
        self, train: Interactions, seed: int, progress: Progress | None
    ) -> Components:
        return Components(degrees_of(train)[1], NotKept(train.n_items))

    def _check_normalisation(self, components: Components) -> None:
        """Any will do: it looks at degrees alone."""

    def _derive(self, components: Components) -> Derived:
        return {"scores": components.item_degrees.astype(np.float32)}

    def _prepare(self, components: Components, derived: Derived) -> None:
        self._scores = derived["scores"]
        if len(self._scores) != components.n_items:
            raise UsageError("scores of another catalogue than the model's")

    def similar_items(
        self,
        itemid: ArrayLike,
        N: int = 10,
        *,
        filter_items: ArrayLike | None = None,
        items: ArrayLike | None = None,
    ) -> tuple[NDArray, Float32]:
        """Refused: whatever somebody has touched, the same items are recommended."""
        raise UsageError("popularity scores alike for everybody: it knows no similar items")

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
        """Refused: whatever their histories, all users have the same scores."""
        raise UsageError("popularity scores alike for everybody: it knows no similar users")

    def _score(self, histories: sp.csr_array) -> Float32:
        return np.repeat(self._scores[None], histories.shape[0], axis=0)
