"""Noise in whole numbers, added by many clients, compared with the Gaussian of the formulas.

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
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

from privirec.dp import normal
from privirec.dp.gaussian import LARGEST_EPSILON, check_delta, delta_of, epsilon_of
from privirec.errors import UsageError

LEAST_DEVIATION = 8
"""Of one client's noise, in units."""
LEAST_TOTAL_DEVIATION = 64
"""Of the sum, in units: there the leading order is all that counts."""

_SMALL_STEPS = 5
"""Steps of the search for epsilon, before they grow."""


def distance(deviation: float, entries: int) -> float:
    """Return the total variation between noise of whole numbers and the rounded Gaussian, over all
    entries. Twice what was shown, so that its own rounding does not matter."""
    if deviation < LEAST_TOTAL_DEVIATION:
        raise UsageError(
            f"noise of {deviation:g} units is too coarse: {LEAST_TOTAL_DEVIATION} are the least"
        )
    square = deviation * deviation
    return 2 * math.sqrt(entries) / (1175 * square * square)


def gaussian_variance(variance: Fraction) -> Fraction:
    """Return the variance of the Gaussian whose rounded version has this variance."""
    return variance - Fraction(1, 12)


@lru_cache(maxsize=4096)
def epsilon_with(mu: float, delta: float, gap: float) -> float:
    """Return the least epsilon that we can show of a release with discrete Gaussian noise, which is
    mu-GDP but for a distance in total variation of `gap`; infinite where there is none.

    What the gap costs grows with epsilon, so that epsilon climbs to where both fit into delta. Near
    the last epsilon where they do, or past it, the climb would take for ever: its steps grow.
    """
    concentrated = concentrated_epsilon(mu, delta)
    epsilon, climbed = 0.0, 0
    while epsilon < concentrated:
        left = delta - normal.upward(_cost_of_gap(epsilon, gap))
        if left <= 0:
            break
        if delta_of(epsilon, mu) <= math.nextafter(left, 0.0):
            return epsilon
        least_step = math.ldexp(1e-9, 3 * max(0, climbed - _SMALL_STEPS))
        epsilon, climbed = max(epsilon_of(mu, left), epsilon * (1 + least_step)), climbed + 1
    return concentrated


def _cost_of_gap(epsilon: float, gap: float) -> Decimal:
    with localcontext(normal.CONTEXT):
        return (1 + normal.exp(epsilon)) * Decimal(gap)


def concentrated_epsilon(mu: float, delta: float) -> float:
    """Return epsilon of a release whose Renyi divergence of every order a is at most a mu^2 / 2, by
    the best of these orders; for every order the bound holds, so a coarse search will do."""
    check_delta(delta)
    if mu <= 0:
        return 0.0
    if math.isinf(mu):
        return math.inf

    def bound(excess: float) -> Decimal:
        with localcontext(normal.CONTEXT):
            rest = normal.exp(excess)  # of the order beyond one
            order = 1 + rest
            rho = Decimal(mu) * Decimal(mu) / 2
            return rho * order + (rest / order).ln() - (normal.log(delta) + order.ln()) / rest

    epsilon = max(0.0, normal.upward(normal.least(bound, -12.0, 16.0, within=1e-4)))
    return epsilon if epsilon <= LARGEST_EPSILON else math.inf
