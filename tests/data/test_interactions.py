"""The sparse matrix and its ids."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from privirec.data import Dataset, Interactions
from privirec.errors import DataError


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


def test_negative_numbers_are_ids_like_others_here() -> None:
    assert Interactions.from_pairs([-5, 2], [0, 0]).user_ids.tolist() == [-5, 2]


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
