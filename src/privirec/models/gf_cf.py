"""GF-CF (Shen et al. 2021): x (P~ + gamma F_IDL)."""

from __future__ import annotations

from typing import ClassVar

import scipy.sparse as sp
from pydantic import Field

from privirec.filters.operators import Float32
from privirec.models.base import Config
from privirec.models.low_pass import LowPassRecommender


class GFCFConfig(Config):
    gamma: float = Field(0.3, ge=0)
    """Weight of the low-pass filter relative to the item-item matrix."""
    rank: int = Field(256, ge=1)
    """k: singular vectors in the low-pass filter."""

    @property
    def low_pass_rank(self) -> int:
        return self.rank if self.gamma else 0


class GFCF(LowPassRecommender):
    """GF-CF: the item-item matrix plus an ideal low-pass filter, x (P~ + gamma F_IDL).

    Shen et al. 2021. The usual first choice.
    """

    name = "gf-cf"
    title = "GF-CF"
    config_type = GFCFConfig
    # The authors' code omits the low-pass filter on Amazon-Book.
    published: ClassVar[dict[str, Config]] = {
        "gowalla": GFCFConfig(),
        "yelp2018": GFCFConfig(),
        "amazon-book": GFCFConfig(gamma=0),
    }
    config: GFCFConfig

    @property
    def _weight(self) -> float:
        return self.config.gamma

    def _base(self, histories: sp.csr_array) -> Float32:
        return self._item_item.rows(histories)
