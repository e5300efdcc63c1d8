"""Tests of discrete Gaussian noise from a seed: tables, streams and distribution."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import exp, isqrt

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from privirec.federated.dp.sampler import LARGEST_DEVIATION, GaussianNoise, NoiseGenerator
from privirec.federated.dp.tables import (
    FINE_BITS,
    LARGEST_TABLE_DEVIATION,
    SUPPORT,
    UNIFORM_BITS,
    gaussian_probabilities,
    gaussian_table,
)

SEED = bytes(range(32))


def draw(deviation: int, count: int, seed: bytes = SEED, offset: int = 0) -> np.ndarray:
    block = np.zeros(count, np.int64)
    NoiseGenerator(GaussianNoise(deviation)).add(block, offset, [seed])
    return block


# --- tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variance", [Fraction(1, 3), Fraction(4), Fraction(256), Fraction(9999, 7)]
)
def test_probabilities_are_those_of_the_discrete_gaussian(variance: Fraction) -> None:
    found = gaussian_probabilities(variance)
    assert sum(found) == 1 << UNIFORM_BITS
    assert found == found[::-1]
    largest = len(found) // 2
    assert largest >= SUPPORT * float(variance) ** 0.5
    weights = [exp(-(v**2) / (2 * float(variance))) for v in range(-largest, largest + 1)]
    total = sum(weights)
    for weight, probability in zip(weights, found, strict=True):
        expected = weight / total
        assert abs(probability / 2**UNIFORM_BITS - expected) <= 1e-12 * expected + 2.0**-150


@pytest.mark.parametrize(
    "variance", [Fraction(1, 3), Fraction(256), Fraction(65536), Fraction(7, 5)]
)
def test_an_alias_table_holds_exactly_these_probabilities(variance: Fraction) -> None:
    """Test by adding up the weight that each cell gives to its two values, in units of 2^-160."""
    table, probabilities = gaussian_table(variance), gaussian_probabilities(variance)
    size = len(table.cells)
    assert size == 1 << table.cell_bits
    full = 1 << (UNIFORM_BITS - table.cell_bits)
    found = [0] * size
    for cell, (word, (high, low)) in enumerate(
        zip(table.cells.tolist(), table.fine.tolist(), strict=True)
    ):
        threshold = (word >> table.cell_bits) << FINE_BITS | high << 64 | low
        assert 0 <= threshold < full
        found[cell] += threshold
        found[word & (size - 1)] += full - threshold
    assert found[: len(probabilities)] == probabilities
    assert not any(found[len(probabilities) :])


def test_tables_have_limits() -> None:
    assert gaussian_table(Fraction(LARGEST_TABLE_DEVIATION**2)).cell_bits == 16
    assert gaussian_table(Fraction(1, 200)).largest == 2
    for variance in (Fraction(0), Fraction(1, 201), Fraction((LARGEST_TABLE_DEVIATION + 1) ** 2)):
        with pytest.raises(ValueError, match="no table"):
            gaussian_table(variance)
    for deviation in (0, LARGEST_DEVIATION + 1):
        with pytest.raises(ValueError, match="no noise"):
            GaussianNoise(deviation)


@given(st.integers(1, LARGEST_DEVIATION))
def test_levels_add_up_to_the_deviation(deviation: int) -> None:
    noise = GaussianNoise(deviation)
    shifts = noise.shifts
    scale = sum(4**shift for shift in shifts)
    variance = Fraction(deviation**2, scale)
    assert variance <= LARGEST_TABLE_DEVIATION**2
    assert shifts[0] == 0
    # A sum of levels is a discrete Gaussian again if the tables are much wider than a step.
    steps = [2 ** (upper - lower) for lower, upper in itertools.pairwise(shifts)]
    assert all(2 <= step <= 128 for step in steps)
    if steps:
        assert variance >= 4 * (max(steps) + 1) ** 2


# --- streams --------------------------------------------------------------------------------------


@given(
    st.sampled_from([16, 2048, 4096, 1 << 20]),
    st.integers(0, 70_000),
    st.integers(1, 40_000),
    st.sampled_from(["<u1", "<u2", "<u4", "<u8", "<i8"]),
)
def test_a_stream_can_be_entered_anywhere(
    deviation: int, offset: int, count: int, dtype: str
) -> None:
    whole = draw(deviation, 110_000)
    part = np.zeros(count, dtype)
    NoiseGenerator(GaussianNoise(deviation)).add(part, offset, [SEED])
    assert np.array_equal(part, whole[offset : offset + count].astype(dtype))


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=4), st.sampled_from([16, 5000]))
def test_what_one_adds_the_other_takes_away(seeds: list[bytes], deviation: int) -> None:
    before = np.arange(1000, dtype=np.uint32)
    block = before.copy()
    one, other = (NoiseGenerator(GaussianNoise(deviation)) for _ in range(2))
    one.add(block, 3, seeds)
    if seeds:
        assert not np.array_equal(block, before)
    for start in range(0, 1000, 300):
        other.subtract(block[start : start + 300], 3 + start, seeds)
    assert np.array_equal(block, before)


def reference(deviation: int, entry: int, seed: bytes) -> tuple[int, bool]:
    """Return the value of one entry by the specification, from 160-bit numbers, and whether the
    first 32 bits left it undecided."""
    noise = GaussianNoise(deviation)
    table = noise.table
    probabilities = gaussian_probabilities(table.variance)
    total, tied = 0, False
    for level, shift in enumerate(noise.shifts):
        counter = (level << 64) + entry * 4 // 16
        stream = Cipher(algorithms.AES256(seed), modes.CTR(counter.to_bytes(16, "big")))
        at = entry * 4 % 16
        word = int.from_bytes(stream.encryptor().update(bytes(16))[at : at + 4], "little")
        counter = (1 << 127) + (level << 64) + entry
        stream = Cipher(algorithms.AES256(seed), modes.CTR(counter.to_bytes(16, "big")))
        fine = int.from_bytes(stream.encryptor().update(bytes(16)), "big")
        low_bits = 32 - table.cell_bits
        cell, low = word >> low_bits, word & ((1 << low_bits) - 1)
        entry_word, (high, rest) = int(table.cells[cell]), table.fine[cell].tolist()
        upper = entry_word >> table.cell_bits
        tied |= low == upper
        below = (low << FINE_BITS | fine) < (upper << FINE_BITS | high << 64 | rest)
        number = cell if below else entry_word & (len(table.cells) - 1)
        total += (number - len(probabilities) // 2) << shift
    return total, tied


@pytest.mark.check
def test_values_are_those_of_160_bit_numbers() -> None:
    drawn = draw(2048, 400_000)
    words = (
        Cipher(algorithms.AES256(SEED), modes.CTR(bytes(16))).encryptor().update(bytes(1_600_000))
    )
    table = GaussianNoise(2048).table
    word = np.frombuffer(words, "<u4")
    ties = np.flatnonzero((word & 0xFFFF) == table.cells[word >> 16] >> 16)
    assert 1 <= len(ties) <= 30  # about 6 of 400,000
    for entry in [*ties.tolist(), 0, 1, 2, 3, 4, 399_999]:
        assert reference(2048, entry, SEED) == (drawn[entry], entry in ties)
    levels = draw(1 << 20, 50)
    assert [reference(1 << 20, entry, SEED)[0] for entry in range(50)] == levels.tolist()


# --- distribution ---------------------------------------------------------------------------------


def chi_square(drawn: np.ndarray, probabilities: np.ndarray, first: int) -> float:
    """Return the standardised statistic: about normal with deviation 1 if the probabilities are
    right."""
    counts = np.bincount(drawn - first, minlength=len(probabilities))
    expected = probabilities * len(drawn)
    kept = expected >= 10
    cells = np.append(expected[kept], expected[~kept].sum())
    seen = np.append(counts[kept], counts[~kept].sum())
    freedom = len(cells) - 1
    statistic = float((((seen - cells) ** 2) / np.maximum(cells, 1e-9)).sum())
    return (statistic - freedom) / (2 * freedom) ** 0.5


@pytest.mark.parametrize("deviation", [1, 16, 64, 700])
def test_draws_have_the_tables_probabilities(deviation: int) -> None:
    drawn = draw(deviation, 2_000_000)
    exact = gaussian_probabilities(Fraction(deviation**2))
    probabilities = np.array([value / 2**UNIFORM_BITS for value in exact])
    assert abs(chi_square(drawn, probabilities, -(len(exact) // 2))) < 4.5


@pytest.mark.parametrize("deviation", [2185, 5000, 1 << 14])
def test_levels_give_a_discrete_gaussian_again(deviation: int) -> None:
    drawn = draw(deviation, 2_000_000)
    assert len(GaussianNoise(deviation).shifts) == 2
    values = np.arange(-8 * deviation, 8 * deviation + 1)
    probabilities = np.exp(-(values**2) / (2.0 * deviation**2))
    probabilities /= probabilities.sum()
    # In cells of a hundredth of a deviation, and by the last bits alone.
    width = deviation // 100
    cut = len(values) // width * width
    grouped = probabilities[:cut].reshape(-1, width).sum(axis=1)
    assert abs(chi_square((drawn + 8 * deviation) // width, grouped, 0)) < 4.5
    assert abs(chi_square(drawn % 64, np.full(64, 1 / 64), 0)) < 4.5


@pytest.mark.parametrize("deviation", [16, 2048, 1 << 20, 1 << 40])
def test_moments(deviation: int) -> None:
    count = 1_000_000
    scaled = draw(deviation, count) / deviation
    assert abs(scaled.mean()) < 5 / count**0.5
    assert abs((scaled**2).mean() - 1) < 5 * (2 / count) ** 0.5
    assert abs((scaled**3).mean()) < 5 * (15 / count) ** 0.5
    assert abs((scaled**4).mean() - 3) < 5 * (96 / count) ** 0.5
    assert abs((scaled[1:] * scaled[:-1]).mean()) < 5 / count**0.5
    assert abs((scaled * draw(deviation, count, bytes(32)) / deviation).mean()) < 5 / count**0.5


def test_isqrt_rule_of_the_support() -> None:
    for variance in (Fraction(1, 3), Fraction(10), Fraction(1092**2)):
        largest = isqrt(SUPPORT**2 * variance.numerator // variance.denominator) + 1
        assert len(gaussian_probabilities(variance)) == 2 * largest + 1
