"""Compiled loops that convert uniform words to noise; see `sampler`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Words = NDArray[Any]


@njit(cache=True, nogil=True)
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
    low_bits = np.uint32(32 - cell_bits)
    low_mask = np.uint32((1 << (32 - cell_bits)) - 1)
    alias_mask = np.uint32((1 << cell_bits) - 1)
    count = 0
    for index in range(piece.size):
        word = words[index]
        cell = word >> low_bits
        entry = cells[cell]
        low = word & low_mask
        threshold = entry >> np.uint32(cell_bits)
        if low == threshold:
            undecided[count] = index
            count += 1
        else:
            chosen = cell if low < threshold else entry & alias_mask
            piece[index] += factor * (np.int64(chosen) - largest)
    return count


@njit(cache=True, nogil=True)
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
    for number in range(where.size):
        cell = np.int64(words[where[number]]) * cells.size >> 32
        high, low = drawn[number, 0], drawn[number, 1]
        below = high < fine[cell, 0] or (high == fine[cell, 0] and low < fine[cell, 1])
        chosen = cell if below else np.int64(cells[cell]) & (cells.size - 1)
        piece[where[number]] += factor * (chosen - largest)
