"""EASE^R (Steck 2019): the best linear map of a history onto itself that must not copy an item.

B = I - P diag(1/P_jj) with P = (R^T R + lambda I)^-1, so its diagonal is zero; scores are x B. B is
derived once, in the memory of one dense single-precision matrix: the Gram matrix is written into
it, inverted in place and turned into B. The artifact holds B instead of the Gram matrix. With a
head, it holds one byte per weight and a unit per item, which changed none of our measured figures.
For weighted interactions R holds the weights, and B maps these onto themselves.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from privirec.compiled import Later
from privirec.errors import UsageError
from privirec.filters.components import Components
from privirec.filters.normalize import Normalisation, most_popular
from privirec.filters.operators import Float32, history_coordinates, in_bytes
from privirec.models.base import Config, Derived, Recommender

kernels = Later("privirec.filters.kernels")
lapack = Later("scipy.linalg.lapack")

# Items per block of the inversion: enough for matrix products to run at full speed.
ITEMS_AT_ONCE = 2048


class EASEConfig(Config):
    regularisation: float = Field(100.0, gt=0)
    """lambda: constant added to the diagonal of the Gram matrix."""
    head: int | None = Field(None, ge=1)
    """Number of most popular items that get weights; None: all items.

    Items outside the head are ignored in histories and score zero. They are ranked in the order of
    their numbers, after head items with a positive score and before those with a negative one.
    """

    @property
    def normalisation(self) -> Normalisation:
        return Normalisation(user=0.0, left=0.0, right=0.0)


class EASE(Recommender):
    """EASE^R: the best linear map of a history onto itself that must not copy an item.

    Steck 2019. It inverts a dense matrix of items x items.
    """

    name = "ease"
    title = "EASE^R"
    config_type = EASEConfig
    # The figures of the paper's comparison come from the open benchmark BARS, which states lambda.
    published: ClassVar[dict[str, Config]] = {
        "gowalla": EASEConfig(regularisation=80),
        "yelp2018": EASEConfig(regularisation=300),
        "amazon-book": EASEConfig(regularisation=50),
    }
    derives: ClassVar[dict[str, tuple[str, int]]] = {
        "weights": ("|i1", 2),
        "units": ("<f4", 1),
        "items": ("<i8", 1),
    }
    keeps_item_item = False
    config: EASEConfig

    def _derive(self, components: Components) -> Derived:
        items = most_popular(components.item_degrees, self.config.head)
        weights = components.item_item.among(items)
        make_weights(weights, self.config.regularisation)
        if self.config.head is None:
            return {"weights": weights, "items": items}
        small, units = in_bytes(weights)
        return {"weights": small, "units": units, "items": items}

    def _kept_arrays(self, derived: Derived) -> dict[str, tuple[str, int]]:
        if "units" in derived:
            return self.derives
        return {"weights": ("<f4", 2), "items": ("<i8", 1)}  # no head, or an earlier version

    def _prepare(self, components: Components, derived: Derived) -> None:
        weights, items = derived["weights"], derived["items"]
        if "units" in derived:
            if derived["units"].shape != weights.shape[:1]:
                raise UsageError("the number of units is not that of the weights' rows")
            weights = weights * derived["units"][:, None]
        expected = most_popular(components.item_degrees, self.config.head)
        if not np.array_equal(items, expected) or weights.shape != (len(items), len(items)):
            raise UsageError("weights of other items than the most popular ones")
        self._weights: Float32 = weights
        self._items: NDArray[np.int64] = items
        self._n_items = components.n_items

    def _score(self, histories: sp.csr_array) -> Float32:
        if len(self._items) == self._n_items:
            return history_coordinates(histories, self._weights)
        scores = np.zeros((histories.shape[0], self._n_items), np.float32)
        head = sp.csr_array(histories[:, self._items])
        scores[:, self._items] = history_coordinates(head, self._weights)
        return scores


def make_weights(gram: Float32, regularisation: float) -> None:
    """Replace a Gram matrix by B. Raises UsageError if the matrix cannot be inverted."""
    _invert(gram, regularisation)
    kernels.weights_of_inverse(gram, gram.diagonal().copy())


def _invert(gram: Float32, regularisation: float) -> None:
    """Replace gram by -(gram + regularisation I)^-1, below and on the diagonal.

    It eliminates one block of items after the other, which takes only matrix products: OpenBLAS
    overruns its buffers when two threads factorise a matrix of forty thousand rows.
    """
    size = len(gram)
    gram.reshape(-1)[:: size + 1] += np.float32(regularisation)
    for first in range(0, size, ITEMS_AT_ONCE):
        last = min(first + ITEMS_AT_ONCE, size)
        swept = slice(first, last)
        pivot = _inverse_of_block(gram[swept, swept], regularisation)
        # Columns of the block: its entries below, and by symmetry the rows to its left.
        columns = np.zeros((size, last - first), np.float32)
        columns[:first] = gram[swept, :first].T
        columns[last:] = gram[last:, swept]
        solved = columns @ pivot
        for start in range(0, size, ITEMS_AT_ONCE):
            stop = min(start + ITEMS_AT_ONCE, size)
            gram[start:stop, :stop] -= solved[start:stop] @ columns[:stop].T
        gram[swept, :first] = solved[:first].T
        gram[last:, swept] = solved[last:]
        gram[swept, swept] = -pivot


def _inverse_of_block(block: Float32, regularisation: float) -> Float32:
    """Return the inverse of a symmetric block, of which only the lower triangle is read."""
    # LAPACK is column-major: the lower triangle here is the upper one there.
    result, wrong = lapack.spotrf(block.T, lower=0, clean=1)
    if not wrong:
        result, wrong = lapack.spotri(result, lower=0, overwrite_c=1)
    if wrong or not np.isfinite(result.diagonal()).all():
        raise UsageError(f"a regularisation of {regularisation} is too small to invert the matrix")
    return np.asarray(np.triu(result) + np.triu(result, 1).T, np.float32)
