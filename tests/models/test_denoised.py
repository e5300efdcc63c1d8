"""Tests of filters from noisy sums: weights, the ridge from the matrix, and forged artifacts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from privirec.data import Dataset
from privirec.errors import ArtifactError, UsageError
from privirec.evaluation import evaluate
from privirec.filters import Components, SparseOperator, centralized
from privirec.filters.normalize import PROTECTED_PAIRS, item_scales
from privirec.filters.operators import NotKept
from privirec.models import Denoised, DenoisedConfig, Recommender, artifact
from privirec.models.denoised import best_ridge, softened


def noise(size: int, deviation: float, seed: int) -> NDArray[np.float32]:
    upper = np.triu(np.random.default_rng(seed).standard_normal((size, size)), 1)
    return (deviation * (upper + upper.T)).astype(np.float32)


def noisy(small: Dataset, deviation: float, seed: int = 0) -> Components:
    """Return the release of a federation with this noise."""
    r = small.train.matrix.toarray()
    gram = r.T @ (r / np.maximum(r.sum(axis=1), 1)[:, None])
    degrees = small.train.item_degrees
    left, right = item_scales(degrees / degrees.mean(), PROTECTED_PAIRS)
    gram = left[:, None] * gram * right + noise(len(gram), deviation, seed)
    operator = SparseOperator(sp.csr_array(gram.astype(np.float32)))
    return Components(degrees, operator, normalisation=PROTECTED_PAIRS, noise_deviation=deviation)


def test_without_noise_it_is_ease(small: Dataset) -> None:
    r = small.train.matrix.toarray().astype(np.float64)
    gram = r.T @ (r / r.sum(axis=1)[:, None])
    inverse = np.linalg.inv(gram + 5 * np.eye(len(gram)))
    weights = -inverse / inverse.diagonal()
    np.fill_diagonal(weights, 0)
    exact = centralized(small.train, normalisation=PROTECTED_PAIRS)
    scores = Denoised(regularisation=5).use(exact).score(small.train.matrix)
    np.testing.assert_allclose(scores, r @ weights, atol=2e-5 * np.abs(scores).max())


@given(st.floats(0, 3), st.integers(0, 99))
def test_entries_are_drawn_towards_zero(threshold: float, seed: int) -> None:
    gram = noise(6, 2.0, seed) + np.diag(np.arange(6)).astype(np.float32)
    soft = softened(gram, threshold)
    np.testing.assert_array_equal(soft.diagonal(), gram.diagonal())
    assert (np.abs(soft) <= np.abs(gram)).all()
    assert (soft * gram >= 0).all()
    off = ~np.eye(6, dtype=bool)
    expected = np.maximum(np.abs(gram[off]) - np.float32(threshold), 0)
    np.testing.assert_allclose(np.abs(soft[off]), expected, atol=1e-6)


def test_more_noise_asks_for_more_ridge() -> None:
    """Test blocks of related items, with little and with much noise."""
    group = np.kron(np.eye(10), np.full((20, 20), 1.0)).astype(np.float32) + 0.05
    config = DenoisedConfig()
    chosen = [
        2
        * deviation
        * np.sqrt(200)
        * best_ridge(group + noise(200, deviation, 1), deviation, config)
        for deviation in (0.02, 0.1, 0.5)
    ]
    assert chosen == sorted(chosen)
    assert chosen[0] < chosen[-1]


@pytest.mark.parametrize("size", [2, 5, 20])
def test_noise_alone_of_any_size_gives_a_model(size: int) -> None:
    """Test small noise matrices, whose eigenvalues exceed the limit that the ridge is made for."""
    for seed in range(60):
        operator = SparseOperator(sp.csr_array(noise(size, 100.0, seed)))
        components = Components(
            np.ones(size, np.int64),
            operator,
            normalisation=PROTECTED_PAIRS,
            noise_deviation=100.0,
        )
        assert np.isfinite(Denoised().use(components).score(np.eye(size, dtype=np.float32))).all()


def test_denoising_is_worth_it(small: Dataset) -> None:
    """Test one noisy matrix, with and without the knowledge of its noise."""
    found, plain = [], []
    for seed in range(3):
        components = noisy(small, 0.15, seed)
        found.append(evaluate(Denoised().use(components), small).ndcg)
        plain.append(evaluate(Denoised(threshold=0, ridge=0.5).use(components), small).ndcg)
    assert np.mean(found) > 1.1 * np.mean(plain)


def test_a_basis_gives_a_low_pass_filter(small: Dataset) -> None:
    n_items = small.train.n_items
    degrees = small.train.item_degrees
    items = np.sort(np.argsort(-degrees, kind="stable")[:50])
    basis = np.zeros((n_items, 4), np.float32)
    basis[items] = np.linalg.qr(np.random.default_rng(0).standard_normal((50, 4)))[0]
    components = Components(degrees, NotKept(n_items), basis, PROTECTED_PAIRS, head=50)
    model = Denoised().use(components)
    p = degrees[items].astype(np.float64)
    left = (p**0.5 / (p + p.min()))[:, None] * basis[items]
    expected = small.train.matrix.toarray()[:, items] @ left @ (p**0.2 * basis[items].T)
    scores = model.score(small.train.matrix)
    np.testing.assert_allclose(scores[:, items], expected, rtol=1e-3, atol=1e-4)
    outside = np.setdiff1d(np.arange(n_items), items)
    order = np.argsort(-scores[0, outside], kind="stable")
    np.testing.assert_array_equal(order, np.argsort(-degrees[outside], kind="stable"))


@pytest.mark.parametrize("with_basis", [False, True])
def test_saved_and_loaded_it_scores_the_same(
    small: Dataset, tmp_path: Path, with_basis: bool
) -> None:
    components = noisy(small, 0.1)
    if with_basis:
        basis = np.random.default_rng(0).standard_normal((small.train.n_items, 3))
        components = replace(components, basis=basis.astype(np.float32))
    model = Denoised().use(components)
    model.save(tmp_path / "model")
    saved = artifact.read(tmp_path / "model")
    assert saved.components.basis is None
    again = Recommender.load(tmp_path / "model")
    histories = small.train.matrix
    np.testing.assert_array_equal(again.score(histories), model.score(histories))


def test_a_filter_that_does_not_fit_is_refused(small: Dataset) -> None:
    model = Denoised()
    components = noisy(small, 0.1)
    good = dict(model._derive(components))
    for wrong, says in (
        ({"items": good["items"][1:]}, "other items|do not fit"),
        ({"right": np.zeros((3, 3), np.float32)}, "do not fit"),
        ({"left": good["left"][:, 1:]}, "do not fit"),
    ):
        with pytest.raises((UsageError, ArtifactError), match=says):
            model._prepare(components, good | wrong)


def test_a_fit_without_noise_is_refused_and_says_what_to_use(small: Dataset) -> None:
    with pytest.raises(UsageError, match=r"adds no noise.*PrivateRecommender\(epsilon=1\)"):
        Denoised().fit(small.train)


@pytest.mark.parametrize("pairs", [False, True])
def test_popularity_ranks_what_a_history_says_nothing_about(pairs: bool) -> None:
    degrees = np.array([3, 50, 7, 40, 1, 30, 20, 5], np.int64)  # head: items 1, 3, 5 and 6
    basis = np.zeros((8, 2), np.float32)
    basis[[1, 3, 5, 6]] = [[0.5, 0.5], [0.5, -0.5], [0.5, 0.5], [0.5, -0.5]]
    counts = sp.csr_array(([9.0, 9.0], ([1, 6], [6, 1])), shape=(8, 8), dtype=np.float32)
    operator = SparseOperator(counts) if pairs else NotKept(8)
    known = Components(degrees, operator, basis, PROTECTED_PAIRS, head=4, noise_deviation=0.5)
    model = Denoised().use(known)
    histories = np.zeros((4, 8), np.float32)
    histories[1, [0, 7]] = 1  # nothing in the head
    histories[2, [1, 0]] = 1  # head and tail
    histories[3, 3] = 1
    scores = model.score(sp.csr_array(histories))
    by_popularity = np.argsort(-degrees).tolist()
    assert np.argsort(-scores[0]).tolist() == by_popularity
    assert np.argsort(-scores[1]).tolist() == by_popularity
    for row in scores[2:]:
        order = np.argsort(-row).tolist()
        assert set(order[:4]) == {1, 3, 5, 6}
        assert order[4:] == [2, 7, 0, 4]
    alone = Denoised().use(replace(known, item_item=NotKept(8))).score(sp.csr_array(histories))
    assert (scores[2, 6] > alone[2, 6]) == pairs  # a pair with item 1 counts
