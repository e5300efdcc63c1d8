"""Tests of all attacks on all kinds of releases; none finds a wrong history in exact sums."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from privirec.app.audit import audit, release_of
from privirec.app.transcript import opened_by
from privirec.data import Dataset, Interactions
from privirec.errors import UsageError
from privirec.federated.contributions import ItemItem, PowerStep, SeededStep
from privirec.federated.noise import AddedNoise
from privirec.federated.programs import PrivirecK, PrivirecKSettings, PrivirecSettings, program_of
from privirec.privacy.attacks import ATTACKS, Attack, Found, MatchingPursuit, Peeling
from privirec.privacy.attacks.grading import grade, grade_rows
from privirec.privacy.attacks.views import item_item_view
from privirec.privacy.releases import Release, ReleasedFilters, ReleasedSum
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.run import run
from privirec.runtime.spec import RunSpec

NOISE = AddedNoise("uniform", 1.0, "a test", 3.0)
WITH_PEOPLE = {
    *("differencing-cohorts", "differencing-runs", "membership", "membership-knowing-others"),
    "last-item-knowing-others",
}
"""Attacks on all programs whose users can be asked again."""
COLUMNS = (
    "attack users users_recovered users_wrong interaction_precision interaction_recall seconds"
)


def released(train: Interactions, wanted: Any) -> Release:
    program = program_of(wanted, train.n_users, train.n_items)
    return Release(program.name, tuple(opened_by(program, Simulation(train))))


def sparse(seed: int, users: int = 40, items: int = 120) -> Interactions:
    """Return short histories over many items, so that many items have one or two users."""
    rng = np.random.default_rng(seed)
    touched = np.zeros((users, items), np.float32)
    for row in touched:
        row[rng.choice(items, rng.integers(1, 7), replace=False)] = 1
    return Interactions.from_matrix(touched)


def test_what_a_run_opens_is_what_its_program_asked_for(small: Dataset) -> None:
    train = small.train
    wanted = PrivirecSettings(rank=4, rounds=3)
    names = [one.ask.name for one in released(train, wanted).sums]
    assert names == ["item-degrees", "item-item", "seeded-step", "power-step", "power-step"]
    found = released(train, PrivirecKSettings(rank=4, rounds=2))
    np.testing.assert_array_equal(found.item_degrees, train.item_degrees)
    assert [type(one.ask) for one in found.sums_of(SeededStep, PowerStep)] == [
        SeededStep,
        PowerStep,
    ]


@pytest.mark.parametrize(
    ("name", "given", "attacks"),
    [
        ("privirec", {}, ["peeling", "last-item"]),
        (
            "privirec",
            {"rank": 8, "rounds": 2},
            ["peeling", "matching-pursuit", "aimed-server", "last-item"],
        ),
        ("privirec-k", {"rank": 64, "ring_bits": 40}, ["matching-pursuit", "aimed-server"]),
        (
            "privirec-k",
            {"rank": 4, "rounds": 2, "start": "users"},
            ["matching-pursuit", "start-block", "aimed-server"],
        ),
        pytest.param(
            *("protected", {"way": "gram"}, ["cliques", "aimed-server", "last-item"]),
            marks=pytest.mark.check,
        ),
        ("protected", {"way": "power"}, ["cliques", "aimed-server", "last-item"]),
    ],
)
def test_every_attack_that_applies_is_run(
    small: Dataset, name: str, given: dict[str, Any], attacks: list[str]
) -> None:
    rows = [one.row for one in audit(small, name, given)]
    expected = {*attacks, *WITH_PEOPLE, *(["canaries"] if name == "protected" else [])}
    assert [row["attack"] for row in rows] == [one for one in ATTACKS if one in expected]
    assert {row["attack"] for row in rows} == expected
    for row in rows:
        assert set(COLUMNS.split()) <= set(row)
        assert (row["dataset"], row["release"]) == (small.name, name)
        assert name == "protected" or not row["users_wrong"]
        assert json.loads(json.dumps(row)) == row
        assert all(not isinstance(value, dict | list) for value in row.values())
    if "peeling" in attacks:
        assert rows[0]["users_recovered"] == rows[0]["users"] == 200


def test_a_head_gives_away_what_lies_in_it(small: Dataset) -> None:
    (one,) = audit(small, "head-gram", {"head": 250, "alpha": 0.5}, attacks=["peeling"])
    assert one.row["users_wrong"] == 0
    assert one.row["parts_recovered"] > 0.9 * one.row["parts"]
    assert one.row["users_recovered"] < one.row["parts_recovered"]
    with pytest.raises(UsageError, match="head"):
        audit(small, "head-gram", {"head": 0})


def test_saved_models_are_releases_too(small: Dataset, tmp_path: Path) -> None:
    """Test that single precision keeps small entries exact, which are those of rare items."""
    for method in ("privirec", "privirec-k", "centralized"):
        result = run(small, RunSpec.of(method, rank=8))
        result.recommender.save(tmp_path / method, result.manifest())
    for method, attack in (("privirec", "peeling"), ("centralized", "likelihood-peeling")):
        (one,) = audit(small, str(tmp_path / method))
        assert one.row["attack"] == attack
        assert one.row["users_wrong"] == 0
        assert one.row["users_recovered"] > 0.5 * one.row["users"]
    assert audit(small, str(tmp_path / "privirec-k")) == []
    told = json.loads((tmp_path / "centralized" / "manifest.json").read_text())["gives_away"]
    assert "worked out" in told
    assert "holds no history" not in told


def test_weights_of_ease_are_the_matrix_that_they_were_made_from(tmp_path: Path) -> None:
    train = sparse(6)
    unseen = Interactions.from_matrix(train.matrix.toarray() == 0, train.user_ids, train.item_ids)
    dataset = Dataset("sparse", train, unseen)
    result = run(dataset, RunSpec.of(model="ease"))
    saved = result.recommender.save(tmp_path / "ease", result.manifest())
    view = item_item_view(release_of(str(saved), dataset))
    assert view is not None
    assert view.items is not None
    expected = (train.matrix.T @ train.matrix).toarray()
    np.testing.assert_array_equal(view.matrix.toarray(), expected[np.ix_(view.items, view.items)])
    (one,) = audit(dataset, str(saved))
    assert one.row["attack"] == "likelihood-peeling"
    assert one.row["users_wrong"] == 0
    assert one.row["users_recovered"] > 0.5 * one.row["users"]


def test_a_release_is_of_the_data_that_grade_it(small: Dataset, tmp_path: Path) -> None:
    result = run(small, RunSpec.of("privirec", rank=8))
    saved = result.recommender.save(tmp_path / "model", result.manifest())
    other = Dataset("other", small.train.rows(0, 100), small.test.rows(0, 100))
    with pytest.raises(UsageError, match="a model of 200 people, not of those of other"):
        release_of(str(saved), other)
    fewer = Interactions.from_matrix(small.train.matrix[:, :50])
    with pytest.raises(UsageError, match="other items"):
        release_of(str(saved), Dataset("fewer", fewer, fewer))
    with pytest.raises(UsageError, match="cannot be chosen any more"):
        release_of(str(saved), small, {"rank": 3})
    with pytest.raises(UsageError, match="name a program"):
        release_of(str(tmp_path / "nothing"), small)
    with pytest.raises(UsageError, match="eigenvalues does not go with privirec"):
        release_of("privirec", small, {"eigenvalues": "diagonal"})


def test_noise_and_missing_scales_are_not_taken_for_exact_sums(holes: Interactions) -> None:
    @dataclass(frozen=True)
    class NoisyMatrix(ItemItem):
        @property
        def noise(self) -> AddedNoise:
            return NOISE

    @dataclass(frozen=True)
    class NoisyStep(PowerStep):
        @property
        def noise(self) -> AddedNoise:
            return NOISE

    exact = released(holes, PrivirecSettings(rank=3, rounds=2))
    for attack in ATTACKS.values():
        assert not attack.applies_to(Release("nothing"))
        with pytest.raises(UsageError, match=f"{attack.name} needs {attack.needs}"):
            attack.run(Release("nothing"))
    for name in ("peeling", "matching-pursuit"):
        assert ATTACKS[name].applies_to(exact)
        without_degrees = replace(exact, sums=exact.sums[1:])
        assert not ATTACKS[name].applies_to(without_degrees)
    degrees, matrix, _, step = exact.sums
    noisy_matrix = NoisyMatrix(17, 5)
    assert isinstance(step.ask, PowerStep)
    noisy_step = NoisyStep(step.ask.item_degrees, step.ask.block, step.ask.block_bits)
    noisy = (degrees, ReleasedSum(noisy_matrix, matrix.total), ReleasedSum(noisy_step, step.total))
    for attack in ATTACKS.values():
        assert not attack.applies_to(Release("noisy", noisy))


@pytest.mark.parametrize(
    "change",
    [
        {"noise": NOISE.as_row()},
        {"fraction_bits": 3},
        {"what": "something-else"},
        {"entries": 0},
    ],
)
def test_filters_are_peeled_only_if_their_manifest_says_that_they_are_exact(
    small: Dataset, change: dict[str, Any]
) -> None:
    result = run(small, RunSpec.of("privirec", model="turbo-cf"))
    assert result.ledger is not None
    components = result.recommender.components.written_out()
    rows = result.ledger.as_rows()
    assert Peeling().applies_to(Release("x", filters=ReleasedFilters(components, tuple(rows))))
    changed = tuple(row | change if row["what"] == "item-item" else row for row in rows)
    assert not Peeling().applies_to(Release("x", filters=ReleasedFilters(components, changed)))


# --- matching pursuit -----------------------------------------------------------------------------


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    rank=st.sampled_from([2, 8, 30, 100]),
    rounds=st.integers(2, 4),
    width=st.sampled_from([24, 32, 48]),
)
@example(seed=3, rank=2, rounds=2, width=24)  # items with equal public rows
@example(seed=5, rank=4, rounds=2, width=32)  # half of a history explains as much as all of it
@example(seed=236, rank=8, rounds=2, width=24)
def test_pursuit_never_claims_a_wrong_history(
    seed: int, rank: int, rounds: int, width: int
) -> None:
    train = sparse(seed)
    wanted = PrivirecKSettings(rank=rank, rounds=rounds, ring_bits=width, seed=seed % 1000)
    found = MatchingPursuit().run(released(train, wanted))
    assert grade(found, train)["users_wrong"] == 0
    assert grade_rows(found.rows, train)["rows_wrong"] == 0
    assert set(found.rows) <= set(range(train.n_items))


def test_enough_columns_give_sparse_histories_away() -> None:
    shares = []
    for rank in (4, 30, 100):
        train = sparse(3)
        found = MatchingPursuit().run(released(train, PrivirecKSettings(rank=rank, rounds=3)))
        graded = grade(found, train)
        shares.append(graded["users_recovered"] / graded["users"])
    assert shares[0] < shares[-1]
    assert shares[-1] > 0.9


def test_a_limit_of_rows_is_kept_and_the_release_left_alone() -> None:
    train = sparse(4)
    release = released(train, PrivirecKSettings(rank=60, rounds=2))
    before = [one.total.copy() for one in release.sums]
    seen: list[tuple[int, int]] = []
    found = MatchingPursuit(most_rows=5).run(release, lambda *both: seen.append(both))
    assert found.facts["rows_tried"] == 5
    assert found.facts["columns"] == 120
    assert seen[-1] == (5, 5)
    for one, kept in zip(release.sums, before, strict=True):
        np.testing.assert_array_equal(one.total, kept)


def test_rows_are_graded_as_sets_of_items() -> None:
    train = Interactions.from_matrix(np.array([[1, 1, 0, 0], [0, 1, 1, 0]]))
    claims = {0: np.array([0, 1], np.int32), 1: np.array([0, 1], np.int32)}
    assert grade_rows(claims, train) == {"rows_recovered": 1, "rows_wrong": 1}


def test_the_paper_s_start_is_left_to_others(holes: Interactions) -> None:
    """Test that only later steps over items are read; the first sum is over users."""
    release = released(holes, PrivirecK.preset("paper", rank=3))
    assert MatchingPursuit().run(release).facts["columns"] == 3


# --- the plug-in interface ------------------------------------------------------------------------


class Counting(Attack):
    """An attack that finds nothing and only counts sums."""

    name = "counting"
    needs = "anything"

    def applies_to(self, release: Release) -> bool:
        return bool(release.sums)

    def run(self, release: Release, progress: Any = None) -> Found:
        nothing = np.zeros(0, np.int32)
        return Found(np.zeros(1, np.int64), nothing, facts={"sums": len(release.sums)})


@pytest.fixture
def _counting() -> Iterator[None]:
    ATTACKS[Counting.name] = Counting()
    yield
    del ATTACKS[Counting.name]


@pytest.mark.usefixtures("_counting")
def test_a_further_attack_needs_one_class_and_one_line(small: Dataset) -> None:
    wanted = ["matching-pursuit", "counting"]
    rows = [one.row for one in audit(small, "privirec-k", {"rank": 4, "rounds": 2}, attacks=wanted)]
    assert [row["attack"] for row in rows] == wanted
    assert rows[1]["sums"] == 3
    assert rows[1]["users_recovered"] == 0
    assert rows[1]["interaction_precision"] is None


def test_the_registry_is_closed(small: Dataset) -> None:
    with pytest.raises(UsageError, match="no attack 'magic'; there are peeling"):
        audit(small, "privirec", attacks=["magic"])
    assert all(name == attack.name and attack.needs for name, attack in ATTACKS.items())
