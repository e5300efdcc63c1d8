"""Compiled loops over the leaves of point functions: SHA-256, several side by side, and sums."""

from __future__ import annotations

from math import isqrt
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from privirec.compiled import LANES

Words = NDArray[Any]


def _constants() -> tuple[Words, Words]:
    """Return the round constants and the initial state of SHA-256.

    They are the first 32 bits of the fractions of cube roots and square roots of the first primes.
    """
    primes = [n for n in range(2, 312) if all(n % d for d in range(2, isqrt(n) + 1))]
    cubes = [_cube_root(prime << 96) & 0xFFFFFFFF for prime in primes]
    squares = [isqrt(prime << 64) & 0xFFFFFFFF for prime in primes[:8]]
    return np.array(cubes, np.uint32), np.array(squares, np.uint32)


def _cube_root(number: int) -> int:
    """Return the integer part of a cube root."""
    low, high = 0, 1 << (number.bit_length() // 3 + 1)
    while low < high - 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle * middle * middle <= number else (low, middle)
    return low


_ROUND, _START = _constants()
_BYTES = 32 + 4 + 16
"""Hash key, position and seed: with the padding, exactly one block."""


@njit(inline="always")
def _turned(word: np.uint32, bits: int) -> np.uint32:
    return (word >> np.uint32(bits)) | (word << np.uint32(32 - bits))


@njit(cache=True, nogil=True)
def leaf_hashes(key: Words, positions: Words, seeds: Words, found: Words) -> None:
    """Write SHA-256 of (key, position, seed) as eight words for each seed of four words."""
    schedule = np.empty((64, LANES), np.uint32)
    state = np.empty((8, LANES), np.uint32)
    for first in range(0, len(seeds), LANES):
        count = min(LANES, len(seeds) - first)
        for word in range(8):
            for lane in range(LANES):
                schedule[word, lane] = key[word]
                state[word, lane] = _START[word]
        for lane in range(LANES):
            leaf = first + min(lane, count - 1)
            schedule[8, lane] = positions[leaf]
            for word in range(4):
                schedule[9 + word, lane] = seeds[leaf, word]
            schedule[13, lane] = np.uint32(0x80000000)
            schedule[14, lane] = np.uint32(0)
            schedule[15, lane] = np.uint32(8 * _BYTES)
        for turn in range(16, 64):
            for lane in range(LANES):
                early, late = schedule[turn - 15, lane], schedule[turn - 2, lane]
                small = _turned(early, 7) ^ _turned(early, 18) ^ (early >> np.uint32(3))
                large = _turned(late, 17) ^ _turned(late, 19) ^ (late >> np.uint32(10))
                schedule[turn, lane] = (
                    schedule[turn - 16, lane] + small + schedule[turn - 7, lane] + large
                )
        for turn in range(64):
            # The words of the state rotate by one place in each turn.
            a, b, c, d = -turn & 7, (1 - turn) & 7, (2 - turn) & 7, (3 - turn) & 7
            e, f, g, h = (4 - turn) & 7, (5 - turn) & 7, (6 - turn) & 7, (7 - turn) & 7
            for lane in range(LANES):
                one, two = state[a, lane], state[e, lane]
                large = _turned(two, 6) ^ _turned(two, 11) ^ _turned(two, 25)
                choice = (two & state[f, lane]) ^ (~two & state[g, lane])
                new = state[h, lane] + large + choice + _ROUND[turn] + schedule[turn, lane]
                large = _turned(one, 2) ^ _turned(one, 13) ^ _turned(one, 22)
                most = (one & state[b, lane]) ^ (one & state[c, lane])
                most ^= state[b, lane] & state[c, lane]
                state[d, lane] += new
                state[h, lane] = new + large + most
        for lane in range(count):
            for word in range(8):
                found[first + lane, word] = state[word, lane] + _START[word]


@njit(cache=True, nogil=True)
def add_rows(
    into: Words, payloads: Words, bits: Words, corrections: Words, first: int, leaves: int
) -> None:
    """Add payloads to rows from `first` on, and the bucket's correction where the bit is 1."""
    for place in range(len(payloads)):
        row = first + place
        if bits[row]:
            bucket = row // leaves
            for entry in range(into.shape[1]):
                into[row, entry] += payloads[place, entry] + corrections[bucket, entry]
        else:
            for entry in range(into.shape[1]):
                into[row, entry] += payloads[place, entry]
