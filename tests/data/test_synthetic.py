"""Tests of synthetic data: reproducible, of the requested size, with more than popularity to
learn."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.data import Dataset, statistics
from privirec.data.synthetic import synthetic
from privirec.errors import UsageError


def recall_at_20(dataset: Dataset, scores: NDArray) -> float:
    scores = np.where(dataset.train.matrix.toarray() > 0, -np.inf, scores)
    top = np.argsort(-scores, axis=1, kind="stable")[:, :20]
    wanted = dataset.test.matrix.toarray()
    hits = np.take_along_axis(wanted, top, axis=1).sum(axis=1)
    sizes = wanted.sum(axis=1)
    return float((hits[sizes > 0] / sizes[sizes > 0]).mean())


def item_cosine_scores(dataset: Dataset) -> NDArray:
    matrix = dataset.train.matrix
    scale = sp.diags_array(np.maximum(dataset.train.item_degrees, 1) ** -0.5)
    normalised = matrix @ scale
    return (matrix @ (normalised.T @ normalised)).toarray()


@pytest.mark.parametrize(("name", "gain"), [("small", 1.25), ("demo", 2.0), ("1000x500", 1.5)])
def test_neighbours_beat_popularity(name: str, gain: float) -> None:
    dataset = synthetic(f"synthetic:{name}")
    popularity = np.tile(dataset.train.item_degrees.astype(float), (dataset.train.n_users, 1))
    cosine = recall_at_20(dataset, item_cosine_scores(dataset))
    assert cosine > gain * recall_at_20(dataset, popularity)


def test_same_seed_same_data() -> None:
    first, again, other = (synthetic("synthetic:small", seed) for seed in (5, 5, 6))
    assert first.train.fingerprint() == again.train.fingerprint()
    assert first.test.fingerprint() == again.test.fingerprint()
    assert first.train.fingerprint() != other.train.fingerprint()


@pytest.mark.parametrize(
    ("name", "users", "items"),
    [("small", 200, 300), ("demo", 2000, 2400), ("7x5", 7, 5), ("1x1", 1, 1), ("90x1", 90, 1)],
)
def test_size_and_histories(name: str, users: int, items: int) -> None:
    dataset = synthetic(f"synthetic:{name}")
    assert dataset.train.matrix.shape == dataset.test.matrix.shape == (users, items)
    assert dataset.train.user_degrees.min() >= 1
    assert dataset.train.matrix.multiply(dataset.test.matrix).nnz == 0
    if name in {"small", "demo"}:
        assert (dataset.test.user_degrees > 0).mean() > 0.95
    np.testing.assert_array_equal(dataset.train.matrix.data, 1)


def test_gowalla_look_alike_has_its_degrees() -> None:
    """Test that degrees are within a few percent of the quantiles of the real training set."""
    dataset = synthetic("synthetic:gowalla")
    found = statistics(dataset)
    assert (found.users, found.items) == (29_858, 40_981)
    assert found.interactions == pytest.approx(1_027_370, rel=0.005)
    assert found.train == pytest.approx(810_128, rel=0.02)
    assert found.smallest_user == 8
    user_quantiles = np.percentile(dataset.train.user_degrees, [25, 50, 75, 99])
    np.testing.assert_allclose(user_quantiles, [11, 16, 29, 182], rtol=0.1)
    item_quantiles = np.percentile(dataset.train.item_degrees, [25, 50, 75, 99])
    np.testing.assert_allclose(item_quantiles, [9, 12, 19, 139], rtol=0.25)


@pytest.mark.check
def test_amazon_book_look_alike() -> None:
    found = statistics(synthetic("synthetic:amazon-book"))
    assert (found.users, found.items) == (52_643, 91_599)
    assert found.train == pytest.approx(2_380_730, rel=0.01)
    assert found.interactions == pytest.approx(2_984_108, rel=0.005)


@pytest.mark.parametrize("label", ["", "none", "0x5", "5x0", "5x", "-1x3", "2x3x4", "9999999999x1"])
def test_unknown_names_are_refused_in_one_line(label: str) -> None:
    with pytest.raises(
        UsageError, match=f"synthetic:{label}: no such synthetic data set"
    ) as caught:
        synthetic(f"synthetic:{label}")
    assert "\n" not in str(caught.value)
