"""Peeling: every history out of the item degrees and the exact item-item matrix.

The attacker holds V and the integers P' = sum_u w(d_u) r_u^T r_u, where w is the public rule that
turns a history's length into a fixed-point weight. Row i of P' is the sum of w(d_u) r_u over the
users of item i. Where few users are left, the entries of the row are subset sums of a handful of
weights: find the weights, read off who is in which column, take those users out of V and P', and
go on with the items that they leave behind.

Nothing is guessed. The search for the weights of a row is exhaustive, a history is taken out only
if every explanation of the row agrees on it, and all arithmetic is on integers. So an exact
release never yields a wrong history; what stays ambiguous stays in the matrix.
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
from privirec.privacy.attacks.peeling.weights import Rule
from privirec.privacy.releases import Release

MOST_USERS_LEFT = 6
"""Rows with more users than this have too many subset sums to search them all."""

_ROWS_BETWEEN_REPORTS = 50


class Peeling(Attack):
    """Histories out of V and P', one row after the other."""

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
    """An item-item matrix, what was asked for it, and of which items it is (None: of all)."""

    ask: ItemItem
    matrix: sp.csr_array
    items: NDArray[np.int64] | None = None


def _matrix_in(release: Release) -> _Held | None:
    """The item-item matrix, if it was summed without noise: P' from the sums of a run, P~ from an
    artifact whose manifest tells the scale."""
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
    """The histories that were recovered, one row each, in the order in which they came off.

    Row u holds the item numbers `indices[indptr[u]:indptr[u + 1]]`, ascending. `complete` says
    that nothing is left: the recovered rows add up to V and P' exactly.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    complete: bool
    interactions_left: int

    @property
    def n_users(self) -> int:
        return len(self.indptr) - 1


def weights_of(ask: ItemItem, longest: int) -> NDArray[np.int64]:
    """w(d) for d = 0 .. longest: the clients' own rule."""
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
    """Peel P~ = 2^-f V^(a-1) P' V^(a-1), or P' divided by other powers of V, which the server and
    every client hold.

    In double precision, rounding gives the integers of P' back exactly. In single precision, which
    artifacts have, it does so for small entries, which are those of rare items; large ones may be a
    few units off, and then some histories stay.
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

    `item_item` is P' in int64, both triangles, and is left as it is. `weight_of` is w(d) for
    d = 0, 1, ...; it must reach the longest history (see `weights_of`). A row is tried once no
    more than `max_users_left` of its users remain. `hidden_items` is the number of items whose
    rows and columns were suppressed before the release: a history may then be longer than what
    is seen of it, and what is recovered is the part on the other items.
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
    """As `peel`, on a canonical matrix that is used up."""
    weights = np.ascontiguousarray(weight_of, dtype=np.int64)
    if not 1 <= max_users_left <= MOST_USERS_LEFT:
        raise UsageError(f"max_users_left must be 1 to {MOST_USERS_LEFT}, not {max_users_left}")
    if len(weights) < 2 or (weights[1:] <= 0).any() or (np.diff(weights[1:]) > 0).any():
        raise UsageError("weights of 1, 2, ... items must be positive and must not grow")

    degrees = np.where(remaining.diagonal() > 0, item_degrees, 0).astype(np.int64)
    rule = Rule(weights, len(weights) - 1, hidden_items)
    total = int(degrees.sum())

    # Fixed widths, and starts that can be written: every release runs through one compiled code.
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
        # What was peeled may have settled rows that were ambiguous: try those that are left again.
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
    """The largest h such that h rows have h entries: all d rows of a history have at least d."""
    entries = np.sort(np.diff(item_item.indptr))[::-1]
    return int(np.count_nonzero(entries >= np.arange(1, len(entries) + 1)))


def _check_shape(item_degrees: NDArray[np.int64], matrix: sp.csr_array) -> None:
    if matrix.shape != (len(item_degrees), len(item_degrees)):
        raise UsageError(
            f"item-item matrix of shape {matrix.shape} for {len(item_degrees)} item degrees"
        )


def _empty_rows(item_degrees: NDArray[np.int64], item_item: sp.csr_array) -> int:
    """Items with users but without a row were suppressed: they hide a part of histories."""
    return int(np.count_nonzero((item_degrees > 0) & (item_item.diagonal() <= 0)))


def _integers(
    item_degrees: NDArray[np.int64], normalized: sp.csr_array, ask: ItemItem, by: Normalisation
) -> sp.csr_array:
    """P' in int64 out of P~ in floating point."""
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
    """`values` in the places of `like`, columns sorted and unique; shares its index arrays."""
    matrix = sp.csr_array((values, like.indices, like.indptr), shape=like.shape)
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    return matrix


@njit(cache=True)
def _peel_some(
    matrix: Matrix,
    degrees: Ints,
    rule: Rule,
    queue: tuple[Ints, Ints],
    recovered: tuple[Ints, Ints, int],
) -> int:
    """Work through some of the queue, fewest users first; returns the users recovered so far.

    An item enters the list of those with m users left when its degree falls to m, so once at most.
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
