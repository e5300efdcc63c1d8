"""How much noise: the levels of a sum, the rule that chooses them, and what they do to the sum.

Vectors travel in *upload units* of 2^unit announced units, so that noise of less than one announced
unit can be had, and noise of many costs few bits. In upload units every client's own noise has
deviation 2^own_bits, and the noise between two neighbours 2^pair_bits.

The *range* of a sum is the largest magnitude it can have: the announced bound if that is one on
the sum, else as many times the bound as there are clients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import isqrt, ldexp, sqrt

from privirec.secagg.errors import ParametersInfeasible, RingTooNarrow
from privirec.secagg.parameters import PPM, Statement, is_connected
from privirec.secagg.ring import VectorShape

MAX_BITS = 56
"""Noise of 2^56 units, and 15 times that, fits into a 64-bit integer."""
OVERFLOW_BITS = 40
"""A sum wraps round with probability at most 2^-40, all its entries together."""


@dataclass(frozen=True)
class NoiseLevels:
    """The noise in one sum."""

    unit: int
    """Uploads are in units of 2^unit announced units."""
    own_bits: int
    """Own noise has deviation 2^own_bits upload units."""
    pair_bits: int
    """The noise between two neighbours has deviation 2^pair_bits upload units."""

    def __post_init__(self) -> None:
        if not (
            -MAX_BITS <= self.unit <= MAX_BITS
            and 0 <= self.own_bits <= MAX_BITS - max(0, self.unit)
            and 0 <= self.pair_bits <= MAX_BITS
        ):
            raise ValueError(f"no noise of these levels: {self}")

    @property
    def own(self) -> float:
        """Deviation of a client's own noise, in announced units."""
        return ldexp(1.0, self.unit + self.own_bits)

    @property
    def pair(self) -> float:
        """Deviation of the noise between two neighbours, in announced units."""
        return ldexp(1.0, self.unit + self.pair_bits)

    def is_smooth(self, neighbours: int) -> bool:
        """Whether the integers are fine enough for the guarantee of real Gaussian noise."""
        return 4**self.own_bits >= _least_own_variance(neighbours) and (
            self.pair_bits >= self.own_bits
        )

    def residual_deviation(self, survivors: int, cut_edges: int) -> float:
        """Deviation of an entry of an opened sum, in announced units.

        Of every client in the sum its own noise stays, and a rounding to upload units; of every
        edge between one in the sum and one that dropped out, the noise of that edge.
        """
        rounding = 1 / 12 if self.unit > 0 else 0
        variance = survivors * (4**self.own_bits + rounding) + cut_edges * 4**self.pair_bits
        # Opened sums are rounded to announced units.
        return sqrt(ldexp(variance, 2 * self.unit) + (1 / 12 if self.unit < 0 else 0))


@dataclass(frozen=True)
class NoiseRule:
    """Levels from the range R of a sum: as much noise as keeps two bounds on its error.

    Own noise: the deviation of the sum is at most R / 2^sum_bits when nobody drops out. Noise of
    pairs: it is at most R / 2^dropped_bits when as many drop out as may. Both levels are powers of
    two of upload units, so they may fall short of these bounds by a factor of less than 2.
    """

    sum_bits: int = 12
    dropped_bits: int = 5

    def levels(self, shape: VectorShape, statement: Statement) -> NoiseLevels:
        """The levels for a sum of this shape."""
        clients, neighbours = statement.clients, graph_degree(statement)
        largest = Fraction(sum_range(shape, statement))
        own = _largest_power((largest / 2**self.sum_bits) ** 2 / clients)
        pair = _largest_power(largest**2)
        cut = statement.dropped * neighbours
        if cut:
            left = (largest / 2**self.dropped_bits) ** 2 - clients * Fraction(4) ** own
            pair = _largest_power(left / cut)
        own = min(own, pair)
        own_bits = 0
        while 4**own_bits < _least_own_variance(neighbours):
            own_bits += 1
        return NoiseLevels(own - own_bits, own_bits, pair - own + own_bits)


@lru_cache(maxsize=64)
def graph_degree(statement: Statement) -> int:
    """Neighbours of a client: the fewest for which every cohort that is allowed hangs together
    without its corrupt and dropped clients; all others where that is no fewer."""
    least = statement.clients - statement.dropped
    # As many may drop out of the smallest cohort as of the largest: then all between will do.
    dropped_ppm = -(-statement.dropped * PPM // least)
    smallest = replace(statement.with_clients(least), dropped_ppm=dropped_ppm)
    check_others(smallest)
    for degree in range(2, smallest.clients - 1, 2):
        if is_connected(smallest, degree):
            return degree
    return statement.clients - 1


def check_others(statement: Statement) -> None:
    """Raise unless an honest client has another one to hide behind."""
    if statement.clients - statement.corrupt < 2:
        raise ParametersInfeasible(
            f"{statement.clients} clients of whom {statement.corrupt} are corrupt: nobody is left "
            "to hide a client"
        )


def sum_range(shape: VectorShape, statement: Statement) -> int:
    """Largest magnitude of a sum."""
    return shape.bound * (1 if shape.bounds_sum else statement.clients)


def upload_shape(
    shape: VectorShape, statement: Statement, neighbours: int, levels: NoiseLevels
) -> VectorShape:
    """Vectors on the wire: their ring holds the range of the sum and the noise left in it.

    Single vectors may wrap round in it, and in general do.
    """
    width = _largest_total(shape, statement, neighbours, levels).bit_length() + 1
    if width > 64:
        raise RingTooNarrow(f"a noisy sum takes {width} bits")
    return VectorShape(shape.length, width, (1 << 63) - 1, signed=True, bounds_sum=True)


def noisy_shape(
    shape: VectorShape, statement: Statement, neighbours: int, levels: NoiseLevels
) -> VectorShape:
    """Opened sums, in announced units."""
    total = _largest_total(shape, statement, neighbours, levels)
    bound = total << levels.unit if levels.unit >= 0 else (total >> -levels.unit) + 1
    width = bound.bit_length() + 1
    if width > 64:
        raise RingTooNarrow(f"a sum with noise in it takes {width} bits")
    return VectorShape(shape.length, width, bound, signed=True, bounds_sum=True)


def _largest_total(
    shape: VectorShape, statement: Statement, neighbours: int, levels: NoiseLevels
) -> int:
    """What the magnitude of a total, in upload units, exceeds with probability 2^-40 at most.

    The noise is sub-Gaussian: |noise| > x with probability at most 2 exp(-x^2 / 2v) where v is its
    variance. That is 2^-40 over all entries for x^2 = 2v ln(2^41 length); ln 2 < 0.7.
    """
    cut = statement.dropped * neighbours
    variance = statement.clients * (4**levels.own_bits + 1) + cut * 4**levels.pair_bits
    bits = OVERFLOW_BITS + 1 + shape.length.bit_length()
    tail = isqrt(variance * bits * 14 // 10) + 1
    largest = sum_range(shape, statement)
    exact = -(-largest >> levels.unit) if levels.unit >= 0 else largest << -levels.unit
    return exact + tail


def _least_own_variance(neighbours: int) -> int:
    """In upload units; docs/correlated-noise.md has the reason."""
    return max(256, 5 * neighbours + 16)


def _largest_power(variance: Fraction) -> int:
    """Largest p with 4^p <= variance."""
    power = (variance.numerator.bit_length() - variance.denominator.bit_length()) // 2 + 1
    while Fraction(4) ** power > variance:
        power -= 1
    return power
