"""Powers and exponentials that are the same on every machine.

IEEE 754 defines sums, products, quotients and square roots to the last bit. It does not define
powers, exponentials and logarithms: NumPy's results depend on the CPU, the C library's on its
version. Decimal arithmetic is defined digit by digit. It takes about fifty microseconds per number,
so it is used for few distinct values (degrees, eigenvalues, places of a list), and results are
cached.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Context, Decimal
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DIGITS = Context(prec=40, rounding=ROUND_HALF_EVEN, traps=[])
"""More than twice the digits of a double, so that rounding to a double is hardly ever a tie."""
_KEPT = 1 << 14

Float64 = NDArray[np.float64]


@lru_cache(maxsize=_KEPT)
def power(base: float, exponent: float) -> float:
    """Return base ** exponent for a positive base."""
    return float(_DIGITS.power(Decimal(base), Decimal(exponent)))


@lru_cache(maxsize=_KEPT)
def exponential(value: float) -> float:
    """Return e ** value."""
    return float(_DIGITS.exp(Decimal(value)))


@lru_cache(maxsize=_KEPT)
def ratio_of_logarithms(one: int, other: int) -> float:
    """Return log(one) / log(other)."""
    return float(_DIGITS.divide(_DIGITS.ln(Decimal(one)), _DIGITS.ln(Decimal(other))))


def powers(values: NDArray[Any], exponent: float) -> Float64:
    """Return values ** exponent for non-negative values; zero stays zero."""
    return _of_each(values, lambda value: power(value, exponent) if value else 0.0)


def exponentials(values: NDArray[Any]) -> Float64:
    """Return e to the power of each value."""
    return _of_each(values, exponential)


def _of_each(values: NDArray[Any], function: Callable[[Any], float]) -> Float64:
    known, where = np.unique(values, return_inverse=True)
    return np.array([function(value) for value in known.tolist()], np.float64)[where]
