"""Tests of orthonormal bases and leading eigenvectors."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from privirec.data import Dataset, Interactions
from privirec.errors import UsageError
from privirec.filters import SparseOperator, eigen, factored
from privirec.filters.eigen import (
    leading_eigenpairs,
    orthonormalize,
    power_method,
    rayleigh_ritz,
)

Block = NDArray[np.float64]


def assert_gram_schmidt(y: Block, atol: float = 1e-7) -> tuple[Block, Block]:
    """Check that Q and T are those of Gram-Schmidt."""
    q, t = orthonormalize(y)
    assert q.shape == y.shape
    alive = np.diagonal(t) > 0
    np.testing.assert_allclose(q.T @ q, np.diag(alive.astype(float)), atol=atol)
    assert not q[:, ~alive].any()
    np.testing.assert_allclose(q @ t, y, atol=1e-8 * max(1.0, float(np.abs(y).max(initial=0))))
    np.testing.assert_array_equal(t, np.triu(t))
    assert (np.diagonal(t) >= 0).all()
    return q, t


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    """Return blocks that are tall, wide, zero, linearly dependent or of uneven scale."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, k = draw(st.integers(1, 40)), draw(st.integers(1, 12))
    y = rng.standard_normal((n, k)) * 10.0 ** draw(st.integers(-6, 6))
    for column in draw(st.lists(st.integers(0, k - 1), max_size=4)):
        how = draw(st.sampled_from(["zero", "twin", "mixture", "large"]))
        if how == "zero":
            y[:, column] = 0
        elif how == "twin":
            y[:, column] = 3 * y[:, column - 1]
        elif how == "mixture":
            y[:, column] = y[:, :column] @ rng.standard_normal(column)
        else:
            y[:, column] *= 100
    return y


@given(blocks())
def test_qr(y: Block) -> None:
    assert_gram_schmidt(y)


@given(blocks(), st.data())
def test_leading_columns_do_not_see_later_ones(y: Block, data: st.DataObject) -> None:
    j = data.draw(st.integers(1, y.shape[1]))
    q, t = orthonormalize(y)
    leading, leading_t = orthonormalize(y[:, :j])
    np.testing.assert_allclose(q[:, :j], leading, atol=1e-6)
    np.testing.assert_allclose(t[:j, :j], leading_t, atol=1e-6 * np.abs(y).max(initial=1.0))


def test_a_huge_column_does_not_make_earlier_ones_vanish() -> None:
    y = np.random.default_rng(0).standard_normal((30, 4))
    y[:, 2] = y[:, 0]
    wide = np.column_stack([y, 1e11 * np.random.default_rng(1).standard_normal(30)])
    np.testing.assert_allclose(orthonormalize(wide)[0][:, :4], orthonormalize(y)[0], atol=1e-9)


@pytest.mark.parametrize("k", [10, 20, 24, 30, 45])
def test_ill_conditioned_though_no_diagonal_entry_tells(k: int) -> None:
    """Test T with 1 on and -1 above the diagonal: its condition number is about 2^k."""
    base = np.linalg.qr(np.random.default_rng(0).standard_normal((200, k)))[0]
    y = base @ (np.eye(k) - np.triu(np.ones((k, k)), 1))
    q, t = orthonormalize(y)
    np.testing.assert_allclose(q.T @ q, np.eye(k), atol=1e-7)
    np.testing.assert_allclose(q @ t, y, atol=1e-9)


def test_blocks_without_columns_or_rows() -> None:
    assert orthonormalize(np.zeros((5, 0)))[0].shape == (5, 0)
    assert orthonormalize(np.zeros((0, 3)))[0].shape == (0, 3)


@pytest.mark.parametrize("decay", [1.0, 3.0, 6.0])
def test_columns_of_falling_length(decay: float) -> None:
    """Test the result of a power step: columns that shrink with their eigenvalues."""
    rng = np.random.default_rng(2)
    y = rng.standard_normal((500, 30)) * np.logspace(0, -decay, 30)
    assert_gram_schmidt(y)


# --- eigenvectors ---------------------------------------------------------------------------------


def random_train(n_users: int, n_items: int, share: float, seed: int = 0) -> Interactions:
    rng = np.random.default_rng(seed)
    popularity = rng.pareto(1.5, n_items) + 0.3
    chances = np.minimum(share * n_items * popularity / popularity.sum(), 0.9)
    groups = rng.integers(0, 6, n_users)[:, None] == rng.integers(0, 6, n_items)[None, :]
    touched = rng.random((n_users, n_items)) < chances * np.where(groups, 1.0, 0.2)
    return Interactions.from_matrix(sp.csr_array(touched.astype(np.float32)))


def dense(train: Interactions) -> NDArray[np.float64]:
    return factored(train).written_out().matrix.toarray().astype(np.float64)


def assert_eigenpairs(
    matrix: NDArray[np.float64], values: NDArray, vectors: NDArray, tolerance: float = 2e-4
) -> None:
    rank = len(values)
    assert vectors.shape == (len(matrix), rank)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(rank), atol=1e-5)
    assert np.abs(matrix @ vectors - vectors * values).max() < tolerance
    np.testing.assert_allclose(values, np.linalg.eigvalsh(matrix)[::-1][:rank], atol=tolerance)


def watched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record each use of the dense solver."""
    used: list[int] = []
    whole = eigen._dense_eigenpairs

    def noting(operator: SparseOperator, rank: int) -> tuple[NDArray, NDArray]:
        used.append(rank)
        return whole(operator, rank)

    monkeypatch.setattr(eigen, "_dense_eigenpairs", noting)
    return used


@pytest.mark.parametrize("block", [4, 16, 32])
def test_krylov_equals_dense(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    train = random_train(600, 1600, 0.01)
    used = watched(monkeypatch)
    told: list[tuple[int, int]] = []
    values, vectors = leading_eigenpairs(
        factored(train), 8, block=block, progress=lambda *at: told.append(at)
    )
    assert not used
    assert told
    assert vectors.dtype == np.float32
    assert_eigenpairs(dense(train), values, vectors)
    again = leading_eigenpairs(factored(train), 8, block=block)
    np.testing.assert_array_equal(again[1], vectors)


def test_krylov_restarts_until_it_has_converged() -> None:
    train = random_train(600, 1600, 0.01, seed=4)
    matrix = dense(train)
    values, vectors = leading_eigenpairs(factored(train), 60, block=8, tolerance=1e-5)
    assert_eigenpairs(matrix, values, vectors, 5e-5)
    with pytest.raises(UsageError, match="no convergence"):
        leading_eigenpairs(factored(train), 60, block=8, tolerance=1e-12, most_restarts=1)


def sparse_train(seed: int = 0) -> Interactions:
    """Return data so sparse that products with P~ are the cheaper part."""
    rng = np.random.default_rng(seed)
    touched = sp.random_array((300, 1200), density=0.012, rng=rng).tocsr()
    touched.data[:] = 1
    return Interactions.from_matrix(touched)


@pytest.mark.parametrize("rank", [24, 40])
def test_a_filtered_krylov_space_equals_dense(rank: int) -> None:
    train = sparse_train(rank)
    found = eigen._filtered_eigenpairs(factored(train), rank, 0, 1e-4, 8, None)
    assert found is not None
    assert_eigenpairs(dense(train), *found)
    again = leading_eigenpairs(factored(train), rank, block=8)
    np.testing.assert_array_equal(again[1], found[1])


def test_a_filtered_krylov_space_goes_on_where_one_sweep_is_not_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Test a polynomial of degree two, which hardly filters."""
    train = sparse_train(3)
    monkeypatch.setattr(eigen, "MOST_RAISED", 2.0)
    monkeypatch.setattr(eigen, "SWEEPS", 1)
    assert eigen._filtered_eigenpairs(factored(train), 40, 0, 1e-5, 8, None) is None
    monkeypatch.setattr(eigen, "SWEEPS", 40)
    found = eigen._filtered_eigenpairs(factored(train), 40, 0, 1e-5, 8, None)
    assert found is not None
    assert_eigenpairs(dense(train), *found)


@pytest.mark.parametrize("guess", [-1.0, 1e-9, 0.05, 0.9, 2.0])
def test_a_bad_guess_of_the_edge_costs_time_only(
    monkeypatch: pytest.MonkeyPatch, guess: float
) -> None:
    train = sparse_train(7)
    monkeypatch.setattr(eigen, "_eigenvalue_number", lambda *_: guess)
    values, vectors = leading_eigenpairs(factored(train), 40, block=8)
    assert_eigenpairs(dense(train), values, vectors)


def test_the_edge_is_about_the_eigenvalue_of_that_number() -> None:
    train = random_train(600, 1600, 0.01)
    values = np.linalg.eigvalsh(dense(train))[::-1]
    for number in (20, 60, 150):
        found = eigen._eigenvalue_number(factored(train), number, 0)
        assert values[3 * number // 2] < found < values[number // 2]


def test_small_catalogues_are_solved_whole(monkeypatch: pytest.MonkeyPatch, small: Dataset) -> None:
    used = watched(monkeypatch)
    values, vectors = leading_eigenpairs(factored(small.train), 12)
    assert used == [12]
    assert_eigenpairs(dense(small.train), values, vectors)
    everything = leading_eigenpairs(factored(small.train), small.train.n_items)
    assert_eigenpairs(dense(small.train), *everything)


@pytest.mark.parametrize(("groups", "rank"), [(40, 36), (100, 50), (100, 90), (100, 120)])
def test_every_copy_of_a_multiple_eigenvalue_is_found(groups: int, rank: int) -> None:
    """Test separate groups of users and items: one eigenvalue of 1 each, more than a block
    holds."""
    rng = np.random.default_rng(1)
    parts = [(rng.random((12, 15)) < 0.4).astype(np.float32) for _ in range(groups)]
    train = Interactions.from_matrix(sp.csr_array(sp.block_diag(parts)))
    assert_eigenpairs(dense(train), *leading_eigenpairs(factored(train), rank))


@pytest.mark.parametrize("seed", range(1, 7))
def test_uneven_groups(seed: int) -> None:
    """Test eigenvalues of 1, of 0 and between, with any multiplicity."""
    rng = np.random.default_rng(seed)
    parts = [
        (rng.random(rng.integers(1, (12, 16))) < rng.choice([0.3, 0.6, 1.0])).astype(np.float32)
        for _ in range(rng.integers(80, 200))
    ]
    train = Interactions.from_matrix(sp.csr_array(sp.block_diag(parts)))
    rank = int(rng.integers(1, 120))
    values, vectors = leading_eigenpairs(factored(train), rank, seed=seed)
    assert_eigenpairs(dense(train), values, vectors)


@pytest.mark.parametrize("n_users", [0, 1, 5])
def test_fewer_users_than_vectors(n_users: int) -> None:
    """Test that the rest of the basis is an orthonormal completion with eigenvalue zero."""
    rng = np.random.default_rng(n_users)
    touched = (rng.random((max(n_users, 1), 1500)) < 0.2) & (n_users > 0)
    train = Interactions.from_matrix(sp.csr_array(touched.astype(np.float32)))
    values, vectors = leading_eigenpairs(factored(train), 8)
    assert_eigenpairs(dense(train), values, vectors)
    assert (values[n_users:] < 1e-5).all()


@pytest.mark.parametrize("rank", [0, -1, 18])
def test_impossible_ranks_are_refused(holes: Interactions, rank: int) -> None:
    with pytest.raises(UsageError, match="does not fit a catalogue of 17 items"):
        leading_eigenpairs(factored(holes), rank)


def test_rayleigh_ritz_on_a_known_space() -> None:
    rng = np.random.default_rng(3)
    rotation = np.linalg.qr(rng.standard_normal((40, 40)))[0]
    true = np.linspace(1, 0, 40)
    matrix = rotation @ np.diag(true) @ rotation.T
    x = rotation[:, :6] @ np.linalg.qr(rng.standard_normal((6, 6)))[0]
    values, vectors = rayleigh_ritz(x, matrix @ x)
    np.testing.assert_allclose(values, true[:6], atol=1e-12)
    np.testing.assert_allclose(np.abs(vectors.T @ rotation[:, :6]), np.eye(6), atol=1e-10)


def test_one_and_two_qr_per_step_reach_the_same_space(small: Dataset) -> None:
    operator = factored(small.train)
    start = np.random.default_rng(5).standard_normal((small.train.n_items, 7))
    one, first = power_method(operator, start, 120, 1)
    two, second = power_method(operator, start, 120, 2)
    np.testing.assert_allclose(one @ one.T, two @ two.T, atol=1e-3)
    # one QR per step leaves eigenvalues on the diagonal, two leave singular values
    values = np.linalg.eigvalsh(dense(small.train))[::-1][:7]
    np.testing.assert_allclose(np.diagonal(first), values, atol=1e-2)
    np.testing.assert_allclose(np.diagonal(second), np.sqrt(values), atol=1e-2)


def test_steps_are_multiplications(small: Dataset) -> None:
    operator = factored(small.train)
    matrix = dense(small.train)
    start = np.random.default_rng(6).standard_normal((small.train.n_items, 4))
    for steps in (0, 1, 3):
        expected = np.linalg.qr(np.linalg.matrix_power(matrix, steps) @ start)[0]
        for qr_per_step in (1, 2):
            found, _ = power_method(operator, start, steps, qr_per_step)
            np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-4)


def test_two_qr_per_step_need_the_factors(holes: Interactions) -> None:
    with pytest.raises(UsageError, match="only histories give"):
        power_method(factored(holes).written_out(), np.ones((17, 1)), 1, 2)
