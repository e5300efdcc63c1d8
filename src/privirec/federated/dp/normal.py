"""The standard normal distribution in decimal arithmetic.

These numbers decide how much noise a run needs and which privacy it guarantees, so all machines
must compute the same values. The mathematical libraries of different machines round exp, log and
erf differently, while `decimal` defines every digit of its results. Functions that return a
`Decimal` are correct to `DIGITS` significant digits. `upward` converts such a result to a double
that is never too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

DIGITS = 40
"""Number of correct significant digits of every result."""
_GUARD = 10
"""Additional digits that absorb the rounding of single operations."""
_FAR = 16
"""Argument from which the asymptotic series of the tail is exact to DIGITS."""
RESOLUTION = 1 / (1 << 44)
"""Relative precision of `root`."""
_GOLDEN = (math.sqrt(5) - 1) / 2

CONTEXT = Context(prec=DIGITS + _GUARD, Emin=MIN_EMIN, Emax=MAX_EMAX)
_ERROR = Decimal(10) ** -DIGITS


def cdf(x: Decimal) -> Decimal:
    """Return Phi(x), the probability that a standard normal variable is at most x."""
    if x > 0:
        with localcontext(CONTEXT):
            return 1 - _tail(x)
    return _tail(x.copy_negate())


def _tail(x: Decimal) -> Decimal:
    """Return Phi(-x) for x >= 0.

    Near the centre, Phi(x) - 1/2 = phi(x) (x + x^3/3 + x^5/15 + ...). All terms are positive, but
    the subtraction from 1/2 cancels more digits the smaller the tail is, so the precision is
    increased. For large x, Phi(-x) = phi(x)/x (1 - 1/x^2 + 3/x^4 - ...), and the error is below the
    first omitted term.
    """
    squared = CONTEXT.multiply(x, x)
    if x >= _FAR:
        with localcontext(CONTEXT):
            term, total, odd = Decimal(1), Decimal(1), 1
            while abs(term) > _ERROR:
                term *= -odd / squared
                total += term
                odd += 2
            return _density(squared) * total / x
    lost = int(squared) // 4  # log10(e) / 2 is less than a quarter
    with localcontext(CONTEXT) as context:
        context.prec += lost
        squared = x * x
        enough = Decimal(10) ** -context.prec
        term = total = x
        odd = 1
        while term > enough:
            odd += 2
            term = term * squared / odd
            total += term
        return Decimal("0.5") - _density(squared) * total


def _density(squared: Decimal) -> Decimal:
    """Return phi(x) for a given x^2, to the precision of the current context."""
    with localcontext() as context:
        digits = context.prec
        context.prec += _GUARD
        return (-squared / 2).exp() / _root_of_two_pi(digits)


@lru_cache(maxsize=128)
def _root_of_two_pi(digits: int) -> Decimal:
    """Return sqrt(2 pi), with pi from Machin's formula in integer arithmetic."""
    unit = 10 ** (digits + 2 * _GUARD)

    def arc_tangent(inverse: int) -> int:
        power = unit // inverse
        total, odd = power, 1
        while power:
            power //= -inverse * inverse
            odd += 2
            total += power // odd
        return total

    pi = 4 * (4 * arc_tangent(5) - arc_tangent(239))
    with localcontext(CONTEXT) as context:
        context.prec = digits + _GUARD
        return (Decimal(2 * pi) / unit).sqrt()


def exp(x: float) -> Decimal:
    """Return e^x."""
    return CONTEXT.exp(Decimal(x))


def log(x: float) -> Decimal:
    """Return the natural logarithm of x."""
    return CONTEXT.ln(Decimal(x))


def log_odds(chance: Decimal) -> Decimal:
    """Return log(p / (1 - p)) of a positive p, with 1 - p at least 10^-DIGITS."""
    with localcontext(CONTEXT):
        return (chance / max(1 - chance, _ERROR)).ln()


def raised(value: Decimal) -> Decimal:
    """Return an upper bound of the exact value, as `value` has a relative error of 10^-DIGITS."""
    with localcontext(CONTEXT):
        return value + abs(value) * _ERROR


def upward(value: Decimal) -> float:
    """Return the least double that is not below the exact value that `value` approximates."""
    value = raised(value)
    nearest = float(value)
    return math.nextafter(nearest, math.inf) if Decimal(nearest) < value else nearest


def sum_upward(values: Iterable[float]) -> float:
    """Return the least double that is not below the exact sum of these values."""
    found = list(values)
    total = math.fsum(found)
    exact = sum(map(Fraction, found), Fraction(0))
    return math.nextafter(total, math.inf) if Fraction(total) < exact else total


def root(function: Callable[[float], Decimal], low: float, high: float) -> float:
    """Return the point where a monotone function changes sign, on the non-positive side.

    The Illinois method: regula falsi, except that the value at an end that stays for two steps is
    halved. New points keep a minimum distance from both ends, so that the last step brings the ends
    together. Every fourth step bisects the interval, whatever the function.
    """
    with localcontext(CONTEXT):
        at_low, at_high = function(low), function(high)
        falls = at_low > 0
        if falls == (at_high > 0):
            raise ValueError("a function that does not change its sign")
        stayed, steps = "", 0
        while high - low > RESOLUTION * high:
            steps += 1
            apart = RESOLUTION / 3 * high
            share = float(at_low / (at_low - at_high)) if steps % 4 else 0.5
            point = low + share * (high - low)
            point = min(max(point, low + apart), high - apart)
            if not low < point < high:
                break  # the ends are so small that no double lies at that distance
            value = function(point)
            if (value > 0) == falls:
                low, at_low = point, value
                at_high, stayed = (at_high / 2 if stayed == "high" else at_high), "high"
            else:
                high, at_high = point, value
                at_low, stayed = (at_low / 2 if stayed == "low" else at_low), "low"
        return high if falls else low


def least(function: Callable[[float], Decimal], low: float, high: float, within: float) -> Decimal:
    """Return the minimum of a function that first falls and then rises (golden-section search)."""
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > within:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = function(right)
    return min(at_left, at_right)
