"""Tests of rings of every width: arithmetic, packing, bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privirec.secagg.errors import BadContribution, MalformedMessage
from privirec.secagg.ring import BLOCK_ALIGNMENT, Ring, VectorShape, rechunked

widths = st.integers(1, 64)


@st.composite
def ring_entries(draw: st.DrawFn) -> tuple[Ring, list[int]]:
    ring = Ring(draw(widths))
    return ring, draw(st.lists(st.integers(0, ring.modulus - 1), max_size=70))


def packed_by_hand(entries: list[int], width: int) -> bytes:
    """Pack by the specification, bit by bit: one large integer, written little-endian."""
    stream = sum(entry << (width * place) for place, entry in enumerate(entries))
    return stream.to_bytes((len(entries) * width + 7) // 8, "little")


@given(ring_entries())
def test_packing_is_the_specified_stream_of_bits(case: tuple[Ring, list[int]]) -> None:
    ring, entries = case
    words = np.array(entries, ring.dtype)
    packed = ring.pack(words)
    assert packed == packed_by_hand(entries, ring.width)
    assert ring.unpack(packed, len(entries)).tolist() == entries


@given(ring_entries(), st.integers(0, 2**64 - 1))
def test_packing_cuts_off_what_lies_above_the_ring(
    case: tuple[Ring, list[int]], noise: int
) -> None:
    ring, entries = case
    words = np.array(entries, ring.dtype)
    above = noise & ~(ring.modulus - 1) & ((1 << 8 * ring.word_bytes) - 1)
    dirty = words | ring.dtype.type(above)
    assert ring.pack(dirty) == ring.pack(words)
    assert ring.reduce(dirty).tolist() == entries


@given(ring_entries(), st.integers(1, 5))
def test_aligned_blocks_can_be_packed_one_by_one(case: tuple[Ring, list[int]], step: int) -> None:
    ring, entries = case
    words = np.array(entries, ring.dtype)
    size = step * BLOCK_ALIGNMENT
    parts = [ring.pack(words[start : start + size]) for start in range(0, len(words), size)]
    assert b"".join(parts) == ring.pack(words)


@given(widths, st.data())
def test_sums_that_fit_are_exact(width: int, data: st.DataObject) -> None:
    ring = Ring(width)
    signed = data.draw(st.booleans()) and width > 1
    summands = data.draw(st.integers(1, 9))
    top = (ring.modulus >> 1 if signed else ring.modulus) - 1
    bound = top // summands
    if bound == 0:
        assert not ring.fits(summands, 1, signed)
        return
    assert ring.fits(summands, bound, signed)
    lowest = -bound if signed else 0
    kind = np.int64 if signed else np.uint64
    values = data.draw(st.lists(st.integers(lowest, bound), min_size=summands, max_size=summands))
    total = np.zeros(1, ring.dtype)
    for value in values:
        total += ring.encode(np.array([value], kind), bound, signed)
    ring.reduce(total)
    got = int(ring.decode_signed(total)[0]) if signed else int(total[0])
    assert got == sum(values)


def test_a_ring_that_just_does_not_fit() -> None:
    assert Ring(4).fits(15, 1, signed=False)
    assert not Ring(4).fits(16, 1, signed=False)
    assert Ring(4).fits(7, 1, signed=True)
    assert not Ring(4).fits(8, 1, signed=True)
    shape = VectorShape(10, 64, bound=5, signed=True).narrowest(3)
    assert shape.width == 5
    assert shape.ring.fits(3, 5, signed=True)
    assert not Ring(4).fits(3, 5, signed=True)


@pytest.mark.parametrize("value", [8, -8, 2**40])
def test_entries_beyond_the_bound_are_refused(value: int) -> None:
    with pytest.raises(BadContribution):
        Ring(16).encode(np.array([0, value]), 7, signed=True)


def test_negative_entries_need_a_signed_shape() -> None:
    with pytest.raises(BadContribution):
        Ring(16).encode(np.array([-1]), 7, signed=False)
    with pytest.raises(BadContribution):
        Ring(16).encode(np.array([0.5]), 7, signed=True)


def test_unpacking_is_strict() -> None:
    ring = Ring(3)
    with pytest.raises(MalformedMessage):
        ring.unpack(b"\x00\x00", 2)
    with pytest.raises(MalformedMessage):
        ring.unpack(b"\x40", 2)  # two entries use six bits, the seventh must be zero
    assert ring.unpack(b"\x3f", 2).tolist() == [7, 7]


@pytest.mark.parametrize("width", [0, 65])
def test_widths_outside_1_to_64_are_refused(width: int) -> None:
    with pytest.raises(ValueError, match="1 to 64"):
        Ring(width)


def test_a_sum_may_be_shorter_than_announced_and_not_longer() -> None:
    shape = VectorShape(9, 16, bound=1000)
    assert shape.shortened(None) == shape.shortened(9) == shape
    assert shape.shortened(4) == VectorShape(4, 16, bound=1000)
    for length in (-1, 0, 10):
        with pytest.raises(BadContribution, match="announced are 1 to 9"):
            shape.shortened(length)


@given(st.lists(st.integers(0, 20), max_size=12), st.integers(1, 4))
def test_rechunking_keeps_the_entries(sizes: list[int], step: int) -> None:
    length = sum(sizes)
    if not length:
        return
    shape = VectorShape(length, 16, bound=1000)
    values = np.arange(length)
    blocks = np.split(values, np.cumsum(sizes)[:-1])
    size = step * BLOCK_ALIGNMENT
    chunks = list(rechunked(blocks, shape, size))
    assert [len(chunk) for chunk in chunks[:-1]] == [size] * (len(chunks) - 1)
    assert np.concatenate(chunks).tolist() == values.tolist()
    with pytest.raises(BadContribution):
        list(rechunked([*blocks, np.array([1])], shape, size))
    with pytest.raises(BadContribution):
        list(rechunked([values[:-1]], shape, size))
