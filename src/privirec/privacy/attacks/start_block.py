"""Sparse recovery from the paper's start block: the users of each item, by name.

The paper's power method starts from Y_0 = sum_u A_u^T X_0[u, :] with a public row of X_0 for every
user. Row i of Y_0 is a combination of as many of these rows as item i has users, with coefficients
d_u^-1/2. Matching pursuit finds the rows, the coefficients give the length of each history, and the
clients' rounding rule checks the answer to the last integer. Users whose histories are completely
found are no longer suspects, which leaves fewer suspects for popular items.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from privirec.errors import UsageError
from privirec.federated.contributions import UserStart
from privirec.federated.noise import NO_NOISE
from privirec.privacy.attacks.base import Attack, Found, Progress
from privirec.privacy.attacks.matching_pursuit import ExplainedRow
from privirec.privacy.releases import Release

MOST_ROWS = 2_000
"""Number of items to try, chosen at random. Each takes a pass over all users for each of its own
users."""

_ROWS_AT_ONCE = 64
_MOST_OF_THE_COLUMNS = 0.7
"""Combinations of more rows than this share of the columns cannot be told apart."""


class StartBlock(Attack):
    """Users of items recovered from Y_0, and their histories once all of their items are found."""

    name: ClassVar[str] = "start-block"
    needs: ClassVar[str] = "item degrees, and a start block with a row per user, without noise"

    def __init__(self, most_rows: int = MOST_ROWS) -> None:
        self._most_rows = most_rows

    def applies_to(self, release: Release) -> bool:
        return release.item_degrees is not None and _start_in(release) is not None

    def run(self, release: Release, progress: Progress | None = None) -> Found:
        degrees, start = release.item_degrees, _start_in(release)
        if degrees is None or start is None:
            raise UsageError(f"{self.name} needs {self.needs}")
        items = np.flatnonzero(degrees)
        if len(items) > self._most_rows:
            rng = np.random.Generator(np.random.Philox(0))  # nothing here is secret
            items = np.sort(rng.choice(items, self._most_rows, replace=False))
        recovery = _Recovery(start, degrees)
        recovery.run(items, progress)
        return Found.histories(
            recovery.histories(),
            users_of=recovery.users_of,
            rows_tried=len(items),
            facts={"columns": recovery.columns},
        )


def _start_in(release: Release) -> tuple[UserStart, Any] | None:
    found = (one for one in release.opened(UserStart) if one[0].noise == NO_NOISE)
    return next(found, None)


class _Recovery:
    """Knowledge about users while the items are read one after the other."""

    def __init__(self, start: tuple[UserStart, Any], degrees: NDArray[np.int64]) -> None:
        ask, total = start
        self._ask, self._total, self._degrees = ask, total, degrees
        self.columns = ask.columns
        self.users_of: dict[int, NDArray[np.int64]] = {}
        self._rows = np.ldexp(ask.block.astype(np.float32), -ask.block_bits)
        norms = np.linalg.norm(self._rows, axis=1)
        self._weights = np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0)
        self._length = np.zeros(len(self._rows), np.int64)  # 0: not known yet
        self._found = np.zeros(len(self._rows), np.int64)

    def run(self, items: NDArray[np.int64], progress: Progress | None) -> None:
        """Read items, the rarest first, and repeat while the number of suspects falls."""
        open_items, suspects = items, 2 * len(self._rows)
        while len(open_items):
            self._weights[(self._length > 0) & (self._found >= self._length)] = 0
            left = int(np.count_nonzero(self._weights))
            if left >= 0.9 * suspects:
                break
            suspects = left
            readable = open_items[
                self._degrees[open_items] <= _MOST_OF_THE_COLUMNS * min(self.columns, left)
            ]
            readable = readable[np.argsort(self._degrees[readable], kind="stable")]
            for first in range(0, len(readable), _ROWS_AT_ONCE):
                if progress is not None:
                    progress(len(self.users_of), len(items))
                self._read(readable[first : first + _ROWS_AT_ONCE])
            open_items = np.array([i for i in open_items.tolist() if i not in self.users_of])

    def histories(self) -> list[NDArray[np.int32]]:
        """Return the histories of the users whose items were all found."""
        lists: dict[int, list[int]] = {}
        for item in sorted(self.users_of):
            for user in self.users_of[item].tolist():
                lists.setdefault(user, []).append(item)
        return [
            np.array(own, np.int32) for user, own in lists.items() if len(own) == self._length[user]
        ]

    def _read(self, items: NDArray[np.int64]) -> None:
        scale = -self._ask.encoding.fraction_bits
        rows = [ExplainedRow(np.ldexp(self._total[i].astype(np.float64), scale)) for i in items]
        going = list(range(len(rows)))
        while going:
            left = np.stack([rows[n].left for n in going], axis=1).astype(np.float32)
            scores = (self._rows @ left) * self._weights[:, None]
            still = []
            for place, number in enumerate(going):
                row = rows[number]
                scores[row.taken, place] = -np.inf
                user = int(scores[:, place].argmax())
                if not row.take(user, self._rows[user].astype(np.float64)):
                    continue
                if len(row.taken) < self._degrees[items[number]]:
                    still.append(number)
                else:
                    self._check(int(items[number]), row)
            going = still

    def _check(self, item: int, row: ExplainedRow) -> None:
        """Record the users of an item if the vectors that they would have sent add up to the row
        exactly."""
        shares = row.coefficients()
        if (shares <= 0).any():
            return
        users = np.array(row.taken)
        lengths = np.rint(1 / shares**2).astype(np.int64)
        lengths = np.where(self._length[users] > 0, self._length[users], np.maximum(lengths, 1))
        scale = 2.0 ** (self._ask.encoding.fraction_bits - self._ask.block_bits)
        sent = np.rint(self._ask.block[users] / np.sqrt(lengths.astype(float))[:, None] * scale)
        if not np.array_equal(sent.astype(np.int64).sum(axis=0), self._total[item]):
            return
        self._length[users] = lengths
        self._found[users] += 1
        self.users_of[item] = np.sort(users)
