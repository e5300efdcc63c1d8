"""Reading rows of an item-item matrix that are sums over few users, in floating point.

The exact attack (`peeling`) needs the integers that were summed. A release often has less: single
precision, another scale, or noise of a known level. A row of an item with few users is still a sum
of a handful of weights w(d). It can be read as long as these lie further apart than the errors:
find the weights, check that a history of weight w(d) has d items, subtract it, and continue.

A history is claimed only if every explanation of its row agrees on it. If errors are as large as
the weights, nothing is claimed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from privirec.errors import UsageError
from privirec.privacy.attacks.base import Attack, Found, Progress, there
from privirec.privacy.attacks.cliques import n_items_of
from privirec.privacy.attacks.peeling import Peeling
from privirec.privacy.attacks.views import MatrixView, item_item_view
from privirec.privacy.releases import Release

Floats = NDArray[np.float64]
Items = NDArray[np.int32]

MOST_USERS = 6
"""Most users of a row to read; more users have too many sums of weights to tell them apart."""


@dataclass(frozen=True)
class Weights:
    """Weights w(d) = d^-exponent for d = 1, 2, ..., longest, or by a client's rule if it is
    known."""

    exponent: float
    longest: int
    rule: Callable[[int], float] | None = None

    def of(self, length: int) -> float:
        return float(length**-self.exponent) if self.rule is None else self.rule(length)

    def length(self, weight: float, tolerance: float) -> int | None:
        """Return the only length with this weight, up to the tolerance; None if none or several
        match."""
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
    """Return the histories of an item's users that its row determines without doubt.

    `values` are the entries of the row in these columns, each with an error below the tolerance.
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
    """Read a row whose diagonal entry was not released.

    That entry would be the sum of all weights. It is computed from the weights, each of which must
    then show separately in the row.
    """
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
    """Return the distinct values up to errors, ascending, and the level number of each value."""
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
    """Return the lengths of the histories in a row, or None if they are not determined.

    The smallest value is a single weight, and so is every value that is not a sum of weights found
    before. Weights that are still missing then are equal to each other.
    """
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
    """Reading of rows, those of the fewest users first, with subtraction of the histories found."""

    def __init__(
        self,
        matrix: sp.csr_array,
        degrees: NDArray[np.int64] | None,
        weights: Weights,
        tolerances: Floats,
        *,
        diagonal: bool = True,
    ) -> None:
        """Prepare the attack.

        `matrix` may lack rows. Unknown degrees are found by trial. `diagonal` is true if the
        diagonal of the matrix holds information.
        """
        self.histories: list[Items] = []
        self._matrix = matrix
        self._degrees = None if degrees is None else degrees.astype(np.int64).copy()
        self._weights = weights
        self._tolerances = tolerances
        self._rows_there = np.diff(matrix.indptr) > 0
        self._diagonal = diagonal
        if not diagonal:
            self._order: Callable[[int], float] = lambda item: float(self._row(item)[1].sum())
        elif degrees is None:  # only the diagonal entry indicates how many users a row has
            self._order = lambda item: float(self._entry(item, item))
        else:
            self._order = lambda item: float(self._left[item])

    @property
    def _left(self) -> NDArray[np.int64]:
        return there(self._degrees)

    def run(self, progress: Progress | None = None) -> None:
        """Read rows until no row can be read any more."""
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
        """Return columns and values of a row, without the diagonal if it holds no information."""
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
        """Separate two users whose weights are equal.

        Two items that no user has together belong to different users.
        """
        tolerance = 2 * float(self._tolerances[item])
        both, one = (columns[np.abs(values - count) <= tolerance] for count in (2, 1))
        if len(both) + len(one) != np.count_nonzero(values > tolerance):
            return []
        if not len(one):
            return [np.sort(both).astype(np.int32)] * 2
        apart = self._matrix[one][:, one].toarray() < 1 - tolerance
        groups, side = connected_components(sp.csr_array(_doubled(apart)), False)
        first, second = side[: len(one)], side[len(one) :]
        if groups != 2 or (first == second).any():  # no split, or several
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
        """Subtract a user with this history.

        Return False, and change nothing, if a row rules out such a user.
        """
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
    """Return a graph with each item on both sides, in which items that are apart connect opposite
    sides."""
    nothing = np.zeros_like(apart)
    return np.block([[nothing, apart], [apart, nothing]])


def longest_in(matrix: sp.csr_array) -> int:
    """Return the largest h such that h rows have at least h entries.

    It bounds the length of a history: each of the d rows of a history has at least d entries.
    """
    entries = np.sort(np.diff(matrix.indptr))[::-1]
    return int(np.count_nonzero(entries >= np.arange(1, len(entries) + 1)))


SURE = 5.0
"""Number of standard deviations within which an entry is assumed to lie; one in 3.5 million exceeds
it in one direction."""


class LikelihoodPeeling(Attack):
    """Histories recovered from rows of few users, as far as they exceed the errors."""

    name: ClassVar[str] = "likelihood-peeling"
    needs: ClassVar[str] = "an item-item matrix with noise or rounding of a known level"

    def applies_to(self, release: Release) -> bool:
        return not Peeling().applies_to(release) and _readable(release) is not None

    def run(self, release: Release, progress: Progress | None = None) -> Found:
        view = _readable(release)
        if view is None:
            raise UsageError(f"{self.name} needs {self.needs}")
        return peeled(view, release, progress)


def _readable(release: Release) -> MatrixView | None:
    """Return the item-item matrix if a person's contribution to an entry is known."""
    view = item_item_view(release)
    return view if view is not None and (view.diagonal or view.rule is not None) else None


def peeled(view: MatrixView, release: Release, progress: Progress | None = None) -> Found:
    """Return the histories that can be read from a view of a release."""
    longest = longest_in(view.matrix)
    weights = Weights(view.exponent, longest, view.rule)
    cascade = Cascade(
        view.matrix, view.degrees, weights, SURE * view.errors, diagonal=view.diagonal
    )
    cascade.run(progress)
    facts = {"largest_error": float(view.errors.max(initial=0.0))}
    if view.items is None:
        return Found.histories(cascade.histories, facts=facts)
    visible = np.zeros(n_items_of(release), np.bool_)
    visible[view.items] = True
    found = [np.sort(view.items[history]).astype(np.int32) for history in cascade.histories]
    return Found.histories(found, visible_items=visible, facts=facts)
