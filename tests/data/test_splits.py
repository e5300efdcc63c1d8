"""Tests of splits: a partition, reproducible, independent of the order and of other users."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from privirec.data import Interactions, split, validation_split
from privirec.data.synthetic import synthetic
from privirec.errors import DataError, DataWarning, UsageError

matrices = st.integers(0, 2**32 - 1).map(
    lambda seed: Interactions.from_matrix(
        sp.csr_array(np.random.default_rng(seed).random((12, 30)) < 0.3)
    )
)


@settings(deadline=None)
@given(matrices, st.floats(0, 0.99), st.integers(0, 100), st.sampled_from(["random", "block"]))
def test_a_partition_that_leaves_everybody_something(
    interactions: Interactions, share: float, seed: int, by: Literal["random", "block"]
) -> None:
    train, held_out = validation_split(interactions, share=share, seed=seed, by=by)
    together = train.matrix + held_out.matrix
    np.testing.assert_array_equal(together.toarray(), interactions.matrix.toarray())
    assert (train.user_degrees >= np.minimum(interactions.user_degrees, 1)).all()
    expected = share * interactions.user_degrees
    assert (held_out.user_degrees <= np.ceil(expected)).all()
    enough = expected <= interactions.user_degrees - 1
    assert (held_out.user_degrees >= np.floor(expected))[enough].all()


@settings(deadline=None)
@given(matrices, st.integers(0, 100), st.randoms(use_true_random=False))
def test_order_and_company_do_not_matter(
    interactions: Interactions, seed: int, random: object
) -> None:
    whole = split(interactions, seed=seed).test.matrix.toarray()
    order = np.arange(interactions.n_users)
    random.shuffle(order)  # type: ignore[attr-defined]
    chosen = order[:7]
    part = Interactions(
        interactions.matrix[chosen], interactions.user_ids[chosen], interactions.item_ids
    )
    np.testing.assert_array_equal(split(part, seed=seed).test.matrix.toarray(), whole[chosen])


def test_share_is_kept_and_seeds_differ() -> None:
    train = synthetic("synthetic:demo").train
    _, first = validation_split(train, share=0.1, seed=1)
    _, again = validation_split(train, share=0.1, seed=1)
    _, other = validation_split(train, share=0.1, seed=2)
    assert first.n_interactions == pytest.approx(0.1 * train.n_interactions, rel=0.02)
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
    # Two independent tenths share about a tenth of a tenth.
    common = first.matrix.multiply(other.matrix).nnz
    assert common == pytest.approx(0.01 * train.n_interactions, rel=0.25)


def test_a_block_has_items_that_follow_each_other() -> None:
    train = synthetic("synthetic:small").train
    _, held_out = validation_split(train, share=0.2, seed=1, by="block")
    firsts = []
    for user in range(train.n_users):
        items, held = train.matrix[[user]].indices, held_out.matrix[[user]].indices
        inside = np.isin(items, held).astype(int)
        assert np.abs(inside - np.roll(inside, 1)).sum() == (2 if len(held) else 0)  # round once
        firsts.append(int(np.argmax(inside > np.roll(inside, 1))))
    assert len(set(firsts)) > 5
    other = validation_split(train, share=0.2, seed=2, by="block")[1]
    assert other.fingerprint() != held_out.fingerprint()
    with pytest.raises(UsageError, match="no validation by 'time'"):
        validation_split(train, by="time")  # type: ignore[arg-type]


def test_validation_is_not_drawn_as_test_was() -> None:
    train = synthetic("synthetic:small").train
    held_out = split(train, test=0.1, seed=3).test
    validation = validation_split(train, share=0.1, seed=3)[1]
    assert held_out.fingerprint() != validation.fingerprint()


def test_every_item_is_equally_likely() -> None:
    everyone = Interactions.from_matrix(sp.csr_array(np.ones((4000, 5))))
    counts = split(everyone, test=0.2, seed=0).test.item_degrees
    assert counts.sum() == 4000
    np.testing.assert_allclose(counts, 800, atol=5 * np.sqrt(4000 * 0.2 * 0.8))


def test_names_and_generators_work_too() -> None:
    interactions = Interactions.from_pairs(["ann"] * 9 + ["bob"], [*range(9), 3])
    first = split(interactions, test=0.5, seed=np.random.default_rng(4)).test
    second = split(interactions, test=0.5, seed=np.random.default_rng(4)).test
    assert first.fingerprint() == second.fingerprint()
    assert first.user_degrees[0] in (4, 5)
    assert first.user_degrees[1] == 0


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_refuses_impossible_shares(share: float) -> None:
    with pytest.raises(UsageError, match="cannot be held out"):
        split(Interactions.from_pairs([0], [0]), test=share)


def test_the_split_of_today_is_the_split_of_tomorrow() -> None:
    """Test against fixed values: a changed rule would silently change every saved result."""
    interactions = Interactions.from_matrix(sp.csr_array(np.ones((3, 8))))
    held = split(interactions, test=0.25, seed=7).test
    assert [held.matrix[[row]].indices.tolist() for row in range(3)] == [[0, 2], [2, 7], [5, 7]]


def timed() -> Interactions:
    """Return three users over time; the third one starts late."""
    users = [0, 0, 0, 0, 1, 1, 1, 2, 2]
    items = [0, 1, 2, 3, 0, 1, 2, 0, 3]
    times = [1, 2, 3, 9, 4, 5, 6, 8, 7]
    return Interactions.from_pairs(users, items, times=times)


def test_by_time_nothing_in_train_is_later_than_test() -> None:
    with pytest.warns(DataWarning, match="1 of 3 users begin after the split and are left out"):
        data = split(timed(), test=1 / 3, by="time")
    assert data.train.user_ids.tolist() == [0, 1]
    assert data.train.times is not None
    assert data.test.times is not None
    assert data.train.times.max() < data.test.times.min()
    assert data.test.times.tolist() == [9]
    with pytest.raises(DataError, match="a split by time needs times"):
        split(Interactions.from_pairs([0], [0]), by="time")
    with pytest.raises(DataError, match="leaves nothing in train"):
        split(Interactions.from_pairs([0, 0], [0, 1], times=[1, 1]), test=0.5, by="time")


def test_one_left_out_is_the_latest_or_drawn() -> None:
    data = split(timed(), by="leave-one-out")
    assert data.test.user_degrees.tolist() == [1, 1, 1]
    assert data.test.item_ids[data.test.matrix.indices].tolist() == [3, 2, 0]
    without = Interactions.from_matrix(np.ones((50, 9)))
    drawn = split(without, by="leave-one-out", seed=1).test
    assert (drawn.user_degrees == 1).all()
    assert len(set(drawn.matrix.indices.tolist())) > 3
    again = split(without, by="leave-one-out", seed=1).test
    assert drawn.fingerprint() == again.fingerprint()
    one = split(Interactions.from_pairs([0, 1, 1], [0, 0, 1]), by="leave-one-out")
    assert one.test.user_degrees.tolist() == [0, 1]  # every user keeps at least one item
    with pytest.raises(UsageError, match="no way to split by 'size'"):
        split(without, by="size")  # type: ignore[arg-type]
