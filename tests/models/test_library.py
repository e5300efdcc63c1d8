"""Tests of the library interface: the names in `import privirec`, and DataFrames in and out."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import privirec
from privirec import GFCF, DataError, DataWarning, Interactions, UsageError
from privirec.data import Dataset

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
