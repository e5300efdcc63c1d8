"""Integers modulo 2^width, 1 to 64 bits, in the smallest machine word that holds them.

Words may be wider than the ring: 2^width divides 2^word, so sums may wrap in the word and are
reduced when they are packed or read. On the wire, an entry takes exactly `width` bits in a
little-endian bit stream: entry 0 is in the lowest bits of byte 0, and the last byte is padded with
zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privirec.compiled import Loops
from privirec.secagg.errors import BadContribution, MalformedMessage

loops = Loops("privirec.secagg.ring_loops", in_numpy="privirec.secagg.ring_in_numpy")

Words = NDArray[Any]  # one-dimensional, of Ring.dtype

# Eight entries fill a whole number of bytes for any width, so blocks of a multiple of eight entries
# can be packed separately and joined.
BLOCK_ALIGNMENT = 8


@dataclass(frozen=True)
class Ring:
    """Integers modulo 2^width."""

    width: int

    def __post_init__(self) -> None:
        if not 1 <= self.width <= 64:
            raise ValueError(f"a ring has 1 to 64 bits, not {self.width}")

    @property
    def modulus(self) -> int:
        return 1 << self.width

    @property
    def dtype(self) -> np.dtype[Any]:
        """Smallest little-endian unsigned word that holds an entry."""
        return np.dtype(f"<u{self.word_bytes}")

    @property
    def word_bytes(self) -> int:
        return 1 if self.width <= 8 else 2 if self.width <= 16 else 4 if self.width <= 32 else 8

    def fits(self, summands: int, bound: int, signed: bool) -> bool:
        """Return True if no sum of `summands` entries of magnitude at most `bound` can overflow."""
        return summands * bound < (self.modulus >> 1 if signed else self.modulus)

    def packed_bytes(self, entries: int) -> int:
        return (entries * self.width + 7) // 8

    def encode(self, values: NDArray[Any], bound: int, signed: bool) -> Words:
        """Convert integers to words; raise BadContribution if an entry exceeds the bound."""
        if values.ndim != 1 or values.dtype.kind not in "iub":
            raise BadContribution("a contribution is a one-dimensional array of integers")
        if values.size:
            lowest, highest = int(values.min()), int(values.max())
            if highest > bound or lowest < (-bound if signed else 0):
                raise BadContribution("an entry of the contribution exceeds the announced bound")
        return values.astype(self.dtype)

    def reduce(self, words: Words) -> Words:
        """Reduce words modulo 2^width, in place."""
        if self.width < 8 * self.word_bytes:
            np.bitwise_and(words, words.dtype.type(self.modulus - 1), out=words)
        return words

    def decode_signed(self, words: Words) -> NDArray[np.int64]:
        """Convert reduced words to the integers of smallest magnitude they represent (int64)."""
        shift = np.uint64(64 - self.width)
        # Move the sign bit to the top, so that the arithmetic right shift extends it.
        return (words.astype(np.uint64) << shift).view(np.int64) >> np.int64(shift)

    def pack(self, words: Words) -> bytes:
        """Pack words into ceil(entries * width / 8) bytes; drop bits above the ring."""
        if self.width == 8 * self.word_bytes:
            return words.astype(self.dtype, copy=False).tobytes()
        size = self.packed_bytes(len(words))
        stream = np.zeros((size + 3) // 4, np.dtype("<u4"))
        loops.pack(words, self.width, stream)
        return stream.view(np.uint8)[:size].tobytes()

    def unpack(self, packed: bytes | memoryview, entries: int, into: Words | None = None) -> Words:
        """Unpack bytes into words; raise MalformedMessage for bytes that `pack` would not produce.

        `into` is an optional buffer for the words, which may remain unused.
        """
        size = self.packed_bytes(entries)
        if len(packed) != size:
            raise MalformedMessage(
                f"{entries} entries of {self.width} bits take {size} bytes, not {len(packed)}"
            )
        if self.width == 8 * self.word_bytes:
            return np.frombuffer(packed, self.dtype)
        spare = 8 * size - entries * self.width
        if spare and packed[-1] >> (8 - spare):
            raise MalformedMessage("the bits after the last entry are not zero")
        if size % 4:
            stream = np.zeros((size + 3) // 4, np.dtype("<u4"))
            stream.view(np.uint8)[:size] = np.frombuffer(packed, np.uint8)
        else:
            stream = np.frombuffer(packed, np.dtype("<u4"))
        words = np.empty(entries, self.dtype) if into is None else into[:entries]
        loops.unpack(stream, self.width, words)
        return words


@dataclass(frozen=True)
class VectorShape:
    """Shape of the vectors in one sum: `length` entries of magnitude at most `bound`."""

    length: int
    width: int
    bound: int
    signed: bool = False
    bounds_sum: bool = False
    """If true, the application proves that the sum stays within `bound` for any set of clients."""

    def __post_init__(self) -> None:
        if not 1 <= self.length < 1 << 48:
            raise ValueError(f"a vector has 1 to 2^48 entries, not {self.length}")
        if not 0 < self.bound < 1 << 64:
            raise ValueError(f"a bound lies between 1 and 2^64, not {self.bound}")
        _ = self.ring

    @property
    def ring(self) -> Ring:
        return Ring(self.width)

    def shortened(self, length: int | None) -> VectorShape:
        """Return a copy of another length; raise BadContribution if it is longer, or empty."""
        if length is None:
            return self
        if not 1 <= length <= self.length:
            raise BadContribution(f"a sum of {length} entries, announced are 1 to {self.length}")
        return replace(self, length=length)

    @property
    def packed_bytes(self) -> int:
        """Size of a packed vector."""
        return self.ring.packed_bytes(self.length)

    def holds(self, summands: int) -> bool:
        """Return True if no sum over `summands` clients can overflow."""
        return self.ring.fits(1 if self.bounds_sum else summands, self.bound, self.signed)

    def decode(self, words: NDArray[Any]) -> NDArray[np.int64]:
        """Convert ring words to integers, with their sign."""
        return self.ring.decode_signed(words) if self.signed else words.astype(np.int64)

    def narrowest(self, summands: int) -> VectorShape:
        """Return a copy with the narrowest ring that holds a sum of `summands` vectors."""
        width = (summands * self.bound).bit_length() + self.signed
        return replace(self, width=width)


def rechunked(blocks: Iterable[NDArray[Any]], shape: VectorShape, size: int) -> Iterator[Words]:
    """Yield the entries as ring words in blocks of exactly `size`; the last one may be shorter.

    Raise BadContribution unless the entries have the announced length. The last block is held back
    until the input ends, so that the error comes before it is sent.
    """
    waiting: list[Words] = []
    count, left = 0, shape.length
    for values in blocks:
        words = shape.ring.encode(values, shape.bound, shape.signed)
        if len(words) > left:
            raise BadContribution(f"a contribution longer than {shape.length} entries")
        left -= len(words)
        while len(words):
            part, words = words[: size - count], words[size - count :]
            waiting.append(part)
            count += len(part)
            if count == size and (left or len(words)):
                yield _joined(waiting)
                waiting, count = [], 0
    if left:
        raise BadContribution(
            f"a contribution of {shape.length - left} entries, not {shape.length}"
        )
    if waiting:
        yield _joined(waiting)


def _joined(parts: list[Words]) -> Words:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
