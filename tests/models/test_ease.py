"""Tests of EASE: weights against the formula, the head, and artifacts with false values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from privirec.data import Dataset, Interactions
from privirec.durable import file_sha256
from privirec.errors import ArtifactError, DataWarning, UsageError
from privirec.filters import Components, Normalisation, SparseOperator, centralized, kernels
from privirec.filters.normalize import most_popular
from privirec.models import EASE, Recommender, artifact, ease

PLAIN = Normalisation(0.0, 0.0, 0.0)


def exact_weights(r: NDArray, regularisation: float) -> NDArray[np.float64]:
    inverse = np.linalg.inv(r.T.astype(np.float64) @ r + regularisation * np.eye(r.shape[1]))
    weights = -inverse / inverse.diagonal()
    weights[np.diag_indices(len(weights))] = 0
    return np.asarray(weights)


@pytest.mark.parametrize("regularisation", [0.5, 20.0, 1000.0])
@pytest.mark.parametrize("at_once", [1, 7, 100, 299, 300, 2048])
def test_weights_are_the_formula(
    small: Dataset, regularisation: float, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ease, "ITEMS_AT_ONCE", at_once)
    r = small.train.matrix.toarray()
    expected = r @ exact_weights(r, regularisation)
    scores = EASE(regularisation=regularisation).fit(small.train).score(small.train.matrix)
    np.testing.assert_allclose(scores, expected, atol=2e-5 * np.abs(expected).max())


def test_weights_are_the_least_squares_solution_without_a_diagonal(holes: Interactions) -> None:
    """Test column by column: regress an item on all others."""
    r = holes.matrix.toarray().astype(np.float64)
    model = EASE(regularisation=3.0).fit(holes)
    weights = model.score(np.eye(holes.n_items))
    for item in range(holes.n_items):
        others = np.delete(r, item, axis=1)
        gram = others.T @ others + 3.0 * np.eye(holes.n_items - 1)
        expected = np.linalg.solve(gram, others.T @ r[:, item])
        np.testing.assert_allclose(np.delete(weights[:, item], item), expected, atol=1e-5)
        assert weights[item, item] == 0


@given(st.integers(1, 200), st.integers(0, 2**32))
def test_the_inverse_becomes_weights_tile_by_tile(size: int, seed: int) -> None:
    inverse = np.random.default_rng(seed).random((size, size)) + 0.5
    inverse += inverse.T
    expected = -inverse / inverse.diagonal()
    expected[np.diag_indices(size)] = 0
    found = np.tril(inverse)
    kernels.weights_of_inverse(found, inverse.diagonal().copy())
    np.testing.assert_allclose(found, expected)


# --- the head -------------------------------------------------------------------------------------


def test_the_head_are_the_most_popular_items_in_ascending_order() -> None:
    degrees = np.array([3, 9, 3, 0, 9, 3])
    assert most_popular(degrees, 1).tolist() == [1]
    assert most_popular(degrees, 4).tolist() == [0, 1, 2, 4]
    assert most_popular(degrees, None).tolist() == most_popular(degrees, 99).tolist()
    assert most_popular(degrees, None).tolist() == list(range(6))


@pytest.mark.parametrize("head", [1, 40, 299, 300, 1000])
def test_the_head_alone_is_a_model_of_the_head(small: Dataset, head: int) -> None:
    train = small.train
    items = most_popular(train.item_degrees, head)
    r = train.matrix.toarray()
    expected = np.zeros(r.shape)
    weights = exact_weights(r[:, items], 20.0)
    expected[:, items] = r[:, items] @ weights
    scores = EASE(regularisation=20.0, head=head).fit(train).score(train.matrix)
    half_a_unit = np.abs(weights).max(axis=1) / 254  # of a weight, which takes a byte
    error = np.abs(scores - expected).max(axis=1)
    assert (error <= 1.001 * r[:, items] @ half_a_unit + 1e-5).all()
    assert not np.delete(scores, items, axis=1).any()


def test_a_gram_matrix_of_the_head_is_enough(small: Dataset) -> None:
    """Test that items outside the head are not read, so a federation need not sum them."""
    train = small.train
    whole = centralized(train, normalisation=PLAIN)
    items = most_popular(train.item_degrees, 50)
    inside = np.isin(np.arange(train.n_items), items)
    gram = whole.written_out().item_item
    assert isinstance(gram, SparseOperator)
    only = SparseOperator(gram.matrix.multiply(np.outer(inside, inside)).tocsr())
    part = Components(train.item_degrees, only, normalisation=PLAIN)
    one, other = (EASE(head=50).use(each).score(train.matrix) for each in (whole, part))
    np.testing.assert_array_equal(one, other)


def test_the_head_is_saved_and_loaded_bit_for_bit(small: Dataset, tmp_path: Path) -> None:
    model = EASE(head=50).fit(small.train)
    folder = model.save(tmp_path / "saved")
    assert load_file(folder / artifact.ARRAYS)["derived.weights"].shape == (50, 50)
    loaded = Recommender.load(folder)
    scores = model.score(small.train.matrix)
    np.testing.assert_array_equal(loaded.score(small.train.matrix), scores)
    again = loaded.save(tmp_path / "again")
    for file in (artifact.ARRAYS, artifact.MANIFEST):
        assert (folder / file).read_bytes() == (again / file).read_bytes()


def test_a_head_that_was_saved_in_single_precision_is_read(small: Dataset, tmp_path: Path) -> None:
    """Test the format of earlier versions."""
    model = EASE(head=50).fit(small.train)
    folder = model.save(tmp_path / "saved")

    def as_before(tensors: dict[str, np.ndarray]) -> None:
        units = tensors.pop("derived.units")
        tensors["derived.weights"] = tensors["derived.weights"] * units[:, None]

    changed(folder, as_before)
    scores = Recommender.load(folder).score(small.train.matrix)
    np.testing.assert_array_equal(scores, model.score(small.train.matrix))


# --- refusals -------------------------------------------------------------------------------------


def test_a_matrix_that_cannot_be_inverted_is_refused_in_words() -> None:
    negative = SparseOperator(sp.csr_array(-np.eye(3, dtype=np.float32)))
    components = Components(np.ones(3, np.int64), negative, normalisation=PLAIN)
    with pytest.raises(UsageError, match=r"a regularisation of 0\.1 is too small"):
        EASE(regularisation=0.1).use(components)


Change = Callable[[dict[str, NDArray]], object]

LIES: dict[str, Change] = {
    "weights missing": lambda t: t.pop("derived.weights"),
    "items missing": lambda t: t.pop("derived.items"),
    "one array more": lambda t: t.update({"derived.more": np.zeros(3, np.float32)}),
    "an item-item matrix": lambda t: t.update(
        {
            "item_item.indptr": np.zeros(18, np.int64),
            "item_item.indices": np.zeros(0, np.int32),
            "item_item.data": np.zeros(0, np.float32),
        }
    ),
    "double precision": lambda t: t.update(
        {"derived.weights": t["derived.weights"].astype(np.float64)}
    ),
    "a vector of weights": lambda t: t.update({"derived.weights": t["derived.weights"][0].copy()}),
    "not a number": lambda t: t.update(
        {"derived.weights": t["derived.weights"] * np.float32(np.nan)}
    ),
    "weights of fewer items": lambda t: t.update(
        {"derived.weights": t["derived.weights"][:-1, :-1].copy()}
    ),
    "weights not square": lambda t: t.update(
        {"derived.weights": t["derived.weights"][:, :-1].copy()}
    ),
    "fewer items": lambda t: t.update({"derived.items": t["derived.items"][:-1].copy()}),
    "items outside the catalogue": lambda t: t.update({"derived.items": t["derived.items"] + 9}),
    "units of other rows": lambda t: t.update({"derived.units": t["derived.units"][1:].copy()}),
    "no units": lambda t: t.pop("derived.units"),
    "other items": lambda t: t.update({"derived.items": t["derived.items"][::-1].copy()}),
    "degrees of other items": lambda t: t.update({"item_degrees": t["item_degrees"][::-1].copy()}),
}


def changed(folder: Path, change: Change) -> None:
    tensors = dict(load_file(folder / artifact.ARRAYS))
    change(tensors)
    save_file(tensors, folder / artifact.ARRAYS)
    _, manifest = artifact.read_manifest(folder)
    manifest["sha256"] = file_sha256(folder / artifact.ARRAYS)
    (folder / artifact.MANIFEST).write_bytes(artifact.canonical(manifest))


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_artifacts_that_lie_are_refused(holes: Interactions, tmp_path: Path, lie: Change) -> None:
    folder = EASE(head=6).fit(holes).save(tmp_path / "saved")
    Recommender.load(folder)
    changed(folder, lie)
    with pytest.raises(ArtifactError) as refused:
        Recommender.load(folder)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("head", [5, None])
def test_a_head_of_another_size_is_refused(
    holes: Interactions, tmp_path: Path, head: int | None
) -> None:
    folder = EASE(head=6).fit(holes).save(tmp_path / "saved")
    _, manifest = artifact.read_manifest(folder)
    manifest["config"]["head"] = head
    (folder / artifact.MANIFEST).write_bytes(artifact.canonical(manifest))
    with pytest.raises(ArtifactError, match="other items than the most popular"):
        Recommender.load(folder)


def test_a_large_catalogue_hears_first_what_it_takes(
    small: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privirec.models.ease.LARGE", 299)
    with pytest.warns(DataWarning, match=r"a matrix of 300 x 300 numbers: .* GB .* head=10000"):
        EASE().fit(small.train)
    EASE(head=100).fit(small.train)
