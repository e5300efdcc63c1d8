"""Privacy loss of one person through noisy sums, in a form that composes exactly."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from privirec.federated.dp.discrete import epsilon_with
from privirec.federated.dp.gaussian import composed
from privirec.federated.dp.normal import sum_upward


@dataclass(frozen=True)
class Loss:
    """Privacy loss of one Gaussian release of level `mu`, up to a distance of `gap`.

    `mu` is the parameter of Gaussian differential privacy. `gap` is the total variation distance
    between the noise that was added and that Gaussian (`dp.discrete`). For several sums, each of
    which may depend on the results of earlier ones, the squares of `mu` add up, and so do the gaps.
    Nothing is lost in this composition. Only the final (epsilon, delta) is a promise to a person.

    `mu` compares all of a person's history with none of it. `replacing` is the level at which one
    history can be told from another of the same person.
    """

    mu: float = 0.0
    gap: float = 0.0
    replacing: float = math.nan
    """Level for replacing one history by another.

    By default it is twice `mu`, which bounds it for any sum: one history is removed and the other
    one added.
    """

    def __post_init__(self) -> None:
        if math.isnan(self.replacing):
            object.__setattr__(self, "replacing", 2 * self.mu)

    @classmethod
    def together(cls, losses: Iterable[Loss]) -> Self:
        """Return the loss of all these sums together."""
        found = list(losses)
        return cls(
            composed(one.mu for one in found),
            sum_upward(one.gap for one in found),
            composed(one.replacing for one in found),
        )

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon of this loss for a given delta; infinite if there is none."""
        return self._epsilon(self.mu, delta)

    def epsilon_replacing(self, delta: float) -> float:
        """Return the least epsilon at which one history of a person can be told from another."""
        return self._epsilon(self.replacing, delta)

    def _epsilon(self, mu: float, delta: float) -> float:
        if math.isinf(mu):
            return math.inf
        return epsilon_with(mu, delta, self.gap) if mu or self.gap else 0.0


@dataclass(frozen=True)
class Protection:
    """Privacy loss of a sum, with the condition under which it holds."""

    loss: Loss
    contributors: int
    """Number of clients whose noise must be in the sum and unknown to anyone else."""
