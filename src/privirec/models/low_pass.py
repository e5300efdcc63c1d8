"""Base of models with an ideal low-pass filter: a base score plus weight * x F_IDL.

F_IDL has low rank. For few histories it is added to all scores. For many, item vectors are prepared
once, and ranking computes it only for the few items that can be among the best.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import scipy.sparse as sp

from privirec.filters.components import Components
from privirec.filters.operators import Float32
from privirec.filters.parts import ItemVectors, Parts, vectors_pay
from privirec.models.base import Derived, Recommender


class LowPassRecommender(Recommender):
    """A base score plus a weighted low-pass filter; subclasses define `_weight` and `_base`."""

    def _prepare(self, components: Components, derived: Derived) -> None:
        self._item_item = components.item_item
        rank = self.config.low_pass_rank
        self._low_pass = components.low_pass(rank) if rank else None
        self._vectors: ItemVectors | None = None

    @property
    @abstractmethod
    def _weight(self) -> float:
        """Weight of the low-pass filter."""

    @abstractmethod
    def _base(self, histories: sp.csr_array) -> Float32:
        """Return the scores without the low-pass filter: (users, items)."""

    def _item_vectors(self) -> Float32:
        """Return the vectors that coordinates are multiplied with: (items, rank)."""
        assert self._low_pass is not None  # noqa: S101 - callers have checked that there is a filter
        return self._low_pass.right.T

    def _coordinates(self, histories: sp.csr_array) -> Float32:
        assert self._low_pass is not None  # noqa: S101 - as above
        return self._low_pass.coordinates(histories) * np.float32(self._weight)

    def _score(self, histories: sp.csr_array) -> Float32:
        scores = self._base(histories)
        if self._low_pass is not None:
            scores += self._coordinates(histories) @ self._low_pass.right
        return scores

    def _prepare_for(self, histories: int) -> None:
        if self._vectors is not None or self._low_pass is None:
            return
        if vectors_pay(histories, len(self._low_pass.right)):
            self._vectors = ItemVectors(self._item_vectors())

    def _parts(self, histories: sp.csr_array) -> Parts:
        if self._vectors is None:
            return Parts(self._score(histories))
        return Parts(self._base(histories), self._coordinates(histories), self._vectors)
