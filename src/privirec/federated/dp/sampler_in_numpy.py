"""Conversion of uniform words to noise without a compiler; see `sampler_loops`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[Any]


def add_decided(
    piece: Words,
    words: NDArray[np.uint32],
    cells: NDArray[np.uint32],
    cell_bits: int,
    largest: int,
    factor: int,
    undecided: NDArray[np.int64],
) -> int:
    """Add factor * value for each word that determines a value.

    Write the indices of the other words to `undecided` and return their number.
    """
    low_bits = 32 - cell_bits
    cell = words >> np.uint32(low_bits)
    entry = cells[cell]
    low = words & np.uint32((1 << low_bits) - 1)
    threshold = entry >> np.uint32(cell_bits)
    chosen = np.where(low < threshold, cell, entry & np.uint32((1 << cell_bits) - 1))
    value = chosen.astype(np.int64)
    value -= largest
    value *= factor
    (where,) = np.nonzero(low == threshold)
    value[where] = 0
    # Words of a ring wrap round, as in the compiled loop.
    piece += value.astype(piece.dtype)
    undecided[: len(where)] = where
    return len(where)


def add_undecided(
    piece: Words,
    words: NDArray[np.uint32],
    where: NDArray[np.int64],
    drawn: NDArray[np.uint64],
    cells: NDArray[np.uint32],
    fine: NDArray[np.uint64],
    largest: int,
    factor: int,
) -> None:
    """Add factor * value for the words at `where`, with 128 more bits drawn for each."""
    cell = words[where].astype(np.int64) * len(cells) >> 32
    high, low = drawn[:, 0], drawn[:, 1]
    below = (high < fine[cell, 0]) | ((high == fine[cell, 0]) & (low < fine[cell, 1]))
    chosen = np.where(below, cell, cells[cell].astype(np.int64) & (len(cells) - 1))
    piece[where] += (factor * (chosen - largest)).astype(piece.dtype)
