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

import numpy as np
import scipy.sparse as sp
from numba import njit
from numpy.typing import NDArray

from privirec.errors import UsageError

Progress = Callable[[int, int], None]
"""Called with the interactions recovered so far and the interactions there are."""

MOST_USERS_LEFT = 6
"""Rows with more users than this have too many subset sums to search them all."""

_USERS_BETWEEN_REPORTS = 500
# A row with more (partial) sets of weights, or a value with more ways to write it, is ambiguous.
_MAX_WEIGHT_SETS = 1024
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


def weight_table(fraction_bits: int, exponent: float, longest: int) -> NDArray[np.int64]:
    """w(d) = rint(2^f d^(-2a)) for d = 0 .. longest; the public rule, with w(0) = 0."""
    lengths = np.arange(1, longest + 1, dtype=np.float64)
    scale = 2.0**fraction_bits
    weights = scale / lengths if exponent == 0.5 else scale * lengths ** (-2.0 * exponent)
    return np.concatenate([[0], np.rint(weights).astype(np.int64)])


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
    item_item = _integers(item_degrees, normalized, fraction_bits, exponent)
    weights = weight_table(fraction_bits, exponent, _longest_row(item_item) + hidden_items)
    return _peel(item_degrees, item_item, weights, max_users_left, hidden_items, progress)


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
    copy = sp.csr_array(item_item, dtype=np.int64, copy=True)
    copy.sum_duplicates()
    return _peel(item_degrees, copy, weight_of, max_users_left, hidden_items, progress)


def _peel(
    item_degrees: NDArray[np.int64],
    remaining: sp.csr_array,
    weight_of: NDArray[np.int64],
    max_users_left: int,
    hidden_items: int,
    progress: Progress | None,
) -> Peeled:
    """As `peel`, on a canonical matrix that is used up."""
    started = time.perf_counter()
    n_items = len(item_degrees)
    weights = np.ascontiguousarray(weight_of, dtype=np.int64)
    if remaining.shape != (n_items, n_items):
        raise UsageError(f"item-item matrix of shape {remaining.shape} for {n_items} item degrees")
    if not 1 <= max_users_left <= MOST_USERS_LEFT:
        raise UsageError(f"max_users_left must be 1 to {MOST_USERS_LEFT}, not {max_users_left}")
    if (weights[1:] <= 0).any() or (np.diff(weights[1:]) > 0).any():
        raise UsageError("weights must be positive and must not grow with the history's length")

    # Items whose row was suppressed cannot be solved and hide a part of their users' histories.
    degrees = np.where(remaining.diagonal() > 0, item_degrees, 0).astype(np.int64)
    hidden = hidden_items + int(np.count_nonzero(degrees != item_degrees))
    total = int(degrees.sum())

    matrix = (remaining.indptr.astype(np.int64), remaining.indices, remaining.data)
    indptr = np.zeros(total + 1, np.int64)
    indices = np.empty(total, np.int32)
    n_users = 0
    queue = np.empty((max_users_left + 1, n_items), np.int32)
    queued = np.zeros(max_users_left + 1, np.int64)
    while True:
        users_before = n_users
        _queue_all(degrees, queue, queued)
        while queued.any():
            n_users = _peel_some(
                matrix, degrees, weights, hidden, queue, queued, indptr, indices, n_users
            )
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


def _longest_row(matrix: sp.csr_array) -> int:
    """No history is longer than the rows of its items."""
    return int(np.diff(matrix.indptr).max(initial=0))


def _integers(
    item_degrees: NDArray[np.int64], normalized: sp.csr_array, fraction_bits: int, exponent: float
) -> sp.csr_array:
    """P' in int64 out of P~ in float64."""
    if normalized.dtype != np.float64:
        raise UsageError(f"P~ must be float64 to be read back exactly, not {normalized.dtype}")
    if normalized.shape != (len(item_degrees), len(item_degrees)):
        raise UsageError(
            f"item-item matrix of shape {normalized.shape} for {len(item_degrees)} item degrees"
        )
    scale = np.asarray(item_degrees, dtype=np.float64) ** (1.0 - exponent)
    integers = np.empty(normalized.nnz, np.int64)
    worst = _round_back(
        normalized.indptr, normalized.indices, normalized.data, scale, fraction_bits, integers
    )
    if worst > 0.25:
        raise UsageError(f"P~ is not a sum of {fraction_bits}-bit fixed-point numbers")
    shape = normalized.shape
    matrix = sp.csr_array((integers, normalized.indices, normalized.indptr), shape=shape)
    if not matrix.has_canonical_format:
        matrix = matrix.copy()  # the index arrays still belong to the caller
        matrix.sum_duplicates()
    return matrix


@njit(cache=True)
def _round_back(indptr, indices, data, scale, fraction_bits, out):  # type: ignore[no-untyped-def]
    """Undo the normalisation; returns how far from an integer the worst entry was."""
    unit = 2.0**fraction_bits
    worst = 0.0
    for i in range(len(scale)):
        for p in range(indptr[i], indptr[i + 1]):
            value = data[p] * scale[i] * scale[indices[p]] * unit
            out[p] = np.int64(np.rint(value))
            worst = max(worst, abs(value - np.rint(value)))
    return worst


@njit(cache=True)
def _queue_all(degrees, queue, queued):  # type: ignore[no-untyped-def]
    """Queue every item with few enough users left, by their number."""
    for i in range(len(degrees)):
        left = degrees[i]
        if 0 < left < len(queued):
            queue[left, queued[left]] = i
            queued[left] += 1


@njit(cache=True)
def _peel_some(  # type: ignore[no-untyped-def]
    matrix, degrees, weights, hidden, queue, queued, indptr, indices, n_users
):
    """Work through the queue, fewest users first, for a while; returns the users found so far.

    An item enters the list of m users left when its degree falls to m, hence once at most: entries
    whose degree has fallen further are stale.
    """
    pause = n_users + _USERS_BETWEEN_REPORTS
    columns = np.empty(len(degrees), np.int32)
    value_of = np.empty(len(degrees), np.int32)
    while n_users < pause:
        left = 1
        while left < len(queued) and queued[left] == 0:
            left += 1
        if left == len(queued):
            break
        queued[left] -= 1
        item = queue[left, queued[left]]
        if degrees[item] != left:
            continue
        profiles = _solve_row(matrix, item, left, weights, hidden, columns, value_of)
        for profile, weight in profiles:
            if not _subtract(matrix, degrees, profile, weight):
                continue
            start = indptr[n_users]
            indices[start : start + len(profile)] = profile
            n_users += 1
            indptr[n_users] = start + len(profile)
            for j in profile:
                if 0 < degrees[j] < len(queued):
                    queue[degrees[j], queued[degrees[j]]] = j
                    queued[degrees[j]] += 1
    return n_users


@njit(cache=True)
def _subtract(matrix, degrees, profile, weight):  # type: ignore[no-untyped-def]
    """Take one user out of V and P'; refuses, and changes nothing, if they do not hold the user."""
    row_starts, row_columns, data = matrix
    length = len(profile)
    positions = np.empty((length, length), np.int64)
    for a in range(length):
        if degrees[profile[a]] < 1:
            return False
        p = row_starts[profile[a]]
        stop = row_starts[profile[a] + 1]
        for b in range(length):
            p = _seek(row_columns, p, stop, profile[b])
            if p == stop or row_columns[p] != profile[b] or data[p] < weight:
                return False
            positions[a, b] = p
    for a in range(length):
        degrees[profile[a]] -= 1
        for b in range(length):
            data[positions[a, b]] -= weight
    return True


@njit(cache=True)
def _seek(row_columns, start, stop, column):  # type: ignore[no-untyped-def]
    """First position from `start` on whose column is not below `column`: gallop, then bisect."""
    step = 1
    low = start
    high = start
    while high < stop and row_columns[high] < column:
        low = high + 1
        high += step
        step *= 2
    high = min(high, stop)
    while low < high:
        middle = (low + high) >> 1
        if row_columns[middle] < column:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True)
def _entry(matrix, row, column):  # type: ignore[no-untyped-def]
    row_starts, row_columns, data = matrix
    stop = row_starts[row + 1]
    p = row_starts[row]
    low, high = p, stop
    while low < high:
        middle = (low + high) >> 1
        if row_columns[middle] < column:
            low = middle + 1
        else:
            high = middle
    return data[low] if low < stop and row_columns[low] == column else 0


@njit(cache=True)
def _solve_row(matrix, item, left, weights, hidden, columns, value_of):  # type: ignore[no-untyped-def]
    """The (profile, weight) pairs on which all explanations of an item's row agree."""
    row_starts, row_columns, data = matrix
    profiles = [(np.empty(0, np.int32), np.int64(0)) for _ in range(0)]

    # The row as columns and numbers of distinct values; m users have 2^m - 1 subset sums at most.
    values = np.empty(1 << left, np.int64)
    n_values = 0
    length = 0
    for p in range(row_starts[item], row_starts[item + 1]):
        value = data[p]
        if value == 0:
            continue
        v = 0
        while v < n_values and values[v] != value:
            v += 1
        if v == n_values:
            if value < 0 or n_values == (1 << left) - 1:
                return profiles
            values[v] = value
            n_values += 1
        columns[length] = row_columns[p]
        value_of[length] = v
        length += 1
    total = _entry(matrix, item, item)
    values = values[:n_values]
    if total == 0 or total != values.max():
        return profiles

    longest = min(length + hidden, len(weights) - 1)
    settled, found = _weight_sets(values, total, left, weights, longest, hidden)
    if not settled:
        return profiles

    # The one of them that also agrees with the lengths of histories and with other rows.
    own = columns[:length]
    chosen = -1
    low = high = np.empty((0, 0), np.int64)
    for s in range(len(found)):
        possible, low_s, high_s = _narrow(
            matrix, own, value_of[:length], values, found[s], weights, longest, hidden
        )
        if possible and chosen >= 0:
            return profiles
        if possible:
            chosen, low, high = s, low_s, high_s
    if chosen < 0:
        return profiles
    class_weights, class_sizes = _classes(found[chosen])
    for c in range(len(class_weights)):
        _read_class(
            matrix, own, low, high, c, class_weights, class_sizes, weights, hidden, profiles
        )
    return profiles


@njit(cache=True)
def _lengths(weights, longest, weight):  # type: ignore[no-untyped-def]
    """First and last d <= longest with w(d) = weight; (1, 0) if there is none."""
    low, high = 1, longest + 1
    while low < high:
        middle = (low + high) >> 1
        if weights[middle] > weight:
            low = middle + 1
        else:
            high = middle
    if low > longest or weights[low] != weight:
        return 1, 0
    last = low
    while last < longest and weights[last + 1] == weight:
        last += 1
    return low, last


@njit(cache=True)
def _is_weight(weights, longest, weight):  # type: ignore[no-untyped-def]
    low, high = 1, longest
    if longest < 1 or weight > weights[1] or weight < weights[longest]:
        return False
    while low < high:
        middle = (low + high) >> 1
        if weights[middle] > weight:
            low = middle + 1
        else:
            high = middle
    return weights[low] == weight


@njit(cache=True)
def _contains(array, value):  # type: ignore[no-untyped-def]
    for a in range(len(array)):
        if array[a] == value:
            return True
    return False


@njit(cache=True)
def _weight_sets(values, total, left, weights, longest, hidden):  # type: ignore[no-untyped-def]
    """All sets of `left` weights, as ascending rows, of which every value is a subset sum.

    Returns (searched to the end, the sets). Sets grow from the empty one. If the unknown users of a
    row are not the same in every column, some column holds a proper part of them, so its value
    less a sum of known weights is the sum of that part: of one of them, of all but one, or, from
    four unknown users on, of two or three. If they are the same in every column, their histories
    and so their weights are equal.
    """
    # sets[k, :n_sets[k]] are the sets of k weights seen so far; larger ones come from smaller ones.
    sets = np.zeros((left + 1, _MAX_WEIGHT_SETS, left), np.int64)
    n_sets = np.zeros(left + 1, np.int64)
    n_sets[0] = 1
    sums = np.zeros(1 << left, np.int64)
    grown = np.zeros(left, np.int64)
    nothing = sets[left, :0]
    smallest = values.min()
    for k in range(left):
        unknown = left - k
        n_sums = 1 << k
        for n in range(n_sets[k]):
            grown[:k] = sets[k, n, :k]
            _subset_sums(grown[:k], sums)
            rest = total - sums[n_sums - 1]
            if unknown == 1:
                if _is_weight(weights, longest, rest):
                    grown[k] = rest
                    if not _keep(grown, values, sets, n_sets):
                        return False, nothing
                continue

            # The unknown users are the same in every column.
            together = True
            for value in values:
                if not _contains(sums[:n_sums], value) and not _contains(
                    sums[:n_sums], value - rest
                ):
                    together = False
                    break
            if together and hidden > 0:
                return False, nothing  # hidden items may tell them apart, and so their weights
            if together and rest % unknown == 0 and _is_weight(weights, longest, rest // unknown):
                grown[k:] = rest // unknown
                if not _keep(grown, values, sets, n_sets):
                    return False, nothing

            for value in values:
                # Without known weights any column that holds only a part of the users will do.
                pairs_too = unknown >= 4 and (k > 0 or value == smallest < total)
                for s in range(n_sums):
                    for side in range(2):
                        part = value - sums[s] if side == 0 else rest - value + sums[s]
                        if not 0 < part < rest:
                            continue
                        # One of the unknown users is alone in the column, or missing from it.
                        if _is_weight(weights, longest, part):
                            grown[k] = part
                            if unknown > 2:
                                if not _keep(grown[: k + 1], values, sets, n_sets):
                                    return False, nothing
                            elif _is_weight(weights, longest, rest - part):
                                grown[k + 1] = rest - part
                                if not _keep(grown, values, sets, n_sets):
                                    return False, nothing
                        # Two or three of them are.
                        if not pairs_too:
                            continue
                        for size in range(2, unknown // 2 + 1):
                            for split in _splits(weights, longest, part, size):
                                grown[k : k + size] = split[:size]
                                if not _keep(grown[: k + size], values, sets, n_sets):
                                    return False, nothing
    return True, sets[left, : n_sets[left]]


@njit(cache=True)
def _subset_sums(known, sums):  # type: ignore[no-untyped-def]
    """All sums of known weights, the empty one first and the full one last."""
    sums[0] = 0
    for k in range(len(known)):
        for s in range(1 << k):
            sums[(1 << k) + s] = sums[s] + known[k]


@njit(cache=True)
def _keep(grown, values, sets, n_sets):  # type: ignore[no-untyped-def]
    """Note a new set of weights; a full one only if it explains all values. False: no room."""
    size = len(grown)
    new = np.sort(grown)
    for n in range(n_sets[size]):
        if (sets[size, n, :size] == new).all():
            return True
    if size == sets.shape[2]:
        sums = np.empty(1 << size, np.int64)
        _subset_sums(new, sums)
        for value in values:
            if not _contains(sums, value):
                return True
    if n_sets[size] == _MAX_WEIGHT_SETS:
        return False
    sets[size, n_sets[size], :size] = new
    n_sets[size] += 1
    return True


@njit(cache=True)
def _splits(weights, longest, target, size):  # type: ignore[no-untyped-def]
    """All ways to write `target` as a sum of two or three weights."""
    splits = [np.empty(0, np.int64) for _ in range(0)]
    for third in range(1, longest + 1):
        pair = target
        if size == 3:
            if third > 1 and weights[third] == weights[third - 1]:
                continue
            pair -= weights[third]
        short, long = 1, longest
        while short <= long:
            gap = weights[short] + weights[long] - pair
            if gap > 0:
                short += 1
            elif gap < 0:
                long -= 1
            else:
                splits.append(np.array([weights[short], weights[long], weights[third]]))
                short += 1
                while short <= long and weights[short] == weights[short - 1]:
                    short += 1
        if size == 2:
            break
    return splits


@njit(cache=True)
def _classes(explanation):  # type: ignore[no-untyped-def]
    """Distinct weights of a sorted explanation, and how many users have each."""
    weights = np.unique(explanation)
    sizes = np.zeros(len(weights), np.int64)
    for weight in explanation:
        sizes[np.searchsorted(weights, weight)] += 1
    return weights, sizes


@njit(cache=True)
def _options(values, class_weights, class_sizes):  # type: ignore[no-untyped-def]
    """How each value can be written: options[v, o, c] users of class c; and how many options."""
    n_classes = len(class_weights)
    options = np.zeros((len(values), _MAX_OPTIONS, n_classes), np.int64)
    n_options = np.zeros(len(values), np.int64)
    counts = np.zeros(n_classes, np.int64)
    while True:
        c = 0
        while c < n_classes and counts[c] == class_sizes[c]:
            counts[c] = 0
            c += 1
        if c == n_classes:
            return options, n_options
        counts[c] += 1
        total = (counts * class_weights).sum()
        for v in range(len(values)):
            if values[v] == total:
                if n_options[v] < _MAX_OPTIONS:
                    options[v, n_options[v]] = counts
                n_options[v] += 1


@njit(cache=True)
def _narrow(  # type: ignore[no-untyped-def]
    matrix, columns, value_of, values, explanation, weights, longest, hidden
):
    """What a set of weights says about each column: is it possible at all, and if so how.

    Returns (possible, low, high): low[j, c] to high[j, c] users of class c are in column j.
    Lengths of histories and the entries of P' between two columns rule options out.
    """
    class_weights, class_sizes = _classes(explanation)
    options, n_options = _options(values, class_weights, class_sizes)
    n_classes = len(class_weights)
    low = np.zeros((len(columns), n_classes), np.int64)
    high = np.zeros((len(columns), n_classes), np.int64)
    if n_options.max() > _MAX_OPTIONS:
        high[:] = class_sizes
        return True, low, high
    masks = (1 << n_options[value_of]) - 1  # of column j: the options that are still open
    open_columns = np.flatnonzero(n_options[value_of] > 1)
    for j in range(len(columns)):
        _bounds(options[value_of[j]], masks[j], low[j], high[j])

    settled_before = np.zeros(len(columns), np.bool_)
    while True:
        # A class of n users with histories of first to last items fills so many columns in all.
        for c in range(n_classes):
            first, last = _lengths(weights, longest, class_weights[c])
            at_least = class_sizes[c] * max(first - hidden, 1)
            at_most = class_sizes[c] * last
            sum_low, sum_high = low[:, c].sum(), high[:, c].sum()
            if sum_low > at_most or sum_high < at_least:
                return False, low, high
            if sum_low == sum_high or (sum_low < at_most and sum_high > at_least):
                continue
            for j in open_columns:
                wanted = low[j, c] if sum_low == at_most else high[j, c]
                for o in range(_MAX_OPTIONS):
                    if options[value_of[j], o, c] != wanted:
                        masks[j] &= ~(1 << o)
                if masks[j] == 0:
                    return False, low, high
                _bounds(options[value_of[j]], masks[j], low[j], high[j])
        # Users who must be in both columns must be in the entry between them.
        changed = False
        settled = np.zeros(len(columns), np.bool_)
        for j in range(len(columns)):
            settled[j] = (low[j] == high[j]).all()
        fresh = np.flatnonzero(settled & ~settled_before)
        for j in open_columns:
            if settled[j]:
                continue
            for k in fresh:
                entry = np.int64(-1)
                for o in range(_MAX_OPTIONS):
                    if not masks[j] >> o & 1:
                        continue
                    shared = np.int64(0)
                    for c in range(n_classes):
                        both = options[value_of[j], o, c] + low[k, c] - class_sizes[c]
                        shared += max(both, 0) * class_weights[c]
                    if shared == 0:
                        continue
                    if entry < 0:
                        entry = _entry(matrix, columns[j], columns[k])
                    if entry < shared:
                        masks[j] &= ~(1 << o)
                        changed = True
                if masks[j] == 0:
                    return False, low, high
            _bounds(options[value_of[j]], masks[j], low[j], high[j])
        settled_before = settled
        if not changed:
            return True, low, high


@njit(cache=True)
def _bounds(options, mask, low, high):  # type: ignore[no-untyped-def]
    """Fewest and most users of each class over the open options of a column."""
    started = False
    for o in range(_MAX_OPTIONS):
        if not mask >> o & 1:
            continue
        for c in range(len(low)):
            low[c] = min(low[c], options[o, c]) if started else options[o, c]
            high[c] = max(high[c], options[o, c]) if started else options[o, c]
        started = True


@njit(cache=True)
def _read_class(  # type: ignore[no-untyped-def]
    matrix, columns, low, high, c, class_weights, class_sizes, weights, hidden, profiles
):
    """Append the histories of the users of one weight if they are settled."""
    if (low[:, c] != high[:, c]).any():
        return
    size = class_sizes[c]
    weight = class_weights[c]
    shared = np.flatnonzero(low[:, c] == size)
    partial = np.flatnonzero((low[:, c] > 0) & (low[:, c] < size))
    if len(partial) == 0:
        if _fits(weights, hidden, weight, len(shared)):
            for _ in range(size):
                profiles.append((columns[shared], weight))
        return
    if size != 2:
        return
    sides = _two_sides(matrix, columns[partial], low[partial], high[partial], c, class_weights,
                       class_sizes)  # fmt: skip
    if (sides == 0).any():
        return
    for side in (1, 2):
        own = np.sort(np.concatenate((shared, partial[sides == side])))
        if not _fits(weights, hidden, weight, len(own)):
            return
    for side in (1, 2):
        own = np.sort(np.concatenate((shared, partial[sides == side])))
        profiles.append((columns[own], weight))


@njit(cache=True)
def _fits(weights, hidden, weight, seen):  # type: ignore[no-untyped-def]
    """Can a history of this weight show so many items?"""
    first, last = _lengths(weights, len(weights) - 1, weight)
    return max(first - hidden, 1) <= seen <= last


@njit(cache=True)
def _two_sides(  # type: ignore[no-untyped-def]
    matrix, columns, low, high, c, class_weights, class_sizes
):
    """Share out columns that hold exactly one of two users of equal weight: 1, 2 or 0 (unknown).

    Two columns whose common entry is too small for a common user belong to different users.
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
            if sides[k] != 0:
                continue
            needed = class_weights[c]
            for other in range(len(class_weights)):
                if other != c:
                    both = low[j, other] + low[k, other] - class_sizes[other]
                    needed += max(both, 0) * class_weights[other]
            if _entry(matrix, columns[j], columns[k]) < needed:
                sides[k] = 3 - sides[j]
                stack[height] = k
                height += 1
    return sides
