"""Tests of the mask generator: entries from any position, and cancellation."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from privirec.secagg.prg import MaskGenerator
from privirec.secagg.ring import Ring

seeds = st.binary(min_size=32, max_size=32)


def mask(seed: bytes, width: int, offset: int, length: int) -> np.ndarray:
    block = np.zeros(length, Ring(width).dtype)
    MaskGenerator().add(block, offset, [seed])
    return block


@settings(max_examples=60)
@given(seeds, st.sampled_from([1, 8, 12, 16, 31, 32, 33, 64]), st.integers(0, 200_000))
def test_seeking_gives_the_entries_of_the_whole(seed: bytes, width: int, offset: int) -> None:
    assert np.array_equal(mask(seed, width, offset, 50), mask(seed, width, 0, offset + 50)[offset:])


def test_the_mask_is_the_key_stream_of_aes_256_ctr() -> None:
    seed = bytes(range(32))
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor().update(bytes(4000))
    assert mask(seed, 12, 0, 2000).tobytes() == stream
    assert mask(seed, 32, 7, 900).tobytes() == stream[28:3628]


def test_blocks_longer_than_the_buffer() -> None:
    seed = b"s" * 32
    long = mask(seed, 64, 3, 100_000)
    assert np.array_equal(long[70_000:70_100], mask(seed, 64, 70_003, 100))


@given(st.lists(seeds, max_size=4), st.integers(1, 64), st.integers(0, 1000))
def test_subtracting_undoes_adding(many: list[bytes], width: int, offset: int) -> None:
    ring = Ring(width)
    values = np.arange(100).astype(ring.dtype)
    block = values.copy()
    MaskGenerator().add(block, offset, many)
    MaskGenerator().subtract(block, offset, reversed(many))
    assert np.array_equal(block, values)


def test_a_12_bit_ring_draws_16_bits_an_entry() -> None:
    seed = b"t" * 32
    assert np.array_equal(mask(seed, 12, 0, 64), mask(seed, 16, 0, 64))
