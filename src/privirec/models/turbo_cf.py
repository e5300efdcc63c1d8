"""Turbo-CF (Park et al. 2024): a polynomial of the item-item matrix, raised entrywise."""

from __future__ import annotations

from typing import ClassVar, Literal

import scipy.sparse as sp
from numpy.polynomial import Polynomial
from pydantic import Field

from privirec.errors import UsageError
from privirec.filters.components import Components
from privirec.filters.normalize import Normalisation
from privirec.filters.operators import (
    FactoredOperator,
    Float32,
    ItemOperator,
    LowRankOperator,
    SparseOperator,
)
from privirec.filters.polynomials import PolynomialFilter
from privirec.models.base import Config, Derived, Recommender

_FILTERS = {
    1: Polynomial([0, 1]),
    2: Polynomial([0, 2, -1]),
    3: Polynomial([0, 0.71, 0.1, -0.01]),
}


class TurboCFConfig(Config):
    alpha: float = Field(0.5, ge=0, le=1)
    """Normalisation R~ = U^-alpha R V^(alpha-1)."""
    s: float = Field(0.7, gt=0)
    """Exponent of every entry of P~. The default was the best, or nearly, on validation splits of
    Gowalla, Yelp2018 and Globo."""
    filter: Literal[1, 2, 3] = 1
    """1: P; 2: 2P - P^2; 3: P + 0.01 (-P^3 + 10 P^2 - 29 P)."""

    @property
    def normalisation(self) -> Normalisation:
        return Normalisation.symmetric(self.alpha)


class TurboCF(Recommender):
    """Turbo-CF: a polynomial of the item-item matrix raised entry by entry.

    Park et al. 2024. It needs no singular vectors, so fitting is fast.
    """

    name = "turbo-cf"
    title = "Turbo-CF"
    config_type = TurboCFConfig
    published: ClassVar[dict[str, Config]] = {
        "gowalla": TurboCFConfig(alpha=0.6, s=0.7, filter=1),
        "yelp2018": TurboCFConfig(alpha=0.6, s=1.0, filter=2),
        "amazon-book": TurboCFConfig(alpha=0.5, s=1.4, filter=1),
    }
    config: TurboCFConfig

    def _prepare(self, components: Components, derived: Derived) -> None:
        self._item_item = _entrywise_power(components.item_item, self.config.s)
        self._filter = PolynomialFilter(self._item_item, _FILTERS[self.config.filter])

    @property
    def _numbers_a_history(self) -> int:
        return self._filter.numbers_a_history

    def _score(self, histories: sp.csr_array) -> Float32:
        if self.config.filter == 1:
            return self._item_item.rows(histories)
        return self._filter.rows(histories)


def _entrywise_power(operator: ItemOperator, exponent: float) -> ItemOperator:
    if exponent == 1:
        return operator
    if isinstance(operator, LowRankOperator):
        raise UsageError("turbo-cf with s other than 1 needs the item-item matrix itself")
    if isinstance(operator, FactoredOperator):
        operator = operator.written_out()
    assert isinstance(operator, SparseOperator)  # noqa: S101 - narrows a closed set of forms
    return operator.power(exponent)
