"""Packing and unpacking of words without a compiler; see `ring_loops`.

Eight entries of w bits fill w bytes, so entries are processed in groups of eight. Entry e of each
group begins at bit e w of the group and occupies the same few bytes in all groups.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[Any]
_EIGHT = 8


def pack(words: Words, width: int, stream: Words) -> None:
    """Write the lowest `width` bits of each word to the stream."""
    eights = -(-len(words) // _EIGHT)
    entries = np.zeros((eights, _EIGHT), np.uint64)
    entries.reshape(-1)[: len(words)] = words
    entries &= np.uint64((1 << width) - 1)
    out = np.zeros((eights, width), np.uint8)
    for entry in range(_EIGHT):
        for place, shift in _bytes_of(entry, width):
            moved = entries[:, entry]
            moved = moved << np.uint64(shift) if shift >= 0 else moved >> np.uint64(-shift)
            out[:, place] |= moved.astype(np.uint8)  # the lowest eight bits
    target = stream.view(np.uint8)
    size = min(out.size, target.size)
    target[:size] = out.reshape(-1)[:size]


def unpack(stream: Words, width: int, words: Words) -> None:
    """Read words of `width` bits from the stream; the inverse of `pack`."""
    eights = -(-len(words) // _EIGHT)
    packed = np.zeros(eights * width, np.uint8)
    source = stream.view(np.uint8)
    size = min(packed.size, source.size)
    packed[:size] = source[:size]
    rows = packed.reshape(eights, width)
    entries = np.zeros((eights, _EIGHT), np.uint64)
    for entry in range(_EIGHT):
        for place, shift in _bytes_of(entry, width):
            part = rows[:, place].astype(np.uint64)
            entries[:, entry] |= (
                part >> np.uint64(shift) if shift >= 0 else part << np.uint64(-shift)
            )
    entries &= np.uint64((1 << width) - 1)
    words[:] = entries.reshape(-1)[: len(words)]


def _bytes_of(entry: int, width: int) -> list[tuple[int, int]]:
    """Return the bytes of a group that hold an entry, each with the entry's left shift in it."""
    first, last = entry * width // 8, ((entry + 1) * width - 1) // 8
    return [(place, entry * width - 8 * place) for place in range(first, last + 1)]
