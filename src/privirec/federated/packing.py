"""Small integers as they are sent: half a byte, a byte or two bytes an entry."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

HALF_BYTE = 4


def bits_of(values: NDArray[np.int16]) -> int:
    """The fewest bits an entry, of those there are, that hold all of these."""
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    return next(bits for bits in (HALF_BYTE, 8, 16) if -low <= 1 << (bits - 1) > high)


def packed_bytes(entries: int, bits: int) -> int:
    """What so many entries of at most so many bits weigh."""
    if bits <= HALF_BYTE:
        return (entries + 1) // 2
    return entries if bits <= 8 else 2 * entries


def pack_half_bytes(values: NDArray[np.int16]) -> bytes:
    """Entries from -8 to 7, two in a byte, the first in its lower half."""
    halves = np.zeros(2 * packed_bytes(values.size, HALF_BYTE), np.uint8)
    halves[: values.size] = values.reshape(-1) & 0xF
    return (halves[::2] | halves[1::2] << 4).astype(np.uint8).tobytes()


def unpack_half_bytes(packed: NDArray[np.uint8], entries: int) -> NDArray[np.int16]:
    """Inverse of `pack_half_bytes`."""
    halves = np.empty(2 * len(packed), np.int8)
    halves[::2] = (packed << 4).view(np.int8) >> 4
    halves[1::2] = packed.view(np.int8) >> 4
    return halves[:entries].astype(np.int16)
