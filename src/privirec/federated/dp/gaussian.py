"""Exact conversions between the level mu of Gaussian noise and (epsilon, delta).

Suppose that one person changes a vector by at most D in Euclidean length. Noise of standard
deviation s then makes its release mu-GDP with mu = D / s: telling whether the history was used
is no easier than telling a standard normal from one shifted by mu (Dong, Roth and Su 2022).
Several such releases, each of which may depend on earlier ones, are together as private as one with
mu = sqrt(mu_1^2 + mu_2^2 + ...); this composition is lossless. In terms of epsilon and delta,

    delta = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu)

for every epsilon >= 0, and this is the least delta (Balle and Wang 2018).

All results are identical on every machine. They are rounded to the safe side: delta, epsilon and a
composed mu up, the mu that a given (epsilon, delta) allows down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

from privirec.errors import UsageError
from privirec.federated.dp import normal

LEAST_EPSILON = 1e-4
"""Smallest epsilon that can be promised; smaller values would need excessive noise."""
LARGEST_EPSILON = 60.0
"""Largest epsilon that can be promised.

A larger epsilon protects nothing and could not be proven. The tables of the discrete Gaussian
(`dp.tables`) are exact except with probability below 2^-144, and the cost of this is multiplied by
e^epsilon.
"""

DEFAULT_DELTA = 1e-6
"""Largest delta of a promise, unless somebody chooses another; see `delta_for`."""

_DOUBLE_BITS = 53
"""Number of significant bits of a double."""
_DOUBLE_PLACES = 1074
"""Largest number of binary places of a double."""
_LEAST = Decimal("1e-400")
"""A probability below every positive double."""
_ERROR = Decimal("1e-38")
"""Relative error of either term of delta; see `_delta`."""


def delta_for(people: int) -> float:
    """Return the default delta for a number of people, at most 1 / (10 people), rounded down.

    A promise that may fail with probability delta fails for one of `people` with probability at
    most a tenth.
    """
    most = Fraction(1, 10 * people)
    delta = min(DEFAULT_DELTA, float(most))
    return math.nextafter(delta, 0.0) if Fraction(delta) > most else delta


def composed(levels: Iterable[float]) -> float:
    """Return mu of all releases together, rounded up."""
    found = list(levels)
    if not all(map(math.isfinite, found)):
        return math.inf
    return root_upward(sum((Fraction(mu) ** 2 for mu in found), Fraction(0)))


def root_downward(square: Fraction) -> float:
    """Return the largest double whose square is at most this number, which is not negative."""
    root = root_upward(square)
    return root if Fraction(root) ** 2 <= square else math.nextafter(root, 0.0)


def root_upward(square: Fraction) -> float:
    """Return the least double whose square is at least this number; infinite if there is none."""
    if not square:
        return 0.0
    # Scale first: the square of a double may be too large or too small for a double.
    bits = square.numerator.bit_length() - square.denominator.bit_length()
    places = _DOUBLE_BITS + 2 - bits // 2
    root = math.isqrt(math.ceil(square * Fraction(4) ** places) - 1) + 1
    extra = max(root.bit_length() - _DOUBLE_BITS, places - _DOUBLE_PLACES)
    try:
        return math.ldexp(-(-root >> extra), extra - places)
    except OverflowError:
        return math.inf


def delta_of(epsilon: float, mu: float) -> float:
    """Return the least delta for which a mu-GDP release is (epsilon, delta)-private, rounded up."""
    return min(1.0, normal.upward(_delta(epsilon, mu))) if mu > 0 else 0.0


def _delta(epsilon: float, mu: float) -> Decimal:
    """Return a positive upper bound of delta.

    If mu is tiny, both terms agree in almost all digits, and their errors decide the difference.
    `normal.cdf` is correct to 40 digits. An argument x is correct to 49 digits, which changes a
    tail by x^2 / 10^49 of its value. Together this is less than `_ERROR` up to x = 10^5, and larger
    arguments have tails below `_LEAST`.
    """
    with localcontext(normal.CONTEXT):
        half, shift = Decimal(mu) / 2, Decimal(epsilon) / Decimal(mu)
        first = normal.cdf(half - shift)
        second = normal.exp(epsilon) * normal.cdf(-half - shift)
        return max(first - second + (first + second) * _ERROR, _LEAST)


@lru_cache(maxsize=4096)
def epsilon_of(mu: float, delta: float) -> float:
    """Return the least epsilon for which a mu-GDP release is (epsilon, delta)-private.

    The result is infinite above LARGEST_EPSILON.
    """
    check_delta(delta)
    if mu <= 0 or _excess(0.0, mu, delta) <= 0:
        return 0.0
    if math.isinf(mu) or _excess(LARGEST_EPSILON, mu, delta) > 0:
        return math.inf
    return normal.root(lambda epsilon: _excess(epsilon, mu, delta), 0.0, LARGEST_EPSILON)


@lru_cache(maxsize=4096)
def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest mu for which a release is still (epsilon, delta)-private."""
    check_delta(delta)
    if not LEAST_EPSILON <= epsilon <= LARGEST_EPSILON:
        raise UsageError(
            f"epsilon = {epsilon}: it must lie between {LEAST_EPSILON:g} and {LARGEST_EPSILON:g}"
        )
    upper = 1.0
    while _excess(epsilon, upper, delta) <= 0:
        upper *= 2
    lower = upper
    while _excess(epsilon, lower, delta) > 0:
        lower /= 2
    return normal.root(lambda mu: _excess(epsilon, mu, delta), lower, upper)


def _excess(epsilon: float, mu: float, delta: float) -> Decimal:
    """Return the excess of a release's delta over the allowed one, as a difference of log odds.

    In log odds, the excess is nearly linear in epsilon and in mu. Logarithms are rounded in the
    49th digit. This is less than what `_delta` adds to the exact value, so no excess is overlooked.
    """
    with localcontext(normal.CONTEXT):
        return normal.log_odds(_delta(epsilon, mu)) - normal.log_odds(Decimal(delta))


def check_delta(delta: float) -> None:
    """Raise UsageError unless `delta` is a probability between 0 and 1."""
    if not 0 < delta < 1:
        raise UsageError(f"delta = {delta}: it must lie between 0 and 1")
