"""What a peer is: settings, a plan of noisy sums, and steps that end in a scorer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.federated.contributions import Contribution, NoisyPopularity, PlannedSum
from privirec.federated.programs.base import Broadcast, keep_to
from privirec.federated.programs.calibration import Calibration, Promise
from privirec.filters.normalize import behind_all_else, most_popular
from privirec.filters.scorers import Scorer

Floats = NDArray[np.float64]
Float32 = NDArray[np.float32]


PeerSteps = Generator[Contribution | Broadcast, Any, Scorer]


@dataclass(frozen=True)
class Peer(ABC):
    """One method of somebody else, over the same sums and with the same noise as `protected`.

    The first sum of each is popularity, which chooses the head inside the budget.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    promise: Promise
    n_users: int
    n_items: int

    @property
    @abstractmethod
    def parts(self) -> Sequence[float]:
        """Of the budget (of mu^2) for each sum, popularity first; they add up to one."""

    @property
    @abstractmethod
    def lengths(self) -> Sequence[int]:
        """Of each sum."""

    @abstractmethod
    def later_sums(self) -> list[PlannedSum]:
        """All but popularity."""

    @abstractmethod
    def later_steps(self, sums: list[PlannedSum], popularity: Floats) -> PeerSteps:
        """What follows on noisy popularity, in people."""

    @cached_property
    def calibration(self) -> Calibration:
        return Calibration.of(self.promise, list(self.parts), list(self.lengths))

    def sums(self) -> list[PlannedSum]:
        first = NoisyPopularity.planned(self.n_items, self.n_users, self.calibration.shares[0])
        return [first, *self.later_sums()]

    def steps(self) -> PeerSteps:
        """The computation, held to its plan."""
        plan = self.sums()
        return keep_to(plan, self._steps(plan))

    def _steps(self, plan: list[PlannedSum]) -> PeerSteps:
        ask: Any = plan[0].ask()
        votes = yield ask
        popularity = ask.encoding.decode(np.maximum(votes, 0))
        return (yield from self.later_steps(plan[1:], popularity))

    def head_of(self, popularity: Floats, head: int) -> tuple[NDArray[np.int64], Floats]:
        """The items on top, and their popularity: less than one person adds is noise."""
        items = most_popular(popularity, head)
        return items, np.maximum(popularity[items], 1.0)


@dataclass(frozen=True)
class PeerInRounds(Peer):
    """A peer that goes on, after popularity, in rounds over the items on top."""

    head: int = 2000
    rounds: int = 2
    popularity_share: float = 0.1
    """Part of the budget (of mu^2) that goes into popularity."""
    growth: float = 1.5
    """Of the part of the budget from one round to the next."""

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
    """The same order for everybody."""

    popularity: Floats

    def behind(self) -> Float32:
        return behind_all_else(self.popularity)

    def score(self, user_items: sp.csr_array) -> Float32:
        return np.repeat(self.behind()[None], user_items.shape[0], axis=0)
