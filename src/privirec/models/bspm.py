"""BSPM (Choi et al. 2023): blur a history with P~, add a low-pass part, then sharpen it.

Blurring solves dx/dt = x P~ - x with Euler steps, sharpening dy/dt = -y P~ with Euler or
fourth-order Runge-Kutta steps. Everything is linear, so a Runge-Kutta step of length h is the
polynomial sum_{j <= 4} (-h P~)^j / j!.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import scipy.sparse as sp
from pydantic import Field

from privirec.filters.lane_sizes import LANES
from privirec.filters.operators import Float32
from privirec.models.base import Config
from privirec.models.low_pass import LowPassRecommender

# Users in one dense block: one cache line of single precision per item, and few enough that a block
# of states stays in the cache.
BLOCK = LANES


class BSPMConfig(Config):
    beta: float = Field(0.2, ge=0)
    """Weight of the low-pass part."""
    rank: int = Field(448, ge=1)
    """k: singular vectors in the low-pass filter."""
    blur_steps: int = Field(1, ge=1)
    """K_b: Euler steps of the blurring."""
    blur_time: float = Field(1.0, gt=0)
    """T_b: end time of the blurring."""
    sharpen_steps: int = Field(1, ge=1)
    """K_s: steps of the sharpening."""
    sharpen_time: float = Field(2.5, gt=0)
    """T_s: end time of the sharpening."""
    solver: Literal["euler", "rk4"] = "rk4"
    """Solver of the sharpening."""
    combine: bool = False
    """If true, average the states at all time points (t_point_combination); else take the last."""

    @property
    def low_pass_rank(self) -> int:
        return self.rank if self.beta else 0


_GOWALLA = BSPMConfig()
_YELP = BSPMConfig(beta=0.3, rank=384, sharpen_time=1.2, solver="euler", combine=True)
# The authors' code omits the low-pass part on Amazon-Book, so early and late merge are equal there.
_AMAZON = BSPMConfig(beta=0, sharpen_steps=2, sharpen_time=2.2)

_PUBLISHED: dict[str, Config] = {
    "gowalla": _GOWALLA,
    "yelp2018": _YELP,
    "amazon-book": _AMAZON,
}


class _BSPM(LowPassRecommender):
    config_type = BSPMConfig
    config: BSPMConfig
    early_merge: bool

    @property
    def _weight(self) -> float:
        return self.config.beta

    @property
    def _order(self) -> int:
        """Products with P~ per sharpening step."""
        return 4 if self.config.solver == "rk4" else 1

    @property
    def _numbers_a_history(self) -> int:
        products = self.config.blur_steps - 1 + self.config.sharpen_steps * self._order
        return products * self._item_item.entries

    def _base(self, histories: sp.csr_array) -> Float32:
        return self._filtered(histories, merge=False)

    def _score(self, histories: sp.csr_array) -> Float32:
        return (
            self._filtered(histories, merge=True) if self.early_merge else super()._score(histories)
        )

    def _item_vectors(self) -> Float32:
        """Return the item vectors, sharpened for early merge.

        Sharpening is linear, so the low-pass part can be sharpened on the item side.
        """
        vectors = super()._item_vectors()
        if not self.early_merge:
            return vectors
        out = np.empty(vectors.shape, np.float32)
        for start in range(0, vectors.shape[1], BLOCK):
            part = np.ascontiguousarray(vectors[:, start : start + BLOCK])
            out[:, start : start + BLOCK] = self._combined([], self._sharpen(part))
        return out

    def _filtered(self, histories: sp.csr_array, merge: bool) -> Float32:
        """Blur and sharpen histories; with `merge`, add the low-pass part in between."""
        scores = np.empty((histories.shape[0], self._item_item.n_items), np.float32)
        for start in range(0, len(scores), BLOCK):
            part = histories[start : start + BLOCK]
            blurred = self._blur(part)
            state = blurred[-1]
            if merge and self._low_pass is not None:
                state = state + self._low_pass.right.T @ self._coordinates(part).T
            scores[start : start + BLOCK] = self._combined(blurred, self._sharpen(state)).T
        return scores

    def _combined(self, blurred: list[Float32], sharpened: list[Float32]) -> Float32:
        """Return the last state, or the mean over all time points (missing states count as 0)."""
        if not self.config.combine:
            return sharpened[-1]
        total = np.sum(blurred + sharpened, axis=0, dtype=np.float32)
        total /= np.float32(self.config.blur_steps + self.config.sharpen_steps)
        return np.asarray(total, np.float32)

    def _blur(self, histories: sp.csr_array) -> list[Float32]:
        """Return the states after each Euler step; the first needs no dense product."""
        step = np.float32(self.config.blur_time / self.config.blur_steps)
        state = step * self._item_item.rows(histories).T.copy()
        if step != 1:
            users = np.repeat(np.arange(histories.shape[0]), np.diff(histories.indptr))
            state[histories.indices, users] += 1 - step
        states = [state]
        for _ in range(1, self.config.blur_steps):
            state = state + step * (self._item_item.times(state) - state)
            states.append(state)
        return states

    def _sharpen(self, state: Float32) -> list[Float32]:
        step = self.config.sharpen_time / self.config.sharpen_steps
        states = []
        for _ in range(self.config.sharpen_steps):
            # Horner: y + (-h/1)(y + (-h/2)(y + ...) P) P
            inner = state
            for power in range(self._order, 0, -1):
                inner = self._item_item.times(inner)
                inner *= np.float32(-step / power)
                inner += state
            state = inner
            states.append(state)
        return states


class BSPMLM(_BSPM):
    """BSPM, late merge: sharpen the blurred history, then add the low-pass part.

    Choi et al. 2023.
    """

    name = "bspm-lm"
    title = "BSPM-LM"
    early_merge = False
    published: ClassVar[dict[str, Config]] = _PUBLISHED


class BSPMEM(_BSPM):
    """BSPM, early merge: add the low-pass part to the blurred history, then sharpen both.

    Choi et al. 2023. The most accurate model of the paper.
    """

    name = "bspm-em"
    title = "BSPM-EM"
    early_merge = True
    published: ClassVar[dict[str, Config]] = _PUBLISHED
