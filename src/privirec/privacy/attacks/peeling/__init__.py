"""Peeling: every history from the item degrees and the exact item-item matrix.

The attacker holds V and the integers P' = sum_u w(d_u) r_u^T r_u, where w is the public rule that
turns the length of a history into a fixed-point weight. Row i of P' is the sum of w(d_u) r_u over
the users of item i. If few users are left, the entries of the row are subset sums of a handful of
weights. The attack finds the weights, reads off the users in each column, subtracts these users
from V and P', and continues with the remaining items.

Nothing is guessed. The search for the weights of a row is exhaustive, a history is subtracted only
if every explanation of the row agrees on it, and all arithmetic is on integers. An exact release
therefore never yields a wrong history. Ambiguous histories stay in the matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp
from numba import njit
from numpy.typing import NDArray

from privirec.errors import UsageError
from privirec.federated.contributions import HeadItemItem, ItemItem
from privirec.federated.noise import NO_NOISE
from privirec.filters.normalize import Normalisation
from privirec.filters.operators import SparseOperator
from privirec.privacy.attacks.base import Attack, Found, Progress
from privirec.privacy.attacks.peeling.matrix import (
    Ints,
    Matrix,
    queue_all,
    queue_item,
    round_back,
    subtract,
)
from privirec.privacy.attacks.peeling.rows import solve_row
from privirec.privacy.attacks.peeling.weights import WeightRule
from privirec.privacy.releases import Release

MOST_USERS_LEFT = 6
"""Most users of a row to try; rows of more users have too many subset sums to search."""

_ROWS_BETWEEN_REPORTS = 50


class Peeling(Attack):
    """Histories recovered from V and P', one row after the other."""

    name: ClassVar[str] = "peeling"
    needs: ClassVar[str] = "item degrees, and the item-item matrix without noise"

    def applies_to(self, release: Release) -> bool:
        return release.item_degrees is not None and _matrix_in(release) is not None

    def run(self, release: Release, progress: Progress | None = None) -> Found:
        degrees, held = release.item_degrees, _matrix_in(release)
        if degrees is None or held is None:
            raise UsageError(f"{self.name} needs {self.needs}")
        ask, matrix, items = held
        shown = degrees if items is None else degrees[items]
        if np.issubdtype(matrix.dtype, np.integer):
            longest = longest_history(matrix) + _empty_rows(shown, matrix)
            peeled = peel(shown, matrix, weights_of(ask, longest), progress=progress)
        else:
            filters = release.filters
            by = None if filters is None else filters.components.normalisation
            peeled = from_normalized(shown, matrix, ask, by, progress=progress)
        facts = {
            "ring_bits": ask.width,
            "fraction_bits": ask.encoding.fraction_bits,
            "released_entries": int(np.count_nonzero(matrix.data)),
            "interactions_left": peeled.interactions_left,
        }
        if items is None:
            return Found(peeled.indptr, peeled.indices, facts=facts)
        visible = np.zeros(len(degrees), np.bool_)
        visible[items] = True
        found = items[peeled.indices].astype(np.int32)
        return Found(peeled.indptr, found, visible_items=visible, facts=facts)


class _Held(NamedTuple):
    """An item-item matrix, its request, and the items that it covers (None: all)."""

    ask: ItemItem
    matrix: sp.csr_array
    items: NDArray[np.int64] | None = None


def _matrix_in(release: Release) -> _Held | None:
    """Return the item-item matrix, if it was summed without noise.

    It is P' from the sums of a run, or P~ from an artifact whose manifest tells the scale.
    """
    for one in release.sums_of(ItemItem, HeadItemItem):
        if one.noise != NO_NOISE:
            continue
        if isinstance(one.ask, HeadItemItem):
            return _Held(one.ask.inside, one.total, one.ask.items)
        if isinstance(one.ask, ItemItem):
            return _Held(one.ask, one.total)
    filters = release.filters
    if filters is None or filters.noise(ItemItem) != NO_NOISE:
        return None
    components, entry = filters.components, filters.entry(ItemItem)
    if entry is None or not isinstance(components.item_item, SparseOperator):
        return None
    largest = int(components.item_degrees.max(initial=0))
    alpha = components.normalisation.user / 2
    ask = ItemItem(components.n_items, largest, alpha, int(entry["ring_bits"]))
    if ask.encoding.fraction_bits != entry["fraction_bits"]:
        return None
    return _Held(ask, components.item_item.matrix)


@dataclass(frozen=True)
class Peeled:
    """The recovered histories, one row each, in the order of recovery.

    Row u holds the item numbers `indices[indptr[u]:indptr[u + 1]]`, ascending. `complete` is true
    if nothing is left: the recovered rows add up to V and P' exactly.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    complete: bool
    interactions_left: int

    @property
    def n_users(self) -> int:
        return len(self.indptr) - 1


def weights_of(ask: ItemItem, longest: int) -> NDArray[np.int64]:
    """Return w(d) for d = 0 .. longest, by the clients' own rule."""
    return ask.weights(np.arange(max(longest, 1) + 1))


def from_normalized(
    item_degrees: NDArray[np.int64],
    normalized: sp.csr_array,
    ask: ItemItem,
    normalisation: Normalisation | None = None,
    *,
    max_users_left: int = MOST_USERS_LEFT,
    hidden_items: int = 0,
    progress: Progress | None = None,
) -> Peeled:
    """Peel P~ = 2^-f V^(a-1) P' V^(a-1), or P' divided by other powers of V.

    The server and every client hold P~. In double precision, rounding restores the integers of P'
    exactly. In single precision, which artifacts use, it does so for small entries, which are those
    of rare items. Large ones may be a few units off, and then some histories are not recovered.
    """
    _check_shape(item_degrees, normalized)
    by = normalisation or Normalisation.symmetric(ask.alpha)
    item_item = _integers(item_degrees, normalized, ask, by)
    hidden_items += _empty_rows(item_degrees, item_item)
    return _peel(
        item_degrees,
        item_item,
        weights_of(ask, longest_history(item_item) + hidden_items),
        max_users_left=max_users_left,
        hidden_items=hidden_items,
        progress=progress,
    )


def peel(
    item_degrees: NDArray[np.int64],
    item_item: sp.csr_array,
    weight_of: NDArray[np.int64],
    *,
    max_users_left: int = MOST_USERS_LEFT,
    hidden_items: int = 0,
    progress: Progress | None = None,
) -> Peeled:
    """Recover the rows r_u from V and P' = sum_u w(d_u) r_u^T r_u.

    `item_item` is P' in int64, both triangles, and is not modified. `weight_of` is w(d) for d = 0,
    1, ...; it must reach the longest history (see `weights_of`). A row is tried once no more than
    `max_users_left` of its users remain. `hidden_items` is the number of items whose rows and
    columns were suppressed before the release. A history may then be longer than its visible part,
    and only the part on the other items is recovered.
    """
    _check_shape(item_degrees, item_item)
    if not np.issubdtype(item_item.dtype, np.integer):
        raise UsageError(f"P' must hold integers, not {item_item.dtype}")
    return _peel(
        item_degrees,
        _canonical(item_item.data.astype(np.int64), item_item),
        weight_of,
        max_users_left=max_users_left,
        hidden_items=hidden_items + _empty_rows(item_degrees, item_item),
        progress=progress,
    )


def _peel(
    item_degrees: NDArray[np.int64],
    remaining: sp.csr_array,
    weight_of: NDArray[np.int64],
    *,
    max_users_left: int,
    hidden_items: int,
    progress: Progress | None,
) -> Peeled:
    """Peel a canonical matrix, which is modified; see `peel`."""
    weights = np.ascontiguousarray(weight_of, dtype=np.int64)
    if not 1 <= max_users_left <= MOST_USERS_LEFT:
        raise UsageError(f"max_users_left must be 1 to {MOST_USERS_LEFT}, not {max_users_left}")
    if len(weights) < 2 or (weights[1:] <= 0).any() or (np.diff(weights[1:]) > 0).any():
        raise UsageError("weights of 1, 2, ... items must be positive and must not grow")

    degrees = np.where(remaining.diagonal() > 0, item_degrees, 0).astype(np.int64)
    rule = WeightRule(weights, len(weights) - 1, hidden_items)
    total = int(degrees.sum())

    # Fixed widths and writable starts let every release run through the same compiled code.
    matrix = Matrix(
        remaining.indptr.astype(np.int64),
        remaining.indices.astype(np.int32, copy=False),
        remaining.data,
    )
    indptr = np.zeros(total + 1, np.int64)
    indices = np.empty(total, np.int32)
    n_users = 0
    queue = np.empty((max_users_left + 1, len(degrees)), np.int32)
    queued = np.zeros(max_users_left + 1, np.int64)
    while True:
        users_before = n_users
        queue_all(degrees, queue, queued)
        while queued.any():
            n_users = _peel_some(matrix, degrees, rule, (queue, queued), (indptr, indices, n_users))
            if progress is not None:
                progress(int(indptr[n_users]), total)
        # Recovered users may have resolved ambiguous rows, so try the remaining rows again.
        if n_users == users_before or not degrees.any():
            break
    taken = indptr[n_users]
    return Peeled(
        indptr=indptr[: n_users + 1].copy(),
        indices=indices[:taken].copy(),
        complete=not degrees.any() and not remaining.data.any(),
        interactions_left=int(degrees.sum()),
    )


def longest_history(item_item: sp.csr_array) -> int:
    """Return the largest h such that h rows have at least h entries.

    It bounds the length of a history: each of the d rows of a history has at least d entries.
    """
    entries = np.sort(np.diff(item_item.indptr))[::-1]
    return int(np.count_nonzero(entries >= np.arange(1, len(entries) + 1)))


def _check_shape(item_degrees: NDArray[np.int64], matrix: sp.csr_array) -> None:
    if matrix.shape != (len(item_degrees), len(item_degrees)):
        raise UsageError(
            f"item-item matrix of shape {matrix.shape} for {len(item_degrees)} item degrees"
        )


def _empty_rows(item_degrees: NDArray[np.int64], item_item: sp.csr_array) -> int:
    """Count the items with users but without a row.

    They were suppressed, and hide a part of histories.
    """
    return int(np.count_nonzero((item_degrees > 0) & (item_item.diagonal() <= 0)))


def _integers(
    item_degrees: NDArray[np.int64], normalized: sp.csr_array, ask: ItemItem, by: Normalisation
) -> sp.csr_array:
    """Return P' in int64 from P~ in floating point."""
    if not np.issubdtype(normalized.dtype, np.floating):
        raise UsageError(f"P~ must hold floating-point numbers, not {normalized.dtype}")
    degrees = np.asarray(item_degrees, dtype=np.float64)
    scales = degrees**by.left, degrees**by.right
    integers = np.empty(normalized.nnz, np.int64)
    arrays = (normalized.indptr, normalized.indices, normalized.data)
    precision = float(np.finfo(normalized.dtype).eps)
    bits = ask.encoding.fraction_bits
    if not round_back(arrays, scales, 2.0**bits, precision, integers):
        raise UsageError(f"P~ is not a sum of {bits}-bit fixed-point numbers")
    return _canonical(integers, normalized)


def _canonical(values: NDArray[np.int64], like: sp.csr_array) -> sp.csr_array:
    """Return `values` at the positions of `like`, columns sorted and unique.

    Index arrays are shared if `like` is canonical.
    """
    matrix = sp.csr_array((values, like.indices, like.indptr), shape=like.shape)
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    return matrix


@njit(cache=True)
def _peel_some(
    matrix: Matrix,
    degrees: Ints,
    rule: WeightRule,
    queue: tuple[Ints, Ints],
    recovered: tuple[Ints, Ints, int],
) -> int:
    """Process some of the queue, fewest users first, and return the number of users recovered so
    far.

    An item enters the list of those with m users left when its degree falls to m, so at most once.
    Entries whose degree has fallen further are stale.
    """
    waiting, queued = queue
    indptr, indices, n_users = recovered
    for _ in range(_ROWS_BETWEEN_REPORTS):
        left = 1
        while left < len(queued) and queued[left] == 0:
            left += 1
        if left == len(queued):
            break
        queued[left] -= 1
        item = waiting[left, queued[left]]
        if degrees[item] != left:
            continue
        for profile, weight in solve_row(matrix, item, left, rule):
            if not subtract(matrix, degrees, profile, weight):
                continue
            start = indptr[n_users]
            indices[start : start + len(profile)] = profile
            n_users += 1
            indptr[n_users] = start + len(profile)
            for j in profile:
                queue_item(j, degrees, waiting, queued)
    return n_users
