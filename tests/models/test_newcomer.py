"""Tests of first attempts by users of `implicit` and pandas: right answers, or one clear line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from privirec import (
    GFCF,
    DataError,
    DataWarning,
    Interactions,
    Popularity,
    TableOptions,
    UsageError,
    evaluate,
    load_dataset,
)
from privirec import split as split_of
from privirec.app.cli.table_options import TableFlags
from privirec.data import Dataset


def rated() -> sp.csr_array:
    rng = np.random.default_rng(3)
    touched = rng.random((40, 30)) < 0.3
    touched[:, 0] = True
    return sp.csr_array(touched * rng.integers(1, 6, touched.shape).astype(np.float64))


@pytest.fixture(scope="module")
def weighted() -> Dataset:
    return split_of(rated(), test=0.3, seed=1, weighted=True)


@pytest.mark.parametrize("model", [GFCF(rank=4), Popularity()])
@pytest.mark.parametrize(
    ("k", "message"),
    [(0, "k must be at least 1"), (-1, "at least 1"), (2.5, "k must be a whole number, not 2.5")],
)
def test_counts_are_counts(model: Any, k: Any, message: str, small: Dataset) -> None:
    with pytest.raises(UsageError, match=message):
        evaluate(model.fit(small.train), small, k=k)


def test_lists_longer_than_the_catalogue(small: Dataset) -> None:
    model = GFCF(rank=4).fit(small.train)
    longest, endless = (evaluate(model, small, k=k) for k in (small.train.n_items, 10**9))
    assert (longest.recall, longest.ndcg) == (endless.recall, endless.ndcg)
    assert endless.k == 10**9


def test_scores_of_another_shape_and_kind(small: Dataset) -> None:
    class Short:
        def score(self, user_items: sp.csr_array) -> Any:
            return np.zeros((user_items.shape[0], 3), np.float32)

    class Doubles:
        def score(self, user_items: sp.csr_array) -> Any:
            degrees = small.train.item_degrees.astype(np.float64)
            return np.asfortranarray(np.tile(degrees, (user_items.shape[0], 1)))

    with pytest.raises(UsageError, match="scores of shape"):
        evaluate(Short(), small)
    assert evaluate(Doubles(), small) == evaluate(Popularity().fit(small.train), small)


def test_damaged_indices_are_refused() -> None:
    damaged = sp.csr_array(np.eye(3))
    for wrong in (3, -1):
        damaged.indices[1] = wrong
        with pytest.raises(DataError, match="columns that it does not have"):
            GFCF(rank=1).fit(damaged)


def test_evaluating_weights_is_recommending_with_weights(weighted: Dataset) -> None:
    model = GFCF(rank=4).fit(weighted.train, weighted=True)
    users = np.flatnonzero(weighted.test.user_degrees)

    def by_hand(**more: Any) -> float:
        found = 0.0
        for user in users:
            ids, _ = model.recommend(user, weighted.train, N=5, **more)
            wanted = set(weighted.test.matrix[[user]].indices.tolist())
            found += len(wanted & set(ids.tolist())) / len(wanted)
        return found / len(users)

    assert evaluate(model, weighted, k=5, weighted=True).recall == pytest.approx(
        by_hand(weighted=True), abs=1e-12
    )
    with pytest.warns(DataWarning, match="weighted=True looks at values"):
        plain = evaluate(model, weighted, k=5)
    with pytest.warns(DataWarning, match="weighted=True looks at values"):
        assert plain.recall == pytest.approx(by_hand(), abs=1e-12)
    unweighted = Dataset("plain", weighted.train.unweighted(), weighted.test)
    with pytest.raises(UsageError, match="these Interactions have no weights"):
        evaluate(model, unweighted, weighted=True)

    class Plain:
        def score(self, user_items: sp.csr_array) -> Any:
            return np.zeros(user_items.shape, np.float32)

    with pytest.raises(UsageError, match="Plain cannot score by the weights of histories"):
        evaluate(Plain(), weighted, weighted=True)


def test_reasons_and_similar_users_know_weights() -> None:
    matrix = rated()
    model = GFCF(rank=4).fit(matrix, weighted=True)
    ids, scores = model.recommend(7, matrix[[7]], N=3, weighted=True)
    for item, score in zip(ids, scores, strict=True):
        found = model.explain(7, matrix[[7]], item, N=100, weighted=True)
        assert found.score == score
        assert sum(part for _, part in found.because) == pytest.approx(score, rel=1e-5)
    with pytest.warns(DataWarning, match="weighted=True looks at values"):
        assert model.explain(7, matrix[[7]], ids[0]).score != scores[0]
    _, cosines = model.similar_users(7, matrix, N=3, weighted=True)
    heavy = matrix.toarray() @ model.score(np.eye(30))
    heavy /= np.linalg.norm(heavy, axis=1, keepdims=True)
    expected = np.sort(np.delete(heavy @ heavy[7], 7))[::-1][:3]
    np.testing.assert_allclose(cosines, expected, rtol=1e-5)
    pandas = pytest.importorskip("pandas")
    entries = matrix.tocoo()
    frame = pandas.DataFrame({"user": entries.row, "item": entries.col, "stars": entries.data})
    model = GFCF(rank=4).fit(frame, weighted="stars")
    assert model.explain(7, frame, ids[0], weighted="stars").score == pytest.approx(scores[0], 1e-5)
    model.similar_users(7, frame, weighted="stars")
    for ask in (lambda: model.explain(7, frame, ids[0]), lambda: model.similar_users(7, frame)):
        with pytest.warns(DataWarning, match="column stars is not looked at") as said:
            ask()
        assert said[0].filename == __file__


def test_a_matrix_does_not_say_which_named_items_its_columns_are() -> None:
    pandas = pytest.importorskip("pandas")
    entries = sp.csr_array(rated() > 0).tocoo()
    names = [f"p{column}" for column in entries.col]
    model = GFCF(rank=4).fit(pandas.DataFrame({"user": entries.row, "item": names}))
    matrix = entries.tocsr().astype(np.float32)
    for ask in (
        lambda: model.recommend(7, matrix[[7]]),
        lambda: model.recommend_frame(matrix),
        lambda: model.explain(7, matrix[[7]], "p3"),
        lambda: model.similar_users(7, matrix),
    ):
        with pytest.raises(UsageError, match="which the columns of a matrix do not name"):
            ask()
    named = Interactions.from_matrix(matrix, item_ids=np.array([f"p{i}" for i in range(30)]))
    assert model.recommend(7, named)[0][0].startswith("p")
    renamed = Interactions.from_matrix(matrix, item_ids=np.array([f"q{i:02}" for i in range(30)]))
    with pytest.raises(UsageError, match="other ids than those of"):
        evaluate(model, split_of(renamed))


def test_rows_of_a_matrix_and_what_to_give_instead(small: Dataset) -> None:
    matrix = small.train.matrix
    model = GFCF(rank=4).fit(matrix)
    with pytest.raises(UsageError, match=r"1 users but 200 histories.* give user_items\[7\]"):
        model.recommend(7, matrix)
    with pytest.raises(UsageError, match=r"give user_items\[\[7, 8\]\]"):
        model.recommend([7, 8], matrix)
    with pytest.raises(UsageError, match=r"give user_items\[users\]"):
        model.recommend(np.arange(100), matrix)
    with pytest.raises(UsageError, match="explain takes one user at a time, not 2"):
        model.explain([7, 8], matrix, 3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="explain takes one item at a time, not 2"):
        model.explain(7, matrix[[7]], [3, 4])  # type: ignore[arg-type]
    np.testing.assert_array_equal(
        model.recommend(7, matrix[7])[0], model.recommend(7, small.train)[0]
    )


def test_splitting_what_fit_takes() -> None:
    pandas = pytest.importorskip("pandas")
    matrix = sp.csr_array((rated() > 0).astype(np.float32))
    entries = matrix.tocoo()
    frame = pandas.DataFrame({"user": entries.row, "item": entries.col})
    of_matrix, of_frame = split_of(matrix, seed=1), split_of(frame, seed=1)
    assert of_matrix.test.fingerprint() == of_frame.test.fingerprint()
    with pytest.raises(UsageError, match="user_items is no matrix but str"):
        split_of("purchases.csv")


def test_arguments_that_changed_places(small: Dataset) -> None:
    model: Any = GFCF(rank=4).fit(small.train)
    wrong: Any = small
    with pytest.raises(UsageError, match="a Dataset, as split and load_dataset give it, not GFCF"):
        evaluate(wrong, model)
    with pytest.raises(UsageError, match="not Interactions"):
        evaluate(model, wrong.train)
    with pytest.raises(UsageError, match="a fitted model, or lists, not Dataset"):
        evaluate(wrong, wrong)


def test_lists_that_mean_nothing(small: Dataset) -> None:
    model, nothing = GFCF(rank=4).fit(small.train), sp.csr_array((1, small.train.n_items))
    with pytest.warns(DataWarning, match="1 of 1 histories have nothing that the model knows"):
        model.recommend(0, nothing)
    popular = Popularity().fit(small.train)
    assert popular.recommend(0, nothing, N=1)[0][0] == small.train.item_degrees.argmax()
    with pytest.raises(UsageError, match="it knows no similar items"):
        popular.similar_items(3)
    for empty in (np.zeros((4, 6)), sp.csr_array((0, 6))):
        with pytest.raises(UsageError, match=r"nothing to learn from: \d users and 6 items"):
            GFCF(rank=1).fit(empty)


def test_messages_name_what_the_reader_can_say(tmp_path: Path) -> None:
    odd = tmp_path / "odd.csv"
    odd.write_text("who,what,rating\na,x,5\na,y,1\nb,x,4\n")
    with pytest.raises(DataError, match=r"user_column=\"...\", or say header=False"):
        load_dataset(odd)
    with pytest.raises(DataError, match="with --user-column, or say --no-header"):
        load_dataset(odd, table=TableFlags())
    columns: dict[str, Any] = {"user_column": "who", "item_column": "what"}
    with pytest.warns(DataWarning, match=r"\(min_rating=4 keeps rows"):
        load_dataset(odd, **columns)
    with pytest.warns(DataWarning, match=r"\(--min-rating 4 keeps rows"):
        load_dataset(odd, table=TableFlags(**columns))
    assert load_dataset(odd, min_rating=0, **columns).train.n_users == 2
    options = TableOptions(min_rating=4, **columns)
    assert load_dataset(odd, table=options).together().n_interactions == 2
    with pytest.raises(UsageError, match="load_dataset takes no colour; of tables it takes user_"):
        load_dataset(odd, colour="red")
    with pytest.raises(UsageError, match="or min_rating=, not both"):
        load_dataset(odd, table=options, min_rating=4)
