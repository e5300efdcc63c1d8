"""Tests of weighted interactions: every model against its formula in dense double precision."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.app.audit import release_of
from privirec.data import Dataset, Interactions, TableOptions, read_interactions, split
from privirec.data.formats import read_file
from privirec.errors import DataError, DataWarning, UsageError
from privirec.evaluation import evaluate
from privirec.filters.components import factored
from privirec.filters.normalize import Normalisation
from privirec.filters.operators import WeightedOperator
from privirec.models import (
    BSPMEM,
    BSPMLM,
    DAN,
    EASE,
    GFCF,
    MODELS,
    ChebyCF,
    Denoised,
    ItemKNN,
    LinkProp,
    Popularity,
    Recommender,
    Ridge,
    Spectral,
    TurboCF,
    artifact,
)
from privirec.models.cheby_cf import plateau
from privirec.models.ridge import ridge
from privirec.runtime.local.client import clients_of
from privirec.runtime.local.simulation import Simulation

Dense = NDArray[np.float64]
Frame = Callable[[dict[str, Any]], Any]
RANK = 6
pytestmark = pytest.mark.filterwarnings("ignore:.* histories have nothing that the model knows")


@pytest.fixture(scope="module")
def rated() -> sp.csr_array:
    """Return random long-tailed data with weights from 0.05 to 20, an empty item and an empty
    user."""
    rng = np.random.default_rng(11)
    touched = rng.random((90, 50)) < 0.6 * rng.random(50) ** 2
    touched[4] = False
    touched[:, 9] = False
    return sp.csr_array(touched * np.exp(rng.uniform(np.log(0.05), np.log(20), touched.shape)))


@pytest.fixture(params=["pandas", "polars"])
def frame(request: pytest.FixtureRequest) -> Frame:
    return pytest.importorskip(request.param).DataFrame


def power(degrees: Dense, exponent: float) -> Dense:
    return np.where(degrees > 0, np.where(degrees > 0, degrees, 1) ** exponent, 0)


def item_item(r: Dense, user: float = 1.0, left: float = 0.5, right: float = 0.5) -> Dense:
    users, items = r.sum(axis=1), r.sum(axis=0)
    inner = r.T @ (power(users, -user)[:, None] * r)
    return np.asarray(power(items, -left)[:, None] * inner * power(items, -right)[None])


def low_pass(r: Dense, response: Callable[[Dense], Dense] = np.ones_like) -> Dense:
    """Return V^-1/2 S h(lambda) S^T V^1/2."""
    values, vectors = np.linalg.eigh(item_item(r))
    assert values[-RANK] > values[-RANK - 1] + 1e-3, "the leading space must be well defined"
    s, items = vectors[:, -RANK:], r.sum(axis=0)
    inner = (s * response(values[-RANK:])) @ s.T
    return np.asarray(power(items, -0.5)[:, None] * inner * power(items, 0.5)[None])


def bspm(x: Dense, r: Dense, early: bool) -> Dense:
    """Take one Euler step of each kind, to the times 1 and 1.2."""
    p, low = item_item(r), 0.3 * x @ low_pass(r)
    blurred = x @ p
    state = blurred + low if early else blurred
    state = state - 1.2 * state @ p
    return np.asarray(state if early else state + low)


def ease(r: Dense) -> Dense:
    inverse = np.linalg.inv(r.T @ r + 3.0 * np.eye(r.shape[1]))
    return np.eye(len(inverse)) - inverse / np.diagonal(inverse)


def cheby(r: Dense) -> Dense:
    values, vectors = np.linalg.eigh(item_item(r))
    response = plateau(1.5)(values)
    response[-RANK:] += 0.2
    degrees = r.sum(axis=0)
    inner = (vectors * response) @ vectors.T
    return np.asarray(power(degrees, -0.4)[:, None] * inner * power(degrees, 0.4))


def dan(r: Dense) -> Dense:
    degrees = r.sum(axis=0)
    gram = r.T @ (power(r.sum(axis=1), -0.3)[:, None] * r)
    inverse = np.linalg.inv(gram + np.diag(3.0 + 0.3 / 0.7 * degrees))
    weights = np.eye(len(gram)) - inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0)
    return np.asarray(power(degrees, 0.2)[:, None] * weights * power(degrees, -0.2))


def regression(r: Dense) -> Dense:
    values, vectors = np.linalg.eigh(item_item(r, user=0.3))
    inner = (vectors * ridge(0.2, 4)(values / values[-1])) @ vectors.T
    degrees = r.sum(axis=0)
    return np.asarray(power(degrees, -0.2)[:, None] * inner * power(degrees, 0.3))


def cosines(r: Dense) -> Dense:
    common = r.T @ r
    lengths = np.sqrt(np.diagonal(common))
    alike = common / (np.outer(lengths, lengths) + 10.0)
    np.fill_diagonal(alike, 0)
    return np.asarray(alike)


_BSPM = {"rank": RANK, "beta": 0.3, "sharpen_time": 1.2, "solver": "euler"}

Formula = Callable[[Dense, Dense], Dense]
FORMULAS: list[tuple[Recommender, Formula]] = [
    (GFCF(rank=RANK), lambda x, r: x @ (item_item(r) + 0.3 * low_pass(r))),
    (TurboCF(alpha=0.6, s=0.7), lambda x, r: x @ item_item(r, 1.2, 0.4, 0.4) ** 0.7),
    (TurboCF(s=1, filter=2), lambda x, r: x @ (2 * item_item(r) - item_item(r) @ item_item(r))),
    (LinkProp(beta=0.5, gamma=0.67, delta=0.34), lambda x, r: x @ item_item(r, 0.67, 0.5, 0.34)),
    (BSPMLM(**_BSPM), lambda x, r: bspm(x, r, early=False)),
    (BSPMEM(**_BSPM), lambda x, r: bspm(x, r, early=True)),
    (Spectral(rank=RANK, response="power", power=0.5), lambda x, r: x @ low_pass(r, np.sqrt)),
    (EASE(regularisation=3.0), lambda x, r: x @ ease(r)),
    (ChebyCF(rank=RANK), lambda x, r: x @ cheby(r)),
    (DAN(regularisation=3.0), lambda x, r: x @ dan(r)),
    (
        Ridge(regularisation=0.2, user_exponent=0.3, history_exponent=0.2, item_exponent=0.3),
        lambda x, r: x @ regression(r),
    ),
    (ItemKNN(), lambda x, r: x @ cosines(r)),
    (Popularity(), lambda x, r: np.tile(r.sum(axis=0), (len(x), 1))),
]
WITHOUT_WEIGHTS = (Denoised,)


def fresh(model: Recommender) -> Recommender:
    return type(model)(model.config)


@pytest.mark.parametrize(("model", "formula"), FORMULAS, ids=[repr(m) for m, _ in FORMULAS])
class TestWeights:
    def test_scores_are_the_formula_of_the_weights(
        self, model: Recommender, formula: Formula, rated: sp.csr_array
    ) -> None:
        """Test that weights are relative to their mean."""
        fitted = fresh(model).fit(rated, weighted=True)
        x = (rated.toarray() > 0).astype(np.float64)
        expected = formula(x, rated.toarray() / rated.data.mean())
        size = np.abs(expected).max()
        # Spectral keeps one byte per entry.
        close = 0.02 if isinstance(model, Spectral) else 3e-5
        np.testing.assert_allclose(fitted.score(sp.csr_array(x)), expected, atol=close * size)
        assert np.abs(expected - formula(x, x)).max() > 2 * close * size, "weights do matter"

    def test_only_ratios_matter(
        self, model: Recommender, formula: Formula, rated: sp.csr_array
    ) -> None:
        x = sp.csr_array((rated > 0).astype(np.float32))
        fitted = fresh(model).fit(rated, weighted=True)
        for factor in (1024.0, 2.0**-900):  # by powers of two: the same to the last bit
            again = fresh(model).fit(rated * factor, weighted=True)
            np.testing.assert_array_equal(again.score(x), fitted.score(x))

    def test_equal_weights_are_none(
        self, model: Recommender, formula: Formula, rated: sp.csr_array
    ) -> None:
        x = sp.csr_array((rated > 0).astype(np.float32))
        plain, equal = fresh(model).fit(x), fresh(model).fit(x * 0.3, weighted=True)
        users = np.arange(x.shape[0])
        for ours, theirs in zip(equal.recommend(users, x), plain.recommend(users, x), strict=True):
            np.testing.assert_array_equal(ours, theirs)

    def test_nearly_equal_weights_make_nearly_the_same_model(
        self, model: Recommender, formula: Formula, rated: sp.csr_array
    ) -> None:
        """Compare the products for weights with the kernels for counts."""
        x = sp.csr_array((rated > 0).astype(np.float64))
        nearly = x.copy()
        nearly.data[0] += 1e-9
        plain, other = fresh(model).fit(x), fresh(model).fit(nearly, weighted=True)
        assert other.components.is_weighted
        assert not plain.components.is_weighted
        size = float(np.abs(plain.score(x)).max())
        # A byte of Spectral may differ by one.
        close = 0.01 if isinstance(model, Spectral) else 1e-5
        np.testing.assert_allclose(other.score(x), plain.score(x), atol=close * size)

    def test_batch_equals_single(
        self, model: Recommender, formula: Formula, rated: sp.csr_array
    ) -> None:
        fitted = fresh(model).fit(rated, weighted=True)
        ids, scores = fitted.recommend(np.arange(90), rated, weighted=True)
        for user in (0, 4, 63, 64, 89):
            one, values = fitted.recommend(user, rated[[user]], weighted=True)
            np.testing.assert_array_equal(one, ids[user])
            np.testing.assert_allclose(values, scores[user], rtol=1e-5, atol=1e-6)

    def test_saved_and_loaded(
        self, model: Recommender, formula: Formula, rated: sp.csr_array, tmp_path: Path
    ) -> None:
        fitted = fresh(model).fit(rated, weighted=True)
        folder = fitted.save(tmp_path / "saved")
        loaded = Recommender.load(folder)
        assert loaded.components.is_weighted
        assert json.loads((folder / artifact.MANIFEST).read_text())["weighted"] is True
        np.testing.assert_array_equal(
            loaded.components.item_degrees, fitted.components.item_degrees
        )
        x = sp.csr_array((rated > 0).astype(np.float32))
        np.testing.assert_array_equal(loaded.score(x), fitted.score(x))
        users = np.arange(90)
        np.testing.assert_array_equal(loaded.recommend(users, x)[0], fitted.recommend(users, x)[0])
        plain = fresh(model).fit(x).save(tmp_path / "plain")
        assert "weighted" not in json.loads((plain / artifact.MANIFEST).read_text())


def test_no_model_escapes() -> None:
    tried = {type(model) for model, _ in FORMULAS} | set(WITHOUT_WEIGHTS)
    assert tried == {
        kind for kind in MODELS.values() if kind.__module__.startswith("privirec.models")
    }


@pytest.mark.parametrize("kind", WITHOUT_WEIGHTS)
def test_models_without_weights_say_why(kind: type[Recommender], rated: sp.csr_array) -> None:
    with pytest.raises(UsageError, match=f"{kind.name} (takes no weights: it|adds no noise)"):
        kind().fit(rated, weighted=True)


@pytest.mark.parametrize("model", [GFCF(rank=RANK), TurboCF(s=0.7), BSPMEM(**_BSPM)])
def test_a_user_of_whole_weight_is_so_many_users(model: Recommender, rated: sp.csr_array) -> None:
    """Test alpha = 1/2, where a row times k equals k such rows: sum_u r_u^T r_u / d_u grows by
    k."""
    counts = sp.csr_array((rated > 0).astype(np.float64))
    times = np.random.default_rng(5).integers(1, 5, counts.shape[0])
    heavy = sp.csr_array(counts * times[:, None])
    several = counts[np.repeat(np.arange(len(times)), times)]
    one = fresh(model).fit(heavy, weighted=True).score(counts)
    other = fresh(model).fit(several).score(counts)
    np.testing.assert_allclose(one, other, atol=1e-5 * float(np.abs(other).max()))


@pytest.mark.parametrize("normalisation", [Normalisation.symmetric(), Normalisation(0.7, 0.5, 0.3)])
def test_all_ways_of_the_operator_agree(
    rated: sp.csr_array, normalisation: Normalisation, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = factored(Interactions.from_matrix(rated, weighted=True), normalisation)
    assert isinstance(operator, WeightedOperator)
    exponents = normalisation.user, normalisation.left, normalisation.right
    expected = item_item(rated.toarray(), *exponents)
    written = operator.written_out().matrix.toarray()
    np.testing.assert_allclose(written, expected, rtol=1e-5)
    if normalisation.is_symmetric:
        np.testing.assert_array_equal(written, written.T)
    np.testing.assert_allclose(operator.times(np.eye(50, dtype=np.float32)), expected, atol=1e-6)
    some = np.array([3, 7, 8, 40])
    np.testing.assert_array_equal(operator.among(some), written[np.ix_(some, some)])
    x = sp.csr_array((rated > 0).astype(np.float32))
    rows = operator.rows(x)
    monkeypatch.setattr("privirec.filters.operators.MOST_PRODUCTS", 0)
    np.testing.assert_allclose(operator.rows(x), rows, rtol=1e-4, atol=1e-6)


# --- sources of weights ---------------------------------------------------------------------------


def plays(rated: sp.csr_array) -> dict[str, Any]:
    entries = rated.tocoo()
    listened = {
        "listener": [f"l{user:02d}" for user in entries.row],
        "track": (entries.col + 100).tolist(),
    }
    return listened | {"rating": entries.data.tolist()}


def test_a_column_of_a_frame(rated: sp.csr_array, frame: Frame) -> None:
    """Test a column named by the caller: it equals the values of a matrix, without a warning."""
    table = frame(plays(rated))
    rows, columns = (np.flatnonzero(np.diff(one.indptr)) for one in (rated, rated.T.tocsr()))
    matrix = rated[rows][:, columns]
    expected = GFCF(rank=RANK).fit(matrix, weighted=True)
    model = GFCF(rank=RANK).fit(table, weighted="rating")
    ids, scores = model.recommend("l07", table, weighted="rating")
    place = int(np.searchsorted(rows, 7))
    numbers, values = expected.recommend(0, matrix[[place]], weighted=True)
    np.testing.assert_array_equal(ids, columns[numbers] + 100)
    np.testing.assert_array_equal(scores, values)
    found = model.recommend_frame(table, users=["l07"], weighted="rating")
    assert found["track"].to_list() == ids.tolist()
    with pytest.raises(UsageError, match="weights of a DataFrame stand in a column: name it"):
        GFCF().fit(table, weighted=True)
    with pytest.raises(DataError, match="no column 'plays'; the columns are listener, track"):
        GFCF().fit(table, weighted="plays")
    with pytest.warns(DataWarning, match="column rating is not looked at"):
        GFCF().fit(table)


def test_interactions_keep_their_weights(rated: sp.csr_array) -> None:
    train = Interactions.from_matrix(rated, weighted=True)
    assert "interactions, with weights)" in repr(train)
    assert train.fingerprint() != train.unweighted().fingerprint()
    dense = rated.toarray()
    np.testing.assert_array_equal(train.weighted_matrix().toarray(), dense)
    np.testing.assert_array_equal(train.rows(5, 9).weighted_matrix().toarray(), dense[5:9])
    chosen = np.arange(90) % 3 == 0
    np.testing.assert_array_equal(train.of_users(chosen).weighted_matrix().toarray(), dense[chosen])
    apart = split(train, test=0.3, seed=1)
    both = [part.weighted_matrix().toarray() for part in (apart.train, apart.test)]
    np.testing.assert_array_equal(both[0] + both[1], dense)
    assert not (both[0] * both[1]).any()
    np.testing.assert_array_equal(apart.together().weighted_matrix().toarray(), dense)
    larger = train.over(np.arange(95), np.arange(60)).weighted_matrix().toarray()
    np.testing.assert_array_equal(larger[:90, :50], dense)
    assert np.count_nonzero(larger) == rated.nnz
    model = GFCF(rank=RANK).fit(apart.train, weighted=True)
    assert evaluate(model, apart, weighted=True).ndcg > 0
    with pytest.warns(DataWarning, match="weighted=True looks at values"):
        plain = GFCF(rank=RANK).fit(train)
    assert not plain.components.is_weighted
    with pytest.raises(UsageError, match="these Interactions have no weights"):
        GFCF().fit(train.unweighted(), weighted=True)


def test_histories_keep_their_weights_over_another_catalogue(rated: sp.csr_array) -> None:
    model = GFCF(rank=RANK).fit(rated, weighted=True)
    some = Interactions.from_pairs([1, 1, 1], [3, 7, 99], weights=[2.0, 0.5, 4.0])
    with pytest.warns(DataWarning, match="1 of 3 interactions are left out"):
        ids, scores = model.recommend(1, some, weighted=True)
    history = sp.csr_array(([2.0, 0.5], ([0, 0], [3, 7])), shape=(1, 50))
    expected, values = model.recommend(0, history, weighted=True)
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_array_equal(scores, values)


def test_weights_of_a_repeated_pair_are_added_up() -> None:
    repeated = Interactions.from_pairs(
        [1, 1, 2, 1], [5, 6, 5, 5], times=[3, 1, 2, 1], weights=[1.0, 2.0, 4.0, 0.5]
    )
    assert repeated.weights is not None
    assert repeated.times is not None
    assert repeated.weights.tolist() == [1.5, 2.0, 4.0]
    assert repeated.times.tolist() == [3, 1, 2]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_column_of_a_file(suffix: str, tmp_path: Path) -> None:
    columns = {"user": [1, 1, 2], "item": [5, 6, 5], "rating": [1, 5, 2], "plays": [3.5, 1, 2]}
    path = tmp_path / f"plays.{suffix}"
    table = pytest.importorskip("pandas").DataFrame(columns)
    getattr(table, f"to_{suffix}")(path, index=False)
    found = read_interactions(path, weight_column="plays", min_rating=2)
    assert found.weights is not None
    assert found.weights.tolist() == [1.0, 2.0]
    rated = read_interactions(path, weight_column="rating")
    assert rated.weights is not None
    assert rated.weights.tolist() == [1.0, 5.0, 2.0]
    text = tmp_path / "plain.txt"
    text.write_text("1 5 6\n2 5\n")
    with pytest.raises(DataError, match="histories in plain text have no column of weights"):
        read_file(text, TableOptions(weight_column="plays"))


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf"), "often"])
def test_weights_are_finite_and_above_zero(wrong: Any, frame: Frame) -> None:
    weights = [str(one) for one in (1, wrong)] if isinstance(wrong, str) else [1.0, wrong]
    table = frame({"user": [1, 2], "item": [1, 2], "plays": weights})
    why = (
        "row 2: 'often' is not a weight"
        if isinstance(wrong, str)
        else "row 2: a weight is a number above 0"
    )
    with pytest.raises(DataError, match=f"DataFrame: column plays.*{why}") as refused:
        GFCF().fit(table, weighted="plays")
    assert "\n" not in str(refused.value)
    if isinstance(wrong, float) and wrong != 0:  # zero is no matrix entry
        with pytest.raises(DataError, match="user_items holds"):
            GFCF().fit(np.array([[1.0, wrong]]), weighted=True)


def test_weights_that_no_number_can_hold_together() -> None:
    with pytest.raises(UsageError, match=r"from 1e-20 to 3 differ too much for single precision"):
        GFCF().fit(np.array([[1e-20, 3.0], [1.0, 0.0]]), weighted=True)
    with pytest.raises(UsageError, match="'plays' names a column of a DataFrame, and this is none"):
        GFCF().fit(np.array([[1.0, 2.0]]), weighted="plays")
    with pytest.raises(DataError, match="2 weights for 3 interactions"):
        Interactions.from_pairs([1, 2, 3], [1, 2, 3], weights=[1.0, 2.0])


def test_a_federation_counts(rated: sp.csr_array) -> None:
    weighted = Interactions.from_matrix(rated, weighted=True)
    for start in (Simulation, clients_of):
        with pytest.raises(UsageError, match="a federation counts each interaction as one"):
            start(weighted)
        start(weighted.unweighted())


def test_an_audit_reads_counts(rated: sp.csr_array, tmp_path: Path) -> None:
    folder = TurboCF().fit(rated, weighted=True).save(tmp_path / "saved")
    train = Interactions.from_matrix(rated)
    with pytest.raises(UsageError, match="fitted on weights, and the attacks here read counts"):
        release_of(str(folder), Dataset("rated", train, train))
