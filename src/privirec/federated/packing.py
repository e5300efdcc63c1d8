"""Packing of small integers for transport: 4, 8 or 16 bits per entry."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
