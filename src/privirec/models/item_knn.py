"""Item-KNN: items that the same people have, by the cosine of who has them.

Two items i and j with d_i and d_j people, c_ij of them the same, are alike by
c_ij / (sqrt(d_i d_j) + shrinkage). Of every item the most similar ones are kept, and a history
scores the sum over its items. The oldest baseline there is, and a good one. Where interactions are
weighted it is the cosine of the weights: c_ij sums their products, and d_i is c_ii.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from privirec.errors import UsageError
from privirec.filters.components import Components
from privirec.filters.normalize import Normalisation
from privirec.filters.operators import FactoredOperator, Float32, SparseOperator
from privirec.models.base import Config, Derived, Recommender

ITEMS_AT_ONCE = 1024


class ItemKNNConfig(Config):
    neighbours: int = Field(200, ge=1)
    """K: how many similar items are kept of each."""
    shrinkage: float = Field(10.0, ge=0)
    """What is added to the divisor: few common people say little."""

    @property
    def normalisation(self) -> Normalisation:
        return Normalisation(user=0.0, left=0.0, right=0.0)


class ItemKNN(Recommender):
    """Item-KNN: the sum of the cosines between items, of the most similar ones of each.

    Sarwar et al. 2001. A baseline.
    """

    name = "item-knn"
    title = "Item-KNN"
    config_type = ItemKNNConfig
    published: ClassVar[dict[str, Config]] = {}
    derives: ClassVar[dict[str, tuple[str, int]]] = {
        "ends": ("<i8", 1),
        "neighbours": ("<i4", 1),
        "cosines": ("<f4", 1),
    }
    keeps_item_item = False
    config: ItemKNNConfig

    def _derive(self, components: Components) -> Derived:
        matrix = _common(components)
        squares = matrix.diagonal().astype(np.float64)  # without weights, the degrees
        kept: list[tuple[NDArray, NDArray]] = []
        counts = [np.zeros(1, np.int64)]
        for first in range(0, max(components.n_items, 1), ITEMS_AT_ONCE):
            common = matrix[first : first + ITEMS_AT_ONCE]
            rows = np.repeat(np.arange(common.shape[0]), np.diff(common.indptr))
            divisors = np.sqrt(squares[first + rows] * squares[common.indices])
            alike = common.data / (divisors + self.config.shrinkage)
            alike[common.indices == first + rows] = 0  # nothing is similar to itself here
            order = np.lexsort((common.indices, -alike, rows))
            rank = np.arange(len(rows)) - common.indptr[:-1][rows]
            chosen = np.sort(order[(rank < self.config.neighbours) & (alike[order] > 0)])
            kept.append((common.indices[chosen], alike[chosen]))
            counts.append(np.bincount(rows[chosen], minlength=common.shape[0]))
        return {
            "ends": np.cumsum(np.concatenate(counts)),
            "neighbours": np.concatenate([items for items, _ in kept]).astype(np.int32),
            "cosines": np.concatenate([alike for _, alike in kept]).astype(np.float32),
        }

    def _prepare(self, components: Components, derived: Derived) -> None:
        ends, neighbours, cosines = (derived[name] for name in self.derives)
        n_items = components.n_items
        fits = len(ends) == n_items + 1 and len(neighbours) == len(cosines) == ends[-1]
        if not fits or ends[0] != 0 or (np.diff(ends) < 0).any():
            raise UsageError("neighbours of another number than the model's items")
        if len(neighbours) and not 0 <= neighbours.min() <= neighbours.max() < n_items:
            raise UsageError("a neighbour outside the catalogue")
        matrix = sp.csr_array((cosines, neighbours, ends), shape=(n_items, n_items))
        self._cosines = SparseOperator(matrix)

    def _score(self, histories: sp.csr_array) -> Float32:
        return self._cosines.rows(histories)


def _common(components: Components) -> sp.csr_array:
    """How many people have both of two items."""
    operator = components.item_item
    if isinstance(operator, FactoredOperator):
        operator = operator.written_out()
    if isinstance(operator, SparseOperator):
        return operator.matrix
    return sp.csr_array(operator.among(np.arange(components.n_items)))
