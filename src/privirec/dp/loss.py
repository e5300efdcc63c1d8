"""What sums with noise can tell about one person, in a form that adds up exactly."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from privirec.dp.discrete import epsilon_with
from privirec.dp.gaussian import composed
from privirec.dp.normal import sum_upward


@dataclass(frozen=True)
class Loss:
    """No more than one Gaussian of level `mu` would tell, but for a distance of `gap`.

    `mu` is that of Gaussian differential privacy, `gap` the distance in total variation between the
    noise that was added and that Gaussian (`dp.discrete`). Of several sums, each of which may be
    about what the ones before have shown, the squares of the first and the second as it is add up;
    nothing is lost in that. Only (epsilon, delta) at the end is a promise to a person.
    """

    mu: float = 0.0
    gap: float = 0.0

    @classmethod
    def together(cls, losses: Iterable[Loss]) -> Self:
        """Of all these sums."""
        found = list(losses)
        return cls(composed(one.mu for one in found), sum_upward(one.gap for one in found))

    def epsilon(self, delta: float) -> float:
        """The least epsilon that this is, at a delta; infinite where it is none."""
        if math.isinf(self.mu):
            return math.inf
        return epsilon_with(self.mu, delta, self.gap) if self.mu or self.gap else 0.0


@dataclass(frozen=True)
class Protection:
    """What noise promises of a sum."""

    loss: Loss
    contributors: int
    """... if the noise of so many clients is in the sum and none of it is known to anybody else."""
