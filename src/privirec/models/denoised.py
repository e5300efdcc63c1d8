"""Filters from noisy sums: EASE^R on a noisy Gram matrix, or a low-pass filter from a noisy basis.

A Gram matrix G with known noise (deviation s per entry) is processed in three steps. *Threshold*:
each entry off the diagonal is shrunk towards zero by s, since most pairs hardly ever occur
together. *Ridge*: EASE on the result plus lambda I, lambda a multiple of the largest eigenvalue of
noise alone, 2 s sqrt(m). The multiple is chosen from the matrix itself: with fresh noise N of the
same deviation, G + N/2 and G - 2N are two views of the exact matrix with independent noise, so
weights made from one can be evaluated on the other. *Damping*: EASE corrects for popularity if the
ridge is small; if it is large, items of a history count p^-a with a up to 0.4.

All of this uses only the noisy sums, so it costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from privirec.data.given import Progress, UserItems
from privirec.errors import UsageError
from privirec.filters.components import Components
from privirec.filters.normalize import (
    PROTECTED_PAIRS,
    Normalisation,
    head_before_tail,
    item_scales,
    most_popular,
    relative_popularity,
)
from privirec.filters.operators import Float32, SparseOperator, history_coordinates
from privirec.models.base import Config, Derived, Recommender
from privirec.models.ease import make_weights

RIDGES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Candidates, in units of the largest eigenvalue of the noise."""
MOST_DAMPING = 0.4
PAIR_PART = 0.5
"""Weight of pairs relative to that of the low-pass filter, if there is no noise."""
PAIR_HISTORY, PAIR_TARGET = -0.5, -0.3
"""Exponents of popularity in the weights of pairs: of the item in the history, of the other."""
NOISE_LEFT = 0.0753
"""Mean square of max(z - 1, 0) for a standard normal z: 2 Phi(-1) - phi(1)."""
LIFT = 0.2
"""Exponent of the popularity by which a low-pass filter's scores are multiplied."""

_SPLIT = 0.5
"""Factor of the fresh noise in the view that weights are made from; the other has 1 / _SPLIT."""


class DenoisedConfig(Config):
    regularisation: float = Field(3.0, gt=0)
    """Constant that is always added to the diagonal of the Gram matrix."""
    threshold: float = Field(1.0, ge=0)
    """Amount by which entries are shrunk towards zero, in deviations of their noise."""
    ridge: float | None = Field(None, ge=0)
    """Further addition to the diagonal, in units of the noise's largest eigenvalue; None: chosen
    from the matrix itself."""
    damping: float | None = Field(None, ge=0, le=1)
    """Exponent of popularity by which items of a history count less; None: derived from ridge."""
    head: int | None = Field(None, ge=1)
    """Number of most popular items to use; None: as many as were computed."""

    @property
    def normalisation(self) -> Normalisation:
        return PROTECTED_PAIRS

    @property
    def needs(self) -> dict[str, Any]:
        """Noisy sums computed in any way, and a head if one is set."""
        return {"way": "auto"} | ({"head": self.head} if self.head else {})


class Denoised(Recommender):
    """A filter from noisy sums scores the head; all other items follow by popularity.

    It is the model for the method `protected`.
    """

    name = "denoised"
    title = "Denoised"
    config_type = DenoisedConfig
    published: ClassVar[dict[str, Config]] = {}
    derives: ClassVar[dict[str, tuple[str, int]]] = {
        "items": ("<i8", 1),
        "left": ("<f4", 2),
        "right": ("<f4", 2),
        "pair_starts": ("<i8", 1),
        "pair_items": ("<i8", 1),
        "pair_weights": ("<f4", 1),
    }
    keeps_item_item = False
    takes_no_weights = "it is made for sums over clients, who count each interaction as one"
    config: DenoisedConfig

    def fit(
        self,
        user_items: UserItems,
        *,
        seed: int = 0,
        progress: Progress | bool | None = None,
        weighted: bool | str = False,
    ) -> Self:
        """Raise UsageError: this model takes noisy sums (`use`) and adds no noise itself."""
        raise UsageError(
            "denoised adds no noise, so a fit would protect nobody: "
            "PrivateRecommender(epsilon=1).fit(...), or privirec fit --epsilon 1"
        )

    def _take(
        self, components: Components, derived: Derived, item_ids: NDArray | None = None
    ) -> Self:
        return super()._take(replace(components, basis=None), derived, item_ids)

    def _derive(self, components: Components) -> Derived:
        """Return the filter on the head: left @ right plus a sparse matrix of pairs.

        An empty right stands for the identity.
        """
        items = most_popular(components.item_degrees, self.config.head or components.head)
        popularity = np.maximum(components.item_degrees[items], 1).astype(np.float64)
        pairs = sp.csr_array((len(items), len(items)), dtype=np.float32)
        if components.basis is not None:
            left, right = low_pass(components.basis[items].astype(np.float64), popularity)
            if isinstance(components.item_item, SparseOperator):
                counts = components.item_item.matrix[items][:, items]
                pairs = pair_weights(counts, components.noise_deviation, popularity, left, right)
        else:
            gram = components.item_item.among(items)
            left = self._weights(gram, components.noise_deviation, popularity)
            right = np.zeros((0, 0), np.float32)
        return {
            "items": items,
            "left": left,
            "right": right,
            "pair_starts": pairs.indptr.astype(np.int64),
            "pair_items": pairs.indices.astype(np.int64),
            "pair_weights": pairs.data,
        }

    def _weights(self, gram: Float32, deviation: float, popularity: NDArray[np.float64]) -> Float32:
        config = self.config
        # The matrix weights items on both sides. Without noise, that only reduces accuracy.
        left, right = item_scales(popularity, config.normalisation)
        if not deviation:
            gram = np.asarray(gram / np.outer(left, right), np.float32)
            left = right = np.ones_like(left)
        edge = 2 * deviation * math.sqrt(len(gram))
        mean = float(gram.diagonal().mean())
        ridge = config.ridge
        if ridge is None:
            ridge = best_ridge(gram, deviation, config) if deviation else 0.0
        ridge, weights = self._inverted(gram, deviation, ridge)
        damping = config.damping
        if damping is None:
            damping = MOST_DAMPING * ridge * edge / (ridge * edge + 2 * mean) if deviation else 0.0
        weights *= (left * popularity**-damping)[:, None].astype(np.float32)
        weights /= right[None].astype(np.float32)
        return weights

    def _inverted(self, gram: Float32, deviation: float, ridge: float) -> tuple[float, Float32]:
        """Return ridge and weights of EASE; double an automatic ridge while inversion fails.

        Eigenvalues of a small noise matrix can exceed 2 s sqrt(m), which is an asymptotic limit.
        """
        config = self.config
        edge = 2 * deviation * math.sqrt(len(gram))
        while True:
            weights = softened(gram, config.threshold * deviation)
            try:
                make_weights(weights, config.regularisation + ridge * edge)
            except UsageError:
                if not ridge or config.ridge is not None:
                    raise
                ridge *= 2
            else:
                return ridge, weights

    def _prepare(self, components: Components, derived: Derived) -> None:
        items, left, right = derived["items"], derived["left"], derived["right"]
        head = len(items)
        if not np.array_equal(items, most_popular(components.item_degrees, head)):
            raise UsageError("a filter of other items than the most popular ones")
        as_weights = left.shape == (head, head) and right.shape == (0, 0)
        if not as_weights and (len(left) != head or right.shape != (left.shape[1], head)):
            raise UsageError("a filter whose sides do not fit its items")
        try:
            kept = tuple(derived[name] for name in ("pair_weights", "pair_items", "pair_starts"))
            self._pairs = sp.csr_array(kept, shape=(head, head))
            self._pairs.check_format()
        except ValueError:
            raise UsageError("pairs of items outside the filter") from None
        self._items: NDArray[np.int64] = items
        self._left: Float32 = left
        self._right: Float32 = right
        self._relative = relative_popularity(components.item_degrees)

    def _score(self, histories: sp.csr_array) -> Float32:
        known = sp.csr_array(histories[:, self._items])
        on_head = history_coordinates(known, self._left)
        if self._right.size:
            on_head = on_head @ self._right
        if self._pairs.nnz:
            on_head = on_head + (known @ self._pairs).toarray()
        return head_before_tail(on_head, self._items, self._relative)


def low_pass(
    basis: NDArray[np.float64], popularity: NDArray[np.float64]
) -> tuple[Float32, Float32]:
    """Return the two sides of x p^-1/2 S S^T p^0.2.

    Rows of unpopular items are the noisiest. They count less on the history side, those of the
    least popular item half.
    """
    trust = popularity / (popularity + popularity.min(initial=np.inf))
    left = (trust * popularity**-0.5)[:, None] * basis
    right = (popularity[:, None] ** LIFT * basis).T
    return np.ascontiguousarray(left, np.float32), np.ascontiguousarray(right, np.float32)


def pair_weights(
    counts: sp.csr_array,
    deviation: float,
    popularity: NDArray[np.float64],
    left: Float32,
    right: Float32,
) -> sp.csr_array:
    """Return weights of pairs, to be added to the low-pass filter left @ right.

    Counts are reduced by the deviation of their noise and scaled by popularity. Their total weight
    is a fixed part of the filter's, times the share of their energy that is not noise: pairs that
    are mostly noise change little.
    """
    history, target = popularity**PAIR_HISTORY, popularity**PAIR_TARGET
    kept = sp.csr_array(counts, copy=True, dtype=np.float32)
    if not kept.nnz:
        return kept
    rows = np.repeat(np.arange(kept.shape[0]), np.diff(kept.indptr))
    scales = history[rows] * target[kept.indices]
    weights = scales * np.maximum(kept.data - deviation, 0)
    energy = float(np.square(weights).sum())
    noise = NOISE_LEFT * deviation**2 * float(np.square(scales).sum())
    signal = max(0.0, 1 - noise / energy) if energy else 0.0
    # |left @ right|^2 without the product itself
    filter_energy = float(np.einsum("ij,ji->", left.T @ left, right @ right.T))
    factor = PAIR_PART * signal * math.sqrt(filter_energy / energy) if energy else 0.0
    kept.data = (factor * weights).astype(np.float32)
    kept.eliminate_zeros()
    return kept


def softened(gram: Float32, threshold: float) -> Float32:
    """Shrink every entry off the diagonal towards zero."""
    soft = np.sign(gram) * np.maximum(np.abs(gram) - np.float32(threshold), np.float32(0))
    np.fill_diagonal(soft, gram.diagonal())
    return np.asarray(soft, np.float32)


def best_ridge(gram: Float32, deviation: float, config: DenoisedConfig) -> float:
    """Return the ridge whose weights, made from one view of the matrix, do best on the other.

    Weights B, at the best scale, leave tr(G) - tr(G B)^2 / tr(B^T G B) of the squared error.
    """
    fresh = _symmetric_noise(len(gram), deviation)
    seen, graded = gram + np.float32(_SPLIT) * fresh, gram - np.float32(1 / _SPLIT) * fresh
    more = deviation * math.sqrt(1 + _SPLIT**2)
    soft = softened(seen, config.threshold * more)
    edge = 2 * more * math.sqrt(len(gram))
    gains = {}
    for ridge in RIDGES:
        weights = soft.copy()
        try:
            make_weights(weights, config.regularisation + ridge * edge)
        except UsageError:  # too small a ridge to invert the noisy matrix
            continue
        hit = float(np.vdot(graded, weights))
        energy = float(np.vdot(graded @ weights, weights))
        gains[ridge] = hit * hit / energy if hit > 0 and energy > 0 else 0.0
    return max(gains, key=lambda ridge: gains[ridge]) if gains else RIDGES[-1]


def _symmetric_noise(size: int, deviation: float) -> Float32:
    """Return off-diagonal noise, always the same, because it need not be secret."""
    generator = np.random.Generator(np.random.Philox(0))
    upper = np.triu(generator.standard_normal((size, size), np.float32), 1)
    return np.asarray(np.float32(deviation) * (upper + upper.T), np.float32)
