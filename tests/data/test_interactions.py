"""Tests of the sparse matrix and its ids."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import numpy as np
import pytest
import scipy.sparse as sp

from privirec.data import Dataset, Interactions
from privirec.errors import DataError, DataWarning, PrivirecError, UsageError


def test_dense_and_sparse_ids_are_found_alike() -> None:
    users, items = np.array([3, 1, 3]), np.array([5, 9, 9])
    dense = Interactions.from_pairs(users, items)
    spread = Interactions.from_pairs(users * 10**12, items * 10**12)
    names = Interactions.from_pairs(users.astype(str), items.astype(str))
    for other in (spread, names):
        np.testing.assert_array_equal(dense.matrix.toarray(), other.matrix.toarray())
    assert dense.user_ids.tolist() == [1, 3]
    assert dense.item_ids.tolist() == [5, 9]
    np.testing.assert_array_equal(spread.item_ids, dense.item_ids * 10**12)


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ([2, -1], "users, row 2: negative id -1"),
        ([2.0, np.nan], r"users, row 2: is empty \(NaN\)"),
        ([2.0, 1.5], "users, row 2: is not a whole number"),
        (["a", None], r"users, row 2: is empty \(None\)"),
        (["a", "nan"], "users, row 2: 'nan' looks like a missing id"),
        (np.array(["a", 7], object), "users, row 2: 7 among names"),
        ([True, False], "users: ids are whole numbers or names, not bool"),
        ([[1], [2]], r"users: ids stand in one column, not in an array of shape \(2, 1\)"),
        ([1, 2, 3], "3 users and 2 items do not make pairs"),
    ],
)
def test_what_is_no_id_is_refused(users: list, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Interactions.from_pairs(users, [0, 0])


def test_numbers_with_a_fraction_of_zero_are_whole() -> None:
    assert Interactions.from_pairs([1.0, 3.0], [1, 2]).user_ids.tolist() == [1, 3]


@pytest.mark.parametrize(
    ("matrix", "error", "message"),
    [
        (np.array([[1, np.nan]]), DataError, "holds NaN or infinity"),
        (np.array([[1, -1]]), DataError, "holds -1: negative values are no interactions"),
        ("ratings.csv", UsageError, "no matrix but str.*read_interactions reads files"),
        (None, UsageError, "no matrix but NoneType"),
        (
            Dataset("a", *2 * [Interactions.from_pairs([0], [0])]),
            UsageError,
            r"is a Dataset: give its \.train, or \.together\(\) for all of it",
        ),
        (object(), UsageError, "object cannot be read as a matrix"),
    ],
)
def test_what_is_no_matrix_of_interactions_is_refused(
    matrix: object, error: type[PrivirecError], message: str
) -> None:
    with pytest.raises(error, match=message):
        Interactions.from_matrix(matrix)


def test_times_stay_with_their_interactions() -> None:
    """Test repeated pairs (the latest counts), selections, other users and larger catalogues."""
    timed = Interactions.from_pairs([2, 1, 2, 2], [5, 9, 9, 5], times=[40, 10, 20, 30])
    assert timed.times is not None
    assert timed.matrix.indices.tolist() == [1, 0, 1]
    assert timed.times.tolist() == [10, 40, 20]
    assert timed.select(np.array([True, False, True])).times.tolist() == [10, 20]  # type: ignore[union-attr]
    assert timed.rows(1, 2).times.tolist() == [40, 20]  # type: ignore[union-attr]
    assert timed.of_users(np.array([False, True])).times.tolist() == [40, 20]  # type: ignore[union-attr]
    wide = timed.over(np.array([0, 1, 2]), np.array([5, 7, 9]))
    assert wide.times.tolist() == [10, 40, 20]  # type: ignore[union-attr]
    with pytest.raises(DataError, match="2 times for 3 interactions"):
        Interactions(timed.matrix, timed.user_ids, timed.item_ids, np.array([1, 2]))


def test_they_say_what_they_are() -> None:
    parts = [Interactions.from_pairs([0, 1], [0, item], item_ids=np.arange(3)) for item in (1, 2)]
    assert repr(parts[0]) == "Interactions(2 users, 3 items, 2 interactions)"
    data = Dataset("x", *parts)
    assert repr(data) == "Dataset('x', 2 users, 3 items, 2 train and 2 test interactions)"


def test_a_test_set_inside_train_is_no_test() -> None:
    parts = [Interactions.from_pairs([0, 1], [0, item], item_ids=np.arange(3)) for item in (1, 2)]
    data = Dataset("x", *parts)
    with pytest.warns(DataWarning, match=r"x: 1 of 2 test interactions are in train too"):
        data.check_apart()
    data.check_apart()  # said once
    for _ in range(2):
        with pytest.raises(DataError, match="x: the whole test set is in train too"):
            Dataset("x", parts[0], parts[0]).check_apart()


def test_matrix_is_fit_for_every_scipy_operation() -> None:
    interactions = Interactions.from_pairs([0, 0, 1], [0, 1, 1])
    assert interactions.matrix.indptr.dtype == interactions.matrix.indices.dtype
    for convert in ("tocoo", "tocsc", "transpose", "nonzero"):
        getattr(interactions.matrix, convert)()


def test_select_keeps_what_is_marked() -> None:
    interactions = Interactions.from_matrix(sp.csr_array([[1, 1, 0], [0, 0, 0], [0, 1, 1]]))
    kept = interactions.select(np.array([False, True, False, True]))
    np.testing.assert_array_equal(kept.matrix.toarray(), [[0, 1, 0], [0, 0, 0], [0, 0, 1]])
    np.testing.assert_array_equal(interactions.matrix.data, 1)


def test_over_a_larger_catalogue() -> None:
    interactions = Interactions.from_pairs([1, 2], [10, 30])
    wide = interactions.over(np.array([0, 1, 2]), np.array([10, 20, 30]))
    np.testing.assert_array_equal(wide.matrix.toarray(), [[0, 0, 0], [1, 0, 0], [0, 0, 1]])
    with pytest.raises(DataError, match="unknown item id 30"):
        interactions.over(np.array([1, 2]), np.array([10]))


def test_train_and_test_must_have_the_same_shape() -> None:
    small, large = Interactions.from_pairs([0], [0]), Interactions.from_pairs([0, 1], [0, 0])
    with pytest.raises(DataError, match="x: train and test differ"):
        Dataset("x", small, large)


def test_fingerprint_tells_apart() -> None:
    prints = {
        Interactions.from_pairs(users, items).fingerprint()
        for users, items in (([0, 1], [0, 1]), ([0, 1], [1, 0]), ([0, 1], [0, 2]), ([0, 2], [0, 1]))
    }
    assert len(prints) == 4


def test_a_data_set_of_two_frames() -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    train = {"user": ["ann", "ann", "bob"], "item": ["tea", "milk", "tea"]}
    test = {"user": ["bob"], "item": ["bread"]}
    for library in (pandas, polars):
        data = Dataset.of(library.DataFrame(train), library.DataFrame(test), name="shop")
        assert data.name == "shop"
        assert data.train.item_ids.tolist() == ["bread", "milk", "tea"]
        assert data.test.matrix.toarray().tolist() == [[0, 0, 0], [1, 0, 0]]
    with pytest.raises(DataError, match="1 users of test are not in train, such as eve"):
        Dataset.of([("ann", "tea")], [("eve", "tea")])


def test_a_list_of_tuples_holds_pairs() -> None:
    assert Interactions.of([(1, 2), (2, 3)]).matrix.toarray().tolist() == [[1, 0], [0, 1]]
    assert Interactions.of([[1, 0], [0, 1]]).n_items == 2  # a matrix, as before
    with pytest.raises(UsageError, match=r"pairs \(user, item\)"):
        Interactions.of([(1, 2, 5)])


def test_ids_too_large_for_a_number_are_refused() -> None:
    """Test that they do not wrap around to negative numbers, or to another person's id."""
    for huge in (np.array([1, 2**63], np.uint64), np.array([1, 2**63], object), [1, 2**70]):
        with pytest.raises(DataError, match=r"row 2: an id above 2\^63 - 1: make all ids text"):
            Interactions.from_pairs(huge, [1, 2])
    assert Interactions.from_pairs(np.array([2**63 - 1], np.uint64), [1]).user_ids[0] == 2**63 - 1


def test_times_with_a_zone_are_in_utc() -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    moment = datetime(2024, 5, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    local = {"user": [1], "item": [2], "time": [moment]}
    frames = [
        pandas.DataFrame(local),
        pandas.DataFrame(local).astype({"time": object}),
        polars.DataFrame(local),
    ]
    for frame in frames:
        times = Interactions.from_frame(frame).times
        assert times is not None
        assert times.tolist() == [1714557600]
