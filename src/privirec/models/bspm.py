"""BSPM (Choi et al. 2023): blur a history by P~, add a low-pass part, sharpen it again.

Blurring solves dx/dt = x P~ - x with Euler steps, sharpening dy/dt = -y P~ with Euler or
fourth-order Runge-Kutta steps. Everything is linear, so a Runge-Kutta step of length h is the
polynomial sum_{j <= 4} (-h P~)^j / j!.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import scipy.sparse as sp
from pydantic import Field

from privirec.filters.components import Components
from privirec.filters.operators import Float32
from privirec.models.base import Config, Derived, Recommender

# Users in one dense block: small enough that a block of states stays in the last-level cache.
BLOCK = 64


class BSPMConfig(Config):
    beta: float = Field(0.2, ge=0)
    """Weight of the low-pass part."""
    rank: int = Field(448, ge=1)
    """k: singular vectors in the low-pass filter."""
    blur_steps: int = Field(1, ge=1)
    """K_b: Euler steps of the blurring."""
    blur_time: float = Field(1.0, gt=0)
    """T_b: time up to which it blurs."""
    sharpen_steps: int = Field(1, ge=1)
    """K_s: steps of the sharpening."""
    sharpen_time: float = Field(2.5, gt=0)
    """T_s: time up to which it sharpens."""
    solver: Literal["euler", "rk4"] = "rk4"
    """How the sharpening is solved."""
    combine: bool = False
    """Average the states at all time points (t_point_combination) instead of taking the last."""

    @property
    def low_pass_rank(self) -> int:
        return self.rank if self.beta else 0


_GOWALLA = BSPMConfig()
_YELP = BSPMConfig(beta=0.3, rank=384, sharpen_time=1.2, solver="euler", combine=True)
# Its code leaves the low-pass part out on Amazon-Book, so early and late merge are the same there.
_AMAZON = BSPMConfig(beta=0, sharpen_steps=2, sharpen_time=2.2)

_PUBLISHED: dict[str, Config] = {
    "gowalla": _GOWALLA,
    "yelp2018": _YELP,
    "amazon-book": _AMAZON,
}


class _BSPM(Recommender):
    config_type = BSPMConfig
    config: BSPMConfig
    early_merge: bool

    def _prepare(self, components: Components, derived: Derived) -> None:
        self._item_item = components.item_item
        self._low_pass = components.low_pass(self.config.rank) if self.config.beta else None

    def _score(self, histories: sp.csr_array) -> Float32:
        scores = np.empty((histories.shape[0], self._item_item.n_items), np.float32)
        for start in range(0, len(scores), BLOCK):
            part = histories[start : start + BLOCK]
            scores[start : start + BLOCK] = self._score_block(part).T
        return scores

    def _score_block(self, histories: sp.csr_array) -> Float32:
        blurred = self._blur(histories)
        low = None
        if self._low_pass is not None:
            coordinates = self._low_pass.coordinates(histories) * np.float32(self.config.beta)
            low = self._low_pass.right.T @ coordinates.T
        state = blurred[-1]
        if self.early_merge and low is not None:
            state = state + low
        states = self._sharpen(state)
        out = states[-1]
        if self.config.combine:
            out = np.mean(blurred + states, axis=0, dtype=np.float32)
        if not self.early_merge and low is not None:
            out += low
        return out

    def _blur(self, histories: sp.csr_array) -> list[Float32]:
        """The states after each Euler step; the first needs no dense product."""
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
        order = 4 if self.config.solver == "rk4" else 1
        states = []
        for _ in range(self.config.sharpen_steps):
            # Horner: y + (-h/1)(y + (-h/2)(y + ...) P) P
            inner = state
            for power in range(order, 0, -1):
                inner = self._item_item.times(inner)
                inner *= np.float32(-step / power)
                inner += state
            state = inner
            states.append(state)
        return states


class BSPMLM(_BSPM):
    """Late merge: sharpen the blurred history, then add the low-pass part."""

    name = "bspm-lm"
    title = "BSPM-LM"
    early_merge = False
    published: ClassVar[dict[str, Config]] = _PUBLISHED


class BSPMEM(_BSPM):
    """Early merge: add the low-pass part to the blurred history, then sharpen both."""

    name = "bspm-em"
    title = "BSPM-EM"
    early_merge = True
    published: ClassVar[dict[str, Config]] = _PUBLISHED
