"""A released item-item matrix as an attacker can read it, with the size of its errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from privirec.federated.contributions import (
    HeadItemItem,
    ItemItem,
    NoisyHeadGram,
    NoisyPopularity,
    NoisyPowerStep,
)
from privirec.federated.contributions.noisy_gram import gram_of, pair_length
from privirec.federated.noise import NO_NOISE, AddedNoise
from privirec.filters.operators import SparseOperator
from privirec.privacy.releases import Release, ReleasedFilters

LEFT_BY_ROUNDING = 0.4
"""Error, in units, of an entry that clients rounded. The diagonal is rounded by another rule."""
MOST_WEIGHTS = 6000
RIDGE = 0.1
"""Ridge for reconstructing a matrix from noisy products, relative to the mean square of a
column."""
CLOSE_TO_WHOLE = 0.2
SINGLE = 2.0**-21
"""Relative error of a number after a few operations in single precision."""


@dataclass(frozen=True)
class MatrixView:
    """The matrix sum_u w(d_u) r_u^T r_u, and the precision with which it is known."""

    matrix: sp.csr_array
    """Double precision, columns ascending."""
    exponent: float
    """w(d) = d^-exponent."""
    errors: NDArray[np.float64]
    """Standard deviation of an off-diagonal entry, for each row."""
    noisy: bool
    """True if the errors are added noise, false if they come from arithmetic."""
    degrees: NDArray[np.int64] | None
    """Number of users of each item, if known."""
    items: NDArray[np.int64] | None = None
    """Item numbers of the rows of this matrix; None: all items."""
    rule: Callable[[int], float] | None = None
    """w(d) as clients compute it, if it differs from d^-exponent."""
    diagonal: bool = True
    """True if the diagonal holds information."""


def item_item_view(release: Release) -> MatrixView | None:
    """Return the item-item matrix of a release, exact or noisy, if there is one."""
    for gram, total in release.opened(NoisyHeadGram):
        return _noisy_gram(release, gram, total)
    for head, total in release.opened(HeadItemItem):
        if head.noise == NO_NOISE:
            return _exact(release, head.inside, total, np.asarray(head.items))
    for ask, total in release.opened(ItemItem):
        if ask.noise == NO_NOISE:
            return _exact(release, ask, total, None)
    return _from_power_steps(release) or _from_filters(release)


def _noisy_gram(release: Release, ask: NoisyHeadGram, total: Any) -> MatrixView:
    head = len(ask.items)
    gram = gram_of(total, head, ask.fraction_bits, np.zeros(head))
    # All entries of the triangle have the same noise, and `gram_of` divides pairs by sqrt(2).
    off = release.deviation(ask) / math.sqrt(2)
    if release.noise_left_out:
        off *= LEFT_BY_ROUNDING
    # With unequal weights, a person's part of a pair depends on all of that person's items.
    rule = None
    if len(np.unique(ask.weights)) == 1:

        def rule(length: int) -> float:
            """Return what a person with this many items in the head adds to each pair."""
            return 1 / pair_length(np.ones(length)) if length > 1 else 0.0

    errors = np.full(head, off)
    return MatrixView(_full(gram), 1.0, errors, True, None, np.asarray(ask.items), rule, False)


def _from_power_steps(release: Release) -> MatrixView | None:
    """Reconstruct a matrix of the head from its noisy products with a few public columns.

    If popularity is known, items are scaled by it, and its direction is removed from blocks and
    products. That direction says nothing about any individual and would dominate the rest.
    """
    steps, popularity = release.opened(NoisyPowerStep), popularity_view(release)
    if not steps or len(steps[0][0].items) > MOST_WEIGHTS:
        return None
    ask = steps[0][0]
    if any(not np.array_equal(one.items, ask.items) for one, _ in steps):
        return None
    size = np.ones((len(ask.items), 1))
    common = np.zeros_like(size)
    if popularity is not None:
        size = np.sqrt(np.maximum(popularity.votes[ask.items], 1.0))[:, None]
        common = size / np.linalg.norm(size)
    blocks: list[NDArray[np.float64]] = []
    images: list[NDArray[np.float64]] = []
    for one, total in steps:
        block = size * one.block.astype(np.float64)
        lengths = np.maximum(np.linalg.norm(block, axis=0), 1.0)
        image = np.ldexp(total.astype(np.float64), -one.fraction_bits) / one.weights[:, None]
        for found, columns in ((blocks, block), (images, image / size)):
            found.append((columns - common @ (common.T @ columns)) / lengths)
    x = np.concatenate(blocks, axis=1)
    inner = x.T @ x
    inner[np.diag_indices(len(inner))] += RIDGE * np.trace(inner) / len(inner) + 1e-12
    back = np.linalg.solve(inner, x.T)
    gram = size * (np.concatenate(images, axis=1) @ back) * size.T
    gram = (gram + gram.T) * (0.5 * float(np.median(ask.weights)))
    np.fill_diagonal(gram, 0.0)
    noise = release.deviation(ask) * float(np.sqrt((back**2).sum(axis=0).mean()))
    errors = np.full(len(gram), noise)
    return MatrixView(_full(gram), 1.0, errors, True, None, np.asarray(ask.items), None, False)


def _full(matrix: NDArray[np.float64]) -> sp.csr_array:
    """Return a sparse matrix with all entries stored, including zeros."""
    full = sp.csr_array(np.ones_like(matrix))
    full.data = matrix.reshape(-1).copy()
    return full


def _exact(
    release: Release, ask: ItemItem, total: Any, items: NDArray[np.int64] | None
) -> MatrixView:
    degrees = release.item_degrees
    if degrees is not None and items is not None:
        degrees = degrees[items]
    bits = ask.encoding.fraction_bits
    matrix = sp.csr_array(total, dtype=np.float64, copy=True)
    matrix.data = np.ldexp(matrix.data, -bits)
    errors = np.full(matrix.shape[0], 2.0**-bits)
    return MatrixView(matrix, 2 * ask.alpha, errors, False, degrees, items)


def _from_filters(release: Release) -> MatrixView | None:
    """Reconstruct P' from the P~ of an artifact, for any method."""
    filters = release.filters
    operator = None if filters is None else filters.components.item_item
    if filters is not None and filters.settings.get("model") == "ease":
        return gram_of_weights(filters)
    if filters is None or not isinstance(operator, SparseOperator):
        return None
    noises = (filters.noise(kind) for kind in (ItemItem, HeadItemItem, NoisyHeadGram))
    noise = next((one for one in noises if isinstance(one, AddedNoise)), None)
    components = filters.components
    by, degrees = components.normalisation, np.asarray(components.item_degrees)
    if noise is not None:
        inside = np.flatnonzero(np.diff(operator.matrix.indptr))
        some = sp.csr_array(operator.matrix[inside][:, inside], dtype=np.float64)
        some.sort_indices()
        errors = np.full(len(inside), noise.scale / math.sqrt(2))
        return MatrixView(some, by.user, errors, True, None, inside)
    matrix = sp.csr_array(operator.matrix, dtype=np.float64, copy=True)
    matrix.sum_duplicates()
    rows = np.repeat(np.arange(len(degrees)), np.diff(matrix.indptr))
    matrix.data *= degrees[rows] ** by.left * degrees[matrix.indices] ** by.right
    largest = np.zeros(len(degrees))
    np.maximum.at(largest, rows, matrix.data)
    return MatrixView(matrix, by.user, SINGLE * largest, False, degrees)


def gram_of_weights(filters: ReleasedFilters) -> MatrixView | None:
    """Reconstruct R^T R from EASE's weights, which were computed from it.

    B_ij = -P_ij / P_jj, P = (R^T R + lambda I)^-1. P is symmetric, so B_ij / B_ji = P_ii / P_jj,
    which determines P up to its scale. The diagonal of R^T R holds the item degrees and determines
    the scale.

    Return None if the result is not close to whole numbers, which means that the weights are not
    precise enough.
    """
    weights, items = filters.derived.get("weights"), filters.derived.get("items")
    ridge = filters.settings.get("regularisation")
    degrees = np.asarray(filters.components.item_degrees)
    if weights is None or items is None or not isinstance(ridge, int | float):
        return None
    if not 0 < len(items) <= MOST_WEIGHTS:
        return None
    b, own = np.asarray(weights, np.float64), degrees[items].astype(np.float64)
    strength = np.maximum(b * b.T, 0.0)  # 0 if the signs differ
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(strength > 0, np.log(np.abs(b) / np.abs(b.T)), 0.0)
    laplacian = np.diag(strength.sum(axis=1)) - strength
    laplacian[np.diag_indices(len(b))] += 1e-9 * max(float(strength.sum(axis=1).max()), 1e-300)
    diagonal = np.exp(np.linalg.solve(laplacian, (strength * ratios).sum(axis=1)))
    inverse = -b * diagonal
    np.fill_diagonal(inverse, diagonal)
    try:
        gram = np.linalg.inv((inverse + inverse.T) / 2)
    except np.linalg.LinAlgError:
        return None
    # Items that share no people, directly or through other items, have separate scales.
    linked = strength > 1e-12 * max(float(strength.max()), 1e-300)
    _, part = connected_components(sp.csr_array(linked), False)
    wanted = np.bincount(part, (own + ridge) ** 2)
    gram *= (wanted / np.bincount(part, gram.diagonal() * (own + ridge)))[part][:, None]
    gram[np.diag_indices(len(b))] -= ridge
    whole = np.rint(gram)
    if not np.abs(gram - whole).max() < CLOSE_TO_WHOLE:
        return None
    matrix = sp.csr_array(whole)
    errors = np.full(len(items), 0.01)
    return MatrixView(matrix, 0.0, errors, False, degrees[items], np.asarray(items))


@dataclass(frozen=True)
class PopularityView:
    """Popularity of each item in votes, and the standard deviation of the noise in it."""

    votes: NDArray[np.float64]
    deviation: float


def popularity_view(release: Release) -> PopularityView | None:
    for ask, total in release.opened(NoisyPopularity):
        votes = np.ldexp(total.astype(np.float64), -ask.fraction_bits)
        return PopularityView(votes, release.deviation(ask))
    degrees = release.item_degrees
    return None if degrees is None else PopularityView(degrees.astype(np.float64), 0.0)


def most_likely(votes: NDArray[np.float64], count: int) -> NDArray[np.int32]:
    """Return the `count` items with the most votes, ascending."""
    count = min(count, len(votes))
    chosen = np.argpartition(-votes, count - 1)[:count] if count else np.zeros(0, np.int64)
    return np.sort(chosen).astype(np.int32)
