"""One row: its entries, the sets of weights that explain them, and the histories they agree on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from privirec.privacy.attacks.peeling.matrix import (
    History,
    Ints,
    Matrix,
    entry_of,
    no_histories,
)
from privirec.privacy.attacks.peeling.weights import WeightRule, find_weight_sets, lengths_of

# A value that can be written in more ways is ambiguous.
_MAX_OPTIONS = 8


class Row(NamedTuple):
    """The non-zero entries of a row: entry j is values[value_of[j]], in column columns[j]."""

    columns: Ints
    value_of: Ints
    values: Ints  # distinct


class Classes(NamedTuple):
    """Users of a row grouped by weight: sizes[c] users have weights[c], ascending."""

    weights: Ints
    sizes: Ints


@njit(cache=True)
def solve_row(matrix: Matrix, item: int, left: int, rule: WeightRule) -> list[History]:
    """Return the (history, weight) pairs of an item's users that its row determines without
    doubt."""
    nothing = no_histories(matrix)
    row = _read_row(matrix, item, left)
    if len(row.columns) == 0:
        return nothing
    longest = min(rule.longest, len(row.columns) + rule.hidden)
    own_rule = WeightRule(rule.weight_of, longest, rule.hidden)
    searched, weight_sets = find_weight_sets(row.values, left, own_rule)
    if not searched:
        return nothing
    # Lengths of histories and entries of other rows must leave exactly one set of weights.
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
def _read_row(matrix: Matrix, item: int, left: int) -> Row:
    """Return the row of an item with `left` users; empty if it cannot be a sum over `left`
    users."""
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
            ):  # as many values as subsets, the empty one included
                return Row(columns[:0], value_of[:0], values[:0])
            values[v] = value
        columns[length] = matrix.columns[p]
        value_of[length] = v
        length += 1
    if length == 0 or entry_of(matrix, item, item) != values[:n_values].max():
        return Row(columns[:0], value_of[:0], values[:0])
    return Row(columns[:length], value_of[:length], values[:n_values])


@njit(cache=True)
def _classes(weight_set: Ints) -> Classes:
    weights = weight_set.copy()
    sizes = np.zeros(len(weight_set), np.int64)
    n_classes = 0
    for weight in weight_set:
        if n_classes == 0 or weights[n_classes - 1] != weight:
            weights[n_classes] = weight
            n_classes += 1
        sizes[n_classes - 1] += 1
    return Classes(weights[:n_classes], sizes[:n_classes])


@njit(cache=True)
def _options(values: Ints, classes: Classes) -> tuple[Ints, Ints]:
    """Return the ways to write each value, and their numbers.

    Option o of value v has options[v, o, c] users of class c.
    """
    n_classes = len(classes.weights)
    options = np.zeros((len(values), _MAX_OPTIONS, n_classes), np.int64)
    n_options = np.zeros(len(values), np.int64)
    counts = np.zeros(n_classes, np.int64)
    while True:
        c = 0  # count up, one digit per class
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
    matrix: Matrix, row: Row, classes: Classes, rule: WeightRule
) -> tuple[bool, Ints, Ints]:
    """Bound the number of users of each class in each column, if they have these weights.

    Returns (possible, low, high): low[j, c] to high[j, c] users of class c are in column j. A value
    may be several sums. Lengths of histories and the entries between two columns rule some out.
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
        # The lengths of the histories in a class determine how many columns the class fills.
        for c in range(n_classes):
            first, last = lengths_of(classes.weights[c], rule)
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
                entry = entry_of(matrix, row.columns[j], row.columns[k])
                for o in range(_MAX_OPTIONS):
                    option = options[row.value_of[j], o]
                    if still_open[j, o] and entry < _common(option, low[k], classes):
                        still_open[j, o] = False
                        changed = True
                if not _bounds(options[row.value_of[j]], still_open[j], low[j], high[j]):
                    return False, low, high
    return True, low, high


@njit(cache=True)
def _bounds(options: Ints, still_open: NDArray[np.bool_], low: Ints, high: Ints) -> bool:
    """Set the fewest and most users of each class over the open options of a column.

    Return False if no option is open.
    """
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
def _common(counts: Ints, others: Ints, classes: Classes) -> int:
    """Return the least total weight of the users that two columns with these counts must share."""
    weight = 0
    for c in range(len(counts)):
        weight += max(counts[c] + others[c] - classes.sizes[c], 0) * classes.weights[c]
    return weight


@njit(cache=True)
def _read_histories(
    matrix: Matrix, row: Row, classes: Classes, rule: WeightRule, bounds: tuple[Ints, Ints]
) -> list[History]:
    """Return the histories of each weight for which the users of every column are determined."""
    histories = no_histories(matrix)
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
        first, last = lengths_of(weight, rule)
        for user in range(1, size + 1):
            own = (counts > 0) & ((owner == 0) | (owner == user))
            if max(first - rule.hidden, 1) <= own.sum() <= last:
                histories.append((row.columns[own], weight))
    return histories


@njit(cache=True)
def _two_sides(matrix: Matrix, columns: Ints, low: Ints, classes: Classes, c: int) -> Ints:
    """Assign columns that hold exactly one of two users of class c: user 1, 2 or 0 (unknown).

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
            if entry_of(matrix, columns[j], columns[k]) < needed:
                sides[k] = 3 - sides[j]
                stack[height] = k
                height += 1
    return sides
