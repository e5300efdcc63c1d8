"""Ridge: histories regressed on themselves, as a polynomial of the item-item matrix.

Scores are x V^-a P (P + c I)^-1 V^b with P = V^-1/2 (sum_u d_u^-g r_u^T r_u) V^-1/2, divided by its
largest eigenvalue. P (P + c I)^-1 is the ridge regression that predicts a history from itself, and
the Wiener filter for a signal of spectrum P in white noise of power c. Like EASE^R it is a
regression, but nothing is inverted: P f(P) with a polynomial f that interpolates (1 + c) / (p + c)
takes a few sparse products, on catalogues where a dense matrix does not fit, and from federated
sums. There are no eigenvectors.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.polynomial import Chebyshev, Polynomial
from numpy.typing import NDArray
from pydantic import Field

from privirec.errors import UsageError
from privirec.filters.components import Components
from privirec.filters.normalize import Normalisation, degree_power
from privirec.filters.operators import Float32, ItemOperator
from privirec.filters.polynomials import PolynomialFilter
from privirec.models.base import Config, Derived, Recommender

STEPS = 30
"""Power steps for the largest eigenvalue, which only sets a scale."""


class RidgeConfig(Config):
    regularisation: float = Field(0.2, gt=0)
    """c: what is added to the eigenvalues, as a share of the largest one."""
    user_exponent: float = Field(0.3, ge=0, le=1)
    """g: a history of length d counts d^-g in the item-item matrix."""
    history_exponent: float = Field(0.2, ge=-1, le=2)
    """a: items of a history are divided by degree to this power, so popular ones count less."""
    item_exponent: float = Field(0.3, ge=-1, le=2)
    """b: scores are multiplied by the item's degree to this power, so popular items rank higher."""
    degree: int = Field(4, ge=1, le=12)
    """Degree of the polynomial: products with the item-item matrix."""

    @property
    def normalisation(self) -> Normalisation:
        return Normalisation(user=self.user_exponent, left=0.5, right=0.5)


class Ridge(Recommender):
    """Ridge: the regression of histories on themselves, as a polynomial of the item-item matrix.

    It needs neither an inverse nor eigenvectors. It is ahead of BSPM and ChebyCF on random parts of
    the histories of Gowalla and Yelp2018, and behind on their test splits, which are not random.
    """

    name = "ridge"
    title = "Ridge"
    config_type = RidgeConfig
    published: ClassVar[dict[str, Config]] = {}
    derives: ClassVar[dict[str, tuple[str, int]]] = {"largest": ("<f8", 1)}
    config: RidgeConfig

    def _derive(self, components: Components) -> Derived:
        start = degree_power(components.item_degrees, 0.5)
        return {"largest": np.array([largest_eigenvalue(components.item_item, start)])}

    def _prepare(self, components: Components, derived: Derived) -> None:
        largest = derived["largest"]
        if largest.shape != (1,) or not np.isfinite(largest[0]) or largest[0] < 0:
            raise UsageError("the largest eigenvalue is not one positive number")
        down, up = (
            degree_power(components.item_degrees, power).astype(np.float32)
            for power in (-self.config.history_exponent, self.config.item_exponent)
        )
        polynomial = ridge(self.config.regularisation, self.config.degree)
        scale = float(largest[0]) or 1.0
        self._filter = PolynomialFilter(components.item_item, polynomial, down, up, scale=scale)

    @property
    def _numbers_a_history(self) -> int:
        return self._filter.numbers_a_history

    def _score(self, histories: sp.csr_array) -> Float32:
        return self._filter.rows(histories)


def ridge(regularisation: float, degree: int) -> Polynomial:
    """Return p f(p), of this degree, where f interpolates (1 + c) / (p + c) between 0 and 1."""

    def inverse(p: NDArray[np.float64]) -> NDArray[np.float64]:
        return (1 + regularisation) / (p + regularisation)

    series = Chebyshev.interpolate(inverse, degree - 1, domain=[0, 1])
    return Polynomial([0.0, 1.0]) * series.convert(kind=Polynomial)


def largest_eigenvalue(operator: ItemOperator, start: NDArray[np.float64]) -> float:
    """Return the largest eigenvalue of a symmetric matrix without negative entries.

    `start` has no negative entries either, so power steps cannot miss the leading eigenvector.
    """
    column = np.ascontiguousarray(start[:, None], np.float32)
    value = 0.0
    for _ in range(STEPS):
        length = float(np.linalg.norm(column))
        if not length:
            return 0.0
        column = operator.times(column / np.float32(length))
        value = float(np.linalg.norm(column))
    return value
