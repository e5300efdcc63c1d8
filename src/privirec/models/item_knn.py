"""Item-KNN: items similar to those of a history, by the cosine of their sets of users.

The similarity of two items i and j with d_i and d_j users, c_ij of them in common, is
c_ij / (sqrt(d_i d_j) + shrinkage). The most similar items of every item are kept, and the score for
a history is the sum over its items. It is the oldest baseline, and a good one. For weighted
interactions it is the cosine of the weights: c_ij sums their products, and d_i is c_ii.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import scipy.sparse as sp
from pydantic import Field

from privirec.compiled import Later
from privirec.errors import UsageError
from privirec.filters.components import Components
from privirec.filters.normalize import Normalisation
from privirec.filters.operators import FactoredOperator, Float32, SparseOperator
from privirec.models.base import Config, Derived, Recommender

kernels = Later("privirec.filters.kernels")


class ItemKNNConfig(Config):
    neighbours: int = Field(200, ge=1)
    """K: number of similar items kept per item."""
    shrinkage: float = Field(10.0, ge=0)
    """Constant added to the divisor, because few common users are weak evidence."""

    @property
    def normalisation(self) -> Normalisation:
        return Normalisation(user=0.0, left=0.0, right=0.0)


class ItemKNN(Recommender):
    """Item-KNN: the sum of the cosines between items, over the most similar ones of each.

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
        matrix, n_items = _common(components), components.n_items
        squares = matrix.diagonal().astype(np.float64)  # without weights, the degrees
        most = min(self.config.neighbours, n_items)
        names, cosines = np.empty((n_items, most), np.int32), np.empty((n_items, most))
        counts = np.empty(n_items, np.int64)
        products = matrix.indptr, matrix.indices, matrix.data
        shrinkage = self.config.shrinkage
        kernels.nearest_items(*products, squares, shrinkage, names, cosines, counts)
        kept = np.arange(most) < counts[:, None]
        return {
            "ends": np.concatenate([[0], np.cumsum(counts)]),
            "neighbours": names[kept],
            "cosines": cosines[kept].astype(np.float32),
        }

    def _prepare(self, components: Components, derived: Derived) -> None:
        ends, neighbours, cosines = (derived[name] for name in self.derives)
        n_items = components.n_items
        fits = len(ends) == n_items + 1 and len(neighbours) == len(cosines) == ends[-1]
        if not fits or ends[0] != 0 or (np.diff(ends) < 0).any():
            raise UsageError("the neighbours do not fit the catalogue of the model")
        if len(neighbours) and not 0 <= neighbours.min() <= neighbours.max() < n_items:
            raise UsageError("a neighbour outside the catalogue")
        matrix = sp.csr_array((cosines, neighbours, ends), shape=(n_items, n_items))
        self._cosines = SparseOperator(matrix)

    def _score(self, histories: sp.csr_array) -> Float32:
        return self._cosines.rows(histories)


def _common(components: Components) -> sp.csr_array:
    """Return the number of users that two items have in common, for all pairs."""
    operator = components.item_item
    if isinstance(operator, FactoredOperator):
        operator = operator.written_out()
    if isinstance(operator, SparseOperator):
        return operator.matrix
    return sp.csr_array(operator.among(np.arange(components.n_items)))
