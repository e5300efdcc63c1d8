"""Tests of attacks: each succeeds on exact releases and fails on noisy ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from privirec.app.audit import Audited, audit, release_of
from privirec.data import Dataset, Interactions
from privirec.errors import UsageError
from privirec.federated.contributions import NoisyHeadGram, NoisyPopularity, PowerStep
from privirec.federated.dp.loss import Loss
from privirec.federated.programs import Protected, ProtectedSettings
from privirec.privacy.attacks import ATTACKS, Guesses, Test
from privirec.privacy.attacks.canaries import people_with
from privirec.privacy.attacks.few_users import Cascade, Weights, longest_in, read_users
from privirec.privacy.attacks.grading import (
    area_under,
    grade,
    grade_guesses,
    grade_tests,
    roc,
    true_positives_at,
)
from privirec.privacy.attacks.informed import rest_of
from privirec.privacy.attacks.start_block import StartBlock
from privirec.privacy.attacks.views import item_item_view
from privirec.privacy.policy import Policy


def sparse(seed: int, users: int = 60, items: int = 150) -> Interactions:
    """Return short histories over many items, so that many items have few users."""
    rng = np.random.default_rng(seed)
    touched = np.zeros((users, items), np.float32)
    for row in touched:
        row[rng.choice(items, rng.integers(2, 9), replace=False)] = 1
    return Interactions.from_matrix(touched)


PAIRS = {"way": "gram", "head": 300}
"""Settings of protected that open the pairs of all items."""


def as_dataset(train: Interactions) -> Dataset:
    return Dataset("sparse", train, train)


def one(dataset: Dataset, release: str, attack: str, **more: Any) -> Audited:
    (audited,) = audit(dataset, release, attacks=[attack], **more)
    return audited


# --- rows of few users, in floating point ---------------------------------------------------------


def item_item(train: Interactions, exponent: float) -> sp.csr_array:
    weights = np.maximum(train.user_degrees, 1).astype(float) ** -exponent
    matrix = sp.csr_array(train.matrix.T @ (sp.diags_array(weights) @ train.matrix), dtype=float)
    matrix.sort_indices()
    return matrix


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), noise=st.sampled_from([0.0, 1e-7, 1e-4, 1e-3]))
def test_rows_of_few_users_are_read_without_a_mistake(seed: int, noise: float) -> None:
    train = sparse(seed)
    matrix = item_item(train, 1.0)
    matrix.data += noise * np.clip(np.random.default_rng(seed).normal(size=matrix.nnz), -4, 4)
    weights = Weights(1.0, longest_in(matrix))
    tolerances = np.full(train.n_items, max(5 * noise, 1e-9))
    cascade = Cascade(matrix, train.item_degrees, weights, tolerances)
    cascade.run()
    found = sp.csr_array(_matrix_of(cascade.histories, train.n_items))
    graded = grade(found, train)
    assert graded["users_wrong"] == 0
    assert graded["users_recovered"] > 0.9 * train.n_users


def _matrix_of(histories: list[Any], n_items: int) -> sp.csr_array:
    indptr = np.concatenate([[0], np.cumsum([len(one) for one in histories])]).astype(np.int64)
    indices = np.concatenate([np.zeros(0, np.int32), *histories])
    return sp.csr_array((np.ones(len(indices)), indices, indptr), (len(histories), n_items))


def test_a_row_that_two_histories_explain_is_left_alone() -> None:
    # Two users of two items each, who share item 0: either may have item 1.
    columns = np.array([0, 1, 2], np.int32)
    twice = read_users(0, columns, np.array([1.0, 0.5, 0.5]), 2, Weights(1.0, 5), 1e-9)
    assert twice == []
    # Rows of two and three items are unambiguous.
    values = np.array([1 / 2 + 1 / 3, 1 / 2, 1 / 3, 1 / 3])
    found = read_users(0, np.arange(4, dtype=np.int32), values, 2, Weights(1.0, 5), 1e-9)
    assert sorted(history.tolist() for history in found) == [[0, 1], [0, 2, 3]]
    # A weight with too few items is not a history.
    assert read_users(0, columns[:2], np.array([1 / 3, 1 / 3]), 1, Weights(1.0, 5), 1e-9) == []


# --- releases with and without noise --------------------------------------------------------------


def test_protected_sums_give_histories_away_without_their_noise_and_nothing_with_it(
    small: Dataset,
) -> None:
    """Test a server that asks for pairs with equal weights, and can read rows of few users."""
    seen = one(small, "protected", "aimed-server", given=PAIRS, noise=False).row
    assert seen["users_recovered"] > 20
    assert seen["users_wrong"] == 0
    assert seen["noise"] == "off"
    hidden = one(small, "protected", "aimed-server", given=PAIRS).row
    assert hidden["users_recovered"] == 0
    assert hidden["epsilon"] <= 8
    for way in ("gram", "power"):
        guessed = one(small, "protected", "cliques", given={"way": way, "head": 300}).row
        assert guessed["users_recovered"] == 0
        assert guessed["matched_precision"] <= guessed["popularity_precision"] + 0.01
        assert guessed["control_guesses"] > 100
        assert guessed["control_hits_on_participants"] <= 1


@pytest.mark.parametrize(
    "attack",
    ["differencing-cohorts", pytest.param("differencing-runs", marks=pytest.mark.check)],
)
def test_two_runs_give_the_difference_away_unless_there_is_noise(
    small: Dataset, attack: str
) -> None:
    for release, noise in (("privirec", True), ("privirec-k", True), ("protected", False)):
        row = one(small, release, attack, noise=noise).row
        assert row["interaction_precision"] > 0.97
        assert row["interaction_recall"] > 0.97
    row = one(small, "protected", attack).row
    assert row["interaction_precision"] <= row["popularity_precision"] + 0.05
    assert not row["users_recovered"]


def test_a_server_that_aims_reads_histories_and_is_refused(small: Dataset) -> None:
    row = one(small, "privirec-k", "aimed-server", given={"rank": 64}).row
    assert row["users_recovered"] > 0.9 * row["users"]
    assert row["users_wrong"] == 0
    assert row["refused_by_policy"]
    lax = Policy(largest_item_share=1.0, largest_item_leverage=1.0)
    x = np.eye(small.train.n_items)[:, :64]
    aimed = PowerStep.of(x, small.train.item_degrees, 32)
    lax.check_aim(aimed.aim)
    for way in ("gram", "power"):
        given = {"way": way, "head": 100, "epsilon": 1.0}
        hidden = one(small, "protected", "aimed-server", given=given).row
        assert hidden["users_recovered"] == 0
        assert hidden["matched_precision"] <= hidden["popularity_precision"] + 0.01


def test_the_paper_s_start_names_the_users_of_items() -> None:
    train = sparse(3)
    more = {"preset": "paper", "given": {"rank": 40}}
    row = one(as_dataset(train), "privirec-k", "start-block", **more).row
    in_use = np.count_nonzero(train.item_degrees)
    assert (row["lists_tried"], row["lists_recovered"], row["lists_wrong"]) == (in_use, in_use, 0)
    assert row["users_recovered"] == train.n_users
    assert row["users_wrong"] == 0
    few = one(as_dataset(train), "privirec-k", "start-block", preset="paper", given={"rank": 2})
    assert few.row["lists_recovered"] < in_use / 2
    assert few.row["lists_wrong"] == 0


def test_a_sample_of_items_is_a_sample() -> None:
    release = release_of("privirec-k", as_dataset(sparse(3)), {"rank": 40}, preset="paper")
    found = StartBlock(most_rows=10).run(release)
    assert found.rows_tried == 10
    assert len(found.users_of) == 10


# --- membership -----------------------------------------------------------------------------------


def test_exact_releases_reveal_membership(small: Dataset) -> None:
    for release in ("privirec", "privirec-k"):
        assert one(small, release, "membership", given={"rank": 64}).row["auc"] > 0.9
        assert one(small, release, "membership-knowing-others").row["auc"] == 1.0
        assert one(small, release, "last-item-knowing-others").row["interaction_precision"] == 1.0
    row = one(small, "privirec", "last-item").row
    assert row["interaction_precision"] > 0.6
    assert row["precision_on_outsiders"] < 0.2
    assert row["users_recovered"] is None  # one item is not a history


def test_no_attack_beats_the_promise() -> None:
    """Compare the likelihood ratio of an attacker who knows all other histories with mu."""
    train = sparse(5, users=2000, items=60)
    dataset = as_dataset(train)
    for way in ("gram", "power"):
        given = {"epsilon": 1.0, "way": way, "head": 60}
        hidden = one(dataset, "protected", "membership-knowing-others", given=given).row
        assert 0.45 < hidden["auc"] < 0.65
        seen = one(dataset, "protected", "membership-knowing-others", given=given, noise=False).row
        assert seen["auc"] == 1.0
        alone = one(dataset, "protected", "membership", given=given).row
        assert abs(alone["auc"] - 0.5) < 0.1


def test_the_known_contributions_of_others_are_subtracted_exactly(small: Dataset) -> None:
    """Test that canaries among people and canaries alone look the same, to the last unit."""
    release = release_of("protected", small, PAIRS | {"head": 50})
    federation = release.federation
    assert federation is not None
    asks = [one.ask for one in release.sums]
    (_, gram) = asks
    assert isinstance(gram, NoisyHeadGram)
    few = people_with(list(gram.items[:14].astype(np.int32).reshape(7, 2)), small.train.n_items)
    both = Interactions.from_matrix(sp.csr_array(sp.vstack([small.train.matrix, few.matrix])))
    nobody = Interactions.from_matrix(sp.csr_array((0, small.train.n_items)))
    among = rest_of(federation.ask(asks, 5, both), federation, small.train)
    alone = rest_of(federation.ask(asks, 5, few), federation, nobody)
    np.testing.assert_array_equal(among.votes, alone.votes)
    np.testing.assert_array_equal(among.gram, alone.gram)


# --- programs without a promise, and other noise -------------------------------------------------


def test_noise_of_the_audit_is_what_the_promise_counts_on(small: Dataset) -> None:
    """Count the noise of clients that neither drop out nor collude; the deviation is as stated."""
    release = release_of("protected", small, PAIRS | {"head": 200})
    federation = release.federation
    assert federation is not None
    (popularity, gram) = release.sums
    assert isinstance(popularity.ask, NoisyPopularity)
    assert isinstance(gram.ask, NoisyHeadGram)
    noise = gram.total - federation.exact(gram.ask, small.train)
    assert np.std(noise) == pytest.approx(gram.ask.share.protecting_deviation, rel=0.02)
    view = item_item_view(release)
    assert view is not None
    assert view.noisy
    assert view.errors[0] == pytest.approx(np.std(noise) / 2**gram.ask.fraction_bits / 2**0.5, 0.02)
    promise = federation.promise
    assert promise is not None
    epsilon, delta, _ = promise
    # The first sum counts on fewer clients than the second, from which nobody drops out.
    assert popularity.ask.contributors < gram.ask.contributors < small.train.n_users
    settings = ProtectedSettings(
        way="gram",
        head=200,
        clients=200,
        contributors=popularity.ask.contributors,
        corrupt=200 - gram.ask.contributors,
    )
    assert epsilon == Protected(settings, 200, 300).describe()["epsilon"]
    together = Loss.together(one.ask.protected.loss for one in release.sums)
    assert epsilon == together.epsilon(delta)


def test_seeds_give_other_noise_and_the_same_seed_the_same(small: Dataset) -> None:
    totals = [release_of("protected", small, seed=seed).sums[0].total for seed in (0, 0, 1)]
    np.testing.assert_array_equal(totals[0], totals[1])
    assert (totals[0] != totals[2]).any()


# --- grading --------------------------------------------------------------------------------------


def test_curves_and_areas() -> None:
    test = Test(np.array([3.0, 2.0, 2.0, 1.0]), np.array([True, True, False, False]))
    assert area_under(test) == pytest.approx(3.5 / 4)
    assert true_positives_at(test, 0.0) == 0.5
    false, true = roc(test)
    np.testing.assert_allclose(false, [0, 0, 0.5, 1])
    np.testing.assert_allclose(true, [0, 0.5, 1, 1])
    backwards = Test(-test.scores, test.took_part)
    row = grade_tests({"wrong-way": backwards, "right-way": test})
    assert row["statistic"] == "right-way"
    assert row["auc_wrong-way"] == pytest.approx(0.5 / 4)
    empty = Test(np.zeros(0), np.zeros(0, np.bool_))
    assert area_under(empty) == 0.5
    assert true_positives_at(empty, 0.1) == 0.0


def test_guesses_are_graded_beside_popularity() -> None:
    def sets(*lists: list[int]) -> list[Any]:
        return [np.array(items, np.int32) for items in lists]

    guesses = Guesses(sets([1, 2], [3]), sets([2, 1], [4]), sets([1, 9], [3]), whole=True)
    row = grade_guesses(guesses)
    assert (row["users"], row["users_recovered"], row["users_wrong"]) == (2, 1, 1)
    assert row["interaction_precision"] == row["interaction_recall"] == pytest.approx(2 / 3)
    assert row["popularity_precision"] == pytest.approx(2 / 3)
    none = grade_guesses(Guesses(sets([1]), sets([]), sets([]), whole=False))
    assert none["interaction_precision"] is None
    assert none["users_recovered"] is None


def test_parts_by_length_and_popularity(small: Dataset) -> None:
    row = one(small, "privirec", "peeling").row
    for kind in ("length", "popularity"):
        for part in range(1, 6):
            assert row[f"recall_by_{kind}_{part}"] == 1.0
            assert row[f"precision_by_{kind}_{part}"] == 1.0
    assert row["matched_precision"] == 1.0
    assert row["popularity_recovered"] == 0


def test_attacks_that_need_people_say_so(small: Dataset) -> None:
    release = replace(release_of("privirec", small), federation=None)
    for name in ("differencing-runs", "aimed-server", "membership", "last-item", "canaries"):
        assert not ATTACKS[name].applies_to(release)
        with pytest.raises(UsageError, match=f"{name} needs"):
            ATTACKS[name].run(release)
