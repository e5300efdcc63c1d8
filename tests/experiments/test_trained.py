"""Tests of the trained peers: sums, derivatives and bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from privirec.data.synthetic import synthetic
from privirec.errors import OverflowRefused
from privirec.evaluation import evaluate
from privirec.experiments.peers import TRAINED, Training, light_gcn
from privirec.experiments.peers.light_gcn import LightGCN
from privirec.experiments.peers.matrix_factorization import MatrixFactorization
from privirec.experiments.peers.training import TUNED, tuned_settings
from privirec.experiments.peers.training_sums import ToldToClients, WeightedRows
from privirec.federated.contributions import Histories
from privirec.models import Popularity
from privirec.privacy.ledger import Ledger
from privirec.runtime.execute import execute_steps
from privirec.runtime.local.simulation import Simulation

DATA = synthetic("synthetic:small")
PEOPLE = Histories(DATA.train.matrix)


def run(training: Training, epochs: int) -> Ledger:
    ledger, simulation = Ledger(), Simulation(DATA.train)
    execute_steps(training.start(), simulation, ledger)
    for _ in range(epochs):
        execute_steps(training.epoch(), simulation, ledger)
    return ledger


def random_sum(seed: int, width: int = 16, clip: float = 3.0) -> tuple[WeightedRows, sp.csr_array]:
    """Return a sum of random rows, and the weights behind it."""
    generator = np.random.default_rng(seed)
    matrix = sp.random_array((30, 12), density=0.3, rng=generator, format="csr", dtype=np.float32)
    matrix.data -= np.float32(0.5)
    rows = generator.standard_normal((30, 5)).astype(np.float32)

    def at_home(histories: Histories) -> tuple[sp.csr_array, Any]:
        own = slice(histories.first_user, histories.first_user + histories.n_users)
        return sp.csr_array(matrix[own]), rows[own]

    most = np.diff(matrix.tocsc().indptr).astype(np.int64)
    ask = WeightedRows(at_home, 5, most, clip, width, seed)
    terms = matrix.multiply(1).toarray()[:, :, None] * rows.astype(np.float64)[:, None, :]
    return ask, np.clip(terms, -clip, clip).sum(axis=0)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 29), st.sampled_from([12, 16, 24]))
def test_integers_of_clients_add_up_to_the_total(seed: int, cut: int, width: int) -> None:
    ask, plain = random_sum(seed, width)
    empty = sp.csr_array((30, 12), dtype=np.float32)
    total = ask.total(Histories(empty))
    parts = [Histories(empty[:cut]), Histories(empty[cut:], cut)]
    sent = [ask.collect(ask.blocks(part)) for part in parts]
    assert (sent[0] + sent[1] == total).all()
    encoding = ask.encoding
    assert (encoding.from_ring(total.view(np.uint64) & encoding.mask) == total).all()
    unit = np.ldexp(ask.reach, -encoding.fraction_bits)[:, None]
    assert (np.abs(ask.decode(total) - plain) <= unit * (ask.most_people[:, None] + 1)).all()


def test_rounding_has_no_bias_and_clipping_bites() -> None:
    ask, plain = random_sum(3, width=10)
    nobody = Histories(sp.csr_array((30, 12), dtype=np.float32))
    found = np.mean(
        [
            ask.decode(WeightedRows(ask.at_home, 5, ask.most_people, 3.0, 10, seed).total(nobody))
            for seed in range(400)
        ],
        axis=0,
    )
    unit = np.ldexp(ask.reach, -ask.encoding.fraction_bits)[:, None]
    assert (np.abs(found - plain) < 0.5 * unit).all()  # one term alone may be off by a unit
    clipped, plainly = random_sum(3, width=24, clip=0.1)
    assert np.abs(clipped.decode(clipped.total(nobody)) - plainly).max() < 1e-4
    assert np.abs(plainly - plain).max() > 0.1


def test_a_ring_that_is_too_narrow_is_refused() -> None:
    ask, _ = random_sum(0)
    many = WeightedRows(ask.at_home, 5, np.full(12, 40_000), 1.0, 16, 0)
    with pytest.raises(OverflowRefused):
        _ = many.encoding


def test_broadcast_values_are_rounded_row_by_row() -> None:
    matrix = np.array([[1.0, -0.3], [1e-6, 2e-7], [0.0, 0.0]])
    told = ToldToClients.of(matrix, 8)
    assert np.abs(told.values - matrix).max(axis=1) == pytest.approx([0.5 / 127, 0, 0], abs=0.004)
    assert told.values[1] == pytest.approx(matrix[1], rel=0.05)
    assert told.n_bytes == 6 + 3 * 4


def test_the_gradient_of_matrix_factorisation_is_that_of_its_loss() -> None:
    """Test also with other answer vectors: at the optimum they change nothing."""
    training = MatrixFactorization(PEOPLE, columns=4, ring_bits=40, told_bits=24, seed=5)
    run(training, 2)
    touched = DATA.train.matrix.toarray().astype(np.float64)
    weight, ridge = training.unobserved, training.ridge
    by_person = ridge * (touched.sum(axis=1) + weight * touched.shape[1])
    by_item = ridge * (touched.sum(axis=0) + weight * touched.shape[0])

    def loss(vectors: Any) -> float:
        total = 0.0
        for own, own_ridge in zip(touched, by_person, strict=True):
            mine = vectors[own > 0]
            matrix = mine.T @ mine + weight * vectors.T @ vectors + own_ridge * np.eye(4)
            x = np.linalg.solve(matrix, mine.sum(axis=0))
            total += float(np.square(mine @ x - 1).sum() + weight * np.square(vectors @ x).sum())
            total += own_ridge * float(x @ x)
        return total + float(by_item @ np.square(vectors).sum(axis=1))

    asks = training.asks()
    of_touched, squares = (ask.decode(ask.total(PEOPLE)) for ask in asks)
    found = training.gradient(of_touched, squares.astype(np.float64))
    check_gradient(loss, training.scorer().vectors.astype(np.float64), 2 * found)


def check_gradient(loss: Callable[[Any], float], place: Any, gradient: Any) -> None:
    generator = np.random.default_rng(0)
    for _ in range(5):
        direction = generator.standard_normal(place.shape)
        step = 1e-4 * direction
        slope = (loss(place + step) - loss(place - step)) / 2e-4
        assert float((gradient * direction).sum()) == pytest.approx(slope, rel=2e-3, abs=2e-3)


@pytest.mark.parametrize("layers", [0, 1, 2, 3])
def test_the_gradient_of_lightgcn_is_that_of_its_loss(
    layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test against a dense graph, whose layers are powers of one matrix."""
    training = LightGCN(PEOPLE, columns=4, layers=layers, ring_bits=44, told_bits=24, start=0.5)
    ledger, simulation = Ledger(), Simulation(DATA.train)
    execute_steps(training.start(), simulation, ledger)
    seen: list[Any] = []
    real = light_gcn.pairwise
    monkeypatch.setattr(light_gcn, "pairwise", lambda *given: seen.append(real(*given)) or seen[-1])
    by_items, by_users = execute_steps(training.gradients(), simulation, ledger)
    drawn = seen[0][0]

    touched = DATA.train.matrix.toarray().astype(np.float64)
    n_users, n_items = touched.shape
    sides = np.maximum(touched.sum(axis=1), 1), np.maximum(touched.sum(axis=0), 1)
    normal = touched / np.sqrt(np.outer(*sides))
    graph = np.block(
        [[np.zeros((n_users, n_users)), normal], [normal.T, np.zeros((n_items, n_items))]]
    )
    average = sum(np.linalg.matrix_power(graph, k) for k in range(layers + 1)) / (layers + 1)
    indptr = DATA.train.matrix.indptr

    def loss(vectors: Any) -> float:
        mean, total = average @ vectors, 0.0
        for user in range(n_users):
            first, last = 2 * indptr[user], 2 * indptr[user + 1]
            own, others = np.split(drawn[first:last], 2)
            assert not touched[user, others].any()
            margins = (mean[n_users + own] - mean[n_users + others]) @ mean[user]
            total += float(np.logaddexp(0, -margins).sum())
        return total

    place = np.vstack([training._users, training._items]).astype(np.float64)
    check_gradient(loss, place, np.vstack([by_users, by_items]))


def test_bytes_of_an_epoch_are_those_of_its_sums() -> None:
    users, items = PEOPLE.matrix.shape
    width = int(users).bit_length()
    degrees_up = -(-items * width // 8)
    mf = run(MatrixFactorization(PEOPLE, columns=8), 3)
    told = items * 8 * 2 + 4 * items
    assert mf.bytes_up == degrees_up + 3 * (items * 8 * 2 + 8 * 8 * 4)
    assert mf.bytes_down == 4 * items + 4 * told
    for layers in (0, 1, 3):
        ledger = run(LightGCN(PEOPLE, columns=8, layers=layers), 2)
        propagated, gradient = items * 20, items * 28  # 8 columns of 20 and of 28 bits
        assert ledger.bytes_up == (
            degrees_up + layers * propagated + 2 * (2 * layers * propagated + gradient)
        )
        assert ledger.bytes_down == 4 * items + (layers + 1) * told + 2 * (2 * layers + 1) * told


@pytest.mark.parametrize(
    ("method", "settings", "epochs"),
    [
        ("mf", {"columns": 8, "unobserved": 0.3, "ridge": 0.01}, 25),
        ("lightgcn", {"columns": 16, "layers": 2, "rate": 0.05, "ridge": 0.01}, 25),
    ],
)
def test_they_learn(method: str, settings: dict[str, Any], epochs: int) -> None:
    kind: Any = TRAINED[method]
    training = kind(PEOPLE, **settings)
    run(training, epochs)
    popular = evaluate(Popularity().fit(DATA.train), DATA).ndcg
    assert evaluate(training.scorer(), DATA).ndcg > 1.2 * popular


@pytest.mark.parametrize("method", TRAINED)
def test_narrow_rings_cost_little(method: str) -> None:
    kind: Any = TRAINED[method]
    found = []
    for bits in ({}, {"ring_bits": 48, "told_bits": 24}):
        training = kind(PEOPLE, columns=8, **bits)
        run(training, 15)
        found.append(evaluate(training.scorer(), DATA).ndcg)
    assert found[0] == pytest.approx(found[1], abs=0.01)


def test_a_person_with_all_items_draws_no_negatives() -> None:
    matrix = sp.csr_array(np.array([[1, 1, 1, 1], [1, 0, 1, 0]], np.float32))
    vectors = np.ones((2, 3), np.float32)
    drawn, weights, slopes = light_gcn.pairwise(
        matrix.indptr, matrix.indices, 4, np.uint64(1), 0, vectors, np.eye(4, 3, dtype=np.float32)
    )
    assert not weights[:8].any()
    assert not slopes[0].any()
    assert set(drawn[10:12]) <= {1, 3}
    assert weights[10:12].all()


def test_tuned_settings_are_those_of_the_methods() -> None:
    assert tuned_settings("mf", "somewhere") == TUNED["mf"]["gowalla"]
    for method, known in TUNED.items():
        for tuned in known.values():
            kind: Any = TRAINED[method]
            kind(Histories(DATA.train.matrix[:3]), **tuned.settings)
