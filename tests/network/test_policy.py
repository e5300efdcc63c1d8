"""A client's own settings: each limit refuses in one line, and nothing passes a misspelt one."""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privirec.errors import UsageError
from privirec.privacy.policy import Policy, PolicyRefusal, Terms, allowing
from privirec.secagg import ServerModel

TERMS = Terms(
    *(10, ("item-degrees", "seeded-step", "power-step"), 1000, 2000, 0.05, 40, "secagg+", 0.1),
    server=ServerModel.ACTIVE,
)
EVERYBODY = frozenset(range(10))


def test_the_default_accepts_what_gives_least_away() -> None:
    Policy().check_run(TERMS)


def test_a_server_may_be_trusted_by_who_says_so_or_has_no_use_for_the_difference() -> None:
    trusting = replace(TERMS, server=ServerModel.SEMI_HONEST)
    Policy(server=ServerModel.SEMI_HONEST).check_run(trusting)
    Policy(aggregators=("lightsecagg",)).check_run(replace(trusting, aggregator="lightsecagg"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"clients": 2}, "smallest_cohort = 3"),
        ({"computations": ("item-degrees", "item-item")}, "the computation item-item"),
        ({"computations": ("user-start",)}, "the computation user-start"),
        ({"computations": ("power-step",) * 17}, "most_sums = 16"),
        ({"bytes_up": 10**10}, "most_bytes_up"),
        ({"bytes_down": 10**10}, "most_bytes_down"),
        ({"opened_share": 0.51}, "largest_opened_share = 0.5"),
        ({"corrupt_share": 0.01}, "corrupt_share = 0.05"),
        ({"security_bits": 30}, "security_bits = 40"),
        ({"server": ServerModel.SEMI_HONEST}, 'server = "active"'),
        ({"aggregator": "none"}, r'aggregators = \["secagg\+", "secagg"\]'),
    ],
)
def test_each_limit_refuses_a_run(change: dict[str, object], said: str) -> None:
    with pytest.raises(PolicyRefusal, match=said) as refused:
        Policy().check_run(replace(TERMS, **change))
    assert "\n" not in str(refused.value)


def test_limits_hold_before_every_answer_too() -> None:
    policy = Policy(most_sums=2, most_bytes_up=100, most_bytes_down=100)
    policy.check_answer("power-step", "secagg+", 2, 100, 100)
    for bad in (
        ("item-item", "secagg+", 1, 1, 1),
        ("power-step", "none", 1, 1, 1),
        ("power-step", "secagg+", 3, 1, 1),
        ("power-step", "secagg+", 1, 101, 1),
    ):
        with pytest.raises(PolicyRefusal):
            policy.check_answer(*bad)


@given(
    st.lists(st.frozensets(st.integers(0, 9), min_size=4), min_size=2, max_size=5),
    st.integers(1, 4),
)
def test_no_combination_of_accepted_sums_is_about_a_few_clients(
    cohorts: list[frozenset[int]], least: int
) -> None:
    policy = Policy(smallest_change=least)
    accepted: list[frozenset[int]] = []
    for now in cohorts:
        with suppress(PolicyRefusal):
            policy.check_cohort(now, accepted)
            accepted.append(now)
    rows = np.array([[client in one for client in range(10)] for one in accepted], float)
    for size in range(1, least):
        for few in itertools.combinations(range(10), size):
            # A combination about nobody but these few exists if the rank is lower without them.
            others = np.delete(rows, few, axis=1)
            assert np.linalg.matrix_rank(others) == np.linalg.matrix_rank(rows), few


def test_the_sequence_that_pairs_of_runs_do_not_show() -> None:
    """Runs that are each three clients apart from the one before, and solve for client 1."""
    policy, seen = Policy(), [EVERYBODY]
    refused = 0
    for few in ({1, 2, 3}, {1, 2, 4}, {1, 3, 4}, {2, 3, 4}):
        try:
            policy.check_cohort(EVERYBODY - few, seen)
            seen.append(EVERYBODY - few)
        except PolicyRefusal:
            refused += 1
    assert refused == 3


def test_equal_cohorts_and_first_ones_are_fine() -> None:
    policy = Policy()
    policy.check_cohort(EVERYBODY, [])
    policy.check_cohort(EVERYBODY, [EVERYBODY, EVERYBODY])
    policy.check_cohort(EVERYBODY, [EVERYBODY - {1, 2, 3}])
    Policy(smallest_change=20).check_cohort(EVERYBODY, [EVERYBODY])
    with pytest.raises(PolicyRefusal, match="smallest_change"):
        policy.check_cohort(EVERYBODY - {1}, [EVERYBODY])
    with pytest.raises(PolicyRefusal, match="smallest_cohort"):
        policy.check_cohort(frozenset({1, 2}), [])


def test_files_of_earlier_versions_mean_what_they_meant(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("most_rounds = 7\nmost_of_item_item = 0.25\n")
    assert Policy.load(path) == Policy(most_sums=7, largest_opened_share=0.25)


def test_it_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    assert Policy.load(path) == Policy()
    wanted = allowing(
        ["item-degrees", "item-item"], aggregators=("none",), most_sums=7, corrupt_share=0.1
    )
    path.write_text(wanted.as_toml())
    assert Policy.load(path) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "smallest_kohort = 5",
        "most_sums = 0",
        "most_sums =",
        'computations = "all"',
        'aggregators = ["nobody"]',
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"policy\.toml") as refused:
        Policy.load(path)
    assert "\n" not in str(refused.value)
