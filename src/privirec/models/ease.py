"""EASE^R (Steck 2019): the best linear map of a history onto itself that must not copy an item.

B = I - P diag(1/P_jj) with P = (R^T R + lambda I)^-1, so its diagonal is zero; scores are x B. B is
derived once, in the memory of one dense single-precision matrix: the Gram matrix is written into
it, inverted in place and turned into B. The artifact holds B instead of the Gram matrix. With a
head, it holds one byte per weight and a unit per item, which changed none of our measured figures.
For weighted interactions R holds the weights, and B maps these onto themselves.

DAN (Park et al. 2025) is EASE with data-aware normalisation: in the Gram matrix a history counts by
a power of its length, the regularisation grows with the degree of an item, and weights are scaled
by powers of the degrees of both items.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from privirec.compiled import Later
from privirec.data.interactions import Interactions
from privirec.errors import UsageError, warn_of_data
from privirec.filters.components import Components
from privirec.filters.eigen import Progress
from privirec.filters.normalize import Normalisation, degree_power, most_popular
from privirec.filters.operators import Float32, history_coordinates, in_bytes
from privirec.models.base import Config, Derived, Recommender

kernels = Later("privirec.filters.kernels")
lapack = Later("scipy.linalg.lapack")

# Items per block of the inversion: enough for matrix products to run at full speed.
ITEMS_AT_ONCE = 2048
LARGE = 20_000
"""Number of items from which on a fit says first what it takes."""
SECONDS = 1.2e-11
"""CPU seconds of an inversion, per item to the third power, as measured on one core."""
# OpenBLAS overruns its buffers when two threads factorise a matrix of forty thousand rows.
MOST_FACTORISED = 16384


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

    def _components_of(
        self, train: Interactions, seed: int, progress: Progress | None
    ) -> Components:
        size = min(self.config.head or train.n_items, train.n_items)
        if size > LARGE and not self.config.head:
            warn_of_data(
                f"{self.title} inverts a matrix of {size:,} x {size:,} numbers: at least "
                f"{4 * size**2 / 1e9:.1f} GB and about {SECONDS * size**3 / 60:.0f} CPU minutes. "
                f"A head of popular items takes less: head=10000 needs 0.4 GB and 12 seconds"
            )
        return super()._components_of(train, seed, progress)

    def _derive(self, components: Components) -> Derived:
        items = most_popular(components.item_degrees, self.config.head)
        weights = components.item_item.among(items)
        self._make_weights(weights, components.item_degrees[items])
        if self.config.head is None:
            return {"weights": weights, "items": items}
        small, units = in_bytes(weights)
        return {"weights": small, "units": units, "items": items}

    def _make_weights(self, gram: Float32, degrees: NDArray[Any]) -> None:
        """Replace a Gram matrix by the weights."""
        make_weights(gram, self.config.regularisation)

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


class DANConfig(EASEConfig):
    regularisation: float = Field(20.0, gt=0)
    """lambda: constant added to the diagonal of the Gram matrix."""
    dropout: float = Field(0.3, ge=0, lt=1)
    """p: the diagonal grows by p / (1 - p) times the degree of the item."""
    user_exponent: float = Field(0.3, ge=0, le=1)
    """b: a history of length d counts d^-b in the Gram matrix."""
    item_exponent: float = Field(0.2, ge=-1, le=1)
    """a: weights are multiplied by (degree in the history / degree of the scored item)^a."""

    @property
    def normalisation(self) -> Normalisation:
        return Normalisation(user=self.user_exponent, left=0.0, right=0.0)


class DAN(EASE):
    """DAN: EASE^R with data-aware normalisation of users and items.

    Park et al. 2025. It inverts a dense matrix of items x items.
    """

    name = "dan"
    title = "EASE^R-DAN"
    config_type = DANConfig
    # Published for another protocol than ours.
    published: ClassVar[dict[str, Config]] = {
        "gowalla": DANConfig(dropout=0.6, user_exponent=0.3, item_exponent=0.2),
        "yelp2018": DANConfig(dropout=0.7, user_exponent=0.3, item_exponent=0.3),
        "amazon-book": DANConfig(
            regularisation=10, dropout=0.4, user_exponent=0.2, item_exponent=0.2
        ),
    }
    config: DANConfig

    def _make_weights(self, gram: Float32, degrees: NDArray[Any]) -> None:
        config = self.config
        more = config.dropout / (1 - config.dropout) * degrees
        make_weights(gram, config.regularisation, more)
        gram *= degree_power(degrees, config.item_exponent).astype(np.float32)[:, None]
        gram *= degree_power(degrees, -config.item_exponent).astype(np.float32)


def make_weights(
    gram: Float32, regularisation: float, more: NDArray[np.float64] | float = 0.0
) -> None:
    """Replace a Gram matrix by B. Raises UsageError if the matrix cannot be inverted.

    `more` is added to the diagonal as well.
    """
    gram.reshape(-1)[:: len(gram) + 1] += np.asarray(regularisation + more, np.float32)
    if len(gram) <= MOST_FACTORISED:
        _inverted(gram.T, regularisation, overwrite=True)
    else:
        _sweep(gram, regularisation)
    kernels.weights_of_inverse(gram, gram.diagonal().copy())


def _sweep(gram: Float32, regularisation: float) -> None:
    """Replace a large matrix by minus its inverse, below and on the diagonal.

    It eliminates one block of items after the other, which takes only matrix products.
    """
    size = len(gram)
    for first in range(0, size, ITEMS_AT_ONCE):
        last = min(first + ITEMS_AT_ONCE, size)
        swept = slice(first, last)
        inverse = _inverted(gram[swept, swept].T, regularisation, overwrite=False)
        pivot = np.asarray(np.triu(inverse) + np.triu(inverse, 1).T, np.float32)
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


def _inverted(block: Float32, regularisation: float, overwrite: bool) -> Float32:
    """Return the inverse of a symmetric column-major matrix; only upper triangles are used."""
    result, wrong = lapack.spotrf(block, lower=0, clean=0, overwrite_a=overwrite)
    if not wrong:
        result, wrong = lapack.spotri(result, lower=0, overwrite_c=1)
    if wrong or not np.isfinite(result.diagonal()).all():
        raise UsageError(f"a regularisation of {regularisation} is too small to invert the matrix")
    return np.asarray(result)
