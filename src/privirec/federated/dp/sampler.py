"""Seekable stream of discrete Gaussian noise from a seed, identical for both neighbours.

A standard deviation beyond the largest table is reached in levels: value = sum_l 2^shift_l G_l,
with all G_l from one table. This is again a discrete Gaussian up to a relative error below 2^-100,
because the table's deviation is much larger than the ratio of two levels
(docs/reference/correlated-noise.md).

Level l of entry i uses word i of the seed's AES-256-CTR key stream, starting at block l 2^64
(32-bit, little-endian). In the rare case that this word equals the first bits of a threshold, the
other 128 bits are block 2^127 + l 2^64 + i of the same key stream.
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
from privirec.federated.dp.tables import (
    LARGEST_TABLE_DEVIATION,
    GaussianTable,
    gaussian_table,
)

loops = Loops(
    "privirec.federated.dp.sampler_loops", in_numpy="privirec.federated.dp.sampler_in_numpy"
)

Words = NDArray[Any]  # one-dimensional, of integers

LEVEL_BITS = 7
"""Difference of the shifts of consecutive levels; the last difference may be smaller."""
LARGEST_DEVIATION = 1 << 56

_WORD_BYTES = 4
_AES_BLOCK = 16
# The key stream is generated and used in pieces that fit the cache of one core.
_PIECE = 1 << 14
_ZEROS = memoryview(bytes(_WORD_BYTES * _PIECE + _AES_BLOCK))


@dataclass(frozen=True)
class GaussianNoise:
    """Discrete Gaussian noise with an integer standard deviation, or the sum of several draws."""

    deviation: int
    draws: int = 1
    """Number of independent draws whose sum this noise represents.

    The sum of several draws is also a discrete Gaussian, up to an error that `dp.discrete` bounds.
    """

    def __post_init__(self) -> None:
        if self.deviation < 1 or not 1 <= self.deviation**2 * self.draws <= LARGEST_DEVIATION**2:
            raise ValueError(f"no noise of deviation {self.deviation}, {self.draws} times")

    @cached_property
    def shifts(self) -> tuple[int, ...]:
        """Shift of each level, with as few levels and as small a last shift as possible."""
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
    """Generator that adds or subtracts noise in place, with a small buffer of constant size."""

    def __init__(self, noise: GaussianNoise) -> None:
        self._shifts = noise.shifts
        self._table = noise.table
        # The additional block holds the part of an AES block that a seek discards.
        self._buffer = np.empty(_WORD_BYTES * _PIECE + _AES_BLOCK, np.uint8)
        self._undecided = np.empty(_PIECE, np.int64)

    def add(self, block: Words, offset: int, seeds: Iterable[bytes]) -> None:
        """Add entries offset ... offset + len(block) of each seed's noise to `block`."""
        self._apply(block, offset, seeds, 1)

    def subtract(self, block: Words, offset: int, seeds: Iterable[bytes]) -> None:
        """Subtract entries offset ... offset + len(block) of each seed's noise from `block`."""
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
    """Return blocks 2^127 + level 2^64 + entry of the key stream, each as two 64-bit halves."""
    counters = np.empty((len(entries), 2), ">u8")
    counters[:, 0] = (1 << 63) + level
    counters[:, 1] = entries
    # ECB gives single blocks of the counter mode; the counters never repeat.
    cipher = Cipher(algorithms.AES256(seed), modes.ECB()).encryptor()  # noqa: S305
    return np.frombuffer(cipher.update(counters.tobytes()), ">u8").reshape(-1, 2).astype(np.uint64)
