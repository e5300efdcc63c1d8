"""Base classes of the peers, and the simplest peer: noisy popularity alone.

A peer has settings, an outline of noisy sums, and steps that end in a scorer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.federated.contributions import NoisyPopularity, PlannedSum
from privirec.federated.programs.base import Step, keep_to
from privirec.federated.programs.calibration import Calibration, Promise
from privirec.filters.normalize import head_before_tail, most_popular, relative_popularity
from privirec.filters.parts import Scorer

Floats = NDArray[np.float64]
Float32 = NDArray[np.float32]


PeerSteps = Generator[Step, Any, Scorer]


@dataclass(frozen=True)
class Peer(ABC):
    """A method by other authors, over the same sums and with the same noise as `protected`.

    The first sum of every peer is noisy popularity. It is paid from the budget and chooses the
    head, that is, the most popular items.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    promise: Promise
    n_users: int
    n_items: int

    @property
    @abstractmethod
    def parts(self) -> Sequence[float]:
        """Share of the budget (of mu^2) for each sum, popularity first. Shares add up to one."""

    @property
    @abstractmethod
    def lengths(self) -> Sequence[int]:
        """Number of entries of each sum, popularity first."""

    @abstractmethod
    def later_sums(self) -> list[PlannedSum]:
        """Return the planned sums after popularity."""

    @abstractmethod
    def later_steps(self, sums: list[PlannedSum], popularity: Floats) -> PeerSteps:
        """Run the sums after popularity and return the scorer.

        `popularity` is noisy popularity in units of one person's vote, a vector of length one.
        """

    @cached_property
    def calibration(self) -> Calibration:
        return Calibration.of(self.promise, list(self.parts), list(self.lengths))

    def sums(self) -> list[PlannedSum]:
        first = NoisyPopularity.planned(self.n_items, self.n_users, self.calibration.shares[0])
        return [first, *self.later_sums()]

    def steps(self) -> PeerSteps:
        """Return the steps of the computation, checked against its outline."""
        outline = self.sums()
        return keep_to(outline, self._steps(outline))

    def _steps(self, outline: list[PlannedSum]) -> PeerSteps:
        ask: Any = outline[0].ask()
        votes = yield ask
        popularity = ask.encoding.decode(np.maximum(votes, 0))
        return (yield from self.later_steps(outline[1:], popularity))

    def head_of(self, popularity: Floats, head: int) -> tuple[NDArray[np.int64], Floats]:
        """Return the `head` most popular items and their popularity.

        Popularity below one vote is indistinguishable from noise and is raised to one.
        """
        items = most_popular(popularity, head)
        return items, np.maximum(popularity[items], 1.0)


@dataclass(frozen=True)
class PeerInRounds(Peer):
    """A peer that, after popularity, runs rounds over the most popular items."""

    head: int = 2000
    rounds: int = 2
    popularity_share: float = 0.1
    """Share of the budget (of mu^2) for popularity."""
    growth: float = 1.5
    """Factor by which the share of the budget grows from one round to the next."""

    @property
    def items_on_top(self) -> int:
        return min(self.head, self.n_items)

    @property
    def parts(self) -> list[float]:
        sizes = [self.growth**number for number in range(self.rounds)]
        left = 1 - self.popularity_share
        return [self.popularity_share, *(left * size / sum(sizes) for size in sizes)]


@dataclass(frozen=True)
class ByPopularity:
    """Scorer that ranks items by popularity, in the same order for all people."""

    popularity: Floats

    def score(self, user_items: sp.csr_array) -> Float32:
        relative = relative_popularity(self.popularity)
        return np.repeat(relative[None], user_items.shape[0], axis=0)

    def with_head(self, items: NDArray[np.int64], on_head: NDArray[Any]) -> Float32:
        """Return the scores of all items from those on the head."""
        relative = relative_popularity(self.popularity)
        return head_before_tail(on_head.astype(np.float32), items, relative)


@dataclass(frozen=True)
class NoisyPopularityAlone(Peer):
    """Ranking by noisy popularity, which receives the whole budget.

    Any private recommender has to beat this baseline.
    """

    name: ClassVar[str] = "popularity"
    title: ClassVar[str] = "noisy popularity"

    @property
    def parts(self) -> list[float]:
        return [1.0]

    @property
    def lengths(self) -> list[int]:
        return [self.n_items]

    def later_sums(self) -> list[PlannedSum]:
        return []

    def later_steps(self, sums: list[PlannedSum], popularity: Floats) -> PeerSteps:
        return ByPopularity(popularity)
        yield  # Unreachable; it makes this function a generator, without any sum.
