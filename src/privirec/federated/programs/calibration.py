"""How much noise each client adds so that a run keeps its promise, in whole units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from privirec.dp.discrete import LEAST_DEVIATION, distance
from privirec.dp.gaussian import mu_of
from privirec.dp.loss import Loss
from privirec.dp.normal import exp, upward
from privirec.federated.contributions import NoiseShare

LEAST_FRACTION_BITS = 12
FINE_ENOUGH = 16 * LEAST_DEVIATION
"""A client's deviation is a whole number; at so many units rounding it up costs 0.8 % at most."""
FOR_DISCRETENESS = 0.01
"""Part of delta that whole numbers instead of real ones may cost. It is more than enough."""


@dataclass(frozen=True)
class Promise:
    """What is promised to every person, and by whose noise."""

    epsilon: float
    delta: float
    clients: int
    """Most clients that add noise."""
    contributors: int
    """Fewest clients whose noise stays secret."""

    @property
    def mu(self) -> float:
        """All sums together are to be so private; `dp.gaussian`."""
        return mu_of(self.epsilon, (1 - FOR_DISCRETENESS) * self.delta)

    def signal(self, n_users: int) -> float:
        """The people, each counted as much as the noise of a full cohort lets through: what can be
        learnt depends on this one number."""
        return self.mu * math.sqrt(self.contributors / self.clients) * n_users


@dataclass(frozen=True)
class Calibration:
    """Noise for each sum of a run, and what it really promises."""

    shares: tuple[NoiseShare, ...]
    epsilon: float

    @classmethod
    def of(cls, promise: Promise, parts: Sequence[float], lengths: Sequence[int]) -> Calibration:
        """The least noise in whole units that keeps the promise. `parts` of mu^2, which add up to
        one, go into sums of these lengths, to each of which a person adds a vector of length at
        most one."""
        paid = 1 + upward(exp(promise.epsilon))
        affordable = FOR_DISCRETENESS / len(parts) * promise.delta / paid
        square = Fraction(promise.mu) ** 2
        shares = tuple(
            _share(square * Fraction(part), length, promise, affordable)
            for part, length in zip(parts, lengths, strict=True)
        )
        losses = (
            share.protection(length).loss for share, length in zip(shares, lengths, strict=True)
        )
        return cls(shares, Loss.together(losses).epsilon(promise.delta))


def _share(square: Fraction, entries: int, promise: Promise, affordable: float) -> NoiseShare:
    """Return a client's noise for one sum that is to be mu-private, for a given mu^2, in units so
    small that whole numbers of them cost next to nothing."""
    bits = LEAST_FRACTION_BITS
    while True:
        needed = (4**bits / square + Fraction(1, 12)) / promise.contributors
        # The least whole number whose square is no less.
        deviation = math.isqrt(math.ceil(needed) - 1) + 1
        share = NoiseShare(deviation, promise.clients, promise.contributors, bits)
        if deviation >= FINE_ENOUGH and distance(share.protecting_deviation, entries) <= affordable:
            return share
        bits += 1
