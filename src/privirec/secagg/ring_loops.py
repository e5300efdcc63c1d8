"""Compiled loops that pack and unpack words; see `ring`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Words = NDArray[Any]


@njit(cache=True, nogil=True)
def pack(words: Words, width: int, stream: Words) -> None:
    """Append `width` bits of each word to a stream of 32-bit words, at most 32 bits at a time."""
    low = min(width, 32)
    high = width - low
    low_mask = np.uint64((np.uint64(1) << np.uint64(low)) - np.uint64(1))
    high_mask = np.uint64((np.uint64(1) << np.uint64(high)) - np.uint64(1))
    pending = np.uint64(0)
    filled = 0
    position = 0
    for index in range(words.size):
        word = np.uint64(words[index])
        pending |= (word & low_mask) << np.uint64(filled)
        filled += low
        if filled >= 32:
            stream[position] = np.uint32(pending & np.uint64(0xFFFFFFFF))
            pending >>= np.uint64(32)
            filled -= 32
            position += 1
        if high > 0:
            pending |= ((word >> np.uint64(32)) & high_mask) << np.uint64(filled)
            filled += high
            if filled >= 32:
                stream[position] = np.uint32(pending & np.uint64(0xFFFFFFFF))
                pending >>= np.uint64(32)
                filled -= 32
                position += 1
    if filled > 0:
        stream[position] = np.uint32(pending & np.uint64(0xFFFFFFFF))


@njit(cache=True, nogil=True)
def unpack(stream: Words, width: int, words: Words) -> None:
    """Read words of `width` bits from the stream; the inverse of `pack`."""
    low = min(width, 32)
    high = width - low
    low_mask = np.uint64((np.uint64(1) << np.uint64(low)) - np.uint64(1))
    high_mask = np.uint64((np.uint64(1) << np.uint64(high)) - np.uint64(1))
    pending = np.uint64(0)
    filled = 0
    position = 0
    for index in range(words.size):
        if filled < low:
            pending |= np.uint64(stream[position]) << np.uint64(filled)
            filled += 32
            position += 1
        word = pending & low_mask
        pending >>= np.uint64(low)
        filled -= low
        if high > 0:
            if filled < high:
                pending |= np.uint64(stream[position]) << np.uint64(filled)
                filled += 32
                position += 1
            word |= (pending & high_mask) << np.uint64(32)
            pending >>= np.uint64(high)
            filled -= high
        words[index] = word
