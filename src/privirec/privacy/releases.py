"""What was opened: what an attacker holds, and how it was made.

The server of a run holds every sum; a client, or whoever it shows them to, holds the filters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privirec.federated.contributions import Contribution, ItemDegrees
from privirec.federated.noise import Noise, noise_of
from privirec.filters.components import Components


@dataclass(frozen=True)
class ReleasedSum:
    """A sum, and what was asked: its public inputs and its scale."""

    ask: Contribution
    total: Any

    @property
    def noise(self) -> Noise:
        return self.ask.noise


@dataclass(frozen=True)
class ReleasedFilters:
    """Filters, and what their manifest says of the sums behind them."""

    components: Components
    ledger: tuple[Mapping[str, Any], ...] = ()
    """Rows of `Ledger.as_rows`."""

    def entry(self, kind: type[Contribution]) -> Mapping[str, Any] | None:
        """The row about the first sum of a kind, if there was one."""
        rows = (row for row in self.ledger if row.get("what") == kind.name and row.get("entries"))
        return next(rows, None)

    def noise(self, kind: type[Contribution]) -> Noise | None:
        """The noise in sums of a kind, if there were any."""
        entry = self.entry(kind)
        return None if entry is None else noise_of(entry.get("noise", "none"))


@dataclass(frozen=True)
class Release:
    """What somebody holds after a run: all sums, or the filters that were made from them."""

    source: str
    """The program that ran, or where the artifact lies."""
    sums: tuple[ReleasedSum, ...] = ()
    filters: ReleasedFilters | None = None

    @property
    def item_degrees(self) -> NDArray[np.int64] | None:
        for one in self.sums_of(ItemDegrees):
            degrees: NDArray[np.int64] = one.total
            return degrees
        return None if self.filters is None else self.filters.components.item_degrees

    def sums_of(self, *kinds: type[Contribution]) -> list[ReleasedSum]:
        """The sums of these kinds, in order."""
        return [one for one in self.sums if isinstance(one.ask, kinds)]
