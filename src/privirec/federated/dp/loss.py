"""Privacy loss of one person through noisy sums, in a form that composes exactly."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Self

from privirec.federated.dp.discrete import concentrated_epsilon, epsilon_with
from privirec.federated.dp.gaussian import composed, mu_of, root_downward
from privirec.federated.dp.normal import RESOLUTION, exp, sum_upward, upward

LARGEST_GAP = math.ldexp(1.0, -42)
"""Cap on the gaps of all sums of a budget together.

A sum of a usual run has a gap of 2^-45 or less.
"""

FOR_AGGREGATION = 0.01
"""Share of every delta that is reserved for a failure of secure aggregation itself.

Whether its graph fails does not depend on histories, so the probability of that adds to delta. A
client refuses a run in which it could add up to more than this share.
"""


def of_noise(delta: float) -> float:
    """Return the part of delta that is left to the noise, rounded down."""
    return math.nextafter((1 - FOR_AGGREGATION) * delta, 0.0)


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

    @classmethod
    def allowed(cls, epsilon: float, delta: float) -> Self:
        """Return a cap: losses that stay below it keep (epsilon, delta), however they were chosen.

        The cap is fixed in advance, so it is a privacy filter: each sum, and whether there is one,
        may depend on the results of all earlier ones. A cap on the sum of mu^2 keeps the level
        (Feldman and Zrnic 2021; Smith and Thakurta 2022). The gaps have a cap of their own, as a
        sum that is within both caps costs delta once for each. If they would cost more than half of
        delta (at 1e-6 above epsilon 14), discrete Gaussian noise is counted by its Renyi
        divergence instead, whose filter needs no gaps.
        """
        delta = of_noise(delta)
        left = Fraction(delta) - (1 + Fraction(upward(exp(epsilon)))) * Fraction(LARGEST_GAP)
        if left < Fraction(delta) / 2:
            return cls(_concentrated_level(epsilon, delta), delta)
        return cls(mu_of(epsilon, math.nextafter(float(left), 0.0)), LARGEST_GAP)

    def fits(self, cap: Loss) -> bool:
        """Return True if this loss is within a cap."""
        return self.mu <= cap.mu and self.gap <= cap.gap

    def left(self, cap: Loss) -> float:
        """Return the level of one more sum that stays within a cap, rounded down."""
        if not self.fits(cap):
            return 0.0
        return root_downward(Fraction(cap.mu) ** 2 - Fraction(self.mu) ** 2)

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon of this loss for a given delta; infinite if there is none."""
        return self._epsilon(self.mu, delta)

    def epsilon_replacing(self, delta: float) -> float:
        """Return the least epsilon at which one history of a person can be told from another."""
        return self._epsilon(self.replacing, delta)

    def _epsilon(self, mu: float, delta: float) -> float:
        if math.isinf(mu):
            return math.inf
        return epsilon_with(mu, of_noise(delta), self.gap) if mu or self.gap else 0.0


@lru_cache(maxsize=1024)
def _concentrated_level(epsilon: float, delta: float) -> float:
    """Return the largest mu whose Renyi divergences prove (epsilon, delta), rounded down."""
    low, high = 0.0, 16.0
    while high - low > RESOLUTION * high:
        middle = (low + high) / 2
        fits = concentrated_epsilon(middle, delta) <= epsilon
        low, high = (middle, high) if fits else (low, middle)
    return low


@dataclass(frozen=True)
class Protection:
    """Privacy loss of a sum, with the condition under which it holds."""

    loss: Loss
    contributors: int
    """Number of clients whose noise must be in the sum and unknown to anyone else."""
