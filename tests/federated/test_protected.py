"""Tests of sums with differential privacy: the influence of one person, and the added noise."""

from __future__ import annotations

import itertools
import math
from contextlib import nullcontext
from fractions import Fraction
from types import ModuleType
from typing import Any, Literal, cast

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import chi2, norm

from privirec.data import Interactions
from privirec.data.few_rows import FewRows
from privirec.errors import DataError, FederationError, OverflowRefused, UsageError
from privirec.federated import kernels, kernels_in_numpy, wire
from privirec.federated.contributions import (
    ClientContext,
    Histories,
    NoiseShare,
    NoisyHeadGram,
    NoisyPopularity,
    NoisyPowerStep,
    PlannedSum,
    base,
    noisy_power,
)
from privirec.federated.contributions.noisy import LARGEST_HEAD, NormedSum
from privirec.federated.contributions.noisy_gram import gram_of, pair_length
from privirec.federated.dp.discrete import distance
from privirec.federated.dp.discrete_gaussian import FINE_ENOUGH
from privirec.federated.dp.gaussian import delta_of, epsilon_of
from privirec.federated.dp.loss import Loss
from privirec.federated.programs import Protected, ProtectedSettings, program_of
from privirec.federated.programs.calibration import Calibration, Promise
from privirec.federated.programs.protected_ways import Power, popularity_share
from privirec.federated.randomness import ClientRandomness, ClientStream
from privirec.models import Denoised
from privirec.privacy.ledger import Ledger
from privirec.runtime.execute import execute
from privirec.runtime.local.client import clients_of
from privirec.runtime.local.in_process import InProcess
from privirec.runtime.local.secure import DropOuts, SecureInProcess
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.spec import Assumptions
from privirec.secagg import ServerModel

SHARE = NoiseShare(deviation=40, clients=10, contributors=9, fraction_bits=12)


def one_person(items: set[int], n_items: int) -> Histories:
    matrix = np.zeros((1, n_items))
    matrix[0, sorted(items)] = 1
    return Histories(sp.csr_array(matrix))


def popularity(n_items: int, share: NoiseShare = SHARE, n_users: int = 100) -> NoisyPopularity:
    found = NoisyPopularity.planned(n_items, n_users, share).ask()
    assert isinstance(found, NoisyPopularity)
    return found


def head_gram(
    n_items: int,
    items: np.ndarray,
    share: NoiseShare = SHARE,
    weights: np.ndarray | None = None,
) -> NoisyHeadGram:
    weights = np.ones(len(items), np.int64) if weights is None else weights
    planned = NoisyHeadGram.planned(n_items, 100, share, len(items))
    found = planned.ask(items=items, weights=weights)
    assert isinstance(found, NoisyHeadGram)
    return found


def power_step(
    n_items: int,
    items: np.ndarray,
    block: np.ndarray,
    share: NoiseShare = SHARE,
    weights: np.ndarray | None = None,
) -> NoisyPowerStep:
    planned = NoisyPowerStep.planned(n_items, 100, share, *block.shape)
    weights = np.ones(len(items), np.int64) if weights is None else weights
    found = planned.ask(items=items, block=block.astype(np.int32), weights=weights)
    assert isinstance(found, NoisyPowerStep)
    return found


INT32 = st.integers(-(2**31), 2**31 - 1)
HEAD = np.arange(0, 60, 2)


def length_in_units(ask: NormedSum, person: Histories) -> int:
    """Return the squared length in units, as an integer of any size."""
    return sum(int(entry) ** 2 for block in ask.exact_blocks(person) for entry in block)


WEIGHTS = arrays(np.int64, 30, elements=st.integers(1, (1 << 20) - 1))


@given(st.sets(st.integers(0, 59)), st.integers(8, 40), WEIGHTS)
def test_one_person_changes_a_sum_by_at_most_one(
    items: set[int], bits: int, weights: np.ndarray
) -> None:
    """Test exactly, in units: one person's vector has a length of at most 2^bits, rounding
    included."""
    share = NoiseShare(40, 10, 9, bits)
    person = one_person(items, 60)
    on_head = sum(item % 2 == 0 for item in items)
    for ask, fewest, have in (
        (popularity(60, share), 1, len(items)),
        (head_gram(60, HEAD, share), 2, on_head),
        (head_gram(60, HEAD, share, weights), 2, on_head),
    ):
        length = length_in_units(ask, person)
        assert length <= 4**bits
        if have >= fewest:  # and not much less: only rounding is lost
            assert length >= 4**bits * max(0, 1 - 30 * 2.0**-bits) ** 2
        else:
            assert length == 0


@given(
    st.sets(st.integers(0, 59)),
    st.integers(8, 40),
    st.integers(1, 5).flatmap(
        lambda columns: arrays(np.int64, (30, columns), elements=INT32 | st.integers(-3, 3))
    ),
    WEIGHTS,
)
def test_one_person_changes_a_power_step_by_at_most_one(
    items: set[int], bits: int, block: np.ndarray, weights: np.ndarray
) -> None:
    """Test any broadcast of a server, extreme integers included."""
    ask = power_step(60, HEAD, block, NoiseShare(40, 10, 9, bits), weights)
    ask.check(ClientContext(100, 60, ProtectedSettings(), one_person(items, 60)))
    length = length_in_units(ask, one_person(items, 60))
    assert length <= 4**bits
    inside = np.array(sorted(item // 2 for item in items if item % 2 == 0), int)
    parts = block[inside].sum(axis=0) - block[inside]
    if len(inside) and parts.any():
        assert length >= 4**bits * (1 - 2 * math.sqrt(parts.size) * 2.0**-bits) ** 2
    else:
        assert length == 0


def distance_in_units(ask: NormedSum, one: Histories, other: Histories) -> int:
    """Return the squared distance between two people's vectors in units, exactly."""
    both = zip(ask.exact_blocks(one), ask.exact_blocks(other), strict=True)
    return sum(
        (int(a) - int(b)) ** 2 for first, second in both for a, b in zip(first, second, strict=True)
    )


SOME_ITEMS = st.sets(st.integers(0, 59))


@given(SOME_ITEMS, SOME_ITEMS, st.integers(8, 40), WEIGHTS)
def test_two_histories_of_sums_without_negative_entries_are_at_most_root_two_apart(
    one: set[int], other: set[int], bits: int, weights: np.ndarray
) -> None:
    """Test exactly, in units, what replacing a history by another one changes."""
    share = NoiseShare(40, 10, 9, bits)
    for ask in (popularity(60, share), head_gram(60, HEAD, share, weights)):
        assert type(ask).squared_distance == 2
        apart = distance_in_units(ask, one_person(one, 60), one_person(other, 60))
        assert apart <= 2 * 4**bits


@given(
    SOME_ITEMS,
    SOME_ITEMS,
    st.integers(8, 40),
    arrays(np.int64, (30, 2), elements=INT32 | st.integers(-3, 3)),
    WEIGHTS,
)
def test_two_histories_of_a_power_step_are_at_most_two_apart(
    one: set[int], other: set[int], bits: int, block: np.ndarray, weights: np.ndarray
) -> None:
    ask = power_step(60, HEAD, block, NoiseShare(40, 10, 9, bits), weights)
    apart = distance_in_units(ask, one_person(one, 60), one_person(other, 60))
    assert apart <= type(ask).squared_distance * 4**bits


def test_a_hostile_block_comes_close_to_two_and_disjoint_pairs_to_root_two() -> None:
    """Test that neither bound can be lowered: a block whose rows of two items are opposite, and a
    weight that puts a person's whole length on a third item, or two histories without a common
    item."""
    bits = 30
    share = NoiseShare(40, 10, 9, bits)
    block, weights = np.array([[0], [1 << 30], [-(1 << 30)]]), np.array([(1 << 20) - 1, 1, 1])
    ask = power_step(3, np.arange(3), block, share, weights)
    ask.check(ClientContext(100, 3, ProtectedSettings(), one_person(set(), 3)))
    apart = distance_in_units(ask, one_person({0, 1}, 3), one_person({0, 2}, 3))
    assert 3.99 * 4**bits < apart <= type(ask).squared_distance * 4**bits
    for nonnegative in (popularity(60, share), head_gram(60, HEAD, share)):
        apart = distance_in_units(nonnegative, one_person({0, 2}, 60), one_person({4, 6}, 60))
        assert 1.99 * 4**bits < apart <= type(nonnegative).squared_distance * 4**bits


@pytest.mark.parametrize(("way", "least", "most"), [("gram", 12.0, 12.2), ("power", 16.5, 16.7)])
def test_replacing_a_history_has_a_second_figure(
    way: Literal["gram", "power"], least: float, most: float
) -> None:
    """Test the second figure of epsilon 8: sums of pairs are root two apart, power steps two."""
    program = Protected(ProtectedSettings(way=way, epsilon=8.0), 30_000, 2_000)
    described = program.describe()
    assert described["epsilon"] <= program.loss.epsilon(1e-6) <= 8.0
    assert least <= described["epsilon_replacing"] <= most
    assert described["epsilon_replacing"] <= program.loss.epsilon_replacing(1e-6) <= 18.5
    for planned in program.forecast():
        if not isinstance(planned, PlannedSum) or not planned.protection:
            continue
        kind, loss = cast(Any, planned.kind), planned.protection.loss
        assert Fraction(loss.replacing) ** 2 >= kind.squared_distance * Fraction(loss.mu) ** 2
        assert loss.replacing <= math.sqrt(kind.squared_distance) * loss.mu * (1 + 1e-15)


@pytest.mark.parametrize("repeated", [[3] * 100, [1, 2, 2, 3], [2, 1]])
@pytest.mark.parametrize("before", [[], [0, 5]])
def test_a_history_with_an_item_twice_is_refused_where_its_length_is_computed(
    repeated: list[int], before: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test each sum with noise; a hundred copies of an item would be ten times too long."""
    rows = np.array([*before, *repeated], np.int32)
    starts = np.array([0, len(before), len(before), len(rows)])
    shape, head = (3, 60), np.arange(6)
    block, weights = np.arange(1, 13).reshape(6, 2), np.arange(1, 7)
    asks = (
        popularity(60),
        head_gram(60, head, weights=weights),
        power_step(60, head, block, weights=weights),
    )
    for matrix in (
        sp.csr_array((np.ones(len(rows)), rows, starts), shape=shape),
        FewRows(starts, rows, shape),
    ):
        for ask in asks:
            with pytest.raises(DataError, match="names an item twice"):
                list(ask.blocks(Histories(matrix)))
            with pytest.raises(DataError, match="names an item twice"):
                ask.total(Histories(matrix), [])
    monkeypatch.setattr(Histories, "distinct", lambda self: self)
    if not before and len(repeated) == 100:
        longer = length_in_units(popularity(60), Histories(matrix))
        assert longer > 99 * 4**SHARE.fraction_bits


@given(arrays(np.bool_, st.tuples(st.integers(0, 5), st.integers(1, 6))))
def test_histories_without_copies_are_not_refused(matrix: np.ndarray) -> None:
    """Test empty rows in all places too."""
    histories = Histories(sp.csr_array(matrix.astype(float)))
    assert histories.distinct() is histories


def test_a_power_step_of_a_long_history_stays_within_one() -> None:
    """Test a sum of millions of squares, in which rounding errors could add up."""
    rng = np.random.default_rng(3)
    block = rng.integers(-(2**31), 2**31, (20_000, 64))
    weights = rng.integers(1, 1 << 20, 20_000)
    ask = power_step(20_000, np.arange(20_000), block, NoiseShare(40, 10, 9, 40), weights)
    vector = np.concatenate(list(ask.exact_blocks(one_person(set(range(20_000)), 20_000))))
    halves = vector >> 20, vector & (2**20 - 1)  # squares of halves fit 64 bits, and so do sums
    high, low = (half.astype(object) for half in halves)
    length = int((high * high).sum() << 40) + int((2 * high * low).sum() << 20)
    length += int((low * low).sum())
    assert 4**40 * (1 - 1e-8) < length <= 4**40


def test_pairs_of_a_long_history_stay_within_one() -> None:
    """Test a sum of thousands of products, in which rounding errors could add up."""
    rng = np.random.default_rng(5)
    items, weights = np.arange(2_000), rng.integers(1, 1 << 20, 2_000)
    ask = head_gram(2_000, items, NoiseShare(40, 10, 9, 40), weights)
    vector = np.concatenate(list(ask.exact_blocks(one_person(set(range(2_000)), 2_000))))
    halves = vector >> 20, vector & (2**20 - 1)
    high, low = (half.astype(object) for half in halves)
    length = int((high * high).sum() << 40) + int((2 * high * low).sum() << 20)
    assert 4**40 * (1 - 1e-8) < length + int((low * low).sum()) <= 4**40


def test_pairs_are_the_weighted_item_item_matrix_without_its_diagonal() -> None:
    rng = np.random.default_rng(1)
    matrix = (rng.random((50, 40)) < 0.2).astype(float)
    items, weights = np.sort(rng.choice(40, 15, replace=False)), rng.integers(1, 9, 15)
    ask = head_gram(40, items, NoiseShare(40, 10, 9, 30), weights)
    triangle = ask.collect(ask.exact_blocks(Histories(sp.csr_array(matrix))))
    expected = np.zeros((15, 15))
    for person in matrix[:, items] * weights:
        part = np.outer(person, person)
        np.fill_diagonal(part, 0)
        assert pair_length(person) == pytest.approx(np.linalg.norm(part))
        if part.any():
            expected += part / np.linalg.norm(part)
    found = gram_of(triangle, 15, 30, np.zeros(15))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("loops", [kernels, kernels_in_numpy])
def test_a_power_step_stays_within_one_where_every_square_is_lost(
    loops: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test a block with one large number and 65,536 small ones. Each small square is lost next to
    the large one, but their sum is not, and no rounding towards zero hides it."""
    monkeypatch.setattr(noisy_power, "kernels", loops)
    n_items, small = 1025, 64
    block = np.zeros((n_items, 1 + small), np.int64)
    block[1:, 0], block[0, 0] = 1 << 20, -((n_items - 2) << 20)
    block[0, 1:] = 1 << 22
    weights = np.ones(n_items, np.int64)
    weights[0] = 1 << 19
    ask = power_step(n_items, np.arange(n_items), block, NoiseShare(40, 10, 9, 40), weights)
    person = one_person(set(range(n_items)), n_items)
    ask.check(ClientContext(100, n_items, ProtectedSettings(), person))
    assert 4**40 * (1 - 1e-9) < length_in_units(ask, person) <= 4**40


def test_a_power_step_is_the_item_item_matrix_without_its_diagonal() -> None:
    rng = np.random.default_rng(1)
    matrix = (rng.random((50, 40)) < 0.2).astype(float)
    items = np.sort(rng.choice(40, 15, replace=False))
    block, weights = rng.integers(-1000, 1000, (15, 4)), rng.integers(1, 9, 15)
    ask = power_step(40, items, block, NoiseShare(40, 10, 9, 30), weights)
    total = ask.collect(ask.exact_blocks(Histories(sp.csr_array(matrix))))
    expected = np.zeros((15, 4))
    for person in matrix[:, items]:
        part = (weights * person)[:, None] * (person @ block - block)
        if part.any():
            expected += part / np.linalg.norm(part)
    np.testing.assert_allclose(np.ldexp(total.astype(float), -30), expected, atol=1e-6)


@given(
    arrays(np.bool_, st.tuples(st.integers(1, 8), st.just(12))),
    st.lists(st.integers(1, 7)),
    st.sampled_from([1, 5, 1 << 22]),
)
def test_any_split_of_the_people_gives_the_same_bits(
    matrix: np.ndarray, cuts: list[int], entries: int
) -> None:
    """Test that the sum of uploads, with noise and modulo the ring, is what a simulation
    computes."""
    everybody = sp.csr_array(matrix.astype(np.float64))
    edges = [0, *sorted({cut for cut in cuts if cut < len(matrix)}), len(matrix)]
    block = np.random.default_rng(4).integers(-(2**31), 2**31, (6, 3))
    items = np.arange(0, 12, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "BLOCK_ENTRIES", entries)
        for ask in (popularity(12), head_gram(12, items), power_step(12, items, block)):
            clients = [
                ClientStream(a, b - a, ClientRandomness.insecure(7, a).stream(2, ask.name))
                for a, b in itertools.pairwise(edges)
            ]
            summed = [np.zeros(length, np.uint64) for length in ask.block_lengths()]
            for one in clients:
                own = Histories(everybody[one.first_user : one.first_user + one.n_users])
                for place, sent in enumerate(ask.blocks(own, one.stream)):
                    summed[place] += ask.encoding.to_ring(sent)
            opened = ask.collect(ask.encoding.from_ring(part) for part in summed)
            np.testing.assert_array_equal(opened, ask.total(Histories(everybody), clients))


def test_the_triangle_is_the_gram_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "BLOCK_ENTRIES", 64)
    rng = np.random.default_rng(1)
    matrix = (rng.random((50, 40)) < 0.2).astype(float)
    items = np.sort(rng.choice(40, 15, replace=False))
    share = NoiseShare(40, 10, 9, 30)
    ask = head_gram(40, items, share)
    blocks = list(ask.exact_blocks(Histories(sp.csr_array(matrix))))
    assert [len(block) for block in blocks] == list(ask.block_lengths())
    assert len(blocks) > 1
    head = matrix[:, items]
    sizes = np.maximum(head.sum(axis=1), 2)
    expected = head.T @ (head / np.sqrt(sizes * (sizes - 1))[:, None])
    found = gram_of(np.concatenate(blocks), 15, 30, np.diag(expected))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def assert_gaussian(noise: np.ndarray, deviation: float) -> None:
    """Check moments, and a chi-squared test in fifty cells of equal probability."""
    entries = len(noise)
    assert abs(noise.mean()) < 5 * deviation / math.sqrt(entries)
    assert noise.var() / deviation**2 == pytest.approx(1, abs=5 * math.sqrt(2 / entries))
    fourth = (noise / deviation) ** 4
    assert fourth.mean() == pytest.approx(3, abs=5 * math.sqrt(96 / entries))
    cells = np.rint(norm.ppf(np.arange(1, 50) / 50) * deviation) + 0.5
    counts = np.histogram(noise, np.concatenate([[-np.inf], cells, [np.inf]]))[0]
    expected = entries * np.diff(np.concatenate([[0], norm.cdf(cells / deviation), [1]]))
    assert ((counts - expected) ** 2 / expected).sum() < chi2.ppf(1 - 1e-6, 49)


@pytest.mark.parametrize("gone", [0, 3])
def test_noise_of_real_clients_adds_up_to_the_stated_gaussian(gone: int) -> None:
    """Test sums of clients' noise shares, also with some clients missing."""
    clients, entries = 12, 40_000
    share = NoiseShare(33, clients, clients - 3, 12)
    ask = popularity(entries, share)
    nobody = Histories(sp.csr_array((1, entries)))
    streams = [
        ClientStream(0, 1, ClientRandomness.insecure(5, client).stream(1, ask.name))
        for client in range(clients - gone)
    ]
    noise = ask.total(nobody, streams)
    deviation = 33 * math.sqrt(clients - gone)
    assert deviation >= share.protecting_deviation * (1 - 1e-12)
    assert_gaussian(noise, deviation)
    assert np.abs(noise).max() <= ask.noise.largest * 2**12


@pytest.mark.parametrize("kind", ["pairs", "power step"])
def test_noise_in_opened_sums_when_clients_drop_out(kind: str) -> None:
    """Test real masks with four of twenty clients gone before the sum: the result is the exact sum
    over the others plus their noise, which is no less than promised."""
    clients, n_items, share = 20, 400, NoiseShare(50, 20, 15, 12)
    rng = np.random.default_rng(2)
    train = Interactions.from_matrix(sp.csr_array((rng.random((60, n_items)) < 0.05).astype(float)))
    items = np.arange(0, n_items, 2)
    if kind == "pairs":
        planned = NoisyHeadGram.planned(n_items, 60, share, 200)
        ask: Any = planned.ask(items=items, weights=rng.integers(1, 9, 200))
    else:
        planned = NoisyPowerStep.planned(n_items, 60, share, 200, 90)
        block = rng.integers(-(2**31), 2**31, (200, 90)).astype(np.int32)
        ask = planned.ask(items=items, block=block, weights=np.ones(200, np.int64))
    gone = {3, 4, 11, 19}
    runtime = SecureInProcess(
        clients_of(train, clients, 8),
        [planned],
        "secagg+",
        assumptions=Assumptions(server_model=ServerModel.SEMI_HONEST),
        dropouts=DropOuts(at_sums={1: {"input": gone}}),
    )
    opened = runtime.sum(ask, Ledger())
    assert set(runtime.survivors) == set(range(clients)) - gone
    exact = sum(
        ask.collect(ask.exact_blocks(client.histories))
        for number, client in enumerate(clients_of(train, clients, 8))
        if number not in gone
    )
    deviation = share.deviation * math.sqrt(clients - len(gone))
    assert deviation >= share.protecting_deviation
    assert_gaussian((opened - exact).reshape(-1), deviation)


def test_noise_is_secret_and_never_twice_the_same() -> None:
    one = ClientRandomness(bytes(32))
    drawn = []
    for stream in (
        one.stream(1, "a"),
        one.stream(2, "a"),
        one.stream(1, "b"),
        ClientRandomness(bytes([1] * 32)).stream(1, "a"),
    ):
        ask = popularity(500)
        drawn.append(np.concatenate(list(ask.blocks(one_person(set(), 500), stream))))
    for first in range(4):
        for second in range(first):
            assert abs(np.corrcoef(drawn[first], drawn[second])[0, 1]) < 0.25
    with pytest.raises(FederationError, match="no randomness"):
        list(popularity(5).blocks(one_person(set(), 5)))


@pytest.mark.parametrize("way", ["gram", "power"])
def test_every_runtime_gets_the_same_bits(way: Literal["gram", "power"]) -> None:
    rng = np.random.default_rng(0)
    train = Interactions.from_matrix(sp.csr_array((rng.random((60, 80)) < 0.1).astype(float)))
    settings = ProtectedSettings(way=way, head=30, columns=5, epsilon=4, clients=6, contributors=4)
    program = program_of(settings, 60, 80)
    found = [
        execute(program.steps(), runtime)[0]
        for runtime in (
            Simulation(train, 6, 9),
            InProcess(clients_of(train, 6, 9)),
            SecureInProcess(clients_of(train, 6, 9), program.sums(), "secagg"),
        )
    ]
    for other in found[1:]:
        assert (other.item_degrees == found[0].item_degrees).all()
        if way == "gram":
            assert (other.item_item.matrix != found[0].item_item.matrix).nnz == 0
        else:
            assert (other.basis == found[0].basis).all()
            assert np.count_nonzero(other.basis.any(axis=1)) == 30


@settings(max_examples=25)
@given(
    st.floats(0.1, 16),
    st.floats(-9, -4).map(lambda power: 10**power),
    st.integers(1, 200_000),
    st.floats(0.3, 1),
    st.floats(0.05, 0.5),
    st.sampled_from(["gram", "power"]),
)
def test_the_promise_is_kept_and_not_by_wasting(
    epsilon: float,
    delta: float,
    clients: int,
    share: float,
    part: float,
    way: Literal["gram", "power"],
) -> None:
    contributors = max(1, round(clients * share))
    wanted = ProtectedSettings(
        epsilon=epsilon,
        delta=delta,
        clients=clients,
        contributors=contributors,
        popularity_share=part,
        way=way,
    )
    program = Protected(wanted, 1000, 5000)
    sums = program.expected_sums()
    assert len(sums) == (2 if way == "gram" else 4)
    level = math.hypot(
        *(
            2.0 ** one.fixed["fraction_bits"] / one.fixed["deviation"] / math.sqrt(contributors)
            for one in sums
        )
    )
    losses = [one.protection.loss for one in sums if one.protection]
    found = Loss.together(losses).epsilon(delta)
    assert epsilon_of(level, delta) - 1e-9 <= found <= program.loss.epsilon(delta) <= epsilon
    assert found >= 0.9 * epsilon
    assert Loss.together(losses).fits(program.promise.cap)


def test_noise_that_is_too_coarse_for_a_client_promises_nothing() -> None:
    """Test any number of clients: the sum would be fine enough, but it is no discrete Gaussian."""
    assert NoiseShare(8, 10**6, 10**6, 12).protection(1).loss.mu > 0
    for deviation in (1, 7):
        with pytest.raises(UsageError, match="too coarse"):
            NoiseShare(deviation, 10**6, 10**6, 12).protection(1)
    for impossible in ((0, 9, 9, 12), (-8, 9, 9, 12), (8, 9, 10, 12), (8, 9, 0, 12), (8, 9, 9, 99)):
        with pytest.raises(FederationError, match="impossible"):
            NoiseShare(*impossible)


def test_a_client_of_a_large_crowd_adds_noise_that_is_fine_enough() -> None:
    """Test a million clients that each add little; 128 units are rounded up by at most 0.8 %."""
    for square in (Fraction(32**2), Fraction(1), Fraction(1, 10**6)):
        promise = Promise(8.0, 1e-6, 10**6, 10**6)
        share = promise.share(square, 1, 1.0)
        assert share.deviation >= 128
        assert share.protection(1).loss.mu ** 2 >= float(square) * 0.98


@settings(max_examples=25)
@given(
    st.floats(0.1, 16),
    st.floats(-20, -4).map(lambda power: 10**power),
    st.integers(1, 10**6),
)
@example(16.0, 1e-20, 100)
def test_whole_numbers_take_no_more_of_delta_than_their_share(
    epsilon: float, delta: float, contributors: int
) -> None:
    """Test (1 + e^epsilon) times the distance of all sums, in rationals."""
    lengths = [5000, 500_500]
    promise = Promise(epsilon, delta, contributors, contributors)
    found = Calibration.of(promise, [0.3, 0.7], lengths)
    gaps = (
        Fraction(share.protection(length).loss.gap)
        for share, length in zip(found.shares, lengths, strict=True)
    )
    at_least = Fraction(math.exp(epsilon) * (1 - 1e-9))
    assert (1 + at_least) * sum(gaps) <= Fraction(0.01) * Fraction(delta)
    assert found.epsilon <= epsilon


def test_a_share_keeps_its_level_where_there_is_nothing_to_round_up() -> None:
    """Test 4096 / 32, a whole number, which would do if integer noise had no extra cost."""
    share = Promise(8.0, 1e-6, 1, 1).share(Fraction(32**2), 1, 1.0)
    assert share == NoiseShare(129, 1, 1, 12)
    assert share.protection(1).loss.mu <= 32.0
    assert NoiseShare(128, 1, 1, 12).protection(1).loss.mu > 32.0


def test_parts_of_the_budget_add_up_to_it() -> None:
    """Test that each sum gets its part of mu^2, and all sums together the whole."""
    for way in ("gram", "power"):
        program = Protected(ProtectedSettings(way=way, clients=1000, contributors=900), 1000, 500)
        sums = program.expected_sums()
        squares = [one.protection.loss.mu**2 for one in sums if one.protection]
        whole = program.promise.mu**2
        assert delta_of(8.0, math.sqrt(whole)) <= 0.99e-6  # the rest is for whole numbers
        parts = (1.0,) if way == "gram" else (0.2, 0.3, 0.5)
        assert sum(parts) == pytest.approx(1)
        first = popularity_share(program.promise.signal(1000), 500)
        assert 0.05 < first < 0.25
        wanted = [first * whole, *((1 - first) * whole * part for part in parts)]
        for got, want in zip(squares, wanted, strict=True):
            assert 0.96 * want < got <= 1.01 * want  # what one leaves goes to later ones
        assert sum(squares) <= whole


def test_the_way_and_its_size_follow_from_public_numbers() -> None:
    globo = Protected(ProtectedSettings(epsilon=1, delta=1e-6), 157_926, 11_832).way
    gowalla = Protected(ProtectedSettings(epsilon=8), 29_858, 40_981).way
    assert (type(globo), globo.head) == (Power, 3274)
    assert isinstance(gowalla, Power)
    assert (gowalla.head, gowalla.columns) == (4275, 66)
    small = Protected(ProtectedSettings(way="power", columns=9, head=7), 5, 4).way
    assert isinstance(small, Power)
    assert (small.head, small.columns) == (4, 4)
    # Noise for drop-outs that did not happen still counts.
    half = Promise(8, 1e-6, clients=100, contributors=25)
    assert half.signal(10) == pytest.approx(Promise(8, 1e-6, 1, 1).signal(10) / 2)


@pytest.mark.parametrize("way", ["gram", "power"])
@pytest.mark.parametrize("n_items", [1, 2, 3])
def test_the_smallest_catalogues(way: Literal["gram", "power"], n_items: int) -> None:
    train = Interactions.from_matrix(sp.csr_array(np.ones((2, n_items))))
    program = program_of(ProtectedSettings(way=way, clients=2, contributors=1), 2, n_items)
    components, ledger = execute(program.steps(), Simulation(train, 2))
    scores = Denoised().use(components).score(train.matrix)
    assert np.isfinite(scores).all()
    assert all(row["noise"]["tail"] == 2.0**-64 for row in ledger.as_rows()[:-1])


def test_asks_travel_as_bytes_and_keep_to_the_plan() -> None:
    rng = np.random.default_rng(6)
    block = rng.integers(-(2**31), 2**31, (3, 2))
    items = np.array([1, 4, 8])
    for ask in (
        popularity(9),
        head_gram(9, items),
        head_gram(9, items, weights=np.array([5, 1, 4096])),
        power_step(9, items, block, weights=np.array([5, 1, 4096])),
    ):
        again = wire.decode(wire.encode(ask))
        assert wire.encode(again) == wire.encode(ask)
        assert type(again) is type(ask)
        assert again.shape == ask.shape
    planned = NoisyPowerStep.planned(9, 100, SHARE, 3, 2)
    weaker = NoiseShare(SHARE.deviation - 1, SHARE.clients, SHARE.contributors, 12)
    with pytest.raises(FederationError, match="another deviation than planned"):
        planned.check(power_step(9, items, block, weaker))
    with pytest.raises(FederationError, match="another length"):
        planned.check(power_step(9, items[:2], block[:2]))


@given(
    st.integers(128, 10_000),
    st.integers(1, 10**6),
    st.integers(8, 16),
    st.integers(1, 10**6),
    st.integers(1, 10**6),
)
def test_a_sum_leaves_its_ring_less_often_than_is_stated(
    deviation: int, clients: int, bits: int, n_items: int, n_users: int
) -> None:
    """Test with the noise of all clients in the sum, however few of them are counted on."""
    ask = popularity(n_items, NoiseShare(deviation, clients, 1, bits), n_users)
    room = 2 ** (ask.encoding.width - 1) - 1 - (n_users << bits)
    reach = room / (deviation * math.sqrt(clients))
    # An entry's noise exceeds `room` with a probability of at most 2 exp(-reach^2 / 2).
    assert math.log2(2 * n_items) - reach**2 / 2 / math.log(2) <= -64
    stated = ask.noise
    assert stated.tail == 2.0**-64
    assert stated.largest <= math.ldexp(room, -bits)


def test_no_ring_holds_too_many_people() -> None:
    with pytest.raises(OverflowRefused, match="no ring holds"):
        _ = popularity(5, NoiseShare(40, 10, 9, 40), n_users=1 << 24).encoding


def test_a_block_that_does_not_fit_is_refused() -> None:
    with pytest.raises(FederationError, match="a block of 3 rows for 2 items"):
        power_step(9, np.array([1, 2]), np.zeros((3, 2)))
    with pytest.raises(FederationError, match="3 weights for 2 items"):
        power_step(9, np.array([1, 2]), np.zeros((2, 2)), weights=np.ones(3, np.int64))
    with pytest.raises(FederationError, match="1 weights for 2 items"):
        head_gram(9, np.array([1, 2]), weights=np.ones(1, np.int64))
    for wrong in ([0, 1], [1, 1 << 20], [-1, 1]):
        weights, items = np.array(wrong), np.array([1, 2])
        for ask in (
            head_gram(9, items, weights=weights),
            power_step(9, items, np.zeros((2, 2)), weights=weights),
        ):
            with pytest.raises(FederationError, match="weights that are not between"):
                ask.check(ClientContext(100, 9, ProtectedSettings(), one_person({1}, 9)))
    for wrong in (np.zeros((2, 2)), np.zeros((2, 2), np.int64), np.zeros(2, np.int32)):
        with pytest.raises(FederationError, match="matrix of 32-bit integers"):
            NoisyPowerStep.planned(9, 100, SHARE, 2, 2).ask(
                items=np.array([1, 2]), block=wrong, weights=np.array([1, 1])
            )
    long = np.arange(LARGEST_HEAD + 1)
    for head, ends in ((long[:-1], nullcontext()), (long, pytest.raises(FederationError))):
        ask = power_step(len(long), head, np.zeros((len(head), 1)))
        with ends:
            ask.check(ClientContext(100, len(long), ProtectedSettings(), one_person({1}, 9)))
    ask = power_step(9, np.array([1, 9]), np.zeros((2, 2)))
    with pytest.raises(FederationError, match="not in the catalogue"):
        ask.check(ClientContext(100, 9, ProtectedSettings(), one_person({1}, 9)))


def test_a_head_that_cannot_be_is_refused() -> None:
    context = ClientContext(100, 10, ProtectedSettings(), one_person({1}, 10))
    head_gram(10, np.array([1, 4, 9])).check(context)
    round_the_world = [1, 2**63 - 1, 1 - 2**63, -9, 9]  # every difference wraps to one above zero
    for bad in ([4, 1, 9], [1, 1, 9], [-1, 4, 9], [1, 4, 10], round_the_world):
        with pytest.raises(FederationError, match="a head"):
            head_gram(10, np.array(bad)).check(context)


@settings(deadline=None)
@given(
    epsilon=st.floats(1e-4, 50) | st.floats(0.01, 16),
    delta=st.floats(1e-30, 0.01) | st.floats(1e-12, 1e-3),
    clients=st.integers(1, 1 << 32),
    contributors=st.integers(1, 1 << 32),
    part=st.floats(1e-6, 1 - 1e-6),
    way=st.sampled_from(["gram", "power"]),
)
def test_whatever_a_server_plans_is_planned_or_refused(
    epsilon: float, delta: float, clients: int, contributors: int, part: float, way: Any
) -> None:
    """Test that bad plans get a clear message, since a client meets them unchecked, and that the
    loss a client counts is at least the loss that its noise permits."""
    wanted = ProtectedSettings(
        epsilon=epsilon,
        delta=delta,
        clients=max(clients, contributors),
        contributors=contributors,
        popularity_share=part,
        way=way,
        head=3,
        columns=2,
    )
    try:
        program = Protected(wanted, 500, 9)
        _, *later, _ = program.outline()
        sums = program.expected_sums()
        for expected, bound in zip(sums[1:], later, strict=False):
            assert expected.shape.length <= bound.shape.length
            assert expected.shape.ring_bits == bound.shape.ring_bits
    except OverflowRefused:
        return
    for planned in sums:
        noise, found = planned.fixed, planned.protection
        assert found is not None
        assert noise["deviation"] >= FINE_ENOUGH
        assert found.contributors == contributors
        secret = noise["deviation"] * math.sqrt(contributors)
        level = found.loss.mu**2 * (secret**2 - 1 / 12) / 4.0 ** noise["fraction_bits"]
        assert level == pytest.approx(1, rel=1e-9)
        assert found.loss.gap == distance(secret, planned.shape.length) > 0


def test_more_contributors_than_clients_are_refused() -> None:
    with pytest.raises((UsageError, ValueError), match="contributors"):
        ProtectedSettings(clients=3, contributors=4)
