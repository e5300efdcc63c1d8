"""Tests of the library interface: the names in `import privirec`, and DataFrames in and out."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import privirec
from privirec import (
    BSPMEM,
    EASE,
    GFCF,
    DataError,
    DataWarning,
    Interactions,
    ItemKNN,
    LinkProp,
    Popularity,
    PrivateRecommender,
    Recommender,
    TurboCF,
    UsageError,
)
from privirec.data import Dataset
from privirec.filters import centralized

Frame = Callable[[dict[str, Any]], Any]


@pytest.fixture(params=["pandas", "polars"])
def frame(request: pytest.FixtureRequest) -> Frame:
    return pytest.importorskip(request.param).DataFrame


def columns_of(small: Dataset) -> dict[str, Any]:
    """Return all training interactions as columns, as a shop would keep them."""
    entries = small.train.matrix.tocoo()
    return {
        "when": np.arange(len(entries.row)),
        "Customer ID": [f"c{user:03d}" for user in entries.row],
        "product": (entries.col * 7 + 1000).tolist(),
    }


def test_names_and_their_docs() -> None:
    assert {"GFCF", "Interactions", "load_dataset", "evaluate"} <= set(dir(privirec))
    for name in privirec.__all__:
        found = getattr(privirec, name)
        assert name == "__version__" or found.__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'GFCFF'"):
        privirec.GFCFF  # noqa: B018
    assert doctest.testmod(importlib.import_module("privirec")).failed == 0


def test_importing_the_package_loads_nothing_heavy() -> None:
    script = (
        "import sys, privirec; print([m for m in ('numba', 'scipy', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_frames_in_and_out(small: Dataset, frame: Frame) -> None:
    """Test that a DataFrame gives the recommendations of a matrix, in the shop's own ids."""
    sold = frame(columns_of(small))
    model = GFCF(rank=16).fit(sold)
    expected, scores = (
        GFCF(rank=16).fit(small.train).recommend([3, 5], small.train.matrix[[3, 5]], N=6)
    )
    ids, values = model.recommend(["c003", "c005"], sold, N=6)
    np.testing.assert_array_equal(ids, expected * 7 + 1000)
    np.testing.assert_array_equal(values, scores)
    assert model.recommend("c003", sold, N=6)[0].tolist() == ids[0].tolist()
    titles = {1000 + 7 * item: f"Title {item}" for item in range(300)}
    table = model.recommend_frame(sold, users=["c003", "c005"], N=6, titles=titles)
    assert type(table) is type(sold)
    assert list(table.columns) == ["Customer ID", "product", "score", "rank", "title"]
    assert table["product"].to_list() == ids.ravel().tolist()
    assert table["Customer ID"].to_list() == ["c003"] * 6 + ["c005"] * 6
    assert table["rank"].to_list() == [1, 2, 3, 4, 5, 6] * 2
    assert table["title"].to_list()[0] == f"Title {expected[0, 0]}"
    assert len(model.recommend_frame(sold, N=2)) == 2 * small.train.n_users
    item = int(ids[0, 0])
    assert model.explain("c003", sold, item, N=3).because[0][0] in sold["product"].to_list()
    assert model.similar_items(item, N=2)[0].shape == (2,)
    assert model.similar_users("c003", sold, N=2)[0][0].startswith("c")


def test_frames_from_interactions_are_of_pandas(small: Dataset) -> None:
    pandas = pytest.importorskip("pandas")
    table = GFCF(rank=8).fit(small.train).recommend_frame(small.train, users=[4], N=3)
    assert isinstance(table, pandas.DataFrame)
    assert list(table.columns) == ["user", "item", "score", "rank"]


def test_titles_by_ids_of_either_kind(small: Dataset) -> None:
    pytest.importorskip("pandas")
    model = GFCF(rank=8).fit(small.train)
    (best, *_), _ = model.recommend(4, small.train, N=1)
    table = model.recommend_frame(small.train, users=4, N=1, titles={str(best): "As text"})
    assert table["title"].tolist() == ["As text"]
    table = model.recommend_frame(small.train, users=4, N=1, titles={})
    assert table["title"].tolist() == [None]


def test_ratings_and_times_of_frames(frame: Frame) -> None:
    days = [datetime(2020, 1, day) for day in (3, 1, 2)]
    table = frame({"user": [1, 1, 2], "item": ["a", "b", "a"], "rating": [5, 1, 4], "date": days})
    with pytest.warns(DataWarning, match="DataFrame: column rating is not looked at"):
        assert Interactions.from_frame(table).n_interactions == 3
    liked = Interactions.from_frame(table, min_rating=4)
    assert liked.n_interactions == 2
    assert liked.times is not None
    assert liked.times.tolist() == [1578009600, 1577923200]
    chosen = Interactions.from_frame(table, user="rating", item="user", min_rating=0)
    assert chosen.user_ids.tolist() == [1, 4, 5]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"user": [1.0, None], "item": [1, 2]}, r"column user, row 2: is empty \(NaN\)"),
        ({"user": ["a", None], "item": [1, 2]}, r"column user, row 2: is empty"),
        ({"user": [1, -1], "item": [1, 2]}, "column user, row 2: negative id -1"),
        ({"user": ["a", "nan"], "item": [1, 2]}, "row 2: 'nan' looks like a missing id"),
        ({"who": [1, 2], "item": [1, 2]}, "no column that is known to hold user ids"),
        ({"user": [], "item": []}, "DataFrame: no rows"),
    ],
)
def test_frames_that_are_refused(frame: Frame, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        GFCF().fit(frame(columns))


def test_lazy_frames_say_what_to_do() -> None:
    polars = pytest.importorskip("polars")
    with pytest.raises(UsageError, match=r"collect\(\) it first"):
        GFCF().fit(polars.LazyFrame({"user": [1], "item": [1]}))


def test_values_of_a_matrix_are_not_ignored_in_silence() -> None:
    rated = sp.csr_array(np.array([[5.0, 1.0], [0.0, 3.0]]))
    for matrix in (rated, rated.toarray()):
        with pytest.warns(DataWarning, match="values from 1 to 5 in user_items"):
            GFCF().fit(matrix)
    GFCF().fit(sp.csr_array(np.array([[2, 2], [0, 2]])))  # no warning at all


@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.coo_matrix, sp.csc_array, np.array, list])
def test_matrices_of_all_kinds(kind: Callable[[Any], Any]) -> None:
    rows = [[1, 1, 0], [0, 1, 1], [1, 0, 1]]
    model = GFCF(rank=2).fit(kind(rows))
    ids, _ = model.recommend([0, 1, 2], kind(rows), N=1)
    assert ids[:, 0].tolist() == [2, 0, 1]


def test_one_user_of_a_frame_is_looked_up_without_reading_all(
    small: Dataset, frame: Frame, monkeypatch: pytest.MonkeyPatch
) -> None:
    sold = frame(columns_of(small))
    model = GFCF(rank=8).fit(sold)
    everybody = Interactions.from_frame(sold)
    read: list[int] = []
    from_pairs = Interactions.from_pairs

    def counting(users: Any, *more: Any, **named: Any) -> Interactions:
        read.append(len(users))
        return from_pairs(users, *more, **named)

    monkeypatch.setattr(Interactions, "from_pairs", counting)
    for asked in ("c003", ["c005", "c003"]):
        read.clear()
        found, expected = (model.recommend(asked, given, N=4) for given in (sold, everybody))
        np.testing.assert_array_equal(found[0], expected[0])
        assert sum(read) < 100
    with pytest.raises(UsageError, match="user nobody is not among 200 users"):
        model.recommend("nobody", sold)
    with pytest.raises(UsageError, match="user 7 is not among"):
        model.recommend(7, sold)


def test_a_new_person_is_a_list_of_items(small: Dataset) -> None:
    names = np.array([f"p{number}" for number in range(small.train.n_items)])
    named = Interactions(small.train.matrix, small.train.user_ids, names)
    model = GFCF(rank=8).fit(named)
    history = ["p1", "p7", "p9"]
    frame = Interactions.from_pairs(["new"] * 3, history)
    for given in (history, tuple(history), set(history)):
        np.testing.assert_array_equal(
            model.recommend("new", given)[0], model.recommend("new", frame)[0]
        )
    best = model.recommend("new", history)[0][0]
    assert {item for item, _ in model.explain("new", history, best).because} == set(history)
    numbered = GFCF(rank=8).fit(small.train)
    assert "p" + str(numbered.recommend(0, [1, 7, 9])[0][0]) == best
    with pytest.warns(DataWarning, match="nothing that the model knows"):
        model.recommend("new", [])
    with pytest.raises(UsageError, match="the history of one user"):
        model.recommend(["a", "b"], history)


def test_a_list_of_pairs_is_fitted_and_asked() -> None:
    pairs = [("ann", "tea"), ("ann", "milk"), ("bob", "tea"), ("eve", "milk"), ("eve", "bread")]
    model = ItemKNN().fit(pairs)
    assert model.recommend("bob", pairs, N=1)[0].tolist() == ["milk"]
    assert Popularity().fit([(1, 2), (2, 3)]).n_items == 2


def test_filters_are_used_with_names(small: Dataset) -> None:
    components = centralized(small.train, rank=4)
    names = [f"p{number:03d}" for number in range(small.train.n_items)]
    named = Interactions(small.train.matrix, small.train.user_ids, np.array(names))
    numbers = GFCF(rank=4).use(components)
    with pytest.raises(UsageError, match=r"numbers and names differ. use\(components, item_ids\)"):
        numbers.recommend(3, named)
    model = GFCF(rank=4).use(components, names)
    expected, _ = numbers.recommend(3, small.train)
    assert model.recommend(3, named)[0].tolist() == [names[item] for item in expected]
    with pytest.raises(UsageError, match="2 item ids for filters over 300 items"):
        GFCF(rank=4).use(components, names[:2])


def test_unknown_items_are_filtered_anyway(small: Dataset) -> None:
    model = GFCF(rank=4).fit(small.train)
    best = model.recommend(3, small.train, N=2)[0]
    for filtered in ([best[0], 10**9], [best[0], best[0]]):
        assert model.recommend(3, small.train, N=1, filter_items=filtered)[0] == best[1]
    assert model.recommend(3, small.train, N=1, filter_items=["unknown"])[0] == best[0]
    with pytest.raises(UsageError, match="item 1000000000 is not in a catalogue of 300"):
        model.recommend(3, small.train, items=[10**9])


def test_a_model_that_is_not_fitted_says_so_first(small: Dataset) -> None:
    model = GFCF()
    for ask in (
        lambda: model.recommend(10**6, small.train),
        lambda: model.recommend("nobody", small.train.matrix),
        lambda: model.recommend_frame(small.train),
        lambda: model.explain(10**6, small.train, 3),
        lambda: model.similar_items("nothing"),
        lambda: model.similar_users(10**6, small.train),
        lambda: model.save("nowhere"),
    ):
        with pytest.raises(UsageError, match="gf-cf has not been fitted"):
            ask()


def test_settings_as_scikit_learn_asks_for_them(small: Dataset) -> None:
    model = GFCF(rank=4).fit(small.train)
    assert model.get_params() == {"gamma": 0.3, "rank": 4}
    for copy in (model.clone(), model.__sklearn_clone__()):
        assert copy.get_params() == model.get_params()
        with pytest.raises(UsageError, match="not been fitted"):
            copy.components  # noqa: B018
    assert model.set_params(gamma=0.5) is model
    assert model.get_params() == {"gamma": 0.5, "rank": 4}
    with pytest.raises(UsageError, match="no setting ranc; is rank meant"):
        model.set_params(ranc=3)
    # A default rank is still cut to the catalogue.
    assert GFCF().clone().fit(np.eye(5, dtype=np.float32)).config.rank == 5
    private = PrivateRecommender(epsilon=2, head=5, seed=1)
    assert private.clone().get_params() == private.get_params()
    assert private.get_params()["epsilon"] == 2
    assert private.set_params(epsilon=3).get_params()["epsilon"] == 3


@pytest.mark.parametrize("model", [GFCF(rank=8), TurboCF(), LinkProp(), BSPMEM(rank=8)], ids=repr)
def test_more_people_are_added(model: Recommender, small: Dataset, tmp_path: Path) -> None:
    """Test against a fit on all, before and after saving, with items that only one part has."""
    train = small.train
    parts = [Interactions.from_pairs(*_pairs(train.rows(*part))) for part in ((0, 20), (20, 200))]
    assert not np.array_equal(parts[0].item_ids, parts[1].item_ids)
    together = Interactions.from_pairs(
        *(np.concatenate([_pairs(part)[side] for part in parts]) for side in (0, 1))
    )
    expected = model.clone().fit(together).recommend(np.arange(200), together, N=5)
    found = model.clone().partial_fit(parts[0])
    found.save(tmp_path / "half")
    for half in (found, Recommender.load(tmp_path / "half")):
        ids, scores = half.partial_fit(parts[1]).recommend(np.arange(200), together, N=5)
        np.testing.assert_allclose(scores, expected[1], rtol=2e-3, atol=2e-4)
        assert (ids == expected[0]).mean() > 0.98  # near ties may change places


def _pairs(part: Interactions) -> tuple[Any, Any]:
    return np.repeat(part.user_ids, part.user_degrees), part.item_ids[part.matrix.indices]


def test_people_are_added_only_to_sums(small: Dataset) -> None:
    popular = Popularity().fit(small.train.rows(0, 50)).partial_fit(small.train.rows(50, 200))
    np.testing.assert_array_equal(popular.components.item_degrees, small.train.item_degrees)
    private = PrivateRecommender(seed=1).fit(small.train)
    for model in (EASE().fit(small.train), ItemKNN().fit(small.train), private):
        with pytest.raises(UsageError, match="keeps no sums that more people can be added to"):
            model.partial_fit(small.train)


def test_help_begins_with_what_people_need() -> None:
    text = privirec.GFCF.__doc__ or ""
    assert text.index("gamma : float") < text.index("fit, partial_fit, use :")
    for name in re.findall(r"[a-z_]+", " ".join(re.findall(r"^(.+?) :", text, re.M)[2:])):
        assert callable(getattr(GFCF, name)), name


def test_progress_is_a_bar_or_a_function(small: Dataset) -> None:
    seen: list[tuple[int, int]] = []
    PrivateRecommender().fit(small.train, progress=lambda done, total: seen.append((done, total)))
    assert seen[0] == (0, len(seen))
    GFCF(rank=4).fit(small.train, progress=True)
    PrivateRecommender().fit(small.train, progress=True)
    with pytest.raises(UsageError, match="progress is True or a function"):
        GFCF(rank=4).fit(small.train, progress=3)  # type: ignore[arg-type]
