"""Tests of rows scaled to narrow rings by measured reaches: bounds, and refusal of aimed blocks."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from privirec.data import Dataset
from privirec.errors import FederationError, OverflowRefused
from privirec.federated import fixed_point, wire
from privirec.federated.contributions import (
    ClientContext,
    Histories,
    PowerStep,
    RowReach,
    ScaledStep,
    SeededScaledStep,
)
from privirec.federated.contributions.outer import COLUMNS
from privirec.federated.contributions.scaled_step import MOST_FINER, CoarseBlock, fine_rows_of
from privirec.federated.programs import SpectralSettings
from privirec.federated.row_scales import (
    MOST_SCALE,
    SCALE_BITS,
    narrowest_ring,
    rounding_reach,
    row_scales,
)
from privirec.filters import factored
from privirec.filters.eigen import orthonormalize
from privirec.privacy.cohorts import PolicyRefusal
from privirec.privacy.policy import Policy


def context(histories: Histories) -> ClientContext:
    return ClientContext(histories.n_users, histories.n_items, SpectralSettings(rank=1), histories)


def made(
    x: NDArray[np.float64], histories: Histories, width: int = 12, bits: int = 4
) -> tuple[RowReach, ScaledStep]:
    degrees = histories.item_degrees
    block = CoarseBlock.of(x, degrees, bits)
    reach = RowReach.of(block, degrees)
    reaches, fine_rows = reach.decode(reach.total(histories)), fine_rows_of(len(degrees))
    return reach, ScaledStep.of(block, degrees, reaches, width, fine_rows)


def basis_of(histories: Histories, columns: int, seed: int = 1) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    in_use = (histories.item_degrees > 0)[:, None]
    return orthonormalize(rng.standard_normal((histories.n_items, columns)) * in_use)[0]


@given(st.integers(0, 2**32 - 1), st.integers(1, 300), st.integers(1, 12), st.integers(0, 20))
def test_no_part_of_a_cohort_leaves_the_ring(seed: int, users: int, items: int, more: int) -> None:
    """Test any subset of clients, also if all have the item so that roundings add up."""
    rng = np.random.default_rng(seed)
    touched = rng.random((users, items)) < rng.choice((0.05, 0.5, 1.0))
    histories = Histories(sp.csr_array(touched.astype(np.float32)))
    width = narrowest_ring(int(histories.item_degrees.max()), 3 * (items + 1)) + more
    _, step = made(rng.standard_normal((items, 3)), histories, width)
    for part in (touched, touched[rng.random(users) < 0.5], touched[:1]):
        total = step.total(Histories(sp.csr_array(part.astype(np.float32))))
        assert np.abs(total).max(initial=0) < 2 ** (width - 1)


@given(st.integers(1, 2**40), st.integers(0, 10**6), st.integers(6, 64))
def test_scales_are_as_fine_as_the_bound_allows(reach: int, degree: int, width: int) -> None:
    most = 2 ** (width - 1) - 1
    if width < narrowest_ring(degree, 1000):
        with pytest.raises(OverflowRefused, match=f"too narrow for an item with {degree:,} users"):
            row_scales(np.array([reach]), np.array([degree]), width, 1000)
        return
    scale = int(row_scales(np.array([reach]), np.array([degree]), width, 1000)[0])
    rounding = int(rounding_reach(np.array([degree]), width, 1000)[0])

    def bound(scaled: int) -> float:
        return scaled * reach / 2**SCALE_BITS + rounding

    assert bound(scale) <= most * (1 + 1e-12)
    assert scale == MOST_SCALE or bound(scale + 2) >= most - 2


@pytest.mark.parametrize(("people", "width"), [(20, 12), (2000, 12), (200_000, 12), (5000, 20)])
def test_what_rounding_adds_is_within_its_bound(people: int, width: int) -> None:
    """Test Bernstein's inequality: in natural logarithms, twice the tail of all entries
    together."""
    entries, most = 10**6, 2 ** (width - 1) - 1
    reach = int(rounding_reach(np.array([people]), width, entries)[0])
    if reach == people:  # each person's rounding moves the sum by at most one
        return
    variance = min(people / 4, most)
    exponent = reach**2 / 2 / (variance + reach / 3)
    assert exponent - np.log(2 * entries) >= 64 * np.log(2)
    exponent = (reach - 2) ** 2 / 2 / (variance + (reach - 2) / 3)
    assert exponent - np.log(2 * entries) < 64 * np.log(2)


@pytest.mark.parametrize(("people", "width"), [(23, 6), (24, 7), (47, 7), (48, 8)])
def test_a_quarter_of_a_ring_is_for_what_is_summed(people: int, width: int) -> None:
    """Test few people: rounding may add as much as their number."""
    assert narrowest_ring(people, 1000) == width


def test_whoever_rounds_refuses_a_ring_for_little_but_rounding(small: Dataset) -> None:
    """Test that the ring is checked independently of the scales that a server sends."""
    histories = Histories(small.train.matrix)
    _, step = made(basis_of(histories, 4), histories)
    assert step.encoding.width == 12
    with pytest.raises(OverflowRefused, match="too narrow for an item"):
        _ = replace(step, width=6).encoding


def test_what_was_left_over_in_a_wide_ring_fits_64_bits() -> None:
    histories = Histories(sp.csr_array(np.array([[1, 0], [1, 1]], np.float32)))
    step = SeededScaledStep(histories.item_degrees, bytes(32), 3, 62, fine_rows=1)
    assert step._finer.tolist() == [0, 0, MOST_FINER]
    assert np.abs(step.total(histories)[2]).max() <= 2 * MOST_FINER


def test_reaches_are_never_less_than_the_truth(small: Dataset) -> None:
    """Test reaches that are sent in coarse units and rounded up."""
    histories = Histories(small.train.matrix)
    reach, _ = made(basis_of(histories, 4), histories)
    assert reach._shift > 0
    largest = np.abs(reach.step.means(histories)).max(axis=1)
    found = reach.decode(reach.total(histories))
    assert (found >= (histories.matrix > 0).astype(np.int64).T @ largest).all()


def test_rows_in_two_parts_are_part_of_the_plan() -> None:
    """Test the plan: more such rows with fewer columns would make a vector of the same length."""
    rng = np.random.default_rng(5)
    histories = Histories(sp.csr_array((rng.random((50, 40)) < 0.3).astype(np.float32)))
    planned = ScaledStep.planned(40, 4, 12, 4)
    _, step = made(basis_of(histories, 4), histories)
    planned.check(step)
    _, step = made(basis_of(histories, 3), histories)
    step = replace(step, fine_rows=16)
    assert step.length == planned.shape.length
    with pytest.raises(FederationError, match="another fine rows"):
        planned.check(step)
    for fine_rows in (-1, 41):
        with pytest.raises(FederationError, match="in two parts"):
            SeededScaledStep(histories.item_degrees, bytes(32), 4, 12, fine_rows=fine_rows)


def test_every_step_has_coins_of_its_own(small: Dataset) -> None:
    histories = Histories(small.train.matrix)
    steps = [made(basis_of(histories, 4, seed), histories)[1] for seed in (1, 2)]
    assert steps[0]._rounding_seed != steps[1]._rounding_seed
    assert steps[0].dither == steps[0].row_scales.astype("<i8").tobytes()


def one_item(people: int) -> Histories:
    return Histories(sp.csr_array(np.ones((people, 1), np.float32)))


@pytest.mark.parametrize("part", [0.5, 0.3, 0.02, -0.02, -0.7, 1.25])
def test_small_parts_of_many_people_add_up(part: float) -> None:
    """Test at most half a unit from each of 100,000 people: rounding to nearest would lose or
    double it."""
    people = 100_000
    step = SeededScaledStep(np.array([people]), bytes(32), 3, 40)
    sent = np.full((people, 3), round(part * 2**20), np.int64)
    step.__dict__["scales"] = np.array([1 << (SCALE_BITS - 20)])
    total = step._summed(one_item(people), sent, 0, 1)
    assert step.rows == 1
    fraction = part % 1
    deviation = np.sqrt(people * fraction * (1 - fraction))
    assert np.abs(total - part * people).max() < 5 * deviation
    assert len(set(total.ravel().tolist())) == 3  # a coin for each column


def test_coins_are_those_of_the_formula() -> None:
    """Test against arbitrary-precision integers; other implementations must flip the same coins."""
    mask = 2**64 - 1

    def mixed(value: int) -> int:
        value = (value + 0x9E3779B97F4A7C15) & mask
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        return value ^ (value >> 31)

    touched = np.array([[1, 0, 1], [1, 1, 1], [0, 0, 1]])
    histories = Histories(sp.csr_array(touched.astype(np.float32)), first_user=70)
    step = SeededScaledStep(np.array([2, 1, 3]), b"s" * 32, 2, 16, fine_rows=1)
    finer = (2**15 - 1 - 3) // 3  # each of the three moves the sum by at most one
    sent = np.array([[3, -5], [7, 11], [-13, 17]], np.int64) << 20
    digest = hashlib.sha256(b"privirec/rounding/1\0" + b"s" * 32).digest()
    seed = int.from_bytes(digest[:8], "little")
    expected = np.zeros((4, 2), np.int64)
    for user, item in np.argwhere(touched):
        key = mixed(mixed(seed ^ int(item)) ^ (70 + int(user)))
        for column in range(2):
            coin = ((key ^ mixed(9 + column)) * 0xD1342543DE82EF95) & mask
            dither = coin >> (64 - SCALE_BITS)
            scaled = int(sent[user, column]) * int(step.scales[item])
            whole = (scaled + dither) >> SCALE_BITS
            expected[item, column] += whole
            if item == 2:  # the most popular one
                left = (scaled - (whole << SCALE_BITS)) * finer
                dither = mixed(coin) >> (64 - SCALE_BITS)
                expected[3, column] += (left + dither) >> SCALE_BITS
    np.testing.assert_array_equal(step._summed(histories, sent, 0, 3, 9), expected[:3])
    np.testing.assert_array_equal(step._summed(histories, sent, 1, 3, 9), expected[1:3])
    np.testing.assert_array_equal(step._summed(histories, sent, 2, 4, 9), expected[2:])


@given(st.integers(0, 2**32 - 1), st.integers(2, 20), st.integers(1, 9))
def test_coins_do_not_depend_on_who_sits_with_whom(seed: int, users: int, cut: int) -> None:
    """Test more columns than are summed at a time, and rows in pieces."""
    rng = np.random.default_rng(seed)
    touched = sp.csr_array((rng.random((users, 9)) < 0.5).astype(np.float32))
    everybody = Histories(touched)
    cut = min(cut, users - 1)
    parts = (Histories(touched[:cut]), Histories(touched[cut:], cut))
    step = SeededScaledStep(everybody.item_degrees, bytes(32), COLUMNS + 6, 12, fine_rows=2)
    total = step.total(everybody)
    np.testing.assert_array_equal(total, sum(step.total(part) for part in parts))
    np.testing.assert_array_equal(total, sum(step.collect(step.blocks(part)) for part in parts))


def test_reaches_are_hundreds_of_times_below_bounds_from_degrees(small: Dataset) -> None:
    """Test the benefit of the extra number per item: bounds from degrees alone would lose
    everything."""
    histories = Histories(small.train.matrix)
    degrees = histories.item_degrees
    reach, step = made(basis_of(histories, 16), histories)
    by_degrees = degrees * np.int64(reach.step.top)
    blind = replace(step, row_scales=row_scales(by_degrees, degrees, 12, step.length))
    exact = factored(small.train).times(step.step.x().astype(np.float32))
    error, blind_error = (
        np.linalg.norm(one.decode(one.total(histories)) - exact) / np.linalg.norm(exact)
        for one in (step, blind)
    )
    assert error < 0.02
    assert blind_error > 4 * error


def test_rows_in_two_parts_are_finer(small: Dataset) -> None:
    """Test that the remainders restore most of what popular rows lose by rounding."""
    histories = Histories(small.train.matrix)
    degrees = histories.item_degrees
    _, step = made(basis_of(histories, 16), histories, width=10)
    exact = factored(small.train).times(step.step.x().astype(np.float32))
    total = step.total(histories)
    popular = step._row_items[step.n_items :]
    assert len(popular) == step.fine_rows == -(-step.n_items // 32)
    assert degrees[popular].min() >= np.sort(degrees)[-step.fine_rows]
    alone = replace(step, fine_rows=0).decode(total[: step.n_items])
    both = step.decode(total)
    errors = [np.linalg.norm((found - exact)[popular]) for found in (alone, both)]
    assert errors[1] < errors[0] / 4
    others = np.setdiff1d(np.arange(step.n_items), popular)
    np.testing.assert_array_equal(alone[others], both[others])


def test_the_first_step_needs_no_reach(small: Dataset) -> None:
    histories = Histories(small.train.matrix)
    first = SeededScaledStep(histories.item_degrees, bytes(32), 8, 16)
    exact = factored(small.train).times(first.step.x().astype(np.float32))
    found = first.decode(first.total(histories))
    assert np.linalg.norm(found - exact) < 0.02 * np.linalg.norm(exact)
    assert np.abs(first.total(histories)).max() < 2**15


def test_bytes_are_those_of_the_codec(small: Dataset) -> None:
    """Test the bytes without the header and the degrees, which all clients already have."""
    histories = Histories(small.train.matrix)
    for bits, columns in ((4, 6), (4, 7), (8, 6), (16, 6)):
        for ask in made(basis_of(histories, columns), histories, bits=bits):
            told = ask.broadcast_bytes + histories.n_items * ask.item_degrees.itemsize // 8
            smaller = 2 * histories.n_items if bits == 16 else 0  # units of fine rows are small
            assert -smaller <= len(wire.encode(ask)) - told < 500
            planned = {
                RowReach: RowReach.planned(histories.n_items, columns, bits),
                ScaledStep: ScaledStep.planned(histories.n_items, columns, 12, bits),
            }[type(ask)]
            assert planned.shape == ask.shape


@given(st.lists(st.integers(-8, 7)))
def test_half_bytes(numbers: list[int]) -> None:
    values = np.array(numbers, np.int16)
    packed = fixed_point.pack_half_bytes(values)
    assert len(packed) == fixed_point.packed_bytes(len(values), 4)
    again = fixed_point.unpack_half_bytes(np.frombuffer(packed, np.uint8), len(values))
    np.testing.assert_array_equal(again, values)


# --- blocks aimed by a server ---------------------------------------------------------------------


def test_honest_blocks_pass(small: Dataset) -> None:
    histories = Histories(small.train.matrix)
    for bits in (4, 8, 16):
        for ask in made(basis_of(histories, 12), histories, bits=bits):
            ask.check(context(histories))
            assert ask.aim is not None
            Policy().check_aim(ask.aim)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 20), st.integers(1, 8))
def test_every_block_that_an_honest_server_sends_passes(
    seed: int, users: int, items: int, columns: int
) -> None:
    """Test that small catalogues get more bits; four would leave columns too far from
    orthonormal."""
    rng = np.random.default_rng(seed)
    touched = rng.random((users, items)) < rng.random(items)
    histories = Histories(sp.csr_array(touched.astype(np.float32)))
    for ask in made(basis_of(histories, columns, seed), histories):
        ask.check(context(histories))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x * 1.5,
        lambda x: x * 0.6,
        lambda x: x[:, [0, 1, 2, 2]],
        lambda x: x * [1, 1, 1, 0.1],
        lambda x: x + 0.5 * x[:, [1, 2, 3, 0]],
    ],
)
def test_other_blocks_are_refused(change: object, small: Dataset) -> None:
    histories = Histories(small.train.matrix)
    changed = change(basis_of(histories, 4))  # type: ignore[operator]
    for ask in made(changed, histories, bits=16):
        with pytest.raises(FederationError, match="not orthonormal"):
            ask.check(context(histories))


def test_a_block_does_not_lie_on_items_that_nobody_is_said_to_have(small: Dataset) -> None:
    histories = Histories(small.train.matrix)
    degrees = histories.item_degrees
    target = int(degrees.argmax())
    claimed = np.where(np.arange(len(degrees)) == target, 0, degrees)
    x = basis_of(histories, 4)
    x[target] = 0
    block = CoarseBlock.of(orthonormalize(x)[0], claimed, 4)
    honest = RowReach.of(block, claimed)
    honest.check(context(histories))
    coarse, units = block.coarse.copy(), block.row_units.copy()
    coarse[target], units[target] = 1, 1 << 26
    with pytest.raises(FederationError, match="on items which nobody has"):
        replace(honest, coarse=coarse, row_units=units).check(context(histories))


def test_an_aim_that_only_a_mixture_of_columns_shows(small: Dataset) -> None:
    """Test columns that are spread out, each with a little of one item, whose difference is the
    aim. Squares of single entries do not show it; the span does."""
    histories = Histories(small.train.matrix)
    target = int(histories.item_degrees.argmax())
    columns = 16
    x = basis_of(histories, columns)
    aimed = np.zeros(len(x))
    aimed[target] = 1
    signs = np.random.default_rng(3).choice((-1.0, 1.0), columns) / np.sqrt(columns)
    x -= np.outer(x @ signs, signs)  # make room for one more direction
    x = orthonormalize(x + np.outer(aimed - x @ (x.T @ aimed), signs))[0]
    degrees = histories.item_degrees
    reach = RowReach.of(CoarseBlock.of(x, degrees, 8), degrees)
    seen = reach.step.aim
    assert seen.share < Policy().largest_item_share
    assert reach.aim.leverage > 0.95
    with pytest.raises(PolicyRefusal, match="aimed at single items"):
        Policy().check_aim(reach.aim)


@pytest.mark.parametrize(
    "lie",
    [
        {"row_units": np.full(300, -1)},
        {"row_units": np.full(300, 1 << 30)},
        {"row_units": np.full(300, 1 << 40)},
        {"row_units": np.full(300, 1 << 62)},  # times an even number it would be nothing
        {"row_units": np.ones(3, np.int64)},
        {"fine_rows": -1},
        {"fine_rows": 301},
        {"row_scales": np.full(300, -1)},
        {"row_scales": np.full(300, 1 << 31)},
        {"row_scales": np.ones(299, np.int64)},
        {"coarse": np.ones((299, 4), np.int16)},
        {"coarse": np.ones((300, 4), np.int32)},
        {"coarse": np.ones((300, 0), np.int16)},
    ],
)
def test_what_cannot_be_is_refused(lie: dict[str, Any], small: Dataset) -> None:
    histories = Histories(small.train.matrix)
    _, step = made(basis_of(histories, 4), histories)
    with pytest.raises(FederationError):
        replace(step, **lie)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid:RuntimeWarning")
@pytest.mark.parametrize("bits", [-(2**62), -2000, -600, 2000, 2**31, 2**62])
def test_units_of_a_block_that_no_number_has_are_refused(bits: int, small: Dataset) -> None:
    histories = Histories(small.train.matrix)
    for ask in made(basis_of(histories, 4), histories):
        with pytest.raises(FederationError, match=r"in units of 2\^|not orthonormal"):
            replace(ask, block_bits=bits).check(context(histories))  # type: ignore[type-var]


def test_asks_without_entries_are_refused_like_others() -> None:
    degrees, nothing = np.array([3, 2]), np.zeros(0, np.int64)
    planned = SeededScaledStep.planned(2, 4, 12, bytes(32))
    none = np.zeros((0, 4), np.int16)
    for columns in (0, -1):
        with pytest.raises(FederationError, match="another length"):
            planned.check(SeededScaledStep(degrees, bytes(32), columns, 12, fine_rows=1))
    with pytest.raises(FederationError, match="another length"):
        planned.check(SeededScaledStep(nothing, bytes(32), 4, 12))
    with pytest.raises(FederationError, match="another length"):
        ScaledStep.planned(2, 4, 12, 4).check(ScaledStep(nothing, none, nothing, 30, nothing))


def test_wide_blocks_are_the_power_step(small: Dataset) -> None:
    """Test that a wide ring without scales gives the same product for the same block."""
    histories = Histories(small.train.matrix)
    _, step = made(basis_of(histories, 4), histories, width=40, bits=16)
    wide = PowerStep(histories.item_degrees, step.step.block, step.block_bits, 64)
    image = wide.encoding.decode(wide.total(histories))
    image *= 1 / np.sqrt(np.maximum(histories.item_degrees, 1))[:, None]
    np.testing.assert_allclose(step.decode(step.total(histories)), image, atol=2e-6)
