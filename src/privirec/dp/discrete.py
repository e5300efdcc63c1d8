"""Noise in whole numbers, added by many clients, against the Gaussian of the formulas.

Each client adds discrete Gaussian noise. Their sum is a discrete Gaussian with the sum of the
variances, but for a relative error of at most 10 exp(-pi^2 v) a client, v the variance of one of
them (Kairouz, Liu and Steinke 2021), which LEAST_DEVIATION makes less than 2^-900.

A Gaussian that is rounded to whole numbers protects as well as the Gaussian itself: rounding comes
after the noise, and whole numbers under it are not touched. How far is a discrete Gaussian of
deviation s, on d entries, from a rounded Gaussian of the same variance, that is of deviation
sqrt(s^2 - 1/12)? The logarithm of their ratio is -He_4(x/s) / (2880 s^4) to leading order, with
He_4 the fourth Hermite polynomial, so that their divergence is d / (691,200 s^8), and by Pinsker's
inequality their distance in total variation is at most sqrt(d) / (1,175 s^4). `distance` takes
twice that; a test computes the divergence itself.

Whoever swaps the two pays with delta: (epsilon, delta) becomes (epsilon, delta + (1 + e^epsilon)
distance).
"""

from __future__ import annotations

import math

from privirec.dp.gaussian import LARGEST_EPSILON, delta_of, epsilon_of
from privirec.errors import UsageError

LEAST_DEVIATION = 8
"""Of one client's noise, in units."""
LEAST_TOTAL_DEVIATION = 64
"""Of the sum, in units: there the leading order is all that counts."""


def distance(deviation: float, entries: int) -> float:
    """Total variation between noise of whole numbers and the rounded Gaussian, over all entries."""
    if deviation < LEAST_TOTAL_DEVIATION:
        raise UsageError(
            f"noise of {deviation:g} units is too coarse: {LEAST_TOTAL_DEVIATION} are the least"
        )
    return 2 * math.sqrt(entries) / (1175 * deviation**4)


def gaussian_deviation(deviation: float) -> float:
    """Of the Gaussian whose rounded version has this deviation."""
    return math.sqrt(deviation**2 - 1 / 12)


def epsilon_with(mu: float, delta: float, gap: float) -> float:
    """The least epsilon of a release that is mu-GDP but for a distance in total variation of `gap`,
    or a little more; infinite where there is none.

    What the gap costs grows with epsilon, so that epsilon climbs to where both fit into delta.
    """
    epsilon = 0.0
    while epsilon < LARGEST_EPSILON:
        left = delta - (1 + math.exp(epsilon)) * gap
        if left <= 0:
            return math.inf
        if delta_of(epsilon, mu) <= left:
            return epsilon
        epsilon = max(epsilon_of(mu, left), epsilon * (1 + 1e-9))
    return math.inf
