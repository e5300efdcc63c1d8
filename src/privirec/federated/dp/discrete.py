"""Integer noise added by many clients, compared with the Gaussian noise of the formulas.

Each client adds discrete Gaussian noise. The sum is a discrete Gaussian with the sum of the
variances, up to a relative error of at most 10 exp(-pi^2 v) per client, where v is the variance of
one client's noise (Kairouz, Liu and Steinke 2021). LEAST_DEVIATION makes this less than 2^-900.

A Gaussian rounded to integers protects as well as the Gaussian itself: the rounding follows the
noise, and leaves the underlying integers unchanged. Consider the distance between a discrete
Gaussian of standard deviation s on d entries and a rounded Gaussian of the same variance, that is
of standard deviation sqrt(s^2 - 1/12). The logarithm of their ratio is -He_4(x/s) / (2880 s^4) to
leading order, with He_4 the fourth Hermite polynomial. Hence their divergence is d / (691,200 s^8),
and by Pinsker's inequality their total variation distance is at most sqrt(d) / (1,175 s^4).
`distance` returns twice that; a test computes the divergence itself.

Replacing one by the other costs delta: (epsilon, delta) becomes (epsilon, delta + (1 + e^epsilon)
distance). This is much if epsilon is large, as for many runs together. However, a discrete Gaussian
of variance s^2 is also as concentrated as the Gaussian of that variance, at no cost (Canonne,
Kamath and Steinke 2020): its Renyi divergence of order a is at most a mu^2 / 2. The resulting
epsilon is slightly larger without the cost of a distance. The smaller of the two applies.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

from privirec.errors import UsageError
from privirec.federated.dp import normal
from privirec.federated.dp.gaussian import LARGEST_EPSILON, check_delta, delta_of, epsilon_of

LEAST_DEVIATION = 8
"""Minimum standard deviation of one client's noise, in units."""
LEAST_TOTAL_DEVIATION = 64
"""Minimum standard deviation of the sum, in units; beyond it, only the leading order matters."""

_FIRST_STEP = 1e-12
"""Minimum first step in the search for epsilon."""
_SMALL_STEPS = 5
"""Number of steps in the search for epsilon before the minimum step grows."""


def distance(deviation: float, entries: int) -> float:
    """Return the total variation distance between integer noise and the rounded Gaussian.

    It is taken over all entries. It is twice the proven bound, so that floating-point rounding does
    not matter.
    """
    if deviation < LEAST_TOTAL_DEVIATION:
        raise UsageError(
            f"noise of {deviation:g} units is too coarse: use at least {LEAST_TOTAL_DEVIATION}"
        )
    square = deviation * deviation
    return 2 * math.sqrt(entries) / (1175 * square * square)


def gaussian_variance(variance: Fraction) -> Fraction:
    """Return the variance of the Gaussian whose rounded version has this variance."""
    return variance - Fraction(1, 12)


@lru_cache(maxsize=4096)
def epsilon_with(mu: float, delta: float, gap: float) -> float:
    """Return the least provable epsilon of a release with discrete Gaussian noise.

    The release is mu-GDP up to a total variation distance of `gap`. The result is infinite if no
    epsilon can be proven. The cost of the gap grows with epsilon, so epsilon increases until both
    fit into delta. Near the last epsilon for which they fit, or beyond it, the search would hardly
    advance, so its minimum step grows.

    A level of 0 has no discrete Gaussian noise behind it. Then only the gap counts, and a larger
    epsilon does not lower its cost.
    """
    concentrated = concentrated_epsilon(mu, delta)
    if mu <= 0:
        return 0.0 if 2 * gap <= delta else math.inf
    epsilon, climbed = 0.0, 0
    while epsilon < concentrated and epsilon <= LARGEST_EPSILON:
        left = delta - normal.upward(_cost_of_gap(epsilon, gap))
        if left <= 0:
            break
        if delta_of(epsilon, mu) <= math.nextafter(left, 0.0):
            return epsilon
        least_step = math.ldexp(1e-9, 3 * max(0, climbed - _SMALL_STEPS))
        climbed += 1
        epsilon = max(epsilon_of(mu, left), epsilon * (1 + least_step), _FIRST_STEP)
    return concentrated


def _cost_of_gap(epsilon: float, gap: float) -> Decimal:
    with localcontext(normal.CONTEXT):
        return (1 + normal.exp(epsilon)) * Decimal(gap)


def concentrated_epsilon(mu: float, delta: float) -> float:
    """Return epsilon of a release whose Renyi divergence of every order a is at most a mu^2 / 2.

    Discrete Gaussian noise has this property (see the module), other noise near a Gaussian need not
    have it. The best order is used. The bound holds for every order, so a coarse search suffices.
    """
    check_delta(delta)
    if mu <= 0:
        return 0.0
    if math.isinf(mu):
        return math.inf

    def bound(excess: float) -> Decimal:
        with localcontext(normal.CONTEXT):
            rest = normal.exp(excess)  # the order minus one
            order = 1 + rest
            rho = Decimal(mu) * Decimal(mu) / 2
            return rho * order + (rest / order).ln() - (normal.log(delta) + order.ln()) / rest

    epsilon = max(0.0, normal.upward(normal.least(bound, -12.0, 16.0, within=1e-4)))
    return epsilon if epsilon <= LARGEST_EPSILON else math.inf
