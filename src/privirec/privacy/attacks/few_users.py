"""Rows of an item-item matrix that are sums over few users, read in floating point.

The exact attack (`peeling`) needs the integers that were summed. What reaches people is often less:
single precision, another scale, or noise of a known level. A row of an item with few users is still
a sum of a handful of weights w(d); as long as these lie further apart than the errors, it can be
read: find the weights, check that a history of weight w(d) has d items, take it out, go on.

A history is claimed only if every explanation of its row agrees on it. Where errors are as large as
the weights nothing is claimed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from privirec.privacy.attacks.base import Progress, there

Floats = NDArray[np.float64]
Items = NDArray[np.int32]

MOST_USERS = 6
"""Rows of more users have too many sums of weights to tell them apart."""


@dataclass(frozen=True)
class Weights:
    """w(d) = d^-exponent for d = 1, 2, ..., longest; by a client's rule, where that is known."""

    exponent: float
    longest: int
    rule: Callable[[int], float] | None = None

    def of(self, length: int) -> float:
        return float(length**-self.exponent) if self.rule is None else self.rule(length)

    def length(self, weight: float, tolerance: float) -> int | None:
        """The one length whose weight this is, up to the tolerance; None if none or several."""
        if weight <= tolerance:
            return None
        if not self.exponent:
            return None
        guess = weight ** (-1 / self.exponent)  # rules round this, or differ by less than one
        near = [d for d in range(int(guess) - 1, int(guess) + 3) if 1 <= d <= self.longest]
        close = [d for d in near if abs(self.of(d) - weight) <= tolerance]
        return close[0] if len(close) == 1 else None


def read_users(
    item: int, columns: Items, values: Floats, users: int, weights: Weights, tolerance: float
) -> list[Items]:
    """The histories of an item's users that its row leaves no doubt about.

    `values` are the entries of the row in these columns, each off by less than the tolerance.
    """
    here = values > 2 * tolerance
    columns, values = columns[here], values[here]
    own = np.flatnonzero(columns == item)
    if not len(own):
        return _without_own(item, columns, values, users, weights, tolerance)
    if users == 1:  # all entries are one weight
        alone = np.abs(values - values[own[0]]) <= 2 * tolerance
        right = alone.all() and abs(weights.of(len(values)) - values[own[0]]) <= tolerance
        return [columns.astype(np.int32)] if right else []
    total = float(values[own[0]])
    levels, level_of = _levels(values, tolerance)
    if len(levels) >= 1 << users or levels[-1] > total + 2 * tolerance:
        return []
    found = _weights_of(levels, total, users, weights, tolerance)
    if found is None:
        return []
    lengths = np.array(found)
    parts = np.array([weights.of(length) for length in found])
    masks = (np.arange(1, 1 << users)[:, None] >> np.arange(users)) & 1 == 1
    close = np.abs(levels[:, None] - (masks @ parts)) <= 2 * tolerance  # (levels, masks)
    if not close.any(axis=1).all():
        return []
    histories = []
    for user in range(users):
        inside = (close & masks[:, user]).any(axis=1) & ~(close & ~masks[:, user]).any(axis=1)
        history = columns[inside[level_of]]
        if len(history) == lengths[user]:
            histories.append(np.sort(history).astype(np.int32))
    return histories


def _without_own(
    item: int, columns: Items, values: Floats, users: int, weights: Weights, tolerance: float
) -> list[Items]:
    """The same where the diagonal is not released: what would stand there is the sum of all
    weights, which then must show one by one."""
    if not len(values):
        return []
    levels, _ = _levels(values, tolerance)
    found = _weights_of(levels, None, users, weights, tolerance)
    if found is None:
        return []
    total = sum(weights.of(length) for length in found)
    if total <= 2 * tolerance:
        return []
    with_own = np.append(columns, item).astype(np.int32)
    order = np.argsort(with_own)
    completed = np.append(values, total)[order]
    return read_users(item, with_own[order], completed, users, weights, tolerance)


def _levels(values: Floats, tolerance: float) -> tuple[Floats, NDArray[np.int64]]:
    """Distinct values up to errors, ascending, and which of them each value is."""
    order = np.argsort(values)
    ordered = values[order]
    number = np.concatenate([[0], np.cumsum(np.diff(ordered) > 2 * tolerance)])
    level_of = np.empty(len(values), np.int64)
    level_of[order] = number
    counts = np.bincount(number)
    return np.bincount(number, weights=ordered) / counts, level_of


def _weights_of(
    levels: Floats, total: float | None, users: int, weights: Weights, tolerance: float
) -> list[int] | None:
    """Lengths of the histories of a row. The smallest value is one weight, and so is every value
    that is not a sum of weights known before; what is then missing are equal weights."""
    lengths: list[int] = []
    sums = np.zeros(1)
    for level in levels.tolist():
        if (np.abs(sums - level) <= 2 * tolerance).any():
            continue
        length = weights.length(level, tolerance)
        if length is None or len(lengths) == users:
            return None
        lengths.append(length)
        sums = np.concatenate([sums, sums + weights.of(length)])
    missing = users - len(lengths)
    if total is None:
        return None if missing else lengths
    left = total - sum(weights.of(length) for length in lengths)
    if missing:
        length = weights.length(left / missing, tolerance / missing)
        if length is None:
            return None
        lengths += [length] * missing
        left -= missing * weights.of(length)
    return lengths if abs(left) <= 2 * tolerance else None


class Cascade:
    """Rows that are read, those of the fewest users first, and what is left of them."""

    def __init__(
        self,
        matrix: sp.csr_array,
        degrees: NDArray[np.int64] | None,
        weights: Weights,
        tolerances: Floats,
        *,
        diagonal: bool = True,
    ) -> None:
        """`matrix` may lack rows; degrees that are not known are found by trying. `diagonal`:
        whether that of the matrix says something."""
        self.histories: list[Items] = []
        self._matrix = matrix
        self._degrees = None if degrees is None else degrees.astype(np.int64).copy()
        self._weights = weights
        self._tolerances = tolerances
        self._rows_there = np.diff(matrix.indptr) > 0
        self._diagonal = diagonal
        if not diagonal:
            self._order: Callable[[int], float] = lambda item: float(self._row(item)[1].sum())
        elif degrees is None:  # how much a row weighs is all that tells how many users it has
            self._order = lambda item: float(self._entry(item, item))
        else:
            self._order = lambda item: float(self._left[item])

    @property
    def _left(self) -> NDArray[np.int64]:
        return there(self._degrees)

    def run(self, progress: Progress | None = None) -> None:
        """Until no row can be read any more."""
        items = np.flatnonzero(self._rows_there).tolist()
        queue = [(self._order(item), item) for item in items if self._worth_trying(item)]
        heapq.heapify(queue)
        tried = 0
        while queue:
            order, item = heapq.heappop(queue)
            if order != self._order(item) or not self._worth_trying(item):
                continue
            tried += 1
            if progress is not None and tried % 64 == 0:
                progress(tried, tried + len(queue))
            for history in self._read(item):
                if not self._take_out(history):
                    continue
                for other in history.tolist():
                    if self._rows_there[other] and self._worth_trying(other):
                        heapq.heappush(queue, (self._order(other), other))

    def _worth_trying(self, item: int) -> bool:
        if self._degrees is not None:
            return 0 < self._degrees[item] <= MOST_USERS
        if not self._diagonal:
            return bool((self._row(item)[1] > 2 * self._tolerances[item]).any())
        return self._entry(item, item) > 2 * self._tolerances[item]

    def _row(self, item: int) -> tuple[Items, Floats]:
        """Columns and values, without the diagonal where it says nothing."""
        start, stop = self._matrix.indptr[item : item + 2]
        columns, values = self._matrix.indices[start:stop], self._matrix.data[start:stop]
        if self._diagonal:
            return columns, values
        others = columns != item
        return columns[others], values[others]

    def _read(self, item: int) -> list[Items]:
        columns, values = self._row(item)
        if not self._weights.exponent and self._degrees is not None and self._left[item] == 2:
            return self._two_alike(item, columns, values)
        unknown = self._degrees is None
        counts = range(1, MOST_USERS + 1) if unknown else [int(self._left[item])]
        for users in counts:
            arguments = (columns, values, users, self._weights, float(self._tolerances[item]))
            if found := read_users(item, *arguments):
                return found
        return []

    def _two_alike(self, item: int, columns: Items, values: Floats) -> list[Items]:
        """Two users whose weights do not tell them apart, by what they cannot have in common: two
        items that nobody has together belong to different ones."""
        tolerance = 2 * float(self._tolerances[item])
        both, one = (columns[np.abs(values - count) <= tolerance] for count in (2, 1))
        if len(both) + len(one) != np.count_nonzero(values > tolerance):
            return []
        if not len(one):
            return [np.sort(both).astype(np.int32)] * 2
        apart = self._matrix[one][:, one].toarray() < 1 - tolerance
        groups, side = connected_components(sp.csr_array(_doubled(apart)), False)
        first, second = side[: len(one)], side[len(one) :]
        if groups != 2 or (first == second).any():  # no split, or more than one
            return []
        return [
            np.sort(np.concatenate([both, one[first == group]])).astype(np.int32)
            for group in range(2)
        ]

    def _entry(self, row: int, column: int) -> float:
        start, stop = self._matrix.indptr[row : row + 2]
        place = start + int(np.searchsorted(self._matrix.indices[start:stop], column))
        there = place < stop and self._matrix.indices[place] == column
        return float(self._matrix.data[place]) if there else 0.0

    def _take_out(self, history: Items) -> bool:
        """False if a row says that there is no such user."""
        weight = self._weights.of(len(history))
        matrix, places = self._matrix, []
        for item in history[self._rows_there[history]].tolist():
            start, stop = matrix.indptr[item : item + 2]
            place = start + np.searchsorted(matrix.indices[start:stop], history)
            inside = place < stop
            if not inside.all() or (matrix.indices[place] != history).any():
                return False
            enough = matrix.data[place] >= weight - 4 * self._tolerances[item]
            if not (enough | ((history == item) & (not self._diagonal))).all():
                return False
            places.append(place)
        if self._degrees is not None:
            if (self._degrees[history] < 1).any():
                return False
            self._degrees[history] -= 1
        for place in places:
            matrix.data[place] -= weight
        self.histories.append(history)
        return True


def _doubled(apart: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Every item twice, once on each side: items that are apart lie on opposite sides."""
    nothing = np.zeros_like(apart)
    return np.block([[nothing, apart], [apart, nothing]])


def longest_in(matrix: sp.csr_array) -> int:
    """The largest h such that h rows have h entries: all d rows of a history have at least d."""
    entries = np.sort(np.diff(matrix.indptr))[::-1]
    return int(np.count_nonzero(entries >= np.arange(1, len(entries) + 1)))
