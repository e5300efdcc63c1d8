"""Integers modulo a prime: where masks are drawn, uploads are added and masks are coded.

A mask hides a number only if it is uniform in the group in which the two are added, and the code
needs that group to be a field with many roots of unity. So entries of a ring modulo 2^b travel as
elements modulo a prime p just above 2^(g b), each of which carries g entries side by side: their
sum over all clients stays inside its b bits because the shape of the vector proves it, and is read
back exactly.

All kernels take and give 64-bit words below p, unless they say otherwise. Products are made by
Shoup's trick: a factor that serves many times comes with floor(factor * 2^64 / p).
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
"""Four times the prime must fit into a word, so that sums need no reduction at once."""
ROOT_BITS = 20
"""p = 1 modulo 2^20: there are points for as many clients."""

# Elements that are drawn at a time, in memory that stays in the cache of one core.
_PIECE_ELEMENTS = 1 << 14
_MILLER_RABIN_BASES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)  # enough below 2^64
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
        """The ring whose packing serves for elements on the wire."""
        return Ring(self.prime.bit_length())

    def root(self, order: int) -> int:
        """A primitive root of unity of this order, a power of two."""
        half = (self.prime - 1) // 2
        generator = next(h for h in count(2) if pow(h, half, self.prime) != 1)
        return pow(generator, (self.prime - 1) // order, self.prime)

    def uniform(self, seed: bytes, start: int, size: int, period: int) -> Elements:
        """Elements start ... start + size of the `period` elements that a seed stands for.

        Element i comes of the word v at place i of the seed's key stream, as floor(v p / 2^64),
        which is exactly uniform if the words with v p mod 2^64 < 2^64 mod p are left out. Then the
        words at places i + period, i + 2 period ... take their turn.
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
        """Inverse of `pack`. Raises MalformedMessage for anything it does not give.

        `into` is memory of the packing's words that may be used.
        """
        words = self.ring.unpack(packed, size, into)
        if size and int(words.max()) >= self.prime:
            raise MalformedMessage("an element that is not below the prime")
        return words.astype(np.uint64, copy=False)

    def add(self, total: Words, elements: Elements) -> None:
        """Add to a total in place, which may be of a narrower word that holds the field."""
        _add(total, elements, np.uint64(self.prime))

    def subtract(self, total: Words, elements: Elements) -> None:
        _subtract(total, elements, np.uint64(self.prime))

    def quotients(self, factors: Elements) -> Elements:
        """floor(factor * 2^64 / p) of each factor."""
        prime = self.prime
        return np.array([(factor << 64) // prime for factor in factors.tolist()], np.uint64)


@dataclass(frozen=True)
class ElementShape:
    """How a vector of ring entries is carried by field elements."""

    entries: VectorShape

    def __post_init__(self) -> None:
        if self.entries.width > MOST_BITS:
            raise ParametersInfeasible(
                f"entries of {self.entries.width} bits: this protocol carries at most {MOST_BITS}"
            )

    @cached_property
    def per_element(self) -> int:
        """Entries in one element (g)."""
        return MOST_BITS // self.entries.width

    @cached_property
    def field(self) -> Field:
        return _field(self.per_element * self.entries.width)

    @property
    def length(self) -> int:
        """Elements in the vector."""
        return -(-self.entries.length // self.per_element)

    @cached_property
    def carried(self) -> VectorShape:
        """The shape of what travels: elements in the ring that their packing uses."""
        return VectorShape(self.length, self.field.ring.width, self.field.prime - 1)

    @cached_property
    def _bias(self) -> int:
        """What makes every entry of an element non-negative."""
        if not self.entries.signed:
            return 0
        width = self.entries.width
        return sum(1 << (width * place + width - 1) for place in range(self.per_element))

    def join(self, words: Words) -> Elements:
        """Ring entries -> elements; a last one that is not full carries zeros."""
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
        """Elements of a sum -> so many ring entries of it."""
        words = np.empty(entries, self.entries.ring.dtype)
        shifted = self._shifted(elements)
        _split(shifted, self.entries.width, self.per_element, self.entries.signed, words)
        return words

    def check_bound(self, elements: Words) -> None:
        """Raise BadShare for elements that no sum within its bound gives."""
        if len(elements) and int(self._shifted(elements).max()) >> self.field.bits:
            raise BadShare("the opened sum exceeds its bound: somebody sent wrong numbers")

    def _shifted(self, elements: Words) -> Elements:
        """Elements whose entries are all non-negative."""
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
    """Miller and Rabin's test, with bases that decide every number below 2^64."""
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
    """The upper 64 bits of a product, from products of 32-bit halves, which vectorise."""
    one_low, one_high = one & _LOW, one >> _HALF
    other_low, other_high = other & _LOW, other >> _HALF
    low_high, high_low = one_low * other_high, one_high * other_low
    middle = ((one_low * other_low) >> _HALF) + (low_high & _LOW) + (high_low & _LOW)
    return one_high * other_high + (low_high >> _HALF) + (high_low >> _HALF) + (middle >> _HALF)


@njit(inline="always")
def product(element: Any, factor: Any, quotient: Any, prime: Any) -> Any:
    """element * factor modulo p, below 2 p; the element may be any word."""
    return element * factor - high_product(element, quotient) * prime


@njit(inline="always")
def reduced(element: Any, most: Any) -> Any:
    """element - most if it is not below it: the difference of a smaller one wraps round."""
    return min(element, element - most)


@njit(cache=True, nogil=True)
def _take_uniform(
    words: Elements, prime: Any, least: Any, elements: Elements, missing: NDArray[np.bool_]
) -> int:
    """Fill in elements that are missing, from words that will do; how many are missing still."""
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
