"""BSPM (Choi et al. 2023): blur a history with P~, add a low-pass part, then sharpen it.

Blurring solves dx/dt = x P~ - x with Euler steps, sharpening dy/dt = -y P~ with Euler or
fourth-order Runge-Kutta steps. Everything is linear: a Runge-Kutta step of length h is the
polynomial sum_{j <= 4} (-h P~)^j / j!, and a model is one polynomial of P~ and a low-pass part.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import scipy.sparse as sp
from numpy.polynomial import Polynomial
from pydantic import Field

from privirec.filters.components import Components
from privirec.filters.operators import Float32
from privirec.filters.polynomials import PolynomialFilter
from privirec.models.base import Config, Derived
from privirec.models.low_pass import LowPassRecommender


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

    def _prepare(self, components: Components, derived: Derived) -> None:
        super()._prepare(components, derived)
        of_history, of_low_pass = _polynomials(self.config)
        self._filter = PolynomialFilter(self._item_item, of_history)
        self._sharpen = PolynomialFilter(self._item_item, of_low_pass)

    @property
    def _weight(self) -> float:
        return self.config.beta

    @property
    def _numbers_a_history(self) -> int:
        return self._filter.numbers_a_history

    def _base(self, histories: sp.csr_array) -> Float32:
        return self._filter.rows(histories)

    def _score(self, histories: sp.csr_array) -> Float32:
        if self._low_pass is None or not self.early_merge:
            return super()._score(histories)
        merged = self._low_pass.right.T @ self._coordinates(histories).T
        return self._base(histories) + self._sharpen.times(merged).T

    def _item_vectors(self) -> Float32:
        """Return the item vectors, sharpened for early merge.

        Sharpening is linear, so the low-pass part can be sharpened on the item side.
        """
        vectors = super()._item_vectors()
        return self._sharpen.times(vectors) if self.early_merge else vectors


def _polynomials(config: BSPMConfig) -> tuple[Polynomial, Polynomial]:
    """Return the polynomials of P~ that filter a history, and an early merged low-pass part."""
    blur_step = config.blur_time / config.blur_steps
    blur = Polynomial([1 - blur_step, blur_step])
    step = config.sharpen_time / config.sharpen_steps
    order = 4 if config.solver == "rk4" else 1
    sharpen = Polynomial([(-step) ** j / math.factorial(j) for j in range(order + 1)])
    blurred = [blur**j for j in range(1, config.blur_steps + 1)]
    sharpened = [sharpen**j for j in range(1, config.sharpen_steps + 1)]
    if not config.combine:
        return blurred[-1] * sharpened[-1], sharpened[-1]
    points = config.blur_steps + config.sharpen_steps
    late = sum(sharpened, Polynomial([0.0]))
    return (sum(blurred, Polynomial([0.0])) + blurred[-1] * late) / points, late / points


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
