"""Calibration of each client's noise, in whole units, so that a run keeps its privacy guarantee."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from privirec.federated.contributions import NoiseShare
from privirec.federated.dp import DEFAULT_MECHANISM
from privirec.federated.dp.gaussian import mu_of
from privirec.federated.dp.loss import LARGEST_GAP, Loss, of_noise
from privirec.federated.dp.mechanism import MECHANISMS
from privirec.federated.dp.normal import exp, upward

FOR_DISCRETENESS = 0.01
"""Share of delta reserved for the use of whole numbers instead of real ones; more than enough."""
LARGEST_GAP_OF_RUN = LARGEST_GAP / 256
"""Cap on the gaps of all sums of a run, so that a budget has room for many runs at their caps."""
_SPARED = Fraction((1 << 40) - 1, 1 << 40)
"""Factor of budgets that are divided among sums. Levels of sums are rounded up to doubles, and this
leaves room for it."""


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
        return mu_of(self.epsilon, (1 - FOR_DISCRETENESS) * of_noise(self.delta))

    @property
    def cap(self) -> Loss:
        """Cap on the loss of all sums together.

        It is fixed in advance, so it is a privacy filter as `Loss.allowed` is: each sum, its length
        and its noise may depend on the results of earlier ones.
        """
        paid = 1 + upward(exp(self.epsilon))
        # Less than all that is reserved: a search for epsilon ends slightly above the least one.
        reserved = Fraction(FOR_DISCRETENESS) * Fraction(of_noise(self.delta))
        gap = Fraction(9, 10) * reserved / Fraction(paid)
        return Loss(self.mu, min(math.nextafter(float(gap), 0.0), LARGEST_GAP_OF_RUN))

    def confirmed(self, clients: int, corrupt: int) -> Promise:
        """Return the promise for sums in which exactly these clients are, no one more or less.

        All of them but the corrupt ones keep their noise secret.
        """
        return replace(self, clients=clients, contributors=max(1, clients - corrupt))

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

    def divided(
        self, left: Loss, parts: Sequence[float], lengths: Sequence[int], most_sums: int = 0
    ) -> tuple[NoiseShare, ...]:
        """Return a client's noise for each of several sums that together cost at most `left`.

        `parts` are shares of mu^2 that add up to one. Each goes to the sum of the corresponding
        length, to which a person adds a vector of length at most one. The gap is divided among
        `most_sums`, or among these sums if they are more.
        """
        gap = float(Fraction(left.gap) / max(most_sums, len(parts)) * _SPARED)
        exact = [Fraction(part) for part in parts]
        square = Fraction(left.mu) ** 2 / max(sum(exact), 1) * _SPARED
        return tuple(
            self.share(square * part, length, gap)
            for part, length in zip(exact, lengths, strict=True)
        )


@dataclass(frozen=True)
class Calibration:
    """Noise for each sum of a run, and the guarantee that it actually provides."""

    shares: tuple[NoiseShare, ...]
    epsilon: float

    @classmethod
    def of(cls, promise: Promise, parts: Sequence[float], lengths: Sequence[int]) -> Calibration:
        """Return the least noise in whole units that keeps the guarantee; see `divided`."""
        shares = promise.divided(promise.cap, parts, lengths)
        losses = (
            share.protection(length).loss for share, length in zip(shares, lengths, strict=True)
        )
        return cls(shares, Loss.together(losses).epsilon(promise.delta))
