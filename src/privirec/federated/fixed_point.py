"""Numbers on the wire: fixed point in the ring of integers modulo 2^width.

Scale and width always come from a proven bound on the sum. A sum that could leave its ring is
refused before any computation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from privirec.errors import OverflowRefused
from privirec.federated.noise import NO_NOISE, Noise

LEAST_FRACTION_BITS = 4
# More bits than a double's mantissa would not add precision.
MOST_FRACTION_BITS = 52


@dataclass(frozen=True)
class FixedPoint:
    """Fixed-point encoding: an integer z stands for z * 2^-fraction_bits, and sums are modulo
    2^width."""

    width: int
    fraction_bits: int
    signed: bool

    @classmethod
    def counting(cls, largest: int, noise: Noise = NO_NOISE) -> FixedPoint:
        """Return the narrowest ring that holds whole numbers from 0 to `largest`, plus or minus
        noise."""
        signed = noise.largest > 0
        width = max(1, (int(largest) + math.ceil(noise.largest)).bit_length()) + signed
        if width > 64:
            raise OverflowRefused(f"no ring holds counts up to {largest} and noise as large")
        return cls(width, 0, signed)

    @classmethod
    def for_sum(
        cls, width: int, bound: float, roundings: int, *, signed: bool, noise: Noise = NO_NOISE
    ) -> FixedPoint:
        """Return the encoding with the finest scale at which the sum cannot leave the ring.

        The sum is bounded by `bound`, plus half a unit of rounding for each of `roundings` terms,
        plus its noise. It can leave the ring only with the tail probability that the noise states.
        """
        if not 1 <= width <= 64:
            raise OverflowRefused(f"a ring of {width} bits; possible are 1 to 64")
        if noise.largest and not signed:
            raise OverflowRefused("noise makes sums negative, and the ring holds no negative ones")
        # Runtimes add in signed 64-bit integers, so an unsigned ring of 64 bits is used up to 63.
        largest = 2 ** min(width - 1 if signed else width, 63) - 1 - (roundings + 1) // 2
        bits = _finest(bound, noise.largest, largest)
        if bits < LEAST_FRACTION_BITS:
            reach = f"{bound:.6g}" + (f" and noise {noise.largest:.6g}" if noise.largest else "")
            raise OverflowRefused(
                f"a {width}-bit ring is too narrow: sums reach {reach} over {roundings} terms, "
                f"which leaves {bits} fraction bits ({LEAST_FRACTION_BITS} are the least)"
            )
        return cls(width, bits, signed)

    def decode(self, sums: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the numbers that whole units represent."""
        return np.ldexp(sums.astype(np.float64), -self.fraction_bits)

    def to_ring(self, values: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return signed units as ring elements."""
        return values.astype(np.int64).view(np.uint64) & self.mask

    def wrapped(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the values modulo 2^width.

        Values within the bound stay unchanged. False public inputs can make the bound of a client's
        vector invalid. This must not show, neither as an error nor in the sum. Modulo 2^width a sum
        is the same, no matter which client's entries were wrapped.
        """
        most = 2 ** (self.width - self.signed) - 1
        least = -most if self.signed else 0
        if not values.size or (values.min() >= least and values.max() <= most):
            return values
        inside = self.from_ring(self.to_ring(values))
        if self.signed:  # -2^(width - 1) has no counterpart, and no protocol takes it
            np.maximum(inside, 1 - 2 ** (self.width - 1), out=inside)
        return inside

    def from_ring(self, elements: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return ring elements as units; in a signed ring the upper half is negative."""
        elements = elements & self.mask
        if not self.signed:
            return elements.view(np.int64)
        shift = np.uint64(64 - self.width)
        return (elements << shift).view(np.int64) >> np.int64(64 - self.width)

    @property
    def mask(self) -> np.uint64:
        return np.uint64(2**self.width - 1)

    def payload_bytes(self, length: int) -> int:
        """Return the packed size of a vector on the wire."""
        return -(-length * self.width // 8)


def _finest(bound: float, noise: float, largest: int) -> int:
    """Return the most fraction bits with which bound plus noise is at most `largest` units.

    The comparison is exact.
    """
    bound = max(bound, 0.0)
    if bound + noise == 0:
        return MOST_FRACTION_BITS
    if largest <= 0 or not math.isfinite(bound + noise):
        return -1
    exact = Fraction(bound) + Fraction(noise)
    bits = min(largest.bit_length() - math.frexp(bound + noise)[1] + 1, MOST_FRACTION_BITS)
    while exact * Fraction(2) ** bits > largest:
        bits -= 1
    return bits


HALF_BYTE = 4


def bits_of(values: NDArray[np.int16]) -> int:
    """Return the smallest supported number of bits per entry (4, 8 or 16) that holds all values."""
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    return next(bits for bits in (HALF_BYTE, 8, 16) if -low <= 1 << (bits - 1) > high)


def packed_bytes(entries: int, bits: int) -> int:
    """Return the packed size in bytes of `entries` entries of at most `bits` bits each."""
    if bits <= HALF_BYTE:
        return (entries + 1) // 2
    return entries if bits <= 8 else 2 * entries


def pack_half_bytes(values: NDArray[np.int16]) -> bytes:
    """Pack entries from -8 to 7, two per byte, the first in the lower half."""
    halves = np.zeros(2 * packed_bytes(values.size, HALF_BYTE), np.uint8)
    halves[: values.size] = values.reshape(-1) & 0xF
    return (halves[::2] | halves[1::2] << 4).astype(np.uint8).tobytes()


def unpack_half_bytes(packed: NDArray[np.uint8], entries: int) -> NDArray[np.int16]:
    """Invert `pack_half_bytes`."""
    halves = np.empty(2 * len(packed), np.int8)
    halves[::2] = (packed << 4).view(np.int8) >> 4
    halves[1::2] = packed.view(np.int8) >> 4
    return halves[:entries].astype(np.int16)
