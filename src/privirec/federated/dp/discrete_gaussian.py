"""Mechanism of discrete Gaussian noise."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import ClassVar

from privirec.errors import UsageError
from privirec.federated.dp.discrete import LEAST_DEVIATION, distance, gaussian_variance
from privirec.federated.dp.gaussian import root_upward
from privirec.federated.dp.loss import Loss
from privirec.federated.dp.mechanism import Mechanism
from privirec.federated.dp.normal import log, upward
from privirec.federated.dp.sampler import GaussianNoise, NoiseGenerator

LEAST_FRACTION_BITS = 12
FINE_ENOUGH = 16 * LEAST_DEVIATION
"""Least deviation of a client's noise, in units.

The deviation is rounded up to a whole number, which costs at most 0.8 % from here on.
"""


class DiscreteGaussian(Mechanism):
    """Discrete Gaussian noise with an integer standard deviation."""

    name: ClassVar[str] = "discrete Gaussian"

    def sampler(self, deviation: int, clients: int = 1) -> NoiseGenerator:
        return NoiseGenerator(GaussianNoise(deviation, clients))

    def loss(self, deviation: int, contributors: int, fraction_bits: int, entries: int) -> Loss:
        """Return the loss, whose level is computed exactly and rounded up.

        Raise UsageError if a client's noise is so coarse that the noise of all of them is no
        discrete Gaussian (`dp.discrete`).
        """
        if deviation < LEAST_DEVIATION:
            raise UsageError(
                f"a client's noise of {deviation} units is too coarse: use at least "
                f"{LEAST_DEVIATION}"
            )
        variance = gaussian_variance(Fraction(deviation**2 * contributors))
        mu = root_upward(4**fraction_bits / variance)
        return Loss(mu, distance(deviation * math.sqrt(contributors), entries))

    def least_noise(
        self, square: Fraction, entries: int, contributors: int, largest_gap: float
    ) -> tuple[int, int]:
        bits = LEAST_FRACTION_BITS
        while True:
            needed = (4**bits / square + Fraction(1, 12)) / contributors
            # Smallest whole number whose square is at least `needed`.
            deviation = math.isqrt(math.ceil(needed) - 1) + 1
            fine = deviation >= FINE_ENOUGH
            if fine and distance(deviation * math.sqrt(contributors), entries) <= largest_gap:
                return deviation, bits
            bits += 1

    def reach(self, entries: int, tail_bits: int) -> float:
        """Return r from P[|x| > r s] <= 2 exp(-r^2 / 2).

        A discrete Gaussian has lighter tails than a Gaussian of the same deviation.
        """
        return math.sqrt(2 * upward(log(entries << tail_bits + 1)))


DISCRETE_GAUSSIAN = DiscreteGaussian()
