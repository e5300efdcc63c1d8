"""What was opened: what an attacker holds, and how it was made.

The server of a run holds every sum; a client, or whoever it shows them to, holds the filters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from privirec.data.interactions import Interactions
from privirec.federated.contributions import Contribution, ItemDegrees, PlannedSum
from privirec.federated.contributions.noisy import NormedSum
from privirec.federated.noise import Noise, noise_of
from privirec.filters.components import Components

Kind = TypeVar("Kind", bound=Contribution)


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
    derived: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """What the model made of the filters and keeps in their place, by name."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the model."""

    def entry(self, kind: type[Contribution]) -> Mapping[str, Any] | None:
        """The row about the first sum of a kind, if there was one."""
        rows = (row for row in self.ledger if row.get("what") == kind.name and row.get("entries"))
        return next(rows, None)

    def noise(self, kind: type[Contribution]) -> Noise | None:
        """The noise in sums of a kind, if there were any."""
        entry = self.entry(kind)
        return None if entry is None else noise_of(entry.get("noise", "none"))


class Federation(Protocol):
    """The people behind a release, for an attacker that can have them asked again, or knows some of
    them. Every run has fresh noise."""

    @property
    def people(self) -> Interactions:
        """All there are. Whether they take part is for `run` to say."""
        ...

    @property
    def promise(self) -> tuple[float, float] | None:
        """(epsilon, delta) of one run; None: nothing is promised."""
        ...

    def planned(self) -> Sequence[PlannedSum]:
        """The sums that everybody has agreed to."""
        ...

    def run(self, people: Interactions, number: int, sums: int | None = None) -> Release:
        """What a run over these people opens: all sums, or the first few."""
        ...

    def ask(
        self, asks: Sequence[Contribution], number: int, people: Interactions | None = None
    ) -> Release:
        """What these people (None: all) answer a server that asks what it likes, of a kind that was
        planned; with the noise of as many clients as there are."""
        ...

    def exact(self, ask: Contribution, people: Interactions) -> Any:
        """What these people add to a sum, without noise: for an attacker who knows them."""
        ...


@dataclass(frozen=True)
class Release:
    """What somebody holds after a run: all sums, or the filters that were made from them."""

    source: str
    """The program that ran, or where the artifact lies."""
    sums: tuple[ReleasedSum, ...] = ()
    filters: ReleasedFilters | None = None
    federation: Federation | None = None
    """Who could be asked again; not what an attacker holds, but what it may do."""
    noise_left_out: bool = False
    """Whether the noise that was asked for is not there, and attackers know: to see that they would
    find something."""

    @property
    def item_degrees(self) -> NDArray[np.int64] | None:
        for one in self.sums_of(ItemDegrees):
            degrees: NDArray[np.int64] = one.total
            return degrees
        return None if self.filters is None else self.filters.components.item_degrees

    def deviation(self, ask: NormedSum) -> float:
        """Of the noise in an entry of a sum, in its values; without noise, of its rounding."""
        units = 1.0 if self.noise_left_out else ask.share.protecting_deviation
        return float(np.ldexp(units, -ask.fraction_bits))

    def opened(self, kind: type[Kind]) -> list[tuple[Kind, Any]]:
        """What was asked and what came out, for each sum of a kind."""
        return [(one.ask, one.total) for one in self.sums if isinstance(one.ask, kind)]

    def sums_of(self, *kinds: type[Contribution]) -> list[ReleasedSum]:
        """The sums of these kinds, in order."""
        return [one for one in self.sums if isinstance(one.ask, kinds)]
