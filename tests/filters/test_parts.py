"""Tests of ranking from parts: the lists and scores of full scoring, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from privirec.filters import kernels, parts
from privirec.filters.parts import MOST_BYTES, ItemVectors, Parts, row_sums_pay

Float32 = NDArray[np.float32]


def by_sorting(scores: Float32, count: int) -> tuple[NDArray[np.int64], Float32]:
    """Return the best entries of each row by a stable sort."""
    items = np.full((len(scores), count), -1, np.int64)
    values = np.full((len(scores), count), -np.inf, np.float32)
    for row, line in enumerate(scores):
        order = [item for item in np.argsort(-line, kind="stable") if line[item] > -np.inf][:count]
        items[row, : len(order)] = order
        values[row, : len(order)] = line[order]
    return items, values


@st.composite
def sums(draw: st.DrawFn) -> tuple[Float32, Float32, Float32]:
    """Return base, coordinates and vectors of any size, with ties, and with bounds that are
    attained."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n_users, n_items = draw(st.integers(1, 4)), draw(st.integers(1, 150))
    rank = draw(st.sampled_from([0, 1, 5, 31, 32, 33, 64, 90]))
    base = rng.standard_normal((n_users, n_items)) * draw(st.sampled_from([0.0, 0.01, 1.0, 100.0]))
    coordinates = rng.standard_normal((n_users, rank))
    vectors = rng.standard_normal((n_items, rank)) * rng.pareto(1.5, (n_items, 1))
    how = draw(st.sampled_from(["any", "rounded", "parallel", "twins"]))
    if how == "rounded":
        base, coordinates, vectors = (
            np.round(2 * each) / 2 for each in (base, coordinates, vectors)
        )
    elif how == "parallel":
        # The bound is the inner product itself, and all scores are equal except for rounding.
        sizes = rng.random(n_items) + 0.5
        vectors = sizes[:, None] * coordinates[:1]
        base = 3 - (coordinates @ vectors.T)
    elif how == "twins":
        vectors[1::2] = vectors[: 2 * (n_items // 2) : 2]
        base[:, 1::2] = base[:, : 2 * (n_items // 2) : 2]
    return tuple(np.asarray(each, np.float32) for each in (base, coordinates, vectors))  # type: ignore[return-value]


@given(sums(), st.integers(1, 30), st.booleans())
def test_best_items_are_those_of_all_scores(
    made: tuple[Float32, Float32, Float32], count: int, masked: bool
) -> None:
    base, coordinates, vectors = made
    seen = None
    if masked:
        touched = np.random.default_rng(count).random(base.shape) < 0.3
        seen = sp.csr_array(touched.astype(np.float32))
    low_rank = ItemVectors(vectors)
    scores = Parts(base.copy(), coordinates, low_rank).scores()
    exact = base + coordinates.astype(np.float64) @ vectors.T.astype(np.float64)
    size = 1 + np.abs(base).max() + np.abs(coordinates) @ np.abs(vectors).T
    assert (np.abs(scores - exact) <= 1e-5 * size).all()
    items, values = Parts(base.copy(), coordinates, low_rank).best(count, seen)
    if seen is not None:
        scores[seen.toarray() > 0] = -np.inf
    expected, expected_values = by_sorting(scores, count)
    np.testing.assert_array_equal(items, expected)
    np.testing.assert_array_equal(values, expected_values)


def test_few_inner_products_are_computed_to_the_end() -> None:
    """Test that items without a chance are not read after the first stage, where they are NaN
    here."""
    rng = np.random.default_rng(0)
    base = rng.pareto(1.0, (3, 4000)).astype(np.float32)
    coordinates = rng.standard_normal((3, 64)).astype(np.float32)
    vectors = (0.01 * rng.standard_normal((4000, 64))).astype(np.float32)
    low_rank = ItemVectors(vectors)
    expected = Parts(base.copy(), coordinates, low_rank).best(10)
    hopeless = (base + np.linalg.norm(coordinates) < np.sort(base)[:, -11:-10]).all(axis=0)
    assert hopeless.mean() > 0.9
    low_rank._vectors.reshape(2, 4000, -1)[1, hopeless] = np.nan
    for found, wanted in zip(Parts(base, coordinates, low_rank).best(10), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_without_slack_rounding_would_change_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test that a bound that ignores rounding would drop items that belong in the list."""
    rng = np.random.default_rng(5)
    coordinates = rng.standard_normal((1, 320)).astype(np.float32)
    vectors = ((rng.random(3000) + 0.5)[:, None] * coordinates).astype(np.float32)
    base = (3 - coordinates @ vectors.T).astype(np.float32)
    low_rank = ItemVectors(vectors)
    expected = by_sorting(Parts(base.copy(), coordinates, low_rank).scores(), 20)[0]
    np.testing.assert_array_equal(Parts(base, coordinates, low_rank).best(20)[0], expected)
    whole = parts.kernels.best_of_sums

    def without(*given: object) -> None:
        whole(*given[:5], np.float32(-1e-5), *given[6:])

    monkeypatch.setattr(parts.kernels, "best_of_sums", without)
    assert not np.array_equal(Parts(base, coordinates, low_rank).best(20)[0], expected)


@given(st.integers(0, 2**32), st.integers(1, 150), st.sampled_from([np.int32, np.int64]))
def test_gathered_sums_add_in_the_order_of_entries(seed: int, width: int, kind: type) -> None:
    rng = np.random.default_rng(seed)
    matrix = sp.csr_array((rng.random((5, 9)) < 0.5).astype(np.float32))
    source = rng.standard_normal((9, width)).astype(np.float32)
    scale = rng.random(5).astype(np.float32)
    out = np.full((5, width), np.nan, np.float32)
    indices = matrix.indices.astype(kind)
    kernels.gather_sum(matrix.indptr, indices, source, scale, out)
    for row in range(5):
        total = np.zeros(width, np.float32)
        for item in indices[matrix.indptr[row] : matrix.indptr[row + 1]]:
            total += source[item]
        np.testing.assert_array_equal(out[row], scale[row] * total)


@given(st.integers(0, 2**32), st.integers(1, 100), st.integers(1, 30))
def test_top_items_are_those_of_a_stable_sort(seed: int, n_items: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.choice([-np.inf, -1, 0, 0.5, 2, 3], (3, n_items)).astype(np.float32)
    found = Parts(scores).best(count)
    for ours, theirs in zip(found, by_sorting(scores, count), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_rows_of_an_aligned_array_begin_cache_lines() -> None:
    array = kernels.aligned((7, kernels.LANES))
    assert array.shape == (7, 16)
    assert all(row.ctypes.data % 64 == 0 for row in array)


def test_rows_are_summed_where_histories_outnumber_items() -> None:
    globo = {"histories": 157_926, "interactions": 2_040_215, "n_items": 11_832}
    assert row_sums_pay(**globo, a_history=4 * 2 * 2_040_215)
    assert not row_sums_pay(**globo | {"histories": 100}, a_history=4 * 2 * 2_040_215)
    assert not row_sums_pay(**globo, a_history=0)
    gowalla = {"histories": 29_858, "interactions": 810_128, "n_items": 40_981}
    assert not row_sums_pay(**gowalla, a_history=4 * 2 * 810_128)
    too_many = int((MOST_BYTES / 4) ** 0.5) + 1
    assert not row_sums_pay(10**9, 10**9, too_many, 10**9)
