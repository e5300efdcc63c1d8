"""Tests of the metrics: by hand, by brute force and against ranx."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from privirec import evaluation as ranking
from privirec.data import Dataset, Interactions
from privirec.errors import DataError, DataWarning, UsageError
from privirec.evaluation import evaluate, measure_rankings, rank_unseen
from privirec.models import GFCF, Popularity


class Fixed:
    """A model with given scores, looked up by a user's history."""

    def __init__(self, train: sp.csr_array, scores: NDArray[np.float32]) -> None:
        self._by_history = {
            tuple(train[[u]].indices.tolist()): scores[u] for u in range(train.shape[0])
        }

    def score(self, user_items: sp.csr_array) -> NDArray[np.float32]:
        rows = (tuple(user_items[[u]].indices.tolist()) for u in range(user_items.shape[0]))
        return np.array([self._by_history[row] for row in rows], np.float32)


def dataset(train: object, test: object) -> Dataset:
    return Dataset("made", Interactions.from_matrix(train), Interactions.from_matrix(test))


def distinct_histories(n_users: int, n_items: int, rng: np.random.Generator) -> sp.csr_array:
    """Return random 0/1 rows that are all distinct."""
    while True:
        rows = rng.random((n_users, n_items)) < 0.2
        if len(np.unique(rows, axis=0)) == n_users:
            return sp.csr_array(rows.astype(np.float32))


def test_by_hand() -> None:
    """Test two users: the first has 2 of 3 found at ranks 1 and 3, the second 0 of 1."""
    data = dataset(
        [[1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]],
        [[0, 1, 0, 1, 0, 1], [0, 0, 0, 0, 0, 1]],
    )
    scores = np.array([[9, 8, 7, 6, 5, 4], [6, 9, 5, 4, 3, 2]], np.float32)
    found = evaluate(Fixed(data.train.matrix, scores), data, k=3)
    ideal = 1 + 1 / math.log2(3) + 1 / 2
    assert found.recall == pytest.approx((2 / 3 + 0) / 2)
    assert found.ndcg == pytest.approx((1 + 1 / 2) / ideal / 2)
    assert (found.users, found.k) == (2, 3)
    assert found.as_row() == {"ndcg@3": found.ndcg, "recall@3": found.recall}


def test_others_by_hand() -> None:
    """Test one hit at rank 2 and no hit; the two users are shown items 1, 2, 3 and 0, 2, 3."""
    data = dataset(
        [[1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]],
        [[0, 0, 1, 0, 0, 1], [0, 0, 0, 0, 0, 1]],
    )
    scores = np.array([[9, 8, 7, 6, 5, 4], [6, 9, 5, 4, 3, 2]], np.float32)
    found = evaluate(Fixed(data.train.matrix, scores), data, k=3)
    assert found.mrr == pytest.approx((1 / 2 + 0) / 2)
    assert found.hit_rate == 1 / 2
    assert found.coverage == 4 / 6
    # Items 0 and 1 have one user of two: one bit. The others have no users and count the same.
    assert found.novelty == pytest.approx(1.0)
    assert set(found.full_row()) == {
        *("ndcg@3", "recall@3", "mrr@3", "hit_rate@3", "coverage@3", "novelty@3", "precision@3"),
        "map@3",
    }


def test_novelty_knows_who_is_popular(small: Dataset) -> None:
    popular, personal = (
        evaluate(model.fit(small.train), small) for model in (Popularity(), GFCF(rank=16))
    )
    assert popular.novelty < personal.novelty
    assert popular.coverage < personal.coverage
    assert personal.mrr > popular.mrr
    assert personal.hit_rate > popular.hit_rate


def test_the_ideal_runs_over_no_more_than_k() -> None:
    data = dataset([[1, 0, 0, 0, 0]], [[0, 1, 1, 1, 1]])
    found = evaluate(Fixed(data.train.matrix, np.zeros((1, 5), np.float32)), data, k=2)
    assert found.ndcg == 1
    assert found.recall == 0.5


def test_equal_scores_go_by_lower_item() -> None:
    scores = np.array([[1, 2, 2, 1, 2, 0]], np.float32)
    seen = sp.csr_array(np.array([[0, 1, 0, 0, 0, 0]]))
    assert rank_unseen(scores.copy(), seen, 4).tolist() == [[2, 4, 0, 3]]
    assert rank_unseen(np.zeros((1, 6), np.float32), seen, 9).tolist() == [
        [0, 2, 3, 4, 5, -1, -1, -1, -1]
    ]


def test_users_without_test_items_are_left_out() -> None:
    train = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]
    data = dataset(train, [[0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 1]])
    scores = np.array([[0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1]], np.float32)
    found = evaluate(Fixed(data.train.matrix, scores), data, k=1)
    assert (found.recall, found.ndcg, found.users) == (1, 1, 2)


def test_a_user_without_history_counts() -> None:
    data = dataset([[0, 0, 0], [1, 0, 0]], [[1, 0, 0], [0, 0, 1]])
    scores = np.array([[3, 2, 1], [3, 2, 1]], np.float32)
    found = evaluate(Fixed(data.train.matrix, scores), data, k=1)
    assert (found.recall, found.users) == (0.5, 2)


def test_more_places_than_items() -> None:
    data = dataset([[1, 0, 0]], [[0, 0, 1]])
    found = evaluate(Fixed(data.train.matrix, np.zeros((1, 3), np.float32)), data, k=20)
    assert found.recall == 1
    assert found.ndcg == pytest.approx(1 / math.log2(3))


def test_not_a_number_never_ranks() -> None:
    scores = np.array([[np.nan, 1, np.nan, 0]], np.float32)
    assert rank_unseen(scores, sp.csr_array((1, 4)), 3).tolist() == [[1, 3, -1]]


def test_no_test_item_at_all_is_an_error() -> None:
    data = dataset([[1, 0]], [[0, 0]])
    with pytest.raises(DataError, match="made: no user has a test item"):
        evaluate(Fixed(data.train.matrix, np.zeros((1, 2), np.float32)), data)


def test_batches_cover_every_tested_user_once() -> None:
    rng = np.random.default_rng(0)
    train = distinct_histories(40, 20, rng)
    test = ((rng.random((40, 20)) < 0.05) & (train.toarray() == 0)).astype(np.float32)
    data = dataset(train, test)
    told: list[tuple[int, int]] = []
    scorer = Fixed(data.train.matrix, rng.random((40, 20)).astype(np.float32))
    found = evaluate(scorer, data, progress=lambda *at: told.append(at))
    assert found.users == np.count_nonzero(test.any(axis=1))
    assert told[-1] == (found.users, found.users)
    for size in (1, 7, 100):
        held = [batch.test.toarray() for batch in ranking.tested_batches(data, size)]
        assert max(map(len, held)) <= size
        np.testing.assert_array_equal(np.concatenate(held), test[test.any(axis=1)])


def brute_force(ranked: list[int], relevant: set[int], k: int) -> tuple[float, float]:
    hits = [item in relevant for item in ranked[:k]]
    gain = sum(hit / math.log2(place + 2) for place, hit in enumerate(hits))
    ideal = sum(1 / math.log2(place + 2) for place in range(min(k, len(relevant))))
    return sum(hits) / len(relevant), gain / ideal


@given(st.integers(0, 2**32), st.integers(1, 25))
def test_equals_sorting_everything(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    n_users, n_items = int(rng.integers(1, 12)), int(rng.integers(2, 20))
    seen = sp.csr_array((rng.random((n_users, n_items)) < 0.3).astype(np.float32))
    test = (rng.random((n_users, n_items)) < 0.3).astype(np.float32)
    test[:, rng.integers(n_items)] = 1
    scores = rng.integers(-3, 4, (n_users, n_items)).astype(np.float32)  # many ties
    recall, ndcg = measure_rankings(rank_unseen(scores.copy(), seen, k), sp.csr_array(test))
    for user in range(n_users):
        mine = set(seen[[user]].indices.tolist())
        order = sorted(set(range(n_items)) - mine, key=lambda i: (-scores[user, i], i))
        wanted = set(np.flatnonzero(test[user]).tolist())
        assert (recall[user], ndcg[user]) == pytest.approx(brute_force(order, wanted, k))


RANX = """
import json, sys
from ranx import Qrels, Run, evaluate
qrels, run, names = json.load(sys.stdin)
found = evaluate(Qrels(qrels), Run(run), names)
print(json.dumps({name: float(value) for name, value in found.items()}))
"""


def by_ranx(qrels: dict, run: dict, names: list[str]) -> dict[str, float]:
    """Return ranx's metrics from a separate process without compilation, which saves a minute."""
    if importlib.util.find_spec("ranx") is None:
        pytest.skip("ranx is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RANX],
        input=json.dumps([qrels, run, names]),
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.mark.check
def test_equal_to_ranx() -> None:
    rng = np.random.default_rng(7)
    n_users, n_items = 60, 80
    train = distinct_histories(n_users, n_items, rng)
    share = rng.choice([0.02, 0.1, 0.5], (n_users, 1))
    unseen = train.toarray() == 0
    test = unseen & (rng.random((n_users, n_items)) < share)
    data = dataset(train, test.astype(np.float32))
    # Distinct scores: ranx has no rule for ties.
    scores = np.array([rng.permutation(n_items) for _ in range(n_users)], np.float32)
    tested = np.flatnonzero(test.any(axis=1)).tolist()
    assert 20 < len(tested) < n_users
    qrels = {f"u{u}": {f"i{i}": 1 for i in np.flatnonzero(test[u])} for u in tested}
    run = {
        f"u{u}": {f"i{i}": float(scores[u, i]) for i in np.flatnonzero(unseen[u])} for u in tested
    }
    depths = (1, 5, 20)
    same = ("recall", "ndcg", "precision", "mrr", "hit_rate")
    theirs = by_ranx(qrels, run, [f"{name}@{k}" for name in same for k in depths])
    for k, ours in evaluate(Fixed(data.train.matrix, scores), data, k=depths).items():
        for name in same:
            assert getattr(ours, name) == pytest.approx(theirs[f"{name}@{k}"], abs=1e-12)
        assert ours.users == len(tested)
        assert 0 < ours.ndcg < 1


def test_several_depths_are_those_one_by_one(small: Dataset) -> None:
    model = GFCF(rank=8).fit(small.train)
    found = evaluate(model, small, k=(1, 5, 20))
    for k, metrics in found.items():
        alone = evaluate(model, small, k=k)
        assert metrics == alone
        assert metrics.k == k
    for wrong in ((), (0,), (2.5,)):
        with pytest.raises(UsageError, match=r"\bk\b"):
            evaluate(model, small, k=wrong)  # type: ignore[arg-type]


def test_precision_and_map_by_hand() -> None:
    """Test lists 2 0 1 against {0, 1} and 1 2 0 against {1}: hits at places 2, 3 and at 1."""
    data = dataset(np.zeros((2, 3), np.float32), np.array([[1, 1, 0], [0, 1, 0]], np.float32))
    lists = {0: [2, 0, 1], 1: [1, 2, 0]}
    found = evaluate(lists, data, k=3)
    assert found.precision == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert found.map == pytest.approx(((1 / 2 + 2 / 3) / 2 + 1) / 2)
    assert evaluate(lists, data, k=1).map == pytest.approx(1 / 2)


def test_values_of_each_user_average_to_the_metrics(small: Dataset) -> None:
    found = evaluate(GFCF(rank=8).fit(small.train), small)
    assert found.per_user is not None
    tested = small.test.user_ids[small.test.user_degrees > 0]
    np.testing.assert_array_equal(found.per_user["user"], tested)
    for name, values in found.per_user.items():
        if name != "user":
            assert values.mean() == pytest.approx(getattr(found, name))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_lists_of_another_library_are_graded_alike(small: Dataset, library: str) -> None:
    frames = pytest.importorskip(library)
    model = GFCF(rank=8).fit(small.train)
    expected = evaluate(model, small, k=10)
    users = small.train.user_ids
    ids, _ = model.recommend(users, small.train, N=10)
    assert evaluate(dict(zip(users.tolist(), ids.tolist(), strict=True)), small, k=10) == expected
    table = frames.DataFrame(
        {
            "user": np.repeat(users, 10)[::-1],
            "item": ids.ravel()[::-1],
            "rank": np.tile(np.arange(1, 11), len(users))[::-1],
        }
    )
    assert evaluate(table, small, k=10) == expected
    assert evaluate(model.recommend_frame(small.train, N=10), small, k=10) == expected


def test_lists_that_do_not_fit(small: Dataset) -> None:
    user = int(small.test.user_ids[small.test.user_degrees > 0][0])
    item = int(small.test.matrix[[user]].indices[0])
    with pytest.warns(DataWarning, match="users with test items have no list"):
        alone = evaluate({user: [10**9, item]}, small, k=2)
    assert alone.per_user is not None
    assert alone.mrr == pytest.approx(0.5 / alone.users)  # the unknown item takes its place
    with pytest.raises(UsageError, match=f"the list of user {user} names an item twice"):
        evaluate({user: [item, item]}, small)
    with pytest.raises(UsageError, match="a fitted model, or lists, not int"):
        evaluate(3, small)
