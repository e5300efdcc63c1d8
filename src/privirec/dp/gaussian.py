"""Exact conversions between the level mu of Gaussian noise and (epsilon, delta).

Noise of deviation s on something that one person changes by at most D (as a vector, in Euclidean
length) is mu-GDP with mu = D / s: telling whether the person took part is no easier than telling a
standard normal from one that is shifted by mu (Dong, Roth and Su 2022). Several such releases, each
of which may depend on the ones before, are together as private as one with
mu = sqrt(mu_1^2 + mu_2^2 + ...): nothing is lost in adding up. In terms of epsilon and delta

    delta = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu)

for every epsilon >= 0, and that is the least delta (Balle and Wang 2018).

All results are the same on every machine, and are rounded towards promising less: delta, epsilon
and a composed mu up, the mu that a promise allows down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

from privirec.dp import normal
from privirec.errors import UsageError

LEAST_EPSILON = 1e-4
"""Smallest epsilon that can be promised: smaller ones would need absurd amounts of noise."""
LARGEST_EPSILON = 60.0
"""Beyond this a promise means nothing, and could not be shown: tables of the discrete Gaussian
(`dp.tables`) are exact but for a chance below 2^-144, for which e^epsilon times as much is paid."""


def composed(levels: Iterable[float]) -> float:
    """Return mu of all releases together, rounded up."""
    found = list(levels)
    if not all(map(math.isfinite, found)):
        return math.inf
    return root_upward(sum((Fraction(mu) ** 2 for mu in found), Fraction(0)))


def root_upward(square: Fraction) -> float:
    """Return the least double whose square is at least this number."""
    root = math.sqrt(square)
    while Fraction(root) ** 2 < square:
        root = math.nextafter(root, math.inf)
    while root > 0 and Fraction(before := math.nextafter(root, 0.0)) ** 2 >= square:
        root = before
    return root


def delta_of(epsilon: float, mu: float) -> float:
    """Return the least delta with which a mu-GDP release is (epsilon, delta)-private, rounded
    up."""
    return min(1.0, normal.upward(_delta(epsilon, mu))) if mu > 0 else 0.0


def _delta(epsilon: float, mu: float) -> Decimal:
    with localcontext(normal.CONTEXT):
        half, shift = Decimal(mu) / 2, Decimal(epsilon) / Decimal(mu)
        return normal.cdf(half - shift) - normal.exp(epsilon) * normal.cdf(-half - shift)


@lru_cache(maxsize=4096)
def epsilon_of(mu: float, delta: float) -> float:
    """Return the least epsilon with which a mu-GDP release is (epsilon, delta)-private; infinite
    beyond LARGEST_EPSILON."""
    check_delta(delta)
    if mu <= 0 or _excess(0.0, mu, delta) <= 0:
        return 0.0
    if math.isinf(mu) or _excess(LARGEST_EPSILON, mu, delta) > 0:
        return math.inf
    return normal.root(lambda epsilon: _excess(epsilon, mu, delta), 0.0, LARGEST_EPSILON)


@lru_cache(maxsize=4096)
def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest level at which a release is still (epsilon, delta)-private."""
    check_delta(delta)
    if not LEAST_EPSILON <= epsilon <= LARGEST_EPSILON:
        raise UsageError(
            f"epsilon = {epsilon}: a number from {LEAST_EPSILON:g} to {LARGEST_EPSILON:g}"
        )
    upper = 1.0
    while _excess(epsilon, upper, delta) <= 0:
        upper *= 2
    lower = upper
    while _excess(epsilon, lower, delta) > 0:
        lower /= 2
    return normal.root(lambda mu: _excess(epsilon, mu, delta), lower, upper)


def _excess(epsilon: float, mu: float, delta: float) -> Decimal:
    """Return by how much the delta of a release exceeds the one that is allowed. In log odds that
    is nearly a straight line in epsilon and in mu."""
    with localcontext(normal.CONTEXT):
        return normal.log_odds(normal.raised(_delta(epsilon, mu))) - normal.log_odds(Decimal(delta))


def check_delta(delta: float) -> None:
    """Raise UsageError unless `delta` is a probability between 0 and 1."""
    if not 0 < delta < 1:
        raise UsageError(f"delta = {delta}: a number between 0 and 1")
