"""Tests of scores against the formulas of the papers, computed densely in double precision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.data import Dataset, Interactions
from privirec.filters import LowRankOperator, Normalisation, centralized
from privirec.filters.components import factored
from privirec.models import (
    BSPMEM,
    BSPMLM,
    DAN,
    GFCF,
    ChebyCF,
    LinkProp,
    Recommender,
    Ridge,
    TurboCF,
)
from privirec.models.ridge import largest_eigenvalue, ridge
from privirec.runtime.run import run
from privirec.runtime.spec import RunSpec

Dense = NDArray[np.float64]
RANK = 6


@pytest.fixture(scope="module")
def train() -> Interactions:
    """Return random long-tailed data with an empty item and an empty user."""
    rng = np.random.default_rng(11)
    touched = rng.random((90, 50)) < 0.6 * rng.random(50) ** 2
    touched[4] = False
    touched[:, 9] = False
    return Interactions.from_matrix(touched.astype(np.float32))


def normalised(r: Dense, alpha: float) -> Dense:
    """Return R~ = U^-alpha R V^(alpha-1); rows and columns of zeros stay zeros."""
    users = np.maximum(r.sum(axis=1), 1) ** -alpha
    items = np.maximum(r.sum(axis=0), 1) ** (alpha - 1)
    return np.asarray(users[:, None] * r * items[None, :])


def low_pass(r: Dense, rank: int) -> Dense:
    """Return V^-1/2 S S^T V^1/2 with S from the SVD of R~."""
    _, singular, vt = np.linalg.svd(normalised(r, 0.5))
    assert singular[rank - 1] > singular[rank] + 1e-3, "the leading space must be well defined"
    s = vt[:rank].T
    v = np.maximum(r.sum(axis=0), 1)
    return np.asarray((v**-0.5)[:, None] * (s @ s.T) * np.sqrt(v)[None, :])


def assert_scores(model: Recommender, train: Interactions, expected: Dense) -> None:
    scores = model.fit(train).score(train.matrix)
    np.testing.assert_allclose(scores, expected, atol=2e-5 * max(1.0, np.abs(expected).max()))
    assert np.abs(expected).max() > 0.1


@pytest.mark.parametrize("gamma", [0.3, 1.0, 0.0])
def test_gf_cf(train: Interactions, gamma: float) -> None:
    r = train.matrix.toarray().astype(np.float64)
    a = normalised(r, 0.5)
    expected = r @ a.T @ a + gamma * r @ low_pass(r, RANK)
    assert_scores(GFCF(rank=RANK, gamma=gamma), train, expected)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("s", [0.7, 1.0, 1.4])
@pytest.mark.parametrize("alpha", [0.5, 0.6, 0.0, 1.0])
def test_turbo_cf(train: Interactions, number: int, s: float, alpha: float) -> None:
    r = train.matrix.toarray().astype(np.float64)
    a = normalised(r, alpha)
    p = (a.T @ a) ** s
    h = {
        1: p,
        2: 2 * p - p @ p,
        3: p + 0.01 * (-p @ p @ p + 10 * p @ p - 29 * p),
    }[number]
    assert_scores(TurboCF(alpha=alpha, s=s, filter=number), train, r @ h)


def euler(y: Dense, p: Dense, h: float) -> Dense:
    return y - h * (y @ p)


def three_eighths(y: Dense, p: Dense, h: float) -> Dense:
    """Take one step of dy/dt = -y P by the four stages of Runge and Kutta's 3/8 rule."""
    k1 = -y @ p
    k2 = -(y + h * k1 / 3) @ p
    k3 = -(y + h * (k2 - k1 / 3)) @ p
    k4 = -(y + h * (k1 - k2 + k3)) @ p
    return y + h * (k1 + 3 * (k2 + k3) + k4) / 8


def bspm(r: Dense, early: bool, settings: dict[str, Any]) -> Dense:
    """Run the process as its authors describe it, state by state."""
    a = normalised(r, 0.5)
    p = a.T @ a
    state, blurred = r, []
    step = settings["blur_time"] / settings["blur_steps"]
    for _ in range(settings["blur_steps"]):
        state = state + step * (state @ p - state)
        blurred.append(state)
    low = settings["beta"] * (r @ low_pass(r, RANK))
    state = state + low if early else state
    solve = three_eighths if settings["solver"] == "rk4" else euler
    sharpened = []
    for _ in range(settings["sharpen_steps"]):
        state = solve(state, p, settings["sharpen_time"] / settings["sharpen_steps"])
        sharpened.append(state)
    out = np.mean(blurred + sharpened, axis=0) if settings["combine"] else sharpened[-1]
    return np.asarray(out if early else out + low)


TIMES = [
    {"blur_steps": 1, "blur_time": 1.0, "sharpen_steps": 1, "sharpen_time": 2.5, "beta": 0.2},
    {"blur_steps": 1, "blur_time": 1.0, "sharpen_steps": 1, "sharpen_time": 1.2, "beta": 0.3},
    {"blur_steps": 1, "blur_time": 1.0, "sharpen_steps": 2, "sharpen_time": 2.2, "beta": 0.0},
    {"blur_steps": 3, "blur_time": 1.5, "sharpen_steps": 2, "sharpen_time": 1.0, "beta": 0.5},
]


@pytest.mark.parametrize("model", [BSPMLM, BSPMEM])
@pytest.mark.parametrize("solver", ["euler", "rk4"])
@pytest.mark.parametrize("combine", [False, True])
@pytest.mark.parametrize("times", TIMES)
def test_bspm(
    train: Interactions, model: type[BSPMLM], solver: str, combine: bool, times: dict[str, Any]
) -> None:
    settings = {**times, "solver": solver, "combine": combine}
    expected = bspm(train.matrix.toarray().astype(np.float64), model is BSPMEM, settings)
    assert_scores(model(rank=RANK, **settings), train, expected)


@pytest.mark.parametrize("model", [BSPMLM, BSPMEM])
def test_bspm_of_yelp2018_in_one_line(train: Interactions, model: type[BSPMLM]) -> None:
    """Test the closed forms in FINDINGS for Euler, one step, combination."""
    r = train.matrix.toarray().astype(np.float64)
    a = normalised(r, 0.5)
    p = a.T @ a
    b, i = r @ p, r @ low_pass(r, RANK)
    early = b + 0.3 * i / 2 - 0.6 * (b + 0.3 * i) @ p
    late = b - 0.6 * b @ p + 0.3 * i
    settings = model.published["yelp2018"].model_dump() | {"rank": RANK}
    assert_scores(model(**settings), train, early if model is BSPMEM else late)


@pytest.mark.parametrize(
    ("phi", "weight", "exponent"), [(1.5, 0.2, 0.4), (10.0, 0.2, 0.0), (5.0, 0.0, 0.2)]
)
def test_cheby_cf(train: Interactions, phi: float, weight: float, exponent: float) -> None:
    """Test f by the three-term recurrence of T_k, on matrices."""
    r = train.matrix.toarray().astype(np.float64)
    a = normalised(r, 0.5)
    x = [round(np.cos((8 - i) * np.pi / 8), 3) for i in range(9)]
    targets = [
        round(0.5 + 0.5 * (-each) ** phi if each < 0 else 0.5 - 0.5 * each**phi, 3) for each in x
    ]
    nodes = [np.cos((9.5 - j) * np.pi / 9) for j in range(1, 10)]
    eye = np.eye(50)
    before, now, total = eye, eye - 2 * a.T @ a, np.zeros((50, 50))
    for k in range(9):
        values = [np.cos(k * np.arccos(node)) for node in nodes]
        total += (1 if k == 0 else 2) / 9 * np.dot(targets, values) * before
        before, now = now, 2 * (eye - 2 * a.T @ a) @ now - before
    v = r.sum(axis=0)
    down, up = (np.where(v > 0, np.maximum(v, 1) ** sign, 0.0) for sign in (-exponent, exponent))
    _, _, vt = np.linalg.svd(a)
    ideal = vt[:RANK].T @ vt[:RANK]
    expected = r @ (down[:, None] * (total + weight * ideal) * up)
    model = ChebyCF(flatness=phi, weight=weight, rank=RANK, exponent=exponent)
    assert_scores(model, train, expected)
    # Many histories are scored with prepared item vectors.
    model.ready_for(2000, train.n_interactions)
    np.testing.assert_allclose(
        model.score(train.matrix), expected, atol=2e-5 * np.abs(expected).max()
    )


def test_ridge_of_a_high_degree_is_the_regression(train: Interactions) -> None:
    """Test against P (P + c I)^-1 with an inverse, and the interpolation that replaces it."""
    r = train.matrix.toarray().astype(np.float64)
    lengths, n = r.sum(axis=1), r.sum(axis=0)
    root = np.where(n > 0, 1 / np.sqrt(np.maximum(n, 1)), 0)
    p = root[:, None] * (r.T @ (np.maximum(lengths, 1)[:, None] ** -0.4 * r)) * root
    p /= np.linalg.eigvalsh(p)[-1]
    exact = 1.5 * p @ np.linalg.inv(p + 0.5 * np.eye(50))
    down, up = (np.where(n > 0, np.maximum(n, 1) ** power, 0) for power in (-0.1, 0.6))
    settings = {"user_exponent": 0.4, "history_exponent": 0.1, "item_exponent": 0.6}
    model = Ridge(regularisation=0.5, degree=12, **settings)
    assert_scores(model, train, r @ (down[:, None] * exact * up))
    grid = np.linspace(0, 1, 101)
    errors = [
        np.abs(ridge(0.5, degree)(grid) - 1.5 * grid / (grid + 0.5)).max() for degree in (2, 4, 8)
    ]
    assert 0.15 > errors[0] > 10 * errors[1] > 100 * errors[2]
    assert ridge(0.5, 1)(0) == 0


def test_the_largest_eigenvalue(train: Interactions) -> None:
    operator = factored(train, Normalisation(user=0.2, left=0.5, right=0.5))
    dense = operator.times(np.eye(50, dtype=np.float32)).astype(np.float64)
    found = largest_eigenvalue(operator, np.sqrt(train.item_degrees))
    assert found == pytest.approx(np.linalg.eigvalsh(dense)[-1], rel=1e-4)
    assert largest_eigenvalue(operator, np.zeros(50)) == 0


@pytest.mark.parametrize("model", ["cheby-cf", "dan", "ridge"])
def test_from_sums_equals_centralised(small: Dataset, model: str) -> None:
    """Test the sums of PriviRec, whose server computes the low-pass filter from P~."""
    rank = {"rank": 20} if model == "cheby-cf" else {}
    spec = RunSpec.of("privirec", model=model, low_pass_from="server", **rank)
    federated = run(small, spec).recommender
    central = run(small, RunSpec.of(model=model, **rank)).recommender
    x = small.train.matrix
    expected = central.score(x)
    np.testing.assert_allclose(federated.score(x), expected, atol=1e-4 * np.abs(expected).max())


def test_cheby_cf_from_the_sums_of_spectral(small: Dataset) -> None:
    """Test that a filter of all eigenvectors is the same from eigenpairs and from P~."""
    model = ChebyCF(rank=20)
    central = centralized(small.train, rank=300)
    assert central.basis is not None
    assert central.eigenvalues is not None
    pairs = replace(central, item_item=LowRankOperator(central.basis, central.eigenvalues))
    expected = model.use(central).score(small.train.matrix)
    found = ChebyCF(rank=20).use(pairs).score(small.train.matrix)
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
    row = run(small, RunSpec.of("spectral", model="cheby-cf", rank=20)).row
    assert row["ndcg@20"] > 0.2


def test_dan(train: Interactions) -> None:
    r = train.matrix.toarray().astype(np.float64)
    lengths, n = r.sum(axis=1), r.sum(axis=0)
    gram = r.T @ (np.maximum(lengths, 1)[:, None] ** -0.3 * r)
    inverse = np.linalg.inv(gram + np.diag(5 + 0.6 / 0.4 * n))
    weights = np.eye(50) - inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0)
    scales = np.maximum(n, 1) ** 0.2
    expected = r @ (scales[:, None] * weights / scales)
    settings = {"dropout": 0.6, "user_exponent": 0.3, "item_exponent": 0.2}
    assert_scores(DAN(regularisation=5, **settings), train, expected)


@pytest.mark.parametrize("exponents", [(0.5, 0.67, 0.34), (0.67, 0.5, 0.5), (0.0, 1.0, 1.0)])
def test_link_prop(train: Interactions, exponents: tuple[float, float, float]) -> None:
    """Test against every path user - item - user - item, one by one."""
    beta, gamma, delta = exponents
    r = train.matrix.toarray().astype(np.float64)
    users, items = r.sum(axis=1), r.sum(axis=0)
    expected = np.zeros_like(r)
    for i in np.flatnonzero(items):
        for v in np.flatnonzero(r[:, i]):
            for j in np.flatnonzero(r[v]):
                path = items[i] ** -beta * users[v] ** -gamma * items[j] ** -delta
                expected[r[:, i] > 0, j] += path
    assert_scores(LinkProp(beta=beta, gamma=gamma, delta=delta), train, expected)


def test_beyond_the_rank_of_the_data_nothing_is_invented() -> None:
    """Test rank twenty on six users, who span six directions: the users' order must not matter."""
    rng = np.random.default_rng(3)
    matrix = (rng.random((6, 40)) < 0.3).astype(float)
    shuffled = matrix[rng.permutation(6)]
    one, other = (GFCF(rank=20).fit(sp.csr_array(each)) for each in (matrix, shuffled))
    exact = GFCF(rank=6).fit(sp.csr_array(matrix))
    for item in range(0, 40, 7):
        ids, scores = one.similar_items(item)
        np.testing.assert_allclose(scores, other.similar_items(item)[1], atol=1e-5)
        np.testing.assert_allclose(scores, exact.similar_items(item)[1], atol=1e-5)
        assert len(ids) == 10
