"""Calibration of each client's noise, in whole units, so that a run keeps its privacy guarantee."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from privirec.federated.contributions import NoiseShare
from privirec.federated.dp import DEFAULT_MECHANISM
from privirec.federated.dp.gaussian import mu_of
from privirec.federated.dp.loss import Loss
from privirec.federated.dp.mechanism import MECHANISMS
from privirec.federated.dp.normal import exp, upward

FOR_DISCRETENESS = 0.01
"""Share of delta reserved for the use of whole numbers instead of real ones; more than enough."""


@dataclass(frozen=True)
class Promise:
    """Privacy guarantee for each person, and the clients whose noise provides it."""

    epsilon: float
    delta: float
    clients: int
    """Largest number of clients that add noise."""
    contributors: int
    """Smallest number of clients whose noise stays secret."""
    mechanism: str = DEFAULT_MECHANISM
    """Name of the distribution of the noise."""

    @property
    def mu(self) -> float:
        """Level of Gaussian differential privacy for all sums together; see `dp.gaussian`."""
        return mu_of(self.epsilon, (1 - FOR_DISCRETENESS) * self.delta)

    def signal(self, n_users: int) -> float:
        """Return mu * sqrt(contributors / clients) * n_users.

        This is the number of people, weighted by how much of each one the noise of a full cohort
        lets through. How much can be learnt depends on this number alone.
        """
        return self.mu * math.sqrt(self.contributors / self.clients) * n_users

    def share(self, square: Fraction, entries: int, largest_gap: float) -> NoiseShare:
        """Return a client's noise for one sum that is to be mu-private, for a given mu^2."""
        deviation, bits = MECHANISMS.named(self.mechanism).least_noise(
            square, entries, self.contributors, largest_gap
        )
        return NoiseShare(deviation, self.clients, self.contributors, bits, self.mechanism)


@dataclass(frozen=True)
class Calibration:
    """Noise for each sum of a run, and the guarantee that it actually provides."""

    shares: tuple[NoiseShare, ...]
    epsilon: float

    @classmethod
    def of(cls, promise: Promise, parts: Sequence[float], lengths: Sequence[int]) -> Calibration:
        """Return the least noise in whole units that keeps the guarantee.

        `parts` are shares of mu^2 that add up to one. Each goes to the sum of the corresponding
        length, to which a person adds a vector of length at most one.
        """
        paid = 1 + upward(exp(promise.epsilon))
        affordable = FOR_DISCRETENESS / len(parts) * promise.delta / paid
        square = Fraction(promise.mu) ** 2
        shares = tuple(
            promise.share(square * Fraction(part), length, affordable)
            for part, length in zip(parts, lengths, strict=True)
        )
        losses = (
            share.protection(length).loss for share, length in zip(shares, lengths, strict=True)
        )
        return cls(shares, Loss.together(losses).epsilon(promise.delta))
