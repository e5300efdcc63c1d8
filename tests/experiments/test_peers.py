"""Tests of the peers: sensitivity to one person, the privacy promise, accuracy with little
noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privirec.data import Interactions
from privirec.data.interactions import Dataset
from privirec.data.splits import split
from privirec.data.synthetic import synthetic
from privirec.evaluation import evaluate
from privirec.experiments.peers import PEERS
from privirec.experiments.peers.als import AlsSum, UserSide, triangle
from privirec.experiments.peers.power import PowerSum
from privirec.experiments.peers.sums import RowSum
from privirec.experiments.peers.tuned import SIGNALS, TUNED, tuned_settings
from privirec.federated.contributions import Histories, NoiseShare
from privirec.federated.programs.calibration import Promise
from privirec.privacy.ledger import Ledger
from privirec.runtime.execute import execute_steps
from privirec.runtime.local.simulation import Simulation

HEAD = np.arange(0, 40, 2)
SMALL: dict[str, dict[str, Any]] = {
    "popularity": {},
    "private-power": {"head": 60, "columns": 4},
    "dpals": {"head": 60, "columns": 4},
    "ada-dpals": {"head": 60, "columns": 4},
}


def fixed(bits: int) -> dict[str, int]:
    return {
        "n_items": 40,
        "n_users": 100,
        "deviation": 40,
        "clients": 10,
        "contributors": 9,
        "fraction_bits": bits,
    }


def person(items: set[int]) -> Histories:
    matrix = np.zeros((1, 40))
    matrix[0, sorted(items)] = 1
    return Histories(sp.csr_array(matrix))


def squared_length(ask: RowSum, items: set[int]) -> int:
    """Return the squared length in units, as an integer of any size."""
    return sum(int(entry) ** 2 for block in ask.exact_blocks(person(items)) for entry in block)


ANY = st.floats(-1e6, 1e6)
WEIGHTS = arrays(np.float64, 20, elements=st.floats(1e-6, 1e6))


@given(
    st.sets(st.integers(0, 39)),
    st.integers(8, 40),
    WEIGHTS,
    WEIGHTS,
    arrays(np.float64, (20, 3), elements=ANY),
    st.floats(0.01, 1),
)
def test_one_person_changes_a_step_of_the_power_method_by_at_most_one(
    items: set[int],
    bits: int,
    weights: np.ndarray,
    right: np.ndarray,
    block: np.ndarray,
    clip: float,
) -> None:
    """Test any broadcast block, also one that is far from orthonormal."""
    ask = PowerSum(
        **fixed(bits),
        items=HEAD,
        weights=weights,
        least_length=0.0,
        everybody=0.0,
        block=block,
        right_weights=right,
        clip=clip,
    )
    assert squared_length(ask, items) <= 4**bits


@given(
    st.sets(st.integers(0, 39)),
    st.integers(8, 40),
    WEIGHTS,
    arrays(np.float64, (20, 3), elements=st.floats(-100, 100)),
    st.floats(0.01, 10),
    st.floats(0, 0.9),
    st.floats(0, 1),
    st.none() | st.integers(1, 5),
)
def test_one_person_changes_a_step_of_als_by_at_most_one(
    items: set[int],
    bits: int,
    weights: np.ndarray,
    vectors: np.ndarray,
    clip: float,
    everybody: float,
    outer: float,
    items_each: int | None,
) -> None:
    ask = AlsSum(
        **fixed(bits),
        items=HEAD,
        weights=weights if items_each is None else np.ones(20),
        least_length=0.0 if items_each is None else items_each**0.5,
        everybody=everybody,
        side=UserSide(vectors, 0.1, 1.0),
        clip=clip,
        outer=outer,
        items_each=items_each,
    )
    assert squared_length(ask, items) <= 4**bits
    if items_each is not None:
        touched = np.concatenate(list(ask.exact_blocks(person(items)))).reshape(ask.n_rows, -1)
        assert np.count_nonzero(touched[:20].any(axis=1)) <= items_each


def test_the_guard_is_what_bounds_a_person() -> None:
    """Test that rows are longer without the cut to length one, so that the tests above can fail."""
    ask = PowerSum(
        **fixed(12),
        items=HEAD,
        weights=np.ones(20),
        least_length=0.0,
        everybody=0.0,
        block=np.full((20, 3), 1e3),
        right_weights=np.ones(20),
        clip=1.0,
    )
    assert np.linalg.norm(ask.rows(person({0, 2}).matrix[:, HEAD])) > 1
    assert 0.99 * 4**12 < squared_length(ask, {0, 2}) <= 4**12


def test_a_step_is_the_sum_of_everybodys_products() -> None:
    rng = np.random.default_rng(1)
    matrix = (rng.random((50, 40)) < 0.2).astype(float)
    vectors = rng.standard_normal((20, 3))
    weights = rng.random(20) + 0.1
    side = UserSide(vectors, 0.1, 1.0)
    ask = AlsSum(
        **fixed(40),
        items=HEAD,
        weights=weights,
        least_length=0.0,
        everybody=0.2,
        side=side,
        clip=0.3,
        outer=0.4,
        items_each=None,
    )
    found = ask.collect(ask.exact_blocks(Histories(sp.csr_array(matrix)))) * 2.0**-40
    expected = np.zeros((21, 9))
    first, second, _ = triangle(3)
    for history in matrix[:, HEAD]:
        mine = vectors[history > 0]
        system = mine.T @ mine + 0.1 * vectors.T @ vectors + np.eye(3)
        own = np.linalg.solve(system, mine.sum(axis=0))
        own /= max(0.3, float(np.linalg.norm(own)))
        pairs = np.outer(own, own) * (np.sqrt(2) + (1 - np.sqrt(2)) * np.eye(3))
        row = np.concatenate([np.sqrt(0.4) * pairs[first, second], np.sqrt(0.6) * own])
        part = history * weights
        expected[:20] += np.sqrt(0.8) * np.outer(part / max(1e-9, np.linalg.norm(part)), row)
        expected[20] += np.sqrt(0.2) * row
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return synthetic("synthetic:small", 0)


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_keeps_its_promise_and_spends_it(name: str, data: Dataset) -> None:
    """Test that the ledger computes the same epsilon from the sums that were asked for."""
    train = data.train
    promise = Promise(4.0, 1e-6, train.n_users, train.n_users * 3 // 4)
    peer = PEERS[name](promise, train.n_users, train.n_items, **SMALL[name])
    ledger = Ledger(secret_noise=True)
    scorer = execute_steps(peer.steps(), Simulation(train, None, 0, noise_at_once=True), ledger)
    assert 3.6 <= peer.calibration.epsilon <= 4.0
    assert np.isfinite(scorer.score(train.matrix[:5])).all()
    shares = peer.calibration.shares
    assert len(shares) == len(peer.sums())
    again = execute_steps(
        PEERS[name](promise, train.n_users, train.n_items, **SMALL[name]).steps(),
        Simulation(train, None, 0, noise_at_once=True),
        Ledger(),
    )
    np.testing.assert_array_equal(scorer.score(train.matrix[:5]), again.score(train.matrix[:5]))


@pytest.fixture(scope="module")
def four_tastes() -> Dataset:
    """Return histories with six of the fifteen items of one taste, all equally popular."""
    rng = np.random.default_rng(0)
    matrix = np.zeros((400, 60))
    for number, history in enumerate(matrix):
        history[15 * (number % 4) + rng.choice(15, 6, replace=False)] = 1
    return split(Interactions.from_matrix(sp.csr_array(matrix)), test=0.3)


@pytest.mark.parametrize("name", [name for name in PEERS if name != "popularity"])
def test_with_little_noise_a_peer_finds_tastes(name: str, four_tastes: Dataset) -> None:
    """Test that with little noise no accuracy is lost: all loss in the table is due to noise."""
    data, train = four_tastes, four_tastes.train
    promise = Promise(50.0, 1e-2, 1, 1)
    found = {}
    for one in ("popularity", name):
        peer = PEERS[one](promise, train.n_users, train.n_items, **SMALL[one])
        scorer = execute_steps(peer.steps(), Simulation(train, 1, 0), Ledger())
        found[one] = evaluate(scorer, data).ndcg
    assert found[name] > found["popularity"] + 0.15


def test_tuned_settings_are_settings(data: Dataset) -> None:
    promise = Promise(8.0, 1e-6, 100, 75)
    for peer, by_data in TUNED.items():
        assert set(by_data) == set(SIGNALS)
        for both in by_data.values():
            for settings in both:
                PEERS[peer](promise, 100, 50, **settings).sums()
    assert tuned_settings("popularity", "gowalla", data.train, promise) == {}


def test_noise_share_is_that_of_protected() -> None:
    """Test that the sums of the peers take the same noise shares and report the same level."""
    share = NoiseShare(40, 10, 9, 12)
    planned = PowerSum.planned(40, 100, share, head=20, columns=3)
    assert planned.protection == share.protection(60)
