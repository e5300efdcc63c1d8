"""Sums with differential privacy: how much one person changes, and how the noise adds up."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, norm

from privirec.data import Interactions
from privirec.dp.gaussian import epsilon_of
from privirec.errors import FederationError, UsageError
from privirec.federated.contributions import (
    ClientContext,
    Histories,
    NoiseShare,
    NoisyHeadGram,
    NoisyPopularity,
    base,
)
from privirec.federated.contributions.noisy import gram_of
from privirec.federated.programs import Protected, ProtectedSettings, program_of
from privirec.federated.randomness import ClientRandomness, ClientStream
from privirec.runtime.execute import execute
from privirec.runtime.local.client import clients_of
from privirec.runtime.local.in_process import InProcess
from privirec.runtime.local.secure import SecureInProcess
from privirec.runtime.local.simulation import Simulation

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
    n_items: int, items: np.ndarray, share: NoiseShare = SHARE, n_users: int = 100
) -> NoisyHeadGram:
    found = NoisyHeadGram.planned(n_items, n_users, share, len(items)).ask(items=items)
    assert isinstance(found, NoisyHeadGram)
    return found


@given(st.sets(st.integers(0, 59)), st.integers(8, 20))
def test_one_person_changes_a_sum_by_at_most_one(items: set[int], bits: int) -> None:
    """In units, exactly: the length of what anybody adds is at most 2^bits, rounding included."""
    share = NoiseShare(40, 10, 9, bits)
    person = one_person(items, 60)
    for ask in (popularity(60, share), head_gram(60, np.arange(0, 60, 2), share)):
        vector = np.concatenate(list(ask.exact_blocks(person)))
        assert sum(int(entry) ** 2 for entry in vector) <= 4**bits
        inside = (
            items if ask.name == "noisy-popularity" else {item for item in items if item % 2 == 0}
        )
        if inside:  # and not much less: rounding is all that is lost
            assert sum(int(entry) ** 2 for entry in vector) >= 4**bits * (1 - 130 * 2.0**-bits) ** 2


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
    sizes = np.maximum(head.sum(axis=1), 1)
    expected = head.T @ (head / sizes[:, None])
    np.testing.assert_allclose(gram_of(np.concatenate(blocks), 15, 30), expected, atol=1e-6)


@pytest.mark.parametrize("gone", [0, 3])
def test_noise_of_real_clients_adds_up_to_the_stated_gaussian(gone: int) -> None:
    """Moments and a chi-squared test on sums of clients' shares, also when some are missing."""
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
    assert abs(noise.mean()) < 5 * deviation / math.sqrt(entries)
    assert noise.var() / deviation**2 == pytest.approx(1, abs=5 * math.sqrt(2 / entries))
    cells = norm.ppf(np.arange(1, 50) / 50) * deviation
    counts = np.histogram(noise, np.concatenate([[-np.inf], np.rint(cells) + 0.5, [np.inf]]))[0]
    edges = np.concatenate([[0], norm.cdf((np.rint(cells) + 0.5) / deviation), [1]])
    expected = entries * np.diff(edges)
    assert ((counts - expected) ** 2 / expected).sum() < chi2.ppf(1 - 1e-6, 49)
    assert np.abs(noise).max() <= ask.noise.largest * 2**12


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


def test_every_runtime_gets_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    train = Interactions.from_matrix(sp.csr_array((rng.random((60, 80)) < 0.1).astype(float)))
    program = program_of(ProtectedSettings(head=30, epsilon=4, clients=6, contributors=4), 60, 80)
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
        assert (other.item_item.matrix != found[0].item_item.matrix).nnz == 0


@settings(max_examples=25)
@given(
    st.floats(0.1, 16),
    st.floats(-9, -4).map(lambda power: 10**power),
    st.integers(1, 200_000),
    st.floats(0.3, 1),
    st.floats(0.05, 0.5),
)
def test_the_promise_is_kept_and_not_by_wasting(
    epsilon: float, delta: float, clients: int, share: float, part: float
) -> None:
    contributors = max(1, round(clients * share))
    wanted = ProtectedSettings(
        epsilon=epsilon,
        delta=delta,
        clients=clients,
        contributors=contributors,
        popularity_share=part,
    )
    found = Protected(wanted, 1000, 5000).calibration
    level = math.hypot(
        *(
            2.0**noise.fraction_bits / noise.deviation / math.sqrt(contributors)
            for noise in (found.popularity, found.gram)
        )
    )
    assert epsilon_of(level, delta) <= found.epsilon <= epsilon
    assert found.epsilon >= 0.9 * epsilon


def test_a_head_that_cannot_be_is_refused() -> None:
    context = ClientContext(100, 10, ProtectedSettings(), one_person({1}, 10))
    head_gram(10, np.array([1, 4, 9])).check(context)
    for bad in ([4, 1, 9], [1, 1, 9], [-1, 4, 9], [1, 4, 10]):
        with pytest.raises(FederationError, match="a head"):
            head_gram(10, np.array(bad)).check(context)


def test_more_contributors_than_clients_are_refused() -> None:
    with pytest.raises((UsageError, ValueError), match="contributors"):
        ProtectedSettings(clients=3, contributors=4)
