"""ChebyCF (Kim et al. 2025): a smooth low-pass filter as a Chebyshev polynomial of P~.

Scores are x V^-b [f(P~) + a S S^T] V^b with f(P~) = sum_k c_k T_k(I - 2 P~), of degree 8. The
coefficients interpolate a plateau: 1 for the smoothest signals, 0 for the roughest, and flat around
1/2 in between, the flatter the higher `flatness` is. The ideal filter of the S leading eigenvectors
is added.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.polynomial import Chebyshev, Polynomial
from pydantic import Field

from privirec.filters.components import Components, LowPass
from privirec.filters.normalize import degree_power
from privirec.filters.operators import Float32
from privirec.filters.polynomials import PolynomialFilter
from privirec.models.base import Config, Derived
from privirec.models.low_pass import LowPassRecommender

ORDER = 8


class ChebyCFConfig(Config):
    flatness: float = Field(1.5, gt=0)
    """phi: exponent of the plateau's shape; 1 is a straight line."""
    weight: float = Field(0.2, ge=0)
    """a: weight of the ideal low-pass filter."""
    rank: int = Field(512, ge=1)
    """k: eigenvectors in the ideal low-pass filter."""
    exponent: float = Field(0.4, ge=0, le=1)
    """b: popular items count less in a history and score higher, by their degree to this power."""

    @property
    def low_pass_rank(self) -> int:
        return self.rank if self.weight else 0


class ChebyCF(LowPassRecommender):
    """ChebyCF: a Chebyshev polynomial of the item-item matrix, plus an ideal low-pass filter.

    Kim et al. 2025. With its published settings the most accurate model on Gowalla.
    """

    name = "cheby-cf"
    title = "ChebyCF"
    config_type = ChebyCFConfig
    published: ClassVar[dict[str, Config]] = {
        "gowalla": ChebyCFConfig(flatness=1.5, weight=0.2, rank=512, exponent=0.4),
        "amazon-book": ChebyCFConfig(flatness=10, weight=0.2, rank=512, exponent=0),
    }
    config: ChebyCFConfig

    def _prepare(self, components: Components, derived: Derived) -> None:
        super()._prepare(components, derived)
        down, up = (
            degree_power(components.item_degrees, sign * self.config.exponent).astype(np.float32)
            for sign in (-1, 1)
        )
        polynomial = plateau(self.config.flatness)
        self._filter = PolynomialFilter(components.item_item, polynomial, down, up)
        if self._low_pass is not None and components.basis is not None:
            basis = components.basis[:, : self.config.rank]
            left, right = down[:, None] * basis, np.ascontiguousarray((up[:, None] * basis).T)
            self._low_pass = LowPass(left, right)

    @property
    def _weight(self) -> float:
        return self.config.weight

    @property
    def _numbers_a_history(self) -> int:
        return self._filter.numbers_a_history

    def _base(self, histories: sp.csr_array) -> Float32:
        return self._filter.rows(histories)


def plateau(flatness: float, order: int = ORDER) -> Polynomial:
    """Return f as a polynomial of the eigenvalues of P~.

    As in the authors' code, targets are computed and rounded at the extremes of T_K, and then used
    as values at the nodes of T_{K+1}.
    """
    x = np.round(np.cos((order - np.arange(order + 1)) * np.pi / order), 3)
    targets = np.round(0.5 - 0.5 * np.sign(x) * np.abs(x) ** flatness, 3)
    angles = (order + 1.5 - np.arange(1, order + 2)) * np.pi / (order + 1)
    terms = np.cos(np.arange(order + 1)[:, None] * angles)
    coefficients = 2 / (order + 1) * (terms @ targets)
    coefficients[0] /= 2
    # I - 2 P~ has the eigenvalue 1 where P~ has 0.
    series = Chebyshev(coefficients, domain=[1, 0])
    return series.trim(1e-12).convert(kind=Polynomial)
