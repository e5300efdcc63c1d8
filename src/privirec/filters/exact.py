"""Powers and exponentials that are the same on every machine.

IEEE 754 defines sums, products, quotients and square roots to the last bit. It does not define
powers, exponentials and logarithms: NumPy rounds them by what the CPU can do, the C library by its
version. Decimal arithmetic is defined digit by digit. It takes about fifty microseconds a number,
so it is for few different ones (degrees, eigenvalues, places of a list), and they are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Context, Decimal
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DIGITS = Context(prec=40, rounding=ROUND_HALF_EVEN, traps=[])
"""More than twice those of a double: what they are rounded to hardly ever is a tie."""
_KEPT = 1 << 14

Float64 = NDArray[np.float64]


@lru_cache(maxsize=_KEPT)
def power(base: float, exponent: float) -> float:
    """base ** exponent for a positive base."""
    return float(_DIGITS.power(Decimal(base), Decimal(exponent)))


@lru_cache(maxsize=_KEPT)
def exponential(value: float) -> float:
    """e to this power."""
    return float(_DIGITS.exp(Decimal(value)))


@lru_cache(maxsize=_KEPT)
def ratio_of_logarithms(one: int, other: int) -> float:
    """log(one) / log(other)."""
    return float(_DIGITS.divide(_DIGITS.ln(Decimal(one)), _DIGITS.ln(Decimal(other))))


def powers(values: NDArray[Any], exponent: float) -> Float64:
    """values ** exponent for values that are not negative; zero for zero."""
    return _of_each(values, lambda value: power(value, exponent) if value else 0.0)


def exponentials(values: NDArray[Any]) -> Float64:
    """e to the power of each."""
    return _of_each(values, exponential)


def _of_each(values: NDArray[Any], function: Callable[[Any], float]) -> Float64:
    known, where = np.unique(values, return_inverse=True)
    return np.array([function(value) for value in known.tolist()], np.float64)[where]
