"""Tests of Krylov spaces from gathered products, against the exact eigenpairs of the matrix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from privirec.data import Dataset
from privirec.filters import centralized, factored
from privirec.filters.krylov import KrylovSpace


def gathered(
    matrix: NDArray[np.float64], columns: tuple[int, ...], rounding: float = 0.0
) -> KrylovSpace:
    """Gather products of blocks that are first rounded to multiples of `rounding`."""
    rng = np.random.default_rng(0)
    space = KrylovSpace(len(matrix), sum(columns))
    for number, count in enumerate(columns):
        block = (
            space.next_block(count, rng)
            if number
            else rng.choice((-1.0, 1.0), (len(matrix), count))
        )
        if rounding and number:
            block = np.rint(block / rounding) * rounding
        space.add(block, matrix @ block)
    return space


def decaying(n: int, seed: int = 1) -> NDArray[np.float64]:
    """Return a symmetric matrix with eigenvalues 1, 0.9, 0.81 ..."""
    q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))
    return np.asarray((q * 0.9 ** np.arange(n)) @ q.T, np.float64)


@pytest.mark.parametrize("columns", [(8,) * 8, (16,) * 4, (20, 12, 8, 4, 20), (8, 16, 16, 24)])
@pytest.mark.parametrize("rounding", [0.0, 0.02])
def test_leading_eigenpairs(columns: tuple[int, ...], rounding: float) -> None:
    """Test any number of columns per round, also with blocks that were sent rounded."""
    matrix = decaying(200)
    space = gathered(matrix, columns, rounding)
    for values, vectors in (space.rayleigh_ritz(8), space.nystrom(8, 1e-4)):
        np.testing.assert_allclose(values, 0.9 ** np.arange(8), atol=2e-3)
        np.testing.assert_allclose(vectors.T @ vectors, np.eye(8), atol=1e-3)
        assert np.abs(matrix @ vectors - vectors * values).max() < 0.02


def test_more_than_the_power_method_finds_with_the_same_columns(small: Dataset) -> None:
    """Test four rounds of eight columns: the best eight of 32 dimensions beat the last eight."""
    operator = factored(small.train)
    matrix = operator.times(np.eye(small.train.n_items, dtype=np.float32)).astype(np.float64)
    exact = np.linalg.eigvalsh(matrix)[::-1][:8]
    ours = gathered(matrix, (8,) * 4).rayleigh_ritz(8)[0]
    x = np.random.default_rng(0).choice((-1.0, 1.0), (len(matrix), 8))
    for _ in range(3):
        x = np.linalg.qr(matrix @ x)[0]
    power = np.linalg.eigvalsh(x.T @ matrix @ x)[::-1]
    assert (exact - ours).sum() < 0.5 * (exact - power).sum()


@given(st.integers(1, 12), st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 9))
def test_spaces_that_are_full_or_smaller_than_they_seem(
    n: int, columns: list[int], seed: int
) -> None:
    """Test more columns than dimensions, and low rank: results are finite, ordered and bounded."""
    half = np.random.default_rng(seed).standard_normal((n, max(1, n // 3)))
    matrix = half @ half.T
    matrix /= np.linalg.norm(matrix, 2)
    space = gathered(matrix, tuple(columns))
    rank = min(n, sum(columns))
    for values, vectors in (space.rayleigh_ritz(rank), space.nystrom(rank, 1e-4)):
        assert vectors.shape == (n, rank)
        assert np.isfinite(vectors).all()
        assert (np.diff(values) <= 1e-9).all()
        assert values.min() >= 0
        assert values.max() <= 1


def test_a_centralised_fit_knows_its_eigenvalues(small: Dataset) -> None:
    central = centralized(small.train, rank=6)
    kept, basis = central.eigenpairs(6)
    images = central.item_item.times(np.ascontiguousarray(basis))
    np.testing.assert_allclose(kept, (basis * images).sum(axis=0), atol=1e-4)
