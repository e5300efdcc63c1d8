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
distance). Where epsilon is large, as for many runs together, that is much. But a discrete Gaussian
of variance s^2 is also as concentrated as the Gaussian of that variance, with nothing to pay
(Canonne, Kamath and Steinke 2020): its Renyi divergence of order a is at most a mu^2 / 2. That
gives an epsilon that is a little larger, and the smaller of the two counts.
"""

from __future__ import annotations

import math

from privirec.dp.gaussian import LARGEST_EPSILON, delta_of, epsilon_of
from privirec.dp.normal import least
from privirec.errors import UsageError

LEAST_DEVIATION = 8
"""Of one client's noise, in units."""
LEAST_TOTAL_DEVIATION = 64
"""Of the sum, in units: there the leading order is all that counts."""

_SMALL_STEPS = 20
"""Steps of the search for epsilon, before they grow."""


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
    """The least epsilon that we can show of a release with discrete Gaussian noise, which is
    mu-GDP but for a distance in total variation of `gap`; infinite where there is none.

    What the gap costs grows with epsilon, so that epsilon climbs to where both fit into delta. Near
    the last epsilon where they do, or past it, the climb would take for ever: its steps grow.
    """
    concentrated = concentrated_epsilon(mu, delta)
    epsilon, climbed = 0.0, 0
    while epsilon < concentrated:
        left = delta - (1 + math.exp(epsilon)) * gap
        if left <= 0:
            break
        if delta_of(epsilon, mu) <= left:
            return epsilon
        least_step = 1e-9 * 2.0 ** max(0, climbed - _SMALL_STEPS)
        epsilon, climbed = max(epsilon_of(mu, left), epsilon * (1 + least_step)), climbed + 1
    return concentrated


def concentrated_epsilon(mu: float, delta: float) -> float:
    """epsilon of a release whose Renyi divergence of every order a is at most a mu^2 / 2, by the
    best of these orders; for every order the bound holds, so a coarse search will do."""
    if mu <= 0:
        return 0.0
    rho = mu * mu / 2

    def bound(excess: float) -> float:
        order = 1 + math.exp(excess)
        return (
            rho * order + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        )

    epsilon = max(0.0, least(bound, -12.0, 16.0, within=1e-6))
    return epsilon if epsilon <= LARGEST_EPSILON else math.inf
