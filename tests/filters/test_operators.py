"""Tests of the item-item matrix in its three forms, against dense arithmetic."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from privirec.data import Dataset, Interactions
from privirec.errors import UsageError
from privirec.filters import (
    Components,
    FactoredOperator,
    LowPass,
    LowRankOperator,
    Normalisation,
    SparseOperator,
    centralized,
    factored,
    operators,
    randomized,
)
from privirec.filters.normalize import degree_power
from privirec.filters.operators import ItemOperator, NotKept, as_columns, in_bytes

ALPHAS = [0.0, 0.3, 0.5, 0.6, 1.0]


SYMMETRIC = Normalisation.symmetric()


def dense_item_item(
    train: Interactions, normalisation: Normalisation = SYMMETRIC
) -> NDArray[np.float64]:
    """Return P by the formula, with zero weight for users and items without interactions."""
    r = train.matrix.toarray().astype(np.float64)

    def divisor(degrees: NDArray[np.float64], exponent: float) -> NDArray[np.float64]:
        return np.array([d**-exponent if d else 0.0 for d in degrees])

    user = divisor(r.sum(axis=1), normalisation.user)
    left = divisor(r.sum(axis=0), normalisation.left)
    right = divisor(r.sum(axis=0), normalisation.right)
    return np.asarray((r * left).T @ (user[:, None] * r * right))


def low_rank(matrix: NDArray[np.float64]) -> LowRankOperator:
    values, vectors = np.linalg.eigh(matrix)
    return LowRankOperator(np.ascontiguousarray(vectors[:, ::-1], np.float32), values[::-1].copy())


@pytest.mark.parametrize("exponent", [-1.0, -0.5, 0.0, 0.5])
def test_degree_zero_has_no_weight(exponent: float) -> None:
    powers = degree_power([0, 1, 4], exponent)
    np.testing.assert_allclose(powers, [0, 1, 4**exponent])
    assert powers.dtype == np.float64


@pytest.mark.parametrize("quarters", [-8, -7, -6, -5, -3, -1, 1, 3, 5, 6, 7, 8])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16])
def test_powers_of_degrees_are_the_nearest_doubles(
    quarters: int, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that degree^quarters lies between the fourth powers of the double's neighbours."""

    def by_library(*_: object, **__: object) -> None:
        raise AssertionError("np.power depends on the CPU")

    monkeypatch.setattr(np, "power", by_library)
    degrees = [*range(1, 60), 999, 1234, 4567, 65535]
    found = degree_power(np.array(degrees, dtype), quarters / 4)
    for degree, power in zip(degrees, found.tolist(), strict=True):
        exact = Fraction(degree) ** quarters
        below, above = (math.nextafter(power, towards) for towards in (0.0, math.inf))
        assert ((Fraction(below) + Fraction(power)) / 2) ** 4 <= exact
        assert exact <= ((Fraction(power) + Fraction(above)) / 2) ** 4


@pytest.mark.parametrize("alpha", ALPHAS)
def test_symmetric_normalisations_are_the_family_of_alpha(
    holes: Interactions, alpha: float
) -> None:
    """Test R~ = U^-alpha R V^(alpha-1) and P~ = R~^T R~."""
    normalisation = Normalisation.symmetric(alpha)
    assert normalisation.alpha == alpha
    assert normalisation.is_symmetric
    assert str(normalisation) == f"alpha = {alpha:g}"
    r = holes.matrix.toarray().astype(np.float64)
    users, items = np.maximum(r.sum(axis=1), 1), np.maximum(r.sum(axis=0), 1)
    scaled = (users**-alpha)[:, None] * r * items ** (alpha - 1)
    np.testing.assert_allclose(dense_item_item(holes, normalisation), scaled.T @ scaled)
    assert Normalisation(1.0, 0.5, 0.4).alpha is None
    assert Normalisation(0.0, 0.0, 0.0).alpha is None


normalisations = st.one_of(
    st.sampled_from(ALPHAS).map(Normalisation.symmetric),
    st.builds(Normalisation, *(st.sampled_from([0.0, 0.34, 0.5, 1.0]) for _ in range(3))),
)


@given(st.integers(0, 2**32), normalisations)
def test_all_forms_are_the_same_matrix(seed: int, normalisation: Normalisation) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 15, 2))
    touched = rng.random(shape) < rng.choice([0.05, 0.3, 1.0])
    train = Interactions.from_matrix(touched.astype(np.float32))
    dense = dense_item_item(train, normalisation)
    product = factored(train, normalisation)
    histories = Interactions.from_matrix(rng.random((5, shape[1])) < 0.4).matrix
    columns = rng.standard_normal((shape[1], 3)).astype(np.float32)
    onto = rng.standard_normal((5, shape[1])).astype(np.float32)
    size = max(1.0, float(np.abs(dense).max()))
    forms: dict[str, ItemOperator] = {"in factors": product, "sparse": product.written_out()}
    if normalisation.is_symmetric:
        forms["low rank"] = low_rank(dense)
    for name, form in forms.items():
        assert form.n_items == shape[1]
        x = histories.toarray()
        options = {"atol": 3e-5 * size, "rtol": 1e-5, "err_msg": name}
        np.testing.assert_allclose(form.rows(histories), x @ dense, **options)
        target = onto.copy()
        assert form.rows(histories, onto=target) is target
        np.testing.assert_allclose(target, onto + x @ dense, **options)
        before = columns.copy()
        np.testing.assert_allclose(form.times(columns), dense @ columns, **options)
        np.testing.assert_array_equal(columns, before)
        assert form.rows(histories).dtype == form.times(columns).dtype == np.float32
        some = np.flatnonzero(rng.random(shape[1]) < 0.7)
        np.testing.assert_allclose(form.among(some), dense[np.ix_(some, some)], **options)
        every = form.among(np.arange(shape[1]))
        np.testing.assert_allclose(every, dense, **options)
        assert every.dtype == np.float32
        assert every.flags.c_contiguous


@pytest.mark.parametrize("n_histories", [1, 63, 64, 65, 130])
@pytest.mark.parametrize("normalisation", [SYMMETRIC, Normalisation(1.0, 0.25, 0.5)], ids=str)
def test_too_many_products_are_done_in_factors(
    monkeypatch: pytest.MonkeyPatch, small: Dataset, normalisation: Normalisation, n_histories: int
) -> None:
    product = factored(small.train, normalisation)
    histories = small.train.matrix[:n_histories]
    monkeypatch.setattr(operators, "FROM_MATRIX", 0)
    written = product.rows(histories)
    assert "_written_out" in vars(product)
    monkeypatch.setattr(operators, "MOST_PRODUCTS", 0)
    fresh = factored(small.train, normalisation)
    near = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(fresh.rows(histories), written, **near)
    onto = np.ones_like(written)
    np.testing.assert_allclose(fresh.rows(histories, onto=onto), 1 + written, **near)
    assert "_written_out" not in vars(fresh)


def test_a_released_matrix_is_used_as_it_is(holes: Interactions) -> None:
    released = SparseOperator(sp.csr_array(np.eye(holes.n_items, dtype=np.float32)))
    base = factored(holes)
    both = replace(base, released=released)
    assert both.written_out() is released
    np.testing.assert_array_equal(both.among(np.array([2, 5])), np.eye(2))
    np.testing.assert_array_equal(both.rows(holes.matrix), holes.matrix.toarray())


def test_entrywise_power(holes: Interactions) -> None:
    operator = factored(holes).written_out()
    assert operator.power(1) is operator
    before = operator.matrix.toarray()
    np.testing.assert_allclose(operator.power(0.7).matrix.toarray(), before**0.7, rtol=1e-5)
    np.testing.assert_array_equal(operator.matrix.toarray(), before)
    assert operator.power(0.7).matrix.dtype == np.float32


def test_histories_as_columns(holes: Interactions) -> None:
    np.testing.assert_array_equal(as_columns(holes.matrix), holes.matrix.toarray().T)


# --- components -----------------------------------------------------------------------------------


def test_low_pass_is_the_formula(holes: Interactions) -> None:
    train = holes
    components = centralized(train, rank=15)
    assert components.basis is not None
    s = components.basis[:, :12].astype(np.float64)
    v = train.item_degrees.astype(np.float64)
    assert (v == 0).any()  # the trap: 0 * inf
    exact = degree_power(v, -0.5)[:, None] * (s @ s.T) * np.sqrt(v)[None, :]
    low_pass = components.low_pass(12)
    x = train.matrix[:9]
    np.testing.assert_allclose(low_pass.rows(x), x.toarray() @ exact, atol=1e-4)
    assert low_pass.coordinates(x).shape == (9, 12)


def test_a_low_pass_filter_needs_its_vectors(holes: Interactions) -> None:
    with pytest.raises(UsageError, match="rank 5 needs more than 4 vectors"):
        centralized(holes, rank=4).low_pass(5)
    with pytest.raises(UsageError, match="rank 5 needs more than 0 vectors"):
        centralized(holes).low_pass(5)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"rank": 18}, "rank 18 does not fit a catalogue of 17 items"),
        ({"rank": 3, "normalisation": Normalisation.symmetric(0.6)}, "alpha = 1/2"),
    ],
)
def test_impossible_components_are_refused(holes: Interactions, settings: dict, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        centralized(holes, **settings)


def test_what_is_written_out_holds_no_histories(holes: Interactions) -> None:
    components = centralized(holes, rank=3)
    assert isinstance(components.item_item, FactoredOperator)
    public = components.written_out()
    assert isinstance(public.item_item, SparseOperator)
    assert public.basis is components.basis
    assert public.written_out() is public
    np.testing.assert_allclose(public.item_item.matrix.toarray(), dense_item_item(holes), atol=1e-6)
    released = Components(holes.item_degrees, low_rank(dense_item_item(holes)))
    assert released.written_out() is released


def test_a_matrix_that_was_not_kept_says_so(holes: Interactions) -> None:
    components = centralized(holes, rank=3).without_item_item()
    assert components.item_item == NotKept(holes.n_items)
    assert components.basis is not None
    missing = components.item_item
    for ask in (missing.rows, missing.times, missing.among):
        with pytest.raises(UsageError, match="keeps no item-item matrix"):
            ask(holes.matrix)


def test_low_pass_of_all_vectors_is_the_identity_on_known_items(holes: Interactions) -> None:
    basis = np.eye(holes.n_items, dtype=np.float32)
    rows = LowPass.from_basis(basis, holes.item_degrees).rows(holes.matrix)
    np.testing.assert_allclose(rows, holes.matrix.toarray(), atol=1e-6)


@pytest.mark.parametrize("qr_per_step", [1, 2])
def test_randomized_components_converge_to_the_exact_ones(small: Dataset, qr_per_step: int) -> None:
    values, vectors = np.linalg.eigh(dense_item_item(small.train))
    assert values[-8] > 1.1 * values[-9 - 1]
    exact = vectors[:, -7:] @ vectors[:, -7:].T
    errors = []
    for steps in (1, 6, 120):
        basis = randomized(small.train, rank=7, steps=steps, qr_per_step=qr_per_step).basis
        assert basis is not None
        np.testing.assert_allclose(basis.T @ basis, np.eye(7), atol=1e-5)
        errors.append(float(np.linalg.norm(basis @ basis.T - exact)))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-3


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_not_kept_as_zeros(bad: float) -> None:
    matrix = np.ones((3, 4), np.float32)
    small, units = in_bytes(matrix)
    np.testing.assert_allclose(small * units[:, None], matrix, rtol=1e-6)
    matrix[1, 2] = bad
    with pytest.raises(UsageError, match="row 1 has numbers that are not finite"):
        in_bytes(matrix)
