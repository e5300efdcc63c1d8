"""Tests of the spectral family: known filters as members, and saved values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from privirec.data import Dataset
from privirec.errors import UsageError
from privirec.filters import Components, LowRankOperator, centralized
from privirec.models import GFCF, Recommender, Spectral, SpectralConfig

RANK = 16


@pytest.fixture(scope="module")
def components(small: Dataset) -> Components:
    return centralized(small.train, rank=RANK)


def close(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> bool:
    """Compare scores up to the rounding of one byte per entry."""
    return bool(np.abs(ours - theirs).max() < 0.02 * np.abs(theirs).max())


def test_the_low_pass_filter_of_gf_cf_is_a_member(small: Dataset, components: Components) -> None:
    histories = small.train.matrix
    ours = Spectral(rank=RANK).use(components).score(histories)
    assert close(ours, components.low_pass(RANK).rows(histories))
    # x (P~ + gamma F) is the sum of two members where P~ is of low rank: the paper's PriviRec-k.
    values, basis = components.eigenpairs(RANK)
    low_rank = Components(components.item_degrees, LowRankOperator(basis, values), basis)
    item_item = Spectral(
        rank=RANK, history_exponent=0, item_exponent=0, response="power", power=1
    ).use(low_rank)
    assert close(item_item.score(histories), low_rank.item_item.rows(histories))
    both = item_item.score(histories) + 0.3 * ours
    assert close(both, GFCF(rank=RANK, gamma=0.3).use(low_rank).score(histories))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, np.ones_like),
        ({"response": "power", "power": 0.5}, np.sqrt),
        ({"response": "heat", "time": 3.0}, lambda v: np.exp(-3 * (1 - v))),
        (
            {"response": "polynomial", "coefficients": (0.0, 2.0, -1.0)},
            lambda v: 2 * v - v**2,
        ),
    ],
)
def test_responses(
    settings: dict[str, object], expected: object, small: Dataset, components: Components
) -> None:
    values, basis = components.eigenpairs(RANK)
    weights = expected(values)  # type: ignore[operator]
    np.testing.assert_allclose(SpectralConfig(**settings).responses(values), weights)  # type: ignore[arg-type]
    model = Spectral(rank=RANK, history_exponent=0.3, item_exponent=0.1, **settings)
    degrees = components.item_degrees.astype(float)
    left = degrees[:, None] ** -0.3 * basis * weights
    right = degrees[:, None] ** 0.1 * basis
    theirs = small.train.matrix.toarray() @ left @ right.T
    assert close(model.use(components).score(small.train.matrix), theirs)


def test_vectors_beyond_the_rank_of_the_matrix_score_nothing() -> None:
    zero = SpectralConfig(response="power", power=0).responses(np.array([1.0, 0.0]))
    np.testing.assert_array_equal(zero, [1, 0])
    heat = SpectralConfig(response="heat").responses(np.array([1.0, 0.0]))
    np.testing.assert_array_equal(heat, [1, 0])


def test_eigenvalues_are_found_where_nobody_kept_them(components: Components) -> None:
    known, _ = components.eigenpairs(RANK)
    forgotten = Components(components.item_degrees, components.item_item, components.basis)
    np.testing.assert_allclose(forgotten.eigenpairs(RANK)[0], known, atol=1e-4)
    with pytest.raises(UsageError, match="rank 17 needs more than 16 vectors"):
        Spectral(rank=17).use(components)


def test_a_byte_an_entry_is_kept(components: Components, tmp_path: Path) -> None:
    model = Spectral(rank=RANK).use(components)
    assert components.basis is not None
    np.testing.assert_allclose(model.basis(), components.basis, atol=0.004)
    model.save(tmp_path / "model")
    size = (tmp_path / "model" / "model.safetensors").stat().st_size
    assert size < components.n_items * (RANK + 4 + 2 * 8) + 4 * RANK + 1000
    again = Recommender.load(tmp_path / "model")
    assert isinstance(again, Spectral)
    np.testing.assert_array_equal(again.basis(), model.basis())
