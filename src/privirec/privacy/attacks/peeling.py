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

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numba import njit
from numpy.typing import NDArray

from privirec.errors import UsageError

Progress = Callable[[int, int], None]
"""Called with the interactions recovered so far and the interactions there are."""

_Ints = NDArray[Any]  # of any integer width
_History = tuple[_Ints, int]  # item numbers, weight

MOST_USERS_LEFT = 6
"""Rows with more users than this have too many subset sums to search them all."""

_ROWS_BETWEEN_REPORTS = 50
_CLOSE_TO_INTEGER = 0.25  # double precision stays far below, any other scale does not
# A row with more (partial) sets of weights, or a value with more ways to write it, is ambiguous.
_MAX_WEIGHT_SETS = 256
_MAX_OPTIONS = 8


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
    seconds: float

    @property
    def n_users(self) -> int:
        return len(self.indptr) - 1


class _Matrix(NamedTuple):
    """What is left of P', in compressed rows with ascending columns."""

    starts: _Ints
    columns: _Ints
    entries: _Ints


class _Rule(NamedTuple):
    """What the attacker knows of any history of a row."""

    weight_of: _Ints
    longest: int  # no history of this row has more items, hidden ones included
    hidden: int  # at most so many items of a history are not in P'


class _Row(NamedTuple):
    """The non-zero entries of a row: entry j is values[value_of[j]], in column columns[j]."""

    columns: _Ints
    value_of: _Ints
    values: _Ints  # distinct


class _Classes(NamedTuple):
    """Users of a row by weight: sizes[c] users have weights[c]; ascending."""

    weights: _Ints
    sizes: _Ints


def weight_table(fraction_bits: int, exponent: float, longest: int) -> NDArray[np.int64]:
    """w(d) = rint(2^f d^(-2a)) for d = 0 .. longest; the public rule, with w(0) = 0."""
    lengths = np.arange(1, max(longest, 1) + 1, dtype=np.float64)
    scale = 2.0**fraction_bits
    weights = scale / lengths if exponent == 0.5 else scale * lengths ** (-2.0 * exponent)
    return np.concatenate([np.zeros(1, np.int64), np.rint(weights).astype(np.int64)])


def from_normalized(
    item_degrees: NDArray[np.int64],
    normalized: sp.csr_array,
    fraction_bits: int,
    exponent: float = 0.5,
    *,
    max_users_left: int = MOST_USERS_LEFT,
    hidden_items: int = 0,
    progress: Progress | None = None,
) -> Peeled:
    """Peel P~ = 2^-f V^(a-1) P' V^(a-1), which the server and every client hold.

    `normalized` is P~ in float64, so that rounding gives the integers of P' back exactly.
    """
    _check_shape(item_degrees, normalized)
    item_item = _integers(item_degrees, normalized, fraction_bits, exponent)
    hidden_items += _empty_rows(item_degrees, item_item)
    weight_of = weight_table(fraction_bits, exponent, longest_history(item_item) + hidden_items)
    return _peel(
        item_degrees,
        item_item,
        weight_of,
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
    d = 0, 1, ...; it must reach the longest history (see `weight_table`). A row is tried once no
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
    started = time.perf_counter()
    weights = np.ascontiguousarray(weight_of, dtype=np.int64)
    if not 1 <= max_users_left <= MOST_USERS_LEFT:
        raise UsageError(f"max_users_left must be 1 to {MOST_USERS_LEFT}, not {max_users_left}")
    if len(weights) < 2 or (weights[1:] <= 0).any() or (np.diff(weights[1:]) > 0).any():
        raise UsageError("weights of 1, 2, ... items must be positive and must not grow")

    degrees = np.where(remaining.diagonal() > 0, item_degrees, 0).astype(np.int64)
    rule = _Rule(weights, len(weights) - 1, hidden_items)
    total = int(degrees.sum())

    # Fixed widths: every release runs through the same compiled code.
    matrix = _Matrix(
        remaining.indptr.astype(np.int64, copy=False),
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
        _queue_all(degrees, queue, queued)
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
        seconds=time.perf_counter() - started,
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
    item_degrees: NDArray[np.int64], normalized: sp.csr_array, fraction_bits: int, exponent: float
) -> sp.csr_array:
    """P' in int64 out of P~ in float64."""
    if normalized.dtype != np.float64:
        raise UsageError(f"P~ must be float64 to be read back exactly, not {normalized.dtype}")
    scale = np.asarray(item_degrees, dtype=np.float64) ** (1.0 - exponent)
    integers = np.empty(normalized.nnz, np.int64)
    arrays = (normalized.indptr, normalized.indices, normalized.data)
    if not _round_back(arrays, scale, 2.0**fraction_bits, integers):
        raise UsageError(f"P~ is not a sum of {fraction_bits}-bit fixed-point numbers")
    return _canonical(integers, normalized)


def _canonical(values: NDArray[np.int64], like: sp.csr_array) -> sp.csr_array:
    """`values` in the places of `like`, columns sorted and unique; shares its index arrays."""
    matrix = sp.csr_array((values, like.indices, like.indptr), shape=like.shape)
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    return matrix


@njit(cache=True)
def _round_back(
    normalized: tuple[_Ints, _Ints, NDArray[np.float64]],
    scale: NDArray[np.float64],
    unit: float,
    out: _Ints,
) -> bool:
    """Undo the normalisation; False if the entries do not come out as integers."""
    starts, columns, entries = normalized
    for i in range(len(scale)):
        for p in range(starts[i], starts[i + 1]):
            value = entries[p] * scale[i] * scale[columns[p]] * unit
            if not abs(value - np.rint(value)) < _CLOSE_TO_INTEGER:
                return False
            out[p] = np.int64(np.rint(value))
    return True


@njit(cache=True)
def _queue_all(degrees: _Ints, queue: _Ints, queued: _Ints) -> None:
    """Queue every item with few enough users left, by their number."""
    for i in range(len(degrees)):
        _queue_item(i, degrees, queue, queued)


@njit(cache=True)
def _queue_item(item: int, degrees: _Ints, queue: _Ints, queued: _Ints) -> None:
    left = degrees[item]
    if 0 < left < len(queued):
        queue[left, queued[left]] = item
        queued[left] += 1


@njit(cache=True)
def _peel_some(
    matrix: _Matrix,
    degrees: _Ints,
    rule: _Rule,
    queue: tuple[_Ints, _Ints],
    recovered: tuple[_Ints, _Ints, int],
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
        for profile, weight in _solve_row(matrix, item, left, rule):
            if not _subtract(matrix, degrees, profile, weight):
                continue
            start = indptr[n_users]
            indices[start : start + len(profile)] = profile
            n_users += 1
            indptr[n_users] = start + len(profile)
            for j in profile:
                _queue_item(j, degrees, waiting, queued)
    return n_users


@njit(cache=True)
def _subtract(matrix: _Matrix, degrees: _Ints, profile: _Ints, weight: int) -> bool:
    """Take one user out of V and P'; refuses, and changes nothing, if they do not hold the user."""
    length = len(profile)
    positions = np.empty((length, length), np.int64)
    for a in range(length):
        if degrees[profile[a]] < 1:
            return False
        p = matrix.starts[profile[a]]
        stop = matrix.starts[profile[a] + 1]
        for b in range(length):
            p = _seek(matrix.columns, p, stop, profile[b])
            if p == stop or matrix.columns[p] != profile[b] or matrix.entries[p] < weight:
                return False
            positions[a, b] = p
    for a in range(length):
        degrees[profile[a]] -= 1
        for b in range(length):
            matrix.entries[positions[a, b]] -= weight
    return True


@njit(cache=True)
def _seek(columns: _Ints, start: int, stop: int, column: int) -> int:
    """First position from `start` on whose column is not below `column`: gallop, then bisect."""
    step = 1
    low = high = start
    while high < stop and columns[high] < column:
        low = high + 1
        high += step
        step *= 2
    high = min(high, stop)
    while low < high:
        middle = (low + high) >> 1
        if columns[middle] < column:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True)
def _entry(matrix: _Matrix, row: int, column: int) -> int:
    stop = matrix.starts[row + 1]
    p = _seek(matrix.columns, matrix.starts[row], stop, column)
    return matrix.entries[p] if p < stop and matrix.columns[p] == column else 0


# One row: its entries, the sets of weights that explain them, and the histories these agree on.


@njit(cache=True)
def _solve_row(matrix: _Matrix, item: int, left: int, rule: _Rule) -> list[_History]:
    """The (history, weight) pairs of an item's users that its row leaves no doubt about."""
    nothing = _no_histories(matrix)
    row = _read_row(matrix, item, left)
    if len(row.columns) == 0:
        return nothing
    longest = min(rule.longest, len(row.columns) + rule.hidden)
    own_rule = _Rule(rule.weight_of, longest, rule.hidden)
    searched, weight_sets = _weight_sets(row.values, left, own_rule)
    if not searched:
        return nothing
    # Lengths of histories and other rows must leave one set of weights.
    histories = nothing
    explained = False
    for weight_set in weight_sets:
        classes = _classes(weight_set)
        possible, low, high = _memberships(matrix, row, classes, own_rule)
        if possible and explained:
            return nothing
        if possible:
            explained = True
            histories = _read_histories(matrix, row, classes, own_rule, (low, high))
    return histories


@njit(cache=True)
def _no_histories(matrix: _Matrix) -> list[_History]:
    return [(matrix.columns[:0].copy(), 0) for _ in range(0)]


@njit(cache=True)
def _read_row(matrix: _Matrix, item: int, left: int) -> _Row:
    """The row of an item with `left` users; empty if it cannot be a sum over so many users."""
    start, stop = matrix.starts[item], matrix.starts[item + 1]
    columns = np.empty(stop - start, matrix.columns.dtype)
    value_of = np.empty(stop - start, np.int64)
    values = np.empty(1 << left, np.int64)
    length = n_values = 0
    for p in range(start, stop):
        value = matrix.entries[p]
        if value == 0:
            continue
        v = 0
        while v < n_values and values[v] != value:
            v += 1
        if v == n_values:
            n_values += 1
            if (
                value < 0 or n_values == 1 << left
            ):  # as many as there are subsets, the empty one too
                return _Row(columns[:0], value_of[:0], values[:0])
            values[v] = value
        columns[length] = matrix.columns[p]
        value_of[length] = v
        length += 1
    if length == 0 or _entry(matrix, item, item) != values[:n_values].max():
        return _Row(columns[:0], value_of[:0], values[:0])
    return _Row(columns[:length], value_of[:length], values[:n_values])


@njit(cache=True)
def _weight_sets(values: _Ints, left: int, rule: _Rule) -> tuple[bool, _Ints]:
    """All sets of `left` weights, as ascending rows, of which every value is a subset sum.

    Returns (searched to the end, the sets). Sets grow from the empty one. If the unknown users of a
    row are not the same in every column, some column holds a proper part of them, so its value
    less a sum of known weights is the sum of that part: of one of them, of all but one, or, from
    four unknown users on, of two or three. If they are the same in every column, their histories
    and so their weights are equal.
    """
    # sets[k, :n_sets[k]] are the sets of k weights seen so far; larger ones come from smaller ones.
    sets = np.empty((left + 1, _MAX_WEIGHT_SETS, left), np.int64)
    n_sets = np.zeros(left + 1, np.int64)
    n_sets[0] = 1
    no_sets = sets[left, :0]
    grown = np.empty(left, np.int64)
    total, smallest = values.max(), values.min()
    for k in range(left):
        unknown = left - k
        for n in range(n_sets[k]):
            grown[:k] = sets[k, n, :k]
            sums = _subset_sums(grown[:k])
            rest = total - sums[-1]

            if _same_everywhere(values, sums, rest):
                if rule.hidden > 0 and unknown > 1:
                    return False, no_sets  # hidden items may make their weights differ
                if rest % unknown == 0:
                    grown[k:] = rest // unknown
                    if not _keep(grown, values, rule, sets, n_sets):
                        return False, no_sets
            if unknown == 1:
                continue

            for value in values:
                for known in sums:
                    for part in (value - known, rest - value + known):
                        if not 0 < part < rest:
                            continue
                        grown[k] = part
                        if not _keep(grown[: k + 1], values, rule, sets, n_sets):
                            return False, no_sets
                        # Without known weights, any column that holds a part of the users will do.
                        if k == 0 and value != smallest:
                            continue
                        for size in range(2, unknown // 2 + 1):
                            for split in _splits(part, size, rule):
                                grown[k : k + size] = split
                                if not _keep(grown[: k + size], values, rule, sets, n_sets):
                                    return False, no_sets
    return True, sets[left, : n_sets[left]]


@njit(cache=True)
def _keep(grown: _Ints, values: _Ints, rule: _Rule, sets: _Ints, n_sets: _Ints) -> bool:
    """Note a set of weights that may explain the row; False if there is no room for it."""
    size = len(grown)
    if not _is_sum(grown[-1], 1, rule):
        return True
    new = grown.copy()
    for a in range(1, size):  # insertion sort
        for b in range(a, 0, -1):
            if new[b - 1] > new[b]:
                new[b - 1], new[b] = new[b], new[b - 1]
    for n in range(n_sets[size]):
        if (sets[size, n, :size] == new).all():
            return True
    if not _may_explain(new, values, sets.shape[2] - size, rule):
        return True
    if n_sets[size] == _MAX_WEIGHT_SETS:
        return False
    sets[size, n_sets[size], :size] = new
    n_sets[size] += 1
    return True


@njit(cache=True)
def _may_explain(known: _Ints, values: _Ints, unknown: int, rule: _Rule) -> bool:
    """Is every value a sum of known weights and of weights that the unknown users may have?"""
    sums = _subset_sums(known)
    rest = values.max() - sums[-1]
    if not _is_sum(rest, unknown, rule):
        return False
    for value in values:
        explained = False
        for sum_of_known in sums:
            part = value - sum_of_known
            if not 0 <= part <= rest:
                continue
            for size in range(unknown + 1):
                if _is_sum(part, size, rule) and _is_sum(rest - part, unknown - size, rule):
                    explained = True
                    break
            if explained:
                break
        if not explained:
            return False
    return True


@njit(cache=True)
def _same_everywhere(values: _Ints, sums: _Ints, rest: int) -> bool:
    """Could each column hold either all or none of the users whose weights sum to `rest`?"""
    for value in values:
        explained = False
        for sum_of_known in sums:
            explained |= value in (sum_of_known, sum_of_known + rest)
        if not explained:
            return False
    return True


@njit(cache=True)
def _subset_sums(known: _Ints) -> _Ints:
    """All sums of known weights, the empty one first and the full one last."""
    sums = np.zeros(1 << len(known), np.int64)
    for k in range(len(known)):
        for s in range(1 << k):
            sums[(1 << k) + s] = sums[s] + known[k]
    return sums


@njit(cache=True)
def _is_sum(target: int, size: int, rule: _Rule) -> bool:
    """Is `target` a sum of `size` weights? From three on only their range is looked at."""
    if size == 0:
        return target == 0
    shortest = rule.weight_of[1]
    if not size * rule.weight_of[rule.longest] <= target <= size * shortest:
        return False
    if size == 1:
        return _lengths(target, rule)[0] > 0
    if size == 2:
        short, long = _next_pair(target, 1, rule.longest, rule.weight_of)
        return short <= long
    return True


@njit(cache=True)
def _lengths(weight: int, rule: _Rule) -> tuple[int, int]:
    """First and last length of a history of this weight; (0, 0) if there is none."""
    low, high = 1, rule.longest + 1
    while low < high:
        middle = (low + high) >> 1
        if rule.weight_of[middle] > weight:
            low = middle + 1
        else:
            high = middle
    if low > rule.longest or rule.weight_of[low] != weight:
        return 0, 0
    last = low
    while last < rule.longest and rule.weight_of[last + 1] == weight:
        last += 1
    return low, last


@njit(cache=True)
def _splits(target: int, size: int, rule: _Rule) -> list[_Ints]:
    """All ways to write `target` as a sum of two or three weights."""
    weight_of = rule.weight_of
    splits = [weight_of[:0].copy() for _ in range(0)]
    for third in range(1, rule.longest + 1):
        short, pair = 1, target
        if size == 3:
            if third > 1 and weight_of[third] == weight_of[third - 1]:
                continue
            short, pair = third, target - weight_of[third]
        short, long = _next_pair(pair, short, rule.longest, weight_of)
        while short <= long:
            split = np.array([weight_of[third], weight_of[short], weight_of[long]])
            splits.append(split[3 - size :])
            short, long = _next_pair(pair, short + 1, long, weight_of)
        if size == 2:
            break
    return splits


@njit(cache=True)
def _next_pair(target: int, short: int, long: int, weight_of: _Ints) -> tuple[int, int]:
    """First lengths from (short, long) inwards whose weights sum to `target`, or short > long."""
    while short <= long:
        gap = weight_of[short] + weight_of[long] - target
        if gap == 0:
            break
        if gap > 0:
            short += 1
        else:
            long -= 1
    return short, long


@njit(cache=True)
def _classes(weight_set: _Ints) -> _Classes:
    weights = weight_set.copy()
    sizes = np.zeros(len(weight_set), np.int64)
    n_classes = 0
    for weight in weight_set:
        if n_classes == 0 or weights[n_classes - 1] != weight:
            weights[n_classes] = weight
            n_classes += 1
        sizes[n_classes - 1] += 1
    return _Classes(weights[:n_classes], sizes[:n_classes])


@njit(cache=True)
def _options(values: _Ints, classes: _Classes) -> tuple[_Ints, _Ints]:
    """How each value can be written: options[v, o, c] users of class c; and how many options."""
    n_classes = len(classes.weights)
    options = np.zeros((len(values), _MAX_OPTIONS, n_classes), np.int64)
    n_options = np.zeros(len(values), np.int64)
    counts = np.zeros(n_classes, np.int64)
    while True:
        c = 0  # count up, one digit a class
        while c < n_classes and counts[c] == classes.sizes[c]:
            counts[c] = 0
            c += 1
        if c == n_classes:
            return options, n_options
        counts[c] += 1
        total = 0
        for c in range(n_classes):
            total += counts[c] * classes.weights[c]
        for v in range(len(values)):
            if values[v] == total:
                if n_options[v] < _MAX_OPTIONS:
                    options[v, n_options[v]] = counts
                n_options[v] += 1


@njit(cache=True)
def _memberships(
    matrix: _Matrix, row: _Row, classes: _Classes, rule: _Rule
) -> tuple[bool, _Ints, _Ints]:
    """How many users of each class are in each column, if they have these weights.

    Returns (possible, low, high): low[j, c] to high[j, c] users of class c are in column j. A value
    may be several sums; lengths of histories and the entries between two columns rule some out.
    """
    n_columns, n_classes = len(row.columns), len(classes.weights)
    low = np.zeros((n_columns, n_classes), np.int64)
    high = np.zeros((n_columns, n_classes), np.int64)
    options, n_options = _options(row.values, classes)
    if n_options.max() > _MAX_OPTIONS:
        high[:] = classes.sizes
        return True, low, high
    still_open = np.zeros((n_columns, _MAX_OPTIONS), np.bool_)
    for j in range(n_columns):
        still_open[j, : n_options[row.value_of[j]]] = True
        _bounds(options[row.value_of[j]], still_open[j], low[j], high[j])

    compared = np.zeros(n_columns, np.bool_)
    changed = True
    while changed:
        changed = False
        # Users with histories of so and so many items fill so many columns.
        for c in range(n_classes):
            first, last = _lengths(classes.weights[c], rule)
            at_least = classes.sizes[c] * max(first - rule.hidden, 1)
            at_most = classes.sizes[c] * last
            fewest, most = low[:, c].sum(), high[:, c].sum()
            if fewest > at_most or most < at_least:
                return False, low, high
            if fewest == most or (fewest < at_most and most > at_least):
                continue
            changed = True
            for j in range(n_columns):
                wanted = low[j, c] if fewest == at_most else high[j, c]
                for o in range(_MAX_OPTIONS):
                    still_open[j, o] &= options[row.value_of[j], o, c] == wanted
                if not _bounds(options[row.value_of[j]], still_open[j], low[j], high[j]):
                    return False, low, high
        # Users who must be in two columns must be in the entry between them.
        doubtful = np.zeros(n_columns, np.bool_)
        for j in range(n_columns):
            doubtful[j] = (low[j] != high[j]).any()
        if not doubtful.any():
            continue
        for k in range(n_columns):
            if compared[k] or doubtful[k]:
                continue
            compared[k] = True
            for j in range(n_columns):
                if not doubtful[j]:
                    continue
                entry = _entry(matrix, row.columns[j], row.columns[k])
                for o in range(_MAX_OPTIONS):
                    option = options[row.value_of[j], o]
                    if still_open[j, o] and entry < _common(option, low[k], classes):
                        still_open[j, o] = False
                        changed = True
                if not _bounds(options[row.value_of[j]], still_open[j], low[j], high[j]):
                    return False, low, high
    return True, low, high


@njit(cache=True)
def _bounds(options: _Ints, still_open: NDArray[np.bool_], low: _Ints, high: _Ints) -> bool:
    """Fewest and most users of each class over the open options of a column; is there any?"""
    started = False
    for o in range(_MAX_OPTIONS):
        if not still_open[o]:
            continue
        for c in range(len(low)):
            low[c] = min(low[c], options[o, c]) if started else options[o, c]
            high[c] = max(high[c], options[o, c]) if started else options[o, c]
        started = True
    return started


@njit(cache=True)
def _common(counts: _Ints, others: _Ints, classes: _Classes) -> int:
    """Least weight of the users whom two columns, with so many of each class, have in common."""
    weight = 0
    for c in range(len(counts)):
        weight += max(counts[c] + others[c] - classes.sizes[c], 0) * classes.weights[c]
    return weight


@njit(cache=True)
def _read_histories(
    matrix: _Matrix, row: _Row, classes: _Classes, rule: _Rule, bounds: tuple[_Ints, _Ints]
) -> list[_History]:
    """The histories of those weights for which it is settled who is in which column."""
    histories = _no_histories(matrix)
    low, high = bounds
    for c in range(len(classes.weights)):
        size, weight = classes.sizes[c], classes.weights[c]
        counts = low[:, c]
        if (counts != high[:, c]).any():
            continue
        owner = np.zeros(len(row.columns), np.int64)  # 0: all users of this weight, or none
        partial = (counts > 0) & (counts < size)
        if partial.any():
            if size > 2:
                continue
            owner[partial] = _two_sides(matrix, row.columns[partial], low[partial], classes, c)
            if (partial & (owner == 0)).any():
                continue
        first, last = _lengths(weight, rule)
        for user in range(1, size + 1):
            own = (counts > 0) & ((owner == 0) | (owner == user))
            if max(first - rule.hidden, 1) <= own.sum() <= last:
                histories.append((row.columns[own], weight))
    return histories


@njit(cache=True)
def _two_sides(matrix: _Matrix, columns: _Ints, low: _Ints, classes: _Classes, c: int) -> _Ints:
    """Share out columns that hold exactly one of two users of class c: user 1, 2 or 0 (unknown).

    Columns whose common entry is too small for a common user belong to different users.
    """
    sides = np.zeros(len(columns), np.int64)
    stack = np.empty(len(columns), np.int64)
    sides[0] = 1
    stack[0] = 0
    height = 1
    while height > 0:
        height -= 1
        j = stack[height]
        for k in range(len(columns)):
            if sides[k] > 0:
                continue
            needed = classes.weights[c] + _common(low[j], low[k], classes)
            if _entry(matrix, columns[j], columns[k]) < needed:
                sides[k] = 3 - sides[j]
                stack[height] = k
                height += 1
    return sides
