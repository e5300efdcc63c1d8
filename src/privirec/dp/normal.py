"""The standard normal distribution, and two searches, with nothing but `math`.

What a device has to know of noise would otherwise load most of SciPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable

_FAR = -30.0
"""From here on the series below is exact to the last digits, and erfc still is no denormal."""
_GOLDEN = (math.sqrt(5) - 1) / 2


def ndtr(x: float) -> float:
    """Phi(x)."""
    return 0.5 * math.erfc(-x / math.sqrt(2))


def log_ndtr(x: float) -> float:
    """The logarithm of Phi(x), however small that is.

    Far out Phi(x) = phi(x) / |x| (1 - 1/x^2 + 3/x^4 - 15/x^6 ...), where what is left out is less
    than the first term that is.
    """
    if x > 0:
        return math.log1p(-0.5 * math.erfc(x / math.sqrt(2)))
    if x > _FAR:
        return math.log(0.5 * math.erfc(-x / math.sqrt(2)))
    term, rest = 1.0, 0.0
    for odd in range(1, 20, 2):
        term *= -odd / (x * x)
        rest += term
    return -x * x / 2 - math.log(-x) - 0.5 * math.log(2 * math.pi) + math.log1p(rest)


def root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a monotone function changes its sign, to the last digits."""
    rises = function(high) > 0
    while low < (middle := (low + high) / 2) < high:
        if (function(middle) > 0) == rises:
            high = middle
        else:
            low = middle
    return high


def least(function: Callable[[float], float], low: float, high: float, within: float) -> float:
    """The smallest value of a function that falls and then rises."""
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
