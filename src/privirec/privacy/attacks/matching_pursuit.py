"""Matching pursuit: histories from the sums of the power method.

Row i of a sum P' W is a combination of the public rows of W. Its coefficients are row i of P',
which has as many entries as the users of item i have items. If an item has one or two users left,
these are few, and orthogonal matching pursuit finds them if all sums of the run together have
enough columns. The result is checked in whole numbers: the clients' own rule must reproduce every
integer of the row. The user is then subtracted from all rows, which leaves further items with few
users.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.errors import UsageError
from privirec.federated.contributions import Histories, PowerStep, SeededStep
from privirec.federated.noise import NO_NOISE
from privirec.privacy.attacks.base import Attack, Found, Progress
from privirec.privacy.releases import Release, ReleasedSum


@dataclass
class ExplainedRow:
    """A row during its explanation: the atoms chosen so far, and the residual."""

    left: NDArray[np.float64]
    taken: list[int] = field(default_factory=list)
    basis: list[NDArray[np.float64]] = field(default_factory=list)
    """Orthonormal vectors that span the chosen atoms."""
    triangle: list[NDArray[np.float64]] = field(default_factory=list)
    along: list[float] = field(default_factory=list)

    def take(self, item: int, atom: NDArray[np.float64]) -> bool:
        """Add an atom to the explanation.

        Return False if the atom lies in the span of those chosen before.
        """
        inside = np.array([direction @ atom for direction in self.basis])
        rest = atom - sum((c * d for c, d in zip(inside, self.basis, strict=True)), np.zeros(1))
        length = float(np.linalg.norm(rest))
        if length <= 1e-6 * float(np.linalg.norm(atom)):
            return False
        direction = rest / length
        share = float(direction @ self.left)
        self.taken.append(item)
        self.basis.append(direction)
        self.triangle.append(np.append(inside, length))
        self.along.append(share)
        self.left = self.left - share * direction
        return True

    def coefficients(self) -> NDArray[np.float64]:
        """Return the coefficients of the chosen atoms, in the order of choice."""
        size = len(self.taken)
        upper = np.zeros((size, size))
        for column, entries in enumerate(self.triangle):
            upper[: column + 1, column] = entries
        return np.linalg.solve(upper, np.array(self.along)) if size else np.zeros(0)


Items = NDArray[np.int32]

MOST_USERS_LEFT = 2
"""Most users of a row to try; the histories of more users could not be told apart."""
MOST_ROWS = 2_000
"""Number of rows to try, rarest items first. Each takes a pass over the public blocks for each
entry."""

_ROWS_AT_ONCE = 64
# Directions in which the blocks vary by less than this many rounding units carry no information.
_LEAST_UNITS = 1e4
# A row counts as explained once its relative residual is this small. The explanation is then
# checked exactly.
_EXPLAINED = 1e-4


class MatchingPursuit(Attack):
    """Histories recovered from P' W for public W."""

    name: ClassVar[str] = "matching-pursuit"
    needs: ClassVar[str] = "item degrees, and sums of the power method over items without noise"

    def __init__(self, most_rows: int = MOST_ROWS) -> None:
        self._most_rows = most_rows

    def applies_to(self, release: Release) -> bool:
        return release.item_degrees is not None and bool(_steps_in(release))

    def run(self, release: Release, progress: Progress | None = None) -> Found:
        degrees, sums = release.item_degrees, _steps_in(release)
        if degrees is None or not sums:
            raise UsageError(f"{self.name} needs {self.needs}")
        pursued = _Pursuit(degrees.copy(), sums)
        pursued.cascade(self._most_rows, progress)
        return Found.histories(
            pursued.histories,
            rows=pursued.rows,
            facts={
                "columns": pursued.atoms.columns,
                "rows_tried": pursued.rows_tried,
                "rows_of_few_users": int(np.count_nonzero(_few(degrees))),
            },
        )


def _steps_in(release: Release) -> list[ReleasedSum]:
    return [one for one in release.sums_of(PowerStep, SeededStep) if one.noise == NO_NOISE]


def _few(degrees: NDArray[np.int64]) -> NDArray[np.bool_]:
    return (degrees > 0) & (degrees <= MOST_USERS_LEFT)


class _Atoms:
    """Public rows of all blocks, whitened so that no direction counts more than another."""

    def __init__(self, steps: Sequence[PowerStep]) -> None:
        rows = np.concatenate(
            [np.ldexp(step.block.astype(np.float64), -step.block_bits) for step in steps], axis=1
        )
        self.columns = rows.shape[1]
        self._units = [2.0**-step.encoding.fraction_bits for step in steps]
        values, vectors = np.linalg.eigh(rows.T @ rows)
        least = _LEAST_UNITS * max(self._units)
        kept = values > max(least**2, 1e-12 * values.max(initial=0.0))
        self._turn = vectors[:, kept] / np.sqrt(values[kept])
        self.rows = (rows @ self._turn).astype(np.float32)
        norms = np.linalg.norm(self.rows, axis=1)
        self.weights = np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0)
        prints = _Fingerprints([step.columns for step in steps])
        self.alike = np.unique(prints.of([step.block for step in steps]), return_inverse=True)[1]
        """Group number of each item, equal for items whose public rows are equal."""

    def seen(self, totals: Iterable[NDArray[np.int64]], items: Items) -> NDArray[np.float64]:
        """Return rows of the sums in the whitened coordinates, of shape (items, directions)."""
        scaled = [total[items] * unit for total, unit in zip(totals, self._units, strict=True)]
        turned: NDArray[np.float64] = np.concatenate(scaled, axis=1) @ self._turn
        return turned


class _Fingerprints:
    """Linear hash modulo 2^64 of a row across several matrices.

    Equal rows have equal fingerprints, and the fingerprint of a difference is the difference of the
    fingerprints.
    """

    def __init__(self, columns: Sequence[int]) -> None:
        rng = np.random.Generator(np.random.Philox(0))  # nothing here is secret
        self._factors = [rng.integers(0, 2**64, count, np.uint64) for count in columns]

    def of(self, matrices: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
        """Return one number per row of the matrices, each of shape (rows, columns)."""
        numbers = np.zeros(len(matrices[0]), np.uint64)
        for matrix, factors in zip(matrices, self._factors, strict=True):
            numbers += matrix.astype(np.int64).view(np.uint64) @ factors
        return numbers


class _Pursuit:
    """Remainder of the sums while users are subtracted."""

    def __init__(self, degrees: NDArray[np.int64], sums: Sequence[ReleasedSum]) -> None:
        self.histories: list[Items] = []
        self.rows: dict[int, Items] = {}
        self.rows_tried = 0
        self._degrees = degrees
        self._steps = [_written_out(one.ask) for one in sums]
        self._totals = [one.total.copy() for one in sums]
        self._users_of: dict[int, list[int]] = {}
        self.atoms = _Atoms(self._steps)
        self._fingerprints = _Fingerprints([step.columns for step in self._steps])
        self._prints = self._fingerprints.of(self._totals)

    def cascade(self, most_rows: int, progress: Progress | None) -> None:
        """Try rows, those of the fewest users first, until each was tried in its current state."""
        tried: dict[int, int] = {}
        while self.rows_tried < most_rows:
            few = np.flatnonzero(_few(self._degrees)).tolist()
            new = [item for item in few if tried.get(item) != self._degrees[item]]
            new.sort(key=lambda item: (self._degrees[item], item))
            batch = np.array(new[: min(_ROWS_AT_ONCE, most_rows - self.rows_tried)], np.int32)
            if not len(batch):
                break
            tried |= {item: int(self._degrees[item]) for item in batch.tolist()}
            self.rows_tried += len(batch)
            for item, candidates, entries in self._explained(batch):
                self._read(item, candidates, entries)
            if progress is not None:
                progress(self.rows_tried, min(most_rows, self.rows_tried + len(new) - len(batch)))

    def _explained(self, items: Items) -> Iterator[tuple[int, Items, NDArray[np.float64]]]:
        """Yield (item, items of its row, their coefficients) for each row that few atoms
        explain."""
        seen = self.atoms.seen(self._totals, items)
        sizes = np.linalg.norm(seen, axis=1)
        rows = [ExplainedRow(line) for line in seen]
        for row, item in zip(rows, items.tolist(), strict=True):
            for known in self._surely_in(item):
                row.take(known, self.atoms.rows[known].astype(np.float64))
        open_rows = list(range(len(rows)))
        most = self.atoms.rows.shape[1] // 2
        while open_rows:
            left = np.stack([rows[n].left for n in open_rows], axis=1).astype(np.float32)
            scores = (self.atoms.rows @ left) * self.atoms.weights[:, None]
            going_on = []
            for place, number in enumerate(open_rows):
                row = rows[number]
                if np.linalg.norm(row.left) <= _EXPLAINED * sizes[number]:
                    order = np.argsort(row.taken)
                    support = np.array(row.taken, np.int32)[order]
                    yield int(items[number]), support, row.coefficients()[order]
                    continue
                scores[row.taken, place] = -np.inf
                best = int(scores[:, place].argmax())
                if scores[best, place] <= 0 or len(row.taken) >= most:
                    continue
                if row.take(best, self.atoms.rows[best].astype(np.float64)):
                    going_on.append(number)
            open_rows = going_on

    def _read(self, item: int, support: Items, entries: NDArray[np.float64]) -> None:
        """Record a row, and subtract the users that explain it to the last integer."""
        users = int(self._degrees[item])
        if not 0 < users <= MOST_USERS_LEFT or (entries <= 0).any():
            return
        candidates = _one_user(support) if users == 1 else _two_users(item, support, entries)
        for histories in candidates:
            sent = [self._sent(history) for history in histories]
            if not self._explains(item, sent) or any(map(self._in_doubt, histories, sent)):
                continue
            before = [self.histories[user] for user in self._users_of.get(item, [])]
            self.rows[item] = np.unique(np.concatenate([*before, *histories])).astype(np.int32)
            for history, vectors in zip(histories, sent, strict=True):
                self._take_out(history, vectors)
            return

    def _sent(self, history: Items) -> list[NDArray[np.int64]]:
        """Return the vector that a user with this history adds to each of its rows, for every
        sum."""
        shape = (1, len(self._degrees))
        ones = np.ones(len(history), np.float32)
        alone = Histories(sp.csr_array((ones, history, np.array([0, len(history)])), shape=shape))
        return [step.rows_per_user(alone)[0] for step in self._steps]

    def _explains(self, item: int, sent: Sequence[Sequence[NDArray[np.int64]]]) -> bool:
        parts = zip(*sent, strict=True)
        return all(
            np.array_equal(total[item], sum(part))
            for total, part in zip(self._totals, parts, strict=True)
        )

    def _surely_in(self, item: int) -> list[int]:
        """Return the item itself and, if it has one user, the other items that only this user has.

        The rows of these items are equal.
        """
        if self._degrees[item] != 1:
            return [item]
        same = (self._degrees == 1) & (self._prints == self._prints[item])
        found: list[int] = np.flatnonzero(same).tolist()
        return found

    def _in_doubt(self, history: Items, sent: Sequence[NDArray[np.int64]]) -> bool:
        """Return True if other items could replace some of the history, or would have to be added.

        Nothing is guessed: a history in doubt stays in the sums.
        """
        alike = self.atoms.alike
        there = np.bincount(alike[self._degrees > 0], minlength=int(alike.max()) + 1)
        chosen, counts = np.unique(alike[history], return_counts=True)
        if (counts != there[chosen]).any():
            return True
        print_of = self._fingerprints.of([vector[None] for vector in sent])[0]
        own = np.flatnonzero((self._degrees == 1) & (self._prints == print_of))
        return not np.isin(own, history).all()

    def _take_out(self, history: Items, sent: Sequence[NDArray[np.int64]]) -> None:
        for total, vector in zip(self._totals, sent, strict=True):
            total[history] -= vector
        self._prints[history] -= self._fingerprints.of([vector[None] for vector in sent])[0]
        self._degrees[history] -= 1
        for item in history.tolist():
            self._users_of.setdefault(item, []).append(len(self.histories))
        self.histories.append(history)


def _written_out(ask: Any) -> PowerStep:
    step: PowerStep = ask.step if isinstance(ask, SeededStep) else ask
    return step


def _one_user(support: Items) -> Iterator[list[Items]]:
    yield [support]


def _two_users(item: int, support: Items, entries: NDArray[np.float64]) -> Iterator[list[Items]]:
    """Yield pairs of histories whose weights 1/d add up to the entries of a row, the shorter
    first."""
    both = float(entries[np.searchsorted(support, item)])
    for short in range(1, len(support) + 1):
        rest = both - 1 / short
        if rest <= 0:
            continue
        long = round(1 / rest)
        if long < short or abs(1 / long - rest) > 1e-3 * rest:
            continue
        weights = np.array([1 / short, 1 / long, both])
        kind = np.abs(entries[:, None] - weights).argmin(axis=1)
        first, second = support[kind != 1], support[kind != 0]
        if (len(first), len(second)) == (short, long):
            yield [first, second]
