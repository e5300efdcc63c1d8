"""Search for the sets of weights that explain the values of a row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from privirec.privacy.attacks.peeling.matrix import Ints

# A row with more (partial) sets of weights is ambiguous.
_MAX_WEIGHT_SETS = 256


class WeightRule(NamedTuple):
    """The attacker's knowledge of any history of a row."""

    weight_of: Ints
    longest: int  # no history of this row has more items, hidden ones included
    hidden: int  # at most this many items of a history are not in P'


@njit(cache=True)
def find_weight_sets(values: Ints, left: int, rule: WeightRule) -> tuple[bool, Ints]:
    """Find all sets of `left` weights, as ascending rows, of which every value is a subset sum.

    Returns (search was complete, the sets). Sets grow from the empty one. If the unknown users of a
    row are not the same in every column, some column holds a proper subset of them. Its value minus
    a sum of known weights is then the sum of that subset: of one user, of all but one, or, from
    four unknown users on, of two or three. If the unknown users are the same in every column, their
    histories, and so their weights, are equal.
    """
    # sets[k, :n_sets[k]] are the sets of k weights found so far; larger sets grow from smaller
    # ones.
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
                        # Without known weights, any column that holds a proper subset of the users
                        # suffices.
                        if k == 0 and value != smallest:
                            continue
                        for size in range(2, unknown // 2 + 1):
                            for split in _splits(part, size, rule):
                                grown[k : k + size] = split
                                if not _keep(grown[: k + size], values, rule, sets, n_sets):
                                    return False, no_sets
    return True, sets[left, : n_sets[left]]


@njit(cache=True)
def _keep(grown: Ints, values: Ints, rule: WeightRule, sets: Ints, n_sets: Ints) -> bool:
    """Record a set of weights that may explain the row; return False if there is no space for
    it."""
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
def _may_explain(known: Ints, values: Ints, unknown: int, rule: WeightRule) -> bool:
    """Return True if every value can be a sum of known weights and weights of the unknown users."""
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
def _same_everywhere(values: Ints, sums: Ints, rest: int) -> bool:
    """Return True if each column may hold all or none of the users whose weights sum to `rest`."""
    for value in values:
        explained = False
        for sum_of_known in sums:
            explained |= value in (sum_of_known, sum_of_known + rest)
        if not explained:
            return False
    return True


@njit(cache=True)
def _subset_sums(known: Ints) -> Ints:
    """Return all sums of known weights, the empty one first and the full one last."""
    sums = np.zeros(1 << len(known), np.int64)
    for k in range(len(known)):
        for s in range(1 << k):
            sums[(1 << k) + s] = sums[s] + known[k]
    return sums


@njit(cache=True)
def _is_sum(target: int, size: int, rule: WeightRule) -> bool:
    """Return True if `target` is a sum of `size` weights.

    From three weights on, only the range of the sum is checked.
    """
    if size == 0:
        return target == 0
    shortest = rule.weight_of[1]
    if not size * rule.weight_of[rule.longest] <= target <= size * shortest:
        return False
    if size == 1:
        return lengths_of(target, rule)[0] > 0
    if size == 2:
        short, long = _next_pair(target, 1, rule.longest, rule.weight_of)
        return short <= long
    return True


@njit(cache=True)
def lengths_of(weight: int, rule: WeightRule) -> tuple[int, int]:
    """Return the first and last length of a history of this weight; (0, 0) if there is none."""
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
def _splits(target: int, size: int, rule: WeightRule) -> list[Ints]:
    """Return all ways to write `target` as a sum of two or three weights."""
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
def _next_pair(target: int, short: int, long: int, weight_of: Ints) -> tuple[int, int]:
    """Return the first lengths from (short, long) inwards whose weights sum to `target`.

    If there are none, short > long.
    """
    while short <= long:
        gap = weight_of[short] + weight_of[long] - target
        if gap == 0:
            break
        if gap > 0:
            short += 1
        else:
            long -= 1
    return short, long
