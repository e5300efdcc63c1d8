"""Tables of the discrete Gaussian: exact integers, the same on every machine.

The discrete Gaussian of deviation sigma gives the integer v with probability proportional to
exp(-v^2 / (2 sigma^2)). A table holds these probabilities in units of 2^-160, arranged by Walker's
alias method: 2^bits cells of equal probability, each divided between two values by a threshold. A
160-bit uniform number chooses a cell by its first bits and one of the two values by the others.
Nothing is computed in floating point.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import isqrt

import numpy as np
from numpy.typing import NDArray

FINE_BITS = 128
UNIFORM_BITS = 32 + FINE_BITS
SUPPORT = 15
"""Values beyond so many deviations have probability 0 instead of less than 2^-160."""
LARGEST_TABLE_DEVIATION = 2184
"""15 deviations on either side fit 2^16 cells."""

# Fixed point in which weights are computed; what is kept of them is less than half as fine.
_PRECISION = 384


@dataclass(frozen=True, eq=False)
class GaussianTable:
    """A discrete Gaussian as an alias table."""

    variance: Fraction
    largest: int
    """Values lie between -largest and largest; value v has number v + largest."""
    cell_bits: int
    cells: NDArray[np.uint32]
    """Of each cell the threshold's upper 32 - cell_bits bits, and below them the alias."""
    fine: NDArray[np.uint64]
    """Of each cell the threshold's lower 128 bits, in two words."""

    def digest(self) -> str:
        """SHA-256 over all cells: the 32-bit word and the 128 bits, big-endian."""
        words = self.cells.astype(">u4").view(np.uint8).reshape(-1, 4)
        fine = self.fine.astype(">u8").view(np.uint8).reshape(-1, 16)
        return hashlib.sha256(np.hstack([words, fine]).tobytes()).hexdigest()


@lru_cache(maxsize=2)
def gaussian_table(variance: Fraction) -> GaussianTable:
    """The table of the discrete Gaussian of this variance, at most LARGEST_TABLE_DEVIATION^2."""
    if not 0 < variance <= LARGEST_TABLE_DEVIATION**2:
        raise ValueError(f"no table for a variance of {float(variance):.6g}")
    probabilities = gaussian_probabilities(variance)
    cell_bits = len(probabilities).bit_length()
    largest = len(probabilities) // 2
    return GaussianTable(variance, largest, cell_bits, *_alias(probabilities, cell_bits))


def gaussian_probabilities(variance: Fraction) -> list[int]:
    """P[v] in units of 2^-160 from the least value to the largest; 0 has what rounding leaves."""
    largest = isqrt(SUPPORT * SUPPORT * variance.numerator // variance.denominator) + 1
    # Twice: there may be 2^15 of them, each three times as long as what is kept of it.
    total = 2 * sum(_weights(variance, largest)) - (1 << _PRECISION)
    upper = [(weight << UNIFORM_BITS) // total for weight in _weights(variance, largest)]
    upper[0] = (1 << UNIFORM_BITS) - 2 * sum(upper[1:])
    return upper[:0:-1] + upper


def _weights(variance: Fraction, largest: int) -> Iterator[int]:
    """exp(-v^2 / 2s^2) in fixed point, for v from 0 to the largest value."""
    # exp(-(v + 1)^2 / 2s^2) = exp(-v^2 / 2s^2) step^(2v + 1), step = exp(-1 / 2s^2).
    step = _exp_minus(1 / (2 * variance))
    factor, square = step, step * step >> _PRECISION
    weight = 1 << _PRECISION
    yield weight
    for _ in range(largest):
        weight = weight * factor >> _PRECISION
        factor = factor * square >> _PRECISION
        yield weight


def _exp_minus(exponent: Fraction) -> int:
    """exp(-exponent) in fixed point by its power series."""
    term = total = 1 << _PRECISION
    number = 0
    while term:
        number += 1
        term = term * exponent.numerator // (exponent.denominator * number)
        total += -term if number % 2 else term
    return total


def _alias(
    probabilities: list[int], cell_bits: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    """The cells and what is fine of them: cell c gives value number c below its threshold, else its
    alias.

    Values that fill less than a cell and those that fill more wait on two stacks, put there in
    ascending order. The last of the large ones fills up the cell of the last small one, and goes to
    the small ones when less than a cell of it is left. A value that just fills its cell is its own
    alias.
    """
    size = 1 << cell_bits
    full = 1 << (UNIFORM_BITS - cell_bits)
    half = (1 << 64) - 1
    left = probabilities  # not a copy, and long numbers go as soon as they are used: a device has
    left += [0] * (size - len(probabilities))  # little memory, and there may be 2^16 of them
    cells, fine = np.arange(size, dtype=np.uint32), np.zeros((size, 2), np.uint64)
    small = array("I", (cell for cell in range(size) if left[cell] < full))
    large = array("I", (cell for cell in range(size) if left[cell] > full))
    while small:
        cell, donor = small.pop(), large[-1]
        threshold, left[cell] = left[cell], 0
        cells[cell] = threshold >> FINE_BITS << cell_bits | donor
        fine[cell] = threshold >> 64 & half, threshold & half
        left[donor] -= full - threshold
        if left[donor] <= full:
            large.pop()
            if left[donor] < full:
                small.append(donor)
    return cells, fine
