"""Noise levels of a sum, the rule that chooses them, and their effect on the sum.

Vectors are sent in *upload units* of 2^unit announced units. This allows noise of less than one
announced unit, and large noise costs few bits. In upload units, every client's own noise has
standard deviation 2^own_bits, and the noise between two neighbours has 2^pair_bits.

The *range* of a sum is its largest possible magnitude: the announced bound if it applies to the
sum, else the bound times the number of clients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import isqrt, ldexp, sqrt

from privirec.secagg.errors import ParametersInfeasible, RingTooNarrow
from privirec.secagg.parameters import PPM, Statement, least_connected_degree
from privirec.secagg.ring import VectorShape

MAX_BITS = 56
"""Maximum bits of a deviation. Fifteen times 2^56 units fits into a 64-bit integer."""
LEAST_OWN_BITS = 2
"""Minimum bits of own noise. Rounding takes 4 square units of its variance, which must remain
positive."""
OVERFLOW_BITS = 40
"""The sum overflows in any of its entries with probability at most 2^-40."""


@dataclass(frozen=True)
class NoiseLevels:
    """Noise levels of one sum."""

    unit: int
    """Binary logarithm of the upload unit in announced units."""
    own_bits: int
    """Own noise has standard deviation 2^own_bits upload units."""
    pair_bits: int
    """Noise between two neighbours has standard deviation 2^pair_bits upload units."""

    def __post_init__(self) -> None:
        if not (
            -MAX_BITS <= self.unit <= MAX_BITS
            and 0 <= self.own_bits <= MAX_BITS - max(0, self.unit)
            and 0 <= self.pair_bits <= MAX_BITS
        ):
            raise ValueError(f"no noise of these levels: {self}")
        if self.own_bits < LEAST_OWN_BITS:
            raise ValueError(
                f"own noise of 2^{self.own_bits} upload units is too coarse: use at least "
                f"2^{LEAST_OWN_BITS}"
            )

    @property
    def own(self) -> float:
        """Standard deviation of a client's own noise, in announced units."""
        return ldexp(1.0, self.unit + self.own_bits)

    @property
    def pair(self) -> float:
        """Standard deviation of the noise between two neighbours, in announced units."""
        return ldexp(1.0, self.unit + self.pair_bits)

    def is_smooth(self, neighbours: int) -> bool:
        """Return True if the integers are fine enough for the guarantee of real Gaussian noise."""
        return 4**self.own_bits >= _least_own_variance(neighbours) and (
            self.pair_bits >= self.own_bits
        )

    def residual_deviation(self, survivors: int, cut_edges: int) -> float:
        """Return the standard deviation of an entry of an opened sum, in announced units.

        The own noise of every client in the sum and its rounding to upload units remain. So does
        the noise of every edge between a client in the sum and one that dropped out.
        """
        rounding = 1 / 12 if self.unit > 0 else 0
        variance = survivors * (4**self.own_bits + rounding) + cut_edges * 4**self.pair_bits
        # Opened sums are rounded to announced units.
        return sqrt(ldexp(variance, 2 * self.unit) + (1 / 12 if self.unit < 0 else 0))


@dataclass(frozen=True)
class NoiseRule:
    """Rule that chooses the largest noise levels within two bounds on the error of a sum.

    R is the range of the sum. Own noise: the standard deviation of the sum is at most R /
    2^sum_bits if no client drops out. Pairwise noise: it is at most R / 2^dropped_bits if as many
    clients drop out as allowed. Both levels are powers of two in upload units, so they may be below
    these bounds by a factor of less than 2.
    """

    sum_bits: int = 12
    dropped_bits: int = 5

    def levels(self, shape: VectorShape, statement: Statement) -> NoiseLevels:
        """Return the levels for a sum of this shape."""
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
    """Return the smallest degree that keeps every allowed cohort connected.

    A cohort must stay connected without its corrupt and dropped clients. If no smaller degree
    suffices, the graph is complete.
    """
    least = statement.clients - statement.dropped
    # If as many clients may drop out of the smallest cohort as of the largest, then a degree that
    # suffices for it also suffices for all cohorts in between.
    dropped_ppm = -(-statement.dropped * PPM // least)
    smallest = replace(statement.with_clients(least), dropped_ppm=dropped_ppm)
    check_others(smallest)
    degree = least_connected_degree(smallest)
    return degree if degree < smallest.clients - 1 else statement.clients - 1


def check_others(statement: Statement) -> None:
    """Raise ParametersInfeasible unless there are at least two honest clients."""
    if statement.clients - statement.corrupt < 2:
        raise ParametersInfeasible(
            f"{statement.clients} clients, {statement.corrupt} of them corrupt: no other honest "
            "client is left to hide a client"
        )


def sum_range(shape: VectorShape, statement: Statement) -> int:
    """Return the largest possible magnitude of a sum."""
    return shape.bound * (1 if shape.bounds_sum else statement.clients)


def upload_shape(
    shape: VectorShape, statement: Statement, neighbours: int, levels: NoiseLevels
) -> VectorShape:
    """Return the shape of vectors on the wire; the ring holds the range of the sum and its noise.

    Single vectors may overflow in this ring, and usually do.
    """
    width = _largest_total(shape, statement, neighbours, levels).bit_length() + 1
    if width > 64:
        raise RingTooNarrow(f"a noisy sum takes {width} bits")
    return VectorShape(shape.length, width, (1 << 63) - 1, signed=True, bounds_sum=True)


def noisy_shape(
    shape: VectorShape, statement: Statement, neighbours: int, levels: NoiseLevels
) -> VectorShape:
    """Return the shape of opened sums, in announced units."""
    total = _largest_total(shape, statement, neighbours, levels)
    bound = total << levels.unit if levels.unit >= 0 else (total >> -levels.unit) + 1
    width = bound.bit_length() + 1
    if width > 64:
        raise RingTooNarrow(f"a sum with noise in it takes {width} bits")
    return VectorShape(shape.length, width, bound, signed=True, bounds_sum=True)


def _largest_total(
    shape: VectorShape, statement: Statement, neighbours: int, levels: NoiseLevels
) -> int:
    """Return a magnitude, in upload units, that a total exceeds with probability at most 2^-40.

    The noise is sub-Gaussian: |noise| > x with probability at most 2 exp(-x^2 / 2v), where v is its
    variance. This is 2^-40 over all entries for x^2 = 2v ln(2^41 length); ln 2 < 0.7.
    """
    cut = statement.dropped * neighbours
    variance = statement.clients * (4**levels.own_bits + 1) + cut * 4**levels.pair_bits
    bits = OVERFLOW_BITS + 1 + shape.length.bit_length()
    tail = isqrt(variance * bits * 14 // 10) + 1
    largest = sum_range(shape, statement)
    exact = -(-largest >> levels.unit) if levels.unit >= 0 else largest << -levels.unit
    return exact + tail


def _least_own_variance(neighbours: int) -> int:
    """Return the minimum variance of own noise, in squared upload units.

    docs/reference/correlated-noise.md gives the reason.
    """
    return max(256, 5 * neighbours + 16)


def _largest_power(variance: Fraction) -> int:
    """Return the largest p with 4^p <= variance."""
    power = (variance.numerator.bit_length() - variance.denominator.bit_length()) // 2 + 1
    while Fraction(4) ** power > variance:
        power -= 1
    return power
