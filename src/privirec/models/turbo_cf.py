"""Turbo-CF (Park et al. 2024): a polynomial of the item-item matrix, raised entrywise."""

from __future__ import annotations

from typing import ClassVar, Literal

import scipy.sparse as sp
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
from privirec.models.base import Config, Derived, Recommender


class TurboCFConfig(Config):
    alpha: float = Field(0.5, ge=0, le=1)
    """Normalisation R~ = U^-alpha R V^(alpha-1)."""
    s: float = Field(1.0, gt=0)
    """Exponent of every entry of P~."""
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

    @property
    def _numbers_a_history(self) -> int:
        return (self.config.filter - 1) * self._item_item.entries

    def _score(self, histories: sp.csr_array) -> Float32:
        first = self._item_item.rows(histories)
        if self.config.filter == 1:
            return first
        first = first.T.copy()
        second = self._item_item.times(first)
        if self.config.filter == 2:
            return (2 * first - second).T.copy()
        third = self._item_item.times(second)
        return (first + 0.01 * (-third + 10 * second - 29 * first)).T.copy()


def _entrywise_power(operator: ItemOperator, exponent: float) -> ItemOperator:
    if exponent == 1:
        return operator
    if isinstance(operator, LowRankOperator):
        raise UsageError("turbo-cf with s other than 1 needs the item-item matrix itself")
    if isinstance(operator, FactoredOperator):
        operator = operator.written_out()
    assert isinstance(operator, SparseOperator)  # noqa: S101 - narrows a closed set of forms
    return operator.power(exponent)
