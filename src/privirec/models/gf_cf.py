"""GF-CF (Shen et al. 2021): x (P~ + gamma F_IDL)."""

from __future__ import annotations

from typing import ClassVar

import scipy.sparse as sp
from pydantic import Field

from privirec.filters.components import Components
from privirec.filters.operators import Float32
from privirec.models.base import Config, Derived, Recommender


class GFCFConfig(Config):
    gamma: float = Field(0.3, ge=0)
    """Weight of the low-pass filter beside the item-item matrix."""
    rank: int = Field(256, ge=1)
    """k: singular vectors in the low-pass filter."""

    @property
    def low_pass_rank(self) -> int:
        return self.rank if self.gamma else 0


class GFCF(Recommender):
    name = "gf-cf"
    title = "GF-CF"
    config_type = GFCFConfig
    # Its code leaves the low-pass filter out on Amazon-Book.
    published: ClassVar[dict[str, Config]] = {
        "gowalla": GFCFConfig(),
        "yelp2018": GFCFConfig(),
        "amazon-book": GFCFConfig(gamma=0),
    }
    config: GFCFConfig

    def _prepare(self, components: Components, derived: Derived) -> None:
        self._item_item = components.item_item
        self._low_pass = components.low_pass(self.config.rank) if self.config.gamma else None

    def _score(self, histories: sp.csr_array) -> Float32:
        if self._low_pass is None:
            return self._item_item.rows(histories)
        coordinates = self._low_pass.coordinates(histories)
        coordinates *= self.config.gamma
        return self._item_item.rows(histories, onto=coordinates @ self._low_pass.right)
