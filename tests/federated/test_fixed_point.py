"""Tests of integers in a ring: encoding, bounds and refusals."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from privirec.errors import OverflowRefused
from privirec.federated.fixed_point import LEAST_FRACTION_BITS, FixedPoint
from privirec.federated.noise import NO_NOISE, AddedNoise

bounds = st.floats(2.0**-20, 2.0**50) | st.integers(-20, 50).map(lambda e: 2.0**e)


def largest_unit(encoding: FixedPoint) -> int:
    """Return the largest integer that the ring represents uniquely."""
    return int(2 ** (encoding.width - 1 if encoding.signed else encoding.width) - 1)


@given(st.integers(1, 64), st.booleans(), st.data())
def test_ring_elements_come_back(width: int, signed: bool, data: st.DataObject) -> None:
    encoding = FixedPoint(width, 0, signed)
    top = min(largest_unit(encoding), 2**63 - 1)
    values = st.integers(-top if signed else 0, top)
    units = np.array(data.draw(st.lists(values, min_size=1, max_size=5)), np.int64)
    elements = encoding.to_ring(units)
    assert elements.dtype == np.uint64
    assert max(elements.tolist()) < 2**width
    np.testing.assert_array_equal(encoding.from_ring(elements), units)


@given(st.integers(2, 64), st.booleans(), st.data())
def test_a_sum_that_wraps_on_the_way_decodes_to_the_true_sum(
    width: int, signed: bool, data: st.DataObject
) -> None:
    encoding = FixedPoint(width, 0, signed)
    top = min(largest_unit(encoding), 2**62)
    total = data.draw(st.integers(-top if signed else 0, top))
    parts = data.draw(st.lists(st.integers(-(2**62), 2**62), max_size=6))
    parts.append(total - sum(parts))  # whatever the other entries are: only the sum has to fit
    ring = np.zeros(1, np.uint64)
    for part in parts:
        wrapped = (part + 2**63) % 2**64 - 2**63
        ring += encoding.to_ring(np.array([wrapped], np.int64))
    assert encoding.from_ring(ring).tolist() == [total]


@settings(max_examples=200)
@given(
    st.integers(1, 64),
    bounds,
    st.integers(0, 2**20),
    st.booleans(),
    st.just(0.0) | bounds | st.just(5e-324),
)
@example(width=12, bound=15.9, roundings=2000, signed=True, largest_noise=0.0)
@example(width=54, bound=2.0**53, roundings=0, signed=True, largest_noise=1.0)
def test_the_scale_fits_the_bound_and_is_the_finest(
    width: int, bound: float, roundings: int, signed: bool, largest_noise: float
) -> None:
    signed = signed or largest_noise > 0
    noise = AddedNoise("any", 1.0, "nothing", largest_noise) if largest_noise else NO_NOISE
    room = min(2 ** (width - 1 if signed else width), 2**63) - 1 - (roundings + 1) // 2

    def fits(bits: int) -> bool:
        return (Fraction(bound) + Fraction(largest_noise)) * Fraction(2) ** bits <= room

    try:
        encoding = FixedPoint.for_sum(width, bound, roundings, signed=signed, noise=noise)
    except OverflowRefused:
        assert not fits(LEAST_FRACTION_BITS)
        return
    assert (encoding.width, encoding.signed) == (width, signed)
    assert encoding.fraction_bits >= LEAST_FRACTION_BITS
    assert fits(encoding.fraction_bits)
    assert encoding.fraction_bits == 52 or not fits(encoding.fraction_bits + 1)


def test_a_bound_that_only_floating_point_thinks_small_enough() -> None:
    """Test 2^60 - 1, which rounds to 2^60 as a double, and 2^10 weights of 2^50, which are 0 modulo
    2^60."""
    encoding = FixedPoint.for_sum(60, 2.0**10, 0, signed=False)
    total = np.array([2**10 * 2**encoding.fraction_bits], np.int64)
    np.testing.assert_array_equal(encoding.from_ring(encoding.to_ring(total)), total)


def test_the_widest_unsigned_ring_stays_within_the_integers_of_the_runtimes() -> None:
    encoding = FixedPoint.for_sum(64, 2.0**11, 0, signed=False)
    total = np.array([2**11 * 2**encoding.fraction_bits], object)
    assert total[0] < 2**63
    np.testing.assert_array_equal(
        encoding.from_ring(encoding.to_ring(total.astype(np.int64))), total
    )


@pytest.mark.parametrize("width", [0, 65, -1])
def test_impossible_widths_are_refused(width: int) -> None:
    with pytest.raises(OverflowRefused, match="possible are 1 to 64"):
        FixedPoint.for_sum(width, 1.0, 0, signed=False)


@pytest.mark.parametrize("bound", [math.inf, math.nan, 1e300, 2.0**40])
def test_too_narrow_is_refused_in_words(bound: float) -> None:
    with pytest.raises(OverflowRefused, match="32-bit ring is too narrow"):
        FixedPoint.for_sum(32, bound, 100, signed=True)


def test_roundings_alone_can_fill_a_ring() -> None:
    with pytest.raises(OverflowRefused):
        FixedPoint.for_sum(8, 0.001, 1000, signed=True)


@pytest.mark.parametrize("bound", [0.0, 5e-324, 1e-300])
def test_nothing_to_add_needs_no_room(bound: float) -> None:
    assert FixedPoint.for_sum(8, bound, 0, signed=True).fraction_bits == 52


def test_noise_needs_a_ring_with_negative_numbers() -> None:
    noise = AddedNoise("any", 1.0, "nothing", 3.0)
    with pytest.raises(OverflowRefused, match="negative"):
        FixedPoint.for_sum(32, 1.0, 0, signed=False, noise=noise)
    with pytest.raises(OverflowRefused, match="sums reach 1 and noise 1e\\+09"):
        FixedPoint.for_sum(32, 1.0, 0, signed=True, noise=replace(noise, largest=1e9))


@given(st.integers(0, 2**40), st.floats(0.1, 2.0**40))
def test_counts_and_their_noise_fit_the_narrowest_ring(largest: int, reach: float) -> None:
    encoding = FixedPoint.counting(largest, AddedNoise("any", 1.0, "nothing", reach))
    assert encoding.signed
    most = largest + math.ceil(reach)
    values = np.array([-math.ceil(reach), 0, most], np.int64)
    np.testing.assert_array_equal(encoding.from_ring(encoding.to_ring(values)), values)
    assert most >= 2 ** (encoding.width - 2)
    with pytest.raises(OverflowRefused, match="no ring"):
        FixedPoint.counting(largest, AddedNoise("any", 1.0, "nothing", 2.0**70))


@given(st.integers(0, 2**62))
def test_counting_takes_the_narrowest_ring(largest: int) -> None:
    encoding = FixedPoint.counting(largest)
    assert largest < 2**encoding.width
    assert encoding.width == 1 or largest >= 2 ** (encoding.width - 1)
    ring = encoding.to_ring(np.array([largest], np.int64))
    assert encoding.from_ring(ring).tolist() == [largest]


@given(st.integers(4, 52), st.lists(st.integers(-(2**52), 2**52), min_size=1))
def test_decoding_is_exact(bits: int, units: list[int]) -> None:
    decoded = FixedPoint(64, bits, signed=True).decode(np.array(units, np.int64))
    assert [Fraction(value) for value in decoded.tolist()] == [Fraction(u, 2**bits) for u in units]


@given(st.integers(1, 64), st.integers(0, 1000))
def test_payload_is_the_bits_rounded_up_to_bytes(width: int, length: int) -> None:
    assert FixedPoint(width, 4, True).payload_bytes(length) == math.ceil(length * width / 8)
