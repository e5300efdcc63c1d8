"""What a trained method is: a start, and epochs that leave something to score with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from privirec.federated.contributions import Contribution
from privirec.federated.programs import Broadcast
from privirec.filters.scorers import Scorer, UserScorer

Float32 = NDArray[np.float32]
TrainingSteps = Generator[Contribution | Broadcast, Any, None]


class Training(ABC):
    """One training run. `start` once, then `epoch` as often as wanted; after each of them all that
    `scorer` needs has been told to the clients, and what that took is in the ledger."""

    name: ClassVar[str]
    title: ClassVar[str]

    @abstractmethod
    def start(self) -> TrainingSteps:
        """Sums and broadcasts before the first epoch."""

    @abstractmethod
    def epoch(self) -> TrainingSteps:
        """Everybody contributes once to a step of the item side."""

    @abstractmethod
    def scorer(self) -> Scorer | UserScorer:
        """How clients rank with what they have now."""


@dataclass
class Adam:
    """Kingma and Ba 2015, with a rate that falls."""

    rate: float
    shape: tuple[int, ...]
    half_rate_after: int
    """Steps after which the rate is half, after twice as many a third, and so on."""
    first_decay: float = 0.9
    second_decay: float = 0.99
    """Below the usual 0.999, as there are few steps."""
    _steps: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._first = np.zeros(self.shape, np.float32)
        self._second = np.zeros(self.shape, np.float32)

    def step(self, gradient: Float32) -> Float32:
        """What to subtract."""
        self._steps += 1
        self._first += (1 - self.first_decay) * (gradient - self._first)
        self._second += (1 - self.second_decay) * (np.square(gradient) - self._second)
        first = self._first / (1 - self.first_decay**self._steps)
        second = self._second / (1 - self.second_decay**self._steps)
        rate = self.rate / (1 + (self._steps - 1) / self.half_rate_after)
        return np.asarray(rate * first / (np.sqrt(second) + 1e-12), np.float32)
