"""Releases: what an attacker holds after a run, and how it was made.

The server of a run holds every sum. A client, and anyone that it shares them with, holds the
filters.
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
    """An opened sum and its request, with the public inputs and the scale."""

    ask: Contribution
    total: Any

    @property
    def noise(self) -> Noise:
        return self.ask.noise


@dataclass(frozen=True)
class ReleasedFilters:
    """Filters, and the statements of their manifest about the sums that they come from."""

    components: Components
    ledger: tuple[Mapping[str, Any], ...] = ()
    """Rows of `Ledger.as_rows`."""
    derived: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Arrays that the model derived from the filters and keeps instead of them, by name."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the model."""

    def entry(self, kind: type[Contribution]) -> Mapping[str, Any] | None:
        """Return the row about the first sum of a kind, if there is one."""
        rows = (row for row in self.ledger if row.get("what") == kind.name and row.get("entries"))
        return next(rows, None)

    def noise(self, kind: type[Contribution]) -> Noise | None:
        """Return the noise in sums of a kind, if there are any."""
        entry = self.entry(kind)
        return None if entry is None else noise_of(entry.get("noise", "none"))


@dataclass(frozen=True)
class HeardSum:
    """A sum that real clients made, without the noise that the attacker knows."""

    ask: NormedSum
    left: NDArray[np.int64]
    deviation: float
    """Standard deviation of the noise that is left in an entry, in units of the sum."""


class Federation(Protocol):
    """The people behind a release, for attackers that can query them again or know some of them.

    Every run has fresh noise.
    """

    @property
    def people(self) -> Interactions:
        """All people. `run` decides who takes part."""
        ...

    @property
    def promise(self) -> tuple[float, float, float | None] | None:
        """(epsilon, delta, epsilon for replacing) of one run, or None if nothing is promised.

        The last is None if replacing one history by another has no bound.
        """
        ...

    def planned(self) -> Sequence[PlannedSum]:
        """Return the sums that all clients have agreed to."""
        ...

    def run(self, people: Interactions, number: int, sums: int | None = None) -> Release:
        """Return the release of a run over these people: all sums, or the first few."""
        ...

    def ask(
        self, asks: Sequence[Contribution], number: int, people: Interactions | None = None
    ) -> Release:
        """Return the answers of these people (None: all) to arbitrary requests of planned kinds.

        The answers carry the noise of as many clients as there are.
        """
        ...

    def exact(self, ask: Contribution, people: Interactions) -> Any:
        """Return what these people add to a sum, without noise, for an attacker that knows them."""
        ...

    def through_clients(
        self, asks: Sequence[NormedSum], people: Interactions, number: int
    ) -> list[HeardSum]:
        """Return sums over these people by real clients, some of which work for the attacker."""
        ...


@dataclass(frozen=True)
class Release:
    """Data that a party holds after a run: all sums, or the filters that were made from them."""

    source: str
    """Name of the program that ran, or path of the artifact."""
    sums: tuple[ReleasedSum, ...] = ()
    filters: ReleasedFilters | None = None
    federation: Federation | None = None
    """People that an attacker may query again; not part of what it holds."""
    noise_left_out: bool = False
    """True if the requested noise was left out and attackers know it.

    This checks that they would find something without noise.
    """

    @property
    def item_degrees(self) -> NDArray[np.int64] | None:
        for one in self.sums_of(ItemDegrees):
            degrees: NDArray[np.int64] = one.total
            return degrees
        return None if self.filters is None else self.filters.components.item_degrees

    def deviation(self, ask: NormedSum) -> float:
        """Return the standard deviation of the noise in an entry, in the values of the sum.

        Without noise, return one unit, for the rounding.
        """
        units = 1.0 if self.noise_left_out else ask.share.protecting_deviation
        return float(np.ldexp(units, -ask.fraction_bits))

    def opened(self, kind: type[Kind]) -> list[tuple[Kind, Any]]:
        """Return the request and the total of each sum of a kind."""
        return [(one.ask, one.total) for one in self.sums if isinstance(one.ask, kind)]

    def sums_of(self, *kinds: type[Contribution]) -> list[ReleasedSum]:
        """Return the sums of these kinds, in order."""
        return [one for one in self.sums if isinstance(one.ask, kinds)]
