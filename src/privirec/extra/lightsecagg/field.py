"""Integers modulo a prime: the field of masks, masked vectors and coded pieces.

A mask hides a number only if it is uniform in the group in which the two are added, and the code
needs this group to be a field with many roots of unity. Therefore entries of a ring modulo 2^b are
sent as elements modulo a prime p just above 2^(g b). Each element carries g entries side by side.
The shape of the vector guarantees that their sums over all clients stay within b bits, so that they
can be read back exactly.

All kernels take and return 64-bit words below p unless stated otherwise. Products use Shoup's
method: a factor that is used many times comes with floor(factor * 2^64 / p).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import count
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from privirec.secagg.errors import BadShare, MalformedMessage, ParametersInfeasible
from privirec.secagg.prg import MaskGenerator
from privirec.secagg.ring import Ring, VectorShape, Words

Elements = NDArray[np.uint64]

MOST_BITS = 61
"""Maximum bits per element. Four times the prime must fit into a word to allow lazy reduction."""
ROOT_BITS = 20
"""p = 1 modulo 2^20, so there are evaluation points for 2^20 clients."""

# Elements drawn at a time, in a buffer that fits the cache of one core.
_PIECE_ELEMENTS = 1 << 14
_MILLER_RABIN_BASES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)  # sufficient below 2^64
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


@dataclass(frozen=True)
class Field:
    """Integers modulo the least prime p > 2^bits with p = 1 modulo 2^20."""

    bits: int

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= MOST_BITS:
            raise ValueError(f"a field has elements of 1 to {MOST_BITS} bits, not {self.bits}")

    @cached_property
    def prime(self) -> int:
        return _least_prime(self.bits)

    @cached_property
    def ring(self) -> Ring:
        """The ring whose packing is used for elements on the wire."""
        return Ring(self.prime.bit_length())

    def root(self, order: int) -> int:
        """Return a primitive root of unity of the given order, a power of two."""
        half = (self.prime - 1) // 2
        generator = next(h for h in count(2) if pow(h, half, self.prime) != 1)
        return pow(generator, (self.prime - 1) // order, self.prime)

    def uniform(self, seed: bytes, start: int, size: int, period: int) -> Elements:
        """Return elements start ... start + size of the `period` elements drawn from a seed.

        Element i is floor(v p / 2^64), where v is the word at place i of the seed's key stream.
        This is exactly uniform if words with v p mod 2^64 < 2^64 mod p are rejected. The words at
        places i + period, i + 2 period ... replace rejected words.
        """
        generator = MaskGenerator()
        prime, least = np.uint64(self.prime), np.uint64((1 << 64) % self.prime)
        elements = np.empty(size, np.uint64)
        buffer = np.empty(min(size, _PIECE_ELEMENTS), np.uint64)
        for first in range(0, size, _PIECE_ELEMENTS):
            piece = elements[first : first + _PIECE_ELEMENTS]
            missing = np.ones(len(piece), np.bool_)
            words = buffer[: len(piece)]
            place, left = start + first, len(piece)
            while left:
                words[:] = 0
                generator.add(words, place, [seed])
                left = _take_uniform(words, prime, least, piece, missing)
                place += period
        return elements

    def pack(self, elements: Elements) -> bytes:
        return self.ring.pack(elements)

    def unpack(self, packed: bytes | memoryview, size: int, into: Words | None = None) -> Elements:
        """Unpack elements; raise MalformedMessage for bytes that `pack` would not produce.

        `into` is an optional buffer of words of the packing's ring.
        """
        words = self.ring.unpack(packed, size, into)
        if size and int(words.max()) >= self.prime:
            raise MalformedMessage("an element that is not below the prime")
        return words.astype(np.uint64, copy=False)

    def add(self, total: Words, elements: Elements) -> None:
        """Add elements to a total in place; its words may be narrower if they hold the field."""
        _add(total, elements, np.uint64(self.prime))

    def subtract(self, total: Words, elements: Elements) -> None:
        _subtract(total, elements, np.uint64(self.prime))

    def quotients(self, factors: Elements) -> Elements:
        """Return floor(factor * 2^64 / p) for each factor."""
        prime = self.prime
        return np.array([(factor << 64) // prime for factor in factors.tolist()], np.uint64)


@dataclass(frozen=True)
class ElementShape:
    """Mapping of a vector of ring entries to field elements."""

    entries: VectorShape

    def __post_init__(self) -> None:
        if self.entries.width > MOST_BITS:
            raise ParametersInfeasible(
                f"entries of {self.entries.width} bits: this protocol carries at most {MOST_BITS}"
            )

    @cached_property
    def per_element(self) -> int:
        """Number of entries in one element (g)."""
        return MOST_BITS // self.entries.width

    @cached_property
    def field(self) -> Field:
        return _field(self.per_element * self.entries.width)

    @property
    def length(self) -> int:
        """Number of elements in the vector."""
        return -(-self.entries.length // self.per_element)

    @cached_property
    def carried(self) -> VectorShape:
        """Shape of the vector on the wire: elements in the ring of their packing."""
        return VectorShape(self.length, self.field.ring.width, self.field.prime - 1)

    @cached_property
    def _bias(self) -> int:
        """Constant that makes every entry of an element non-negative."""
        if not self.entries.signed:
            return 0
        width = self.entries.width
        return sum(1 << (width * place + width - 1) for place in range(self.per_element))

    def join(self, words: Words) -> Elements:
        """Convert ring entries to elements; pad the last element with zeros."""
        size = -(-len(words) // self.per_element)
        elements = np.empty(size, np.uint64)
        _join(
            words,
            self.entries.width,
            self.per_element,
            self.entries.signed,
            elements,
        )
        if self._bias:
            _subtract(
                elements,
                np.full(size, self._bias, np.uint64),
                np.uint64(self.field.prime),
            )
        return elements

    def split(self, elements: Words, entries: int) -> Words:
        """Return the first `entries` ring entries that these elements of a sum carry."""
        words = np.empty(entries, self.entries.ring.dtype)
        shifted = self._shifted(elements)
        _split(shifted, self.entries.width, self.per_element, self.entries.signed, words)
        return words

    def check_bound(self, elements: Words) -> None:
        """Raise BadShare for elements that cannot result from a sum within its bound."""
        if len(elements) and int(self._shifted(elements).max()) >> self.field.bits:
            raise BadShare("the opened sum exceeds its bound: somebody sent wrong numbers")

    def _shifted(self, elements: Words) -> Elements:
        """Return the elements with the bias added, so that all entries are non-negative."""
        shifted = elements.astype(np.uint64)
        if self._bias:
            bias = np.full(len(elements), self._bias, np.uint64)
            _add(shifted, bias, np.uint64(self.field.prime))
        return shifted


@lru_cache(maxsize=MOST_BITS)
def _field(bits: int) -> Field:
    return Field(bits)


@lru_cache(maxsize=MOST_BITS)
def _least_prime(bits: int) -> int:
    step = 1 << ROOT_BITS
    candidate = ((1 << bits) // step + (bits < ROOT_BITS)) * step + 1
    while not _is_prime(candidate):
        candidate += step
    return candidate


def _is_prime(number: int) -> bool:
    """Return True if the number is prime, by Miller-Rabin with bases that are exact below 2^64."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in _MILLER_RABIN_BASES:
        power = pow(base, odd, number)
        if power in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True


# --- kernels --------------------------------------------------------------------------------------


@njit(inline="always")
def high_product(one: Any, other: Any) -> Any:
    """Return the upper 64 bits of a product, from 32-bit halves, so that loops vectorise."""
    one_low, one_high = one & _LOW, one >> _HALF
    other_low, other_high = other & _LOW, other >> _HALF
    low_high, high_low = one_low * other_high, one_high * other_low
    middle = ((one_low * other_low) >> _HALF) + (low_high & _LOW) + (high_low & _LOW)
    return one_high * other_high + (low_high >> _HALF) + (high_low >> _HALF) + (middle >> _HALF)


@njit(inline="always")
def product(element: Any, factor: Any, quotient: Any, prime: Any) -> Any:
    """Return element * factor modulo p, below 2 p; the element may be any word."""
    return element * factor - high_product(element, quotient) * prime


@njit(inline="always")
def reduced(element: Any, most: Any) -> Any:
    """Return element - most if element >= most, else element.

    For a smaller element, the difference wraps round to a larger number.
    """
    return min(element, element - most)


@njit(cache=True, nogil=True)
def _take_uniform(
    words: Elements, prime: Any, least: Any, elements: Elements, missing: NDArray[np.bool_]
) -> int:
    """Fill in missing elements from words that are not rejected; return how many remain missing."""
    left = 0
    for index in range(words.size):
        if missing[index]:
            if words[index] * prime >= least:
                elements[index] = high_product(words[index], prime)
                missing[index] = False
            else:
                left += 1
    return left


@njit(cache=True, nogil=True)
def _add(total: Words, elements: Elements, prime: Any) -> None:
    for index in range(total.size):
        total[index] = reduced(np.uint64(total[index]) + elements[index], prime)


@njit(cache=True, nogil=True)
def _subtract(total: Words, elements: Elements, prime: Any) -> None:
    for index in range(total.size):
        total[index] = reduced(np.uint64(total[index]) + (prime - elements[index]), prime)


@njit(cache=True, nogil=True)
def _join(words: Words, width: int, per_element: int, signed: bool, elements: Elements) -> None:
    mask = np.uint64((np.uint64(1) << np.uint64(width)) - np.uint64(1))
    shift = np.uint64(np.uint64(signed) << np.uint64(width - 1))
    for index in range(elements.size):
        element = np.uint64(0)
        for place in range(per_element):
            at = index * per_element + place
            entry = np.uint64(words[at]) if at < words.size else np.uint64(0)
            element |= ((entry + shift) & mask) << np.uint64(width * place)
        elements[index] = element


@njit(cache=True, nogil=True)
def _split(elements: Elements, width: int, per_element: int, signed: bool, words: Words) -> None:
    mask = np.uint64((np.uint64(1) << np.uint64(width)) - np.uint64(1))
    shift = np.uint64(np.uint64(signed) << np.uint64(width - 1))
    for index in range(words.size):
        element = elements[index // per_element] >> np.uint64(width * (index % per_element))
        words[index] = (element - shift) & mask
