"""Noise from a seed: a seekable stream of discrete Gaussians, the same for both neighbours.

A deviation beyond what one table holds is reached by levels: value = sum_l 2^shift_l G_l, all G_l
from one table. That is a discrete Gaussian again but for a relative error below 2^-100, since the
table's deviation is much larger than the ratio of two levels (docs/correlated-noise.md).

Level l of entry i takes word i of the seed's AES-256-CTR key stream from block l 2^64 on (32-bit,
little-endian). Where that word lies on a threshold's first bits, which is rare, the other 128
bits are block 2^127 + l 2^64 + i of the same key stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from privirec.compiled import Loops
from privirec.dp.tables import (
    LARGEST_TABLE_DEVIATION,
    GaussianTable,
    gaussian_table,
)

loops = Loops("privirec.dp.sampler_loops", in_numpy="privirec.dp.sampler_in_numpy")

Words = NDArray[Any]  # one-dimensional, of integers

LEVEL_BITS = 7
"""Each level but the last is 2^7 times the one before; the last one may be less."""
LARGEST_DEVIATION = 1 << 56

_WORD_BYTES = 4
_AES_BLOCK = 16
# Key stream is made and used in pieces that stay in the cache of one core.
_PIECE = 1 << 14
_ZEROS = memoryview(bytes(_WORD_BYTES * _PIECE + _AES_BLOCK))


@dataclass(frozen=True)
class GaussianNoise:
    """Discrete Gaussian noise of a whole number of units of deviation, or the sum of several."""

    deviation: int
    draws: int = 1
    """As if so many were drawn and added up: their sum is a discrete Gaussian too, but for an
    error that `dp.discrete` bounds."""

    def __post_init__(self) -> None:
        if self.deviation < 1 or not 1 <= self.deviation**2 * self.draws <= LARGEST_DEVIATION**2:
            raise ValueError(f"no noise of deviation {self.deviation}, {self.draws} times")

    @cached_property
    def shifts(self) -> tuple[int, ...]:
        """Of each level the power of two; as few levels, and as low a last one, as will do."""
        lower: tuple[int, ...] = ()
        last = 0
        while self._variance((*lower, last)) > LARGEST_TABLE_DEVIATION**2:
            if last == LEVEL_BITS * len(lower):
                lower = (*lower, last)
            last += 1
        return (*lower, last)

    def _variance(self, shifts: tuple[int, ...]) -> Fraction:
        return Fraction(self.deviation**2 * self.draws, sum(4**shift for shift in shifts))

    @property
    def table(self) -> GaussianTable:
        return gaussian_table(self._variance(self.shifts))


class NoiseGenerator:
    """Adds or subtracts noise in place, with one small buffer however long the vectors are."""

    def __init__(self, noise: GaussianNoise) -> None:
        self._shifts = noise.shifts
        self._table = noise.table
        # Room in front for the part of an AES block that a seek throws away.
        self._buffer = np.empty(_WORD_BYTES * _PIECE + _AES_BLOCK, np.uint8)
        self._undecided = np.empty(_PIECE, np.int64)

    def add(self, block: Words, offset: int, seeds: Iterable[bytes]) -> None:
        """Add to `block` entries offset ... offset + len(block) of each seed's noise."""
        self._apply(block, offset, seeds, 1)

    def subtract(self, block: Words, offset: int, seeds: Iterable[bytes]) -> None:
        """Subtract from `block` entries offset ... offset + len(block) of each seed's noise."""
        self._apply(block, offset, seeds, -1)

    def _apply(self, block: Words, offset: int, seeds: Iterable[bytes], sign: int) -> None:
        for seed in seeds:
            for level, shift in enumerate(self._shifts):
                self._add_level(block, offset, seed, level, sign << shift)

    def _add_level(self, block: Words, offset: int, seed: bytes, level: int, factor: int) -> None:
        table, undecided = self._table, self._undecided
        counter, drop = divmod(offset * _WORD_BYTES, _AES_BLOCK)
        nonce = modes.CTR(((level << 64) + counter).to_bytes(_AES_BLOCK, "big"))
        key_stream = Cipher(algorithms.AES256(seed), nonce).encryptor()
        for start in range(0, len(block), _PIECE):
            piece = block[start : start + _PIECE]
            size = drop + _WORD_BYTES * len(piece)
            key_stream.update_into(_ZEROS[:size], memoryview(self._buffer)[:size])
            words = self._buffer[drop:size].view("<u4")
            drop = 0
            count = loops.add_decided(
                piece, words, table.cells, table.cell_bits, table.largest, factor, undecided
            )
            if count:
                where = undecided[:count]
                fine = _fine_bits(seed, level, offset + start + where)
                loops.add_undecided(
                    piece, words, where, fine, table.cells, table.fine, table.largest, factor
                )


def _fine_bits(seed: bytes, level: int, entries: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Blocks 2^127 + level 2^64 + entry of the key stream, as two 64-bit halves each."""
    counters = np.empty((len(entries), 2), ">u8")
    counters[:, 0] = (1 << 63) + level
    counters[:, 1] = entries
    # Single blocks of the counter mode: the cipher itself, at counters that never repeat.
    cipher = Cipher(algorithms.AES256(seed), modes.ECB()).encryptor()  # noqa: S305
    return np.frombuffer(cipher.update(counters.tobytes()), ">u8").reshape(-1, 2).astype(np.uint64)
