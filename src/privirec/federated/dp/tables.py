"""Tables of the discrete Gaussian: exact integers, identical on every machine.

The discrete Gaussian of standard deviation sigma gives the integer v with probability proportional
to exp(-v^2 / (2 sigma^2)). A table holds these probabilities in units of 2^-160, arranged by
Walker's alias method: 2^bits cells of equal probability, each divided between two values by a
threshold. The first bits of a 160-bit uniform number select a cell, and the others one of its two
values. Nothing is computed in floating point.
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
"""Values beyond this many standard deviations have probability 0 instead of less than 2^-160."""
LARGEST_TABLE_DEVIATION = 2184
"""Largest integer for which 15 deviations on either side fit into 2^16 cells."""
LEAST_TABLE_VARIANCE = Fraction(1, 200)
"""Smallest supported variance.

If it were much smaller, 0 would have probability 1, that is 2^160 units, which 160 bits cannot
hold.
"""

# Bits of the fixed-point weights; fewer than half of them are kept.
_PRECISION = 384
_WORD = (1 << 64) - 1


@dataclass(frozen=True, eq=False)
class GaussianTable:
    """Alias table of a discrete Gaussian."""

    variance: Fraction
    largest: int
    """Values lie between -largest and largest; value v has number v + largest."""
    cell_bits: int
    cells: NDArray[np.uint32]
    """For each cell, the upper 32 - cell_bits bits of its threshold, followed by its alias."""
    fine: NDArray[np.uint64]
    """For each cell, the lower 128 bits of its threshold, in two words."""

    def digest(self) -> str:
        """Return SHA-256 over all cells: the 32-bit word and the 128 bits, big-endian."""
        words = self.cells.astype(">u4").view(np.uint8).reshape(-1, 4)
        fine = self.fine.astype(">u8").view(np.uint8).reshape(-1, 16)
        return hashlib.sha256(np.hstack([words, fine]).tobytes()).hexdigest()


@lru_cache(maxsize=16)  # an audit needs the tables of all sums again
def gaussian_table(variance: Fraction) -> GaussianTable:
    """Return the table of a discrete Gaussian; variance is at most LARGEST_TABLE_DEVIATION^2."""
    if not LEAST_TABLE_VARIANCE <= variance <= LARGEST_TABLE_DEVIATION**2:
        raise ValueError(f"no table for a variance of {float(variance):.6g}")
    largest = _largest(variance)
    cell_bits = (2 * largest + 1).bit_length()
    cells, fine = np.zeros(1 << cell_bits, np.uint32), np.zeros((1 << cell_bits, 2), np.uint64)
    words = _Words(cells, fine)
    for value, probability in _probabilities(variance, largest):
        words.put(largest + value, probability >> FINE_BITS, probability)
    for part in (cells, fine):
        part[:largest] = part[2 * largest : largest : -1]
    _share_out(words, cell_bits)
    return GaussianTable(variance, largest, cell_bits, cells, fine)


def forget_tables() -> None:
    """Clear the cached tables; a large one takes more than a megabyte."""
    gaussian_table.cache_clear()


def gaussian_probabilities(variance: Fraction) -> list[int]:
    """Return P[v] in units of 2^-160 in ascending order of v; 0 gets the remainder of rounding."""
    upper = [each for _, each in sorted(_probabilities(variance, _largest(variance)))]
    return upper[:0:-1] + upper


def _largest(variance: Fraction) -> int:
    return isqrt(SUPPORT * SUPPORT * variance.numerator // variance.denominator) + 1


def _probabilities(variance: Fraction, largest: int) -> Iterator[tuple[int, int]]:
    """Yield the non-negative values with their probabilities one by one, up to 2^15 of them."""
    total = 2 * sum(_weights(variance, largest)) - (1 << _PRECISION)
    left = 1 << UNIFORM_BITS
    for value, weight in enumerate(_weights(variance, largest)):
        if value:
            probability = (weight << UNIFORM_BITS) // total
            left -= 2 * probability
            yield value, probability
    yield 0, left


def _weights(variance: Fraction, largest: int) -> Iterator[int]:
    """Yield exp(-v^2 / 2s^2) in fixed point, for v from 0 to the largest value."""
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
    """Return exp(-exponent) in fixed point, by its power series."""
    term = total = 1 << _PRECISION
    number = 0
    while term:
        number += 1
        term = term * exponent.numerator // (exponent.denominator * number)
        total += -term if number % 2 else term
    return total


class _Words:
    """160-bit numbers in the words of a table under construction.

    Devices have little memory, and Python integers would take three times as much.
    """

    def __init__(self, cells: NDArray[np.uint32], fine: NDArray[np.uint64]) -> None:
        self.cells = cells
        self._upper, self._lower = memoryview(cells), memoryview(fine.reshape(-1))

    def number(self, cell: int) -> int:
        high, low = self._lower[2 * cell], self._lower[2 * cell + 1]
        return int(self._upper[cell] << FINE_BITS | high << 64 | low)

    def put(self, cell: int, upper: int, number: int) -> None:
        """Store these upper 32 bits, and the lower 128 bits of the number."""
        self._upper[cell] = upper
        self._lower[2 * cell] = number >> 64 & _WORD
        self._lower[2 * cell + 1] = number & _WORD


def _share_out(words: _Words, cell_bits: int) -> None:
    """Replace the probabilities by the cells of the alias table.

    Cell c gives value number c below its threshold, else its alias. Values that fill less than a
    cell and values that fill more wait on two stacks, pushed in ascending order. The last large
    value fills up the cell of the last small one. It moves to the small ones when less than a cell
    of it remains. A value that exactly fills its cell is its own alias.
    """
    full = 1 << (UNIFORM_BITS - cell_bits)
    is_small = words.cells < full >> FINE_BITS
    small, large = _numbered(is_small), _numbered(~is_small)
    for donor in reversed(large):
        left = words.number(donor)
        while left > full:
            cell = small.pop()
            threshold = words.number(cell)
            words.put(cell, threshold >> FINE_BITS << cell_bits | donor, threshold)
            left -= full - threshold
        if left < full:
            words.put(donor, left >> FINE_BITS, left)
            small.append(donor)
        else:
            words.put(donor, donor, 0)


def _numbered(chosen: NDArray[np.bool_]) -> array[int]:
    return array("I", np.flatnonzero(chosen).astype(np.uint32).tobytes())
