"""Base class of the trained methods, their optimiser and their tuned settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from privirec.federated.contributions import Contribution
from privirec.federated.programs import Broadcast
from privirec.filters.parts import Scorer, UserScorer

Float32 = NDArray[np.float32]
TrainingSteps = Generator[Contribution | Broadcast, Any, None]


class Training(ABC):
    """One training run.

    Call `start` once, then `epoch` any number of times. After each call the clients have received
    everything that `scorer` needs, and the ledger includes the bytes that this took.
    """

    name: ClassVar[str]
    title: ClassVar[str]

    @abstractmethod
    def start(self) -> TrainingSteps:
        """Run the sums and broadcasts that precede the first epoch."""

    @abstractmethod
    def epoch(self) -> TrainingSteps:
        """Run one step of the item side, to which all people contribute."""

    @abstractmethod
    def scorer(self) -> Scorer | UserScorer:
        """Return the scorer that clients can use with what they have received so far."""


@dataclass
class Adam:
    """The Adam optimiser (Kingma and Ba 2015) with a decreasing learning rate."""

    rate: float
    shape: tuple[int, ...]
    half_rate_after: int
    """Number of steps after which the rate is a half; after twice as many it is a third, etc."""
    first_decay: float = 0.9
    second_decay: float = 0.99
    """Decay of the second moment; below the usual 0.999 because there are few steps."""
    _steps: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._first = np.zeros(self.shape, np.float32)
        self._second = np.zeros(self.shape, np.float32)

    def step(self, gradient: Float32) -> Float32:
        """Return the update to subtract from the parameters."""
        self._steps += 1
        self._first += (1 - self.first_decay) * (gradient - self._first)
        self._second += (1 - self.second_decay) * (np.square(gradient) - self._second)
        first = self._first / (1 - self.first_decay**self._steps)
        second = self._second / (1 - self.second_decay**self._steps)
        rate = self.rate / (1 + (self._steps - 1) / self.half_rate_after)
        return np.asarray(rate * first / (np.sqrt(second) + 1e-12), np.float32)


@dataclass(frozen=True)
class Tuned:
    """Settings and number of epochs of a trained method.

    They were tuned by hand over a small grid, by NDCG@20 of 4,000 people on a held-out fifth of
    Gowalla's train split. docs/results/frontier.md has all trials; `benchmarks/tune_trained.py`
    runs one. Training stops when NDCG@20 stops rising, or when a client has sent 3 GB.
    """

    settings: Mapping[str, Any]
    epochs: int


TUNED: Mapping[str, Mapping[str, Tuned]] = {
    "mf": {
        "gowalla": Tuned(
            {"columns": 64, "unobserved": 0.01, "ridge": 0.01, "step": 1.0, "momentum": 0.4}, 30
        ),
    },
    "lightgcn": {
        "gowalla": Tuned(
            {"columns": 64, "layers": 1, "rate": 0.1, "half_rate_after": 20, "ridge": 0.003}, 130
        ),
    },
}


def tuned_settings(method: str, dataset: str) -> Tuned:
    """Return the settings for the data set, or Gowalla's if it has none."""
    return TUNED[method].get(dataset, TUNED[method]["gowalla"])
