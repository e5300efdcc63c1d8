"""Tests of the peeling attack: no wrong histories, and all histories on sparse data."""

from __future__ import annotations

import os
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from privirec.data.interactions import Interactions
from privirec.errors import UsageError
from privirec.federated.contributions import Histories, ItemItem
from privirec.privacy.attacks import peeling
from privirec.privacy.attacks.grading import grade


def interactions(histories, n_items=None):
    """Return one user per history: a collection of item numbers."""
    rows = np.repeat(np.arange(len(histories)), [len(set(h)) for h in histories])
    columns = np.array([item for h in histories for item in sorted(set(h))], dtype=np.int64)
    n_items = n_items or int(columns.max(initial=0)) + 1
    return Interactions.from_indices(rows, columns, np.arange(len(histories)), np.arange(n_items))


def asked(fraction_bits=21, alpha=0.5, n_items=1):
    """Return an ask whose weights have this number of fraction bits."""
    ask = ItemItem(n_items, 1, alpha, fraction_bits + 1)
    assert ask.encoding.fraction_bits == fraction_bits
    return ask


def weights_at(fraction_bits, alpha, longest):
    return peeling.weights_of(asked(fraction_bits, alpha), longest)


def release(truth, fraction_bits=21, exponent=0.5):
    """Return V and the integers of P', summed as the clients would."""
    weights = weights_at(fraction_bits, exponent, int(truth.user_degrees.max(initial=1)))
    ones = truth.matrix.astype(np.int64)
    per_user = np.repeat(weights[truth.user_degrees], truth.user_degrees)
    weighted = sp.csr_array((per_user, ones.indices, ones.indptr), shape=ones.shape)
    item_item = sp.csr_array(ones.T.tocsr() @ weighted)
    item_item.sort_indices()
    return truth.item_degrees, item_item


def peel(truth, fraction_bits=21, exponent=0.5, **options):
    degrees, item_item = release(truth, fraction_bits, exponent)
    weights = weights_at(fraction_bits, exponent, peeling.longest_history(item_item))
    return peeling.peel(degrees, item_item, weights, **options)


def recovered(peeled):
    bounds = pairwise(peeled.indptr)
    return sorted(tuple(peeled.indices[start:stop].tolist()) for start, stop in bounds)


def long_tailed(n_users, n_items, seed):
    """Return histories of 5 to 40 items with a long-tailed popularity, as in a catalogue."""
    rng = np.random.default_rng(seed)
    popularity = 1.0 / np.arange(1, n_items + 1) ** 0.8
    popularity /= popularity.sum()
    lengths = np.minimum(5 + rng.geometric(0.08, n_users), 40)
    return interactions(
        [rng.choice(n_items, d, replace=False, p=popularity) for d in lengths], n_items
    )


HAND_MADE = {
    "one item of one user": [[0]],
    "one item of three users": [[0], [0], [0]],
    "users without a common item": [[0, 1], [2, 3, 4], [5]],
    "one item in common": [[0, 1, 2], [2, 3]],
    "identical users": [[0, 1, 2], [0, 1, 2], [0, 1, 2]],
    "identical users beside another": [[0, 1, 2], [0, 1, 2], [2, 3, 4, 5]],
    "one history within another": [[0, 1], [0, 1, 2, 3], [3, 4, 5]],
    "equal lengths, one item in common": [[0, 1, 2], [2, 3, 4]],
    "a third and a sixth make a half": [[0, 1], [0, 2, 3], [0, 4, 5, 6, 7, 8]],
    "a chain": [[i, i + 1, i + 2, *range(100 + 5 * i, 102 + 5 * i + i % 3)] for i in range(20)],
}


@pytest.mark.parametrize("name", HAND_MADE)
def test_hand_made_histories_come_back(name):
    histories = HAND_MADE[name]
    peeled = peel(interactions(histories))
    assert recovered(peeled) == sorted(tuple(sorted(h)) for h in histories)
    assert peeled.complete
    assert peeled.interactions_left == 0


def test_empty_releases_are_complete():
    for n_items in (0, 3):
        nothing = sp.csr_array((n_items, n_items), dtype=np.int64)
        peeled = peeling.peel(np.zeros(n_items, np.int64), nothing, np.array([0, 1]))
        assert peeled.n_users == 0
        assert peeled.complete


def test_what_two_data_sets_share_is_not_guessed():
    """Test two data sets with equal releases: the attack guesses neither."""
    one = interactions([[0, 1, 2], [0, 3, 4], [1, 3, 5], [2, 4, 5]])
    two = interactions([[0, 1, 3], [0, 2, 4], [1, 2, 5], [3, 4, 5]])
    (degrees, matrix), (other_degrees, other_matrix) = release(one), release(two)
    assert (degrees == other_degrees).all()
    assert (matrix != other_matrix).nnz == 0
    peeled = peel(one)
    assert peeled.n_users == 0
    assert not peeled.complete
    assert peeled.interactions_left == one.n_interactions


@settings(deadline=None, max_examples=300)
@given(
    histories=st.lists(st.sets(st.integers(0, 11), min_size=1, max_size=9), min_size=1, max_size=9),
    fraction_bits=st.sampled_from([6, 9, 17, 21, 40]),
    exponent=st.sampled_from([0.5, 0.5, 0.3, 0.0]),
    max_users_left=st.integers(1, peeling.MOST_USERS_LEFT),
)
def test_no_history_is_ever_wrong(histories, fraction_bits, exponent, max_users_left):
    truth = interactions(histories, 12)
    peeled = peel(truth, fraction_bits, exponent, max_users_left=max_users_left)
    result = grade(peeled, truth)
    assert result["users_wrong"] == 0
    assert peeled.complete == (result["users_recovered"] == len(histories))
    assert peeled.interactions_left == truth.n_interactions - peeled.indptr[-1]


@settings(deadline=None, max_examples=200)
@given(
    histories=st.lists(st.sets(st.integers(0, 11), min_size=1, max_size=9), min_size=1, max_size=8),
    hidden=st.sets(st.integers(0, 11), max_size=4),
    degrees_too=st.booleans(),
    fraction_bits=st.sampled_from([9, 21]),
)
def test_no_visible_part_is_wrong_if_items_are_suppressed(
    histories, hidden, degrees_too, fraction_bits
):
    truth = interactions(histories, 12)
    degrees, item_item = release(truth, fraction_bits)
    visible = np.ones(12, bool)
    visible[list(hidden)] = False
    keep = sp.diags_array(visible.astype(np.int64), dtype=np.int64)
    suppressed = sp.csr_array(keep @ item_item @ keep)
    shown_degrees = np.where(visible, degrees, 0) if degrees_too else degrees
    peeled = peeling.peel(
        shown_degrees,
        suppressed,
        weights_at(fraction_bits, 0.5, 12),
        hidden_items=len(hidden) if degrees_too else 0,
    )
    assert grade(peeled, truth, visible)["users_wrong"] == 0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fraction_bits", [17, 21, 40])
def test_sparse_data_are_recovered_whole(seed, fraction_bits):
    truth = long_tailed(300, 1500, seed)
    result = grade(peel(truth, fraction_bits), truth)
    assert result == {
        "users": 300,
        "users_recovered": 300,
        "users_wrong": 0,
        "interaction_precision": 1.0,
        "interaction_recall": 1.0,
    }


def test_a_minimum_support_is_no_defence():
    truth = long_tailed(600, 1500, 1)
    degrees, item_item = release(truth)
    visible = degrees >= 3
    keep = sp.diags_array(visible.astype(np.int64), dtype=np.int64)
    weights = weights_at(21, 0.5, 200)
    peeled = peeling.peel(degrees, sp.csr_array(keep @ item_item @ keep), weights)
    result = grade(peeled, truth, visible)
    assert result["users_wrong"] == 0
    assert result["parts_recovered"] == result["parts"]
    whole = np.asarray(truth.matrix[:, ~visible].sum(axis=1)).reshape(-1) == 0
    assert result["users_recovered"] == np.count_nonzero(whole)


@pytest.mark.parametrize("exponent", [0.5, 0.3])
def test_the_normalised_matrix_gives_the_same(exponent):
    truth = long_tailed(200, 1000, 7)
    degrees, item_item = release(truth, 21, exponent)
    scale = np.where(degrees > 0, np.maximum(degrees, 1).astype(float) ** (exponent - 1), 0)
    normalized = sp.csr_array(
        sp.diags_array(scale) @ (item_item * 2.0**-21) @ sp.diags_array(scale)
    )
    before = normalized.copy()
    peeled = peeling.from_normalized(degrees, normalized, asked(21, exponent))
    assert recovered(peeled) == recovered(peel(truth, 21, exponent))
    assert peeled.complete
    assert (before != normalized).nnz == 0


def test_weights_are_those_of_the_clients_where_powers_of_doubles_are_not():
    """Test alpha 0.3 and 45 bits, where a double that is off by one in its last place is another
    weight for some lengths: powers in a library depend on the machine there."""
    ask = asked(45, 0.3)
    lengths = np.arange(3000)
    weights = peeling.weights_of(ask, 2999)
    np.testing.assert_array_equal(weights, ask.weights(lengths))
    exponent = Decimal(-2 * ask.alpha)
    nearest = [0.0, *(float(Decimal(length) ** exponent) for length in range(1, 3000))]
    exact = np.rint(2.0**45 * np.array(nearest)).astype(np.int64)
    np.testing.assert_array_equal(weights, exact)
    powers = np.zeros(3000)
    powers[1:] = lengths[1:].astype(float) ** -0.6
    off_by_one = (np.nextafter(powers, 0), powers, np.nextafter(powers, 1))
    unlike = [np.rint(2.0**45 * those).astype(np.int64) != weights for those in off_by_one]
    (sensitive,) = np.nonzero(np.any(unlike, axis=0))
    # A user with a history of exactly this length is found, and the next one too.
    long = list(range(int(sensitive[-1])))
    truth = interactions([long, [0, 1, 3500]], 3501)
    summed = ItemItem(3501, 2, 0.3, 47)
    assert summed.encoding.fraction_bits == 45
    total = summed.total(Histories(truth.matrix))
    peeled = peeling.peel(truth.item_degrees, total, peeling.weights_of(summed, 3501))
    assert grade(peeled, truth)["users_recovered"] == 2
    assert peeled.complete


def test_the_release_is_left_as_it_is_and_order_of_columns_does_not_matter():
    truth = long_tailed(100, 500, 3)
    degrees, item_item = release(truth)
    shuffled = item_item.copy()
    for i in range(500):
        row = slice(item_item.indptr[i], item_item.indptr[i + 1])
        shuffled.indices[row] = item_item.indices[row][::-1]
        shuffled.data[row] = item_item.data[row][::-1]
    shuffled.has_sorted_indices = False
    before = shuffled.indices.copy(), shuffled.data.copy(), degrees.copy()
    peeled = peeling.peel(degrees, shuffled, weights_at(21, 0.5, 60))
    assert peeled.complete
    assert (shuffled.indices == before[0]).all()
    assert (shuffled.data == before[1]).all()
    assert (degrees == before[2]).all()


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1, 1000, 100_000]))
def test_a_noisy_matrix_ends_without_claiming_to_be_complete(seed, scale):
    truth = long_tailed(60, 300, 5)
    degrees, item_item = release(truth)
    rng = np.random.default_rng(seed)
    noise = sp.triu(item_item, format="csr")
    noise.data = rng.integers(-scale, scale + 1, noise.nnz)
    noisy = sp.csr_array(item_item + noise + sp.triu(noise, 1).T)
    peeled = peeling.peel(degrees, noisy, weights_at(21, 0.5, 60))
    assert not peeled.complete
    assert peeled.interactions_left + peeled.indptr[-1] <= truth.n_interactions


def test_progress_rises_to_the_total():
    truth = long_tailed(200, 1000, 11)
    seen = []
    peel(truth, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (truth.n_interactions, truth.n_interactions)


def test_wrong_input_is_refused_in_one_line():
    degrees, item_item = release(interactions([[0, 1], [1, 2]]))
    weights = weights_at(21, 0.5, 3)
    with pytest.raises(UsageError, match="shape"):
        peeling.peel(degrees[:2], item_item, weights)
    with pytest.raises(UsageError, match="integers"):
        peeling.peel(degrees, item_item.astype(float), weights)
    with pytest.raises(UsageError, match="max_users_left"):
        peeling.peel(degrees, item_item, weights, max_users_left=7)
    for bad in ([0], [0, 4, 0], [0, 4, 5]):
        with pytest.raises(UsageError, match="weights"):
            peeling.peel(degrees, item_item, np.array(bad))
    with pytest.raises(UsageError, match="floating-point"):
        peeling.from_normalized(degrees, item_item, asked())
    for factor in (2.0**-22.3, np.nan):
        with pytest.raises(UsageError, match="fixed-point"):
            peeling.from_normalized(degrees, item_item * factor, asked())


def test_grading_matches_each_true_user_once():
    truth = interactions([[0, 1], [0, 1], [2], []], 4)
    found = interactions([[0, 1], [0, 1], [0, 1], [3]], 4).matrix
    assert grade(found, truth) == {
        "users": 3,
        "users_recovered": 2,
        "users_wrong": 2,
        "interaction_precision": 4 / 7,
        "interaction_recall": 4 / 5,
    }
    nothing = interactions([], 4).matrix
    assert grade(nothing, truth)["interaction_precision"] is None
    assert grade(nothing, truth)["interaction_recall"] == 0.0


@pytest.mark.fullscale
@pytest.mark.long  # tests/experiments/test_fullscale.py does it from the first sum
@pytest.mark.parametrize("fraction_bits", [17, 21])
@pytest.mark.parametrize("name", ["gowalla", "yelp2018"])
def test_every_real_history_is_recovered(name, fraction_bits):
    folder = Path(os.environ.get("PRIVIREC_DATA", "")) / name
    if "PRIVIREC_DATA" not in os.environ or not folder.is_dir():
        pytest.skip(f"needs {name} in PRIVIREC_DATA")
    lines = (folder / "train.txt").read_text().splitlines()
    truth = interactions([[int(item) for item in line.split()[1:]] for line in lines])
    result = grade(peel(truth, fraction_bits), truth)
    assert result["users_wrong"] == 0
    assert result["users_recovered"] == result["users"] == truth.n_users
