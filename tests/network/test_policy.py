"""Tests of a client's policy: each limit refuses in one line, and misspelt settings are errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from privirec.errors import UsageError
from privirec.federated.contributions import Aim
from privirec.privacy.cohorts import PolicyRefusal, Rule
from privirec.privacy.policy import Policy, Terms, allowing
from privirec.secagg import ServerModel

BUDGET = ("most_epsilon", "most_epsilon_per_year")

SUMS = ("item-degrees", "seeded-step", "power-step")
TERMS = Terms(10, SUMS, 3, 1000, 2000, 0.05, 40, "secagg+", 0.1, ServerModel.ACTIVE)
EXACT = allowing(SUMS)


def test_no_exact_sum_is_allowed_by_default_and_the_refusal_names_the_line() -> None:
    with pytest.raises(PolicyRefusal) as refused:
        Policy().check_run(TERMS)
    line = 'computations = ["item-degrees", "seeded-step", "power-step"]'
    assert f"puts {line} into policy.toml" in str(refused.value)
    assert refused.value.rule is Rule.POLICY
    EXACT.check_run(TERMS)


def test_the_line_in_the_refusal_is_what_allows_it(tmp_path: Path) -> None:
    with pytest.raises(PolicyRefusal) as refused:
        allowing(["item-item"]).check_run(TERMS)
    line = str(refused.value).partition("puts ")[2].partition(" into policy.toml")[0]
    (tmp_path / "policy.toml").write_text(line)
    allowed = Policy.load(tmp_path / "policy.toml")
    allowed.check_run(TERMS)
    assert allowed.computations == ("item-item", *SUMS)


def test_a_server_may_be_trusted_by_who_says_so_or_has_no_use_for_the_difference() -> None:
    trusting = replace(TERMS, server=ServerModel.SEMI_HONEST)
    allowing(SUMS, server=ServerModel.SEMI_HONEST).check_run(trusting)
    light = allowing(SUMS, aggregators=("lightsecagg",))
    light.check_run(replace(trusting, aggregator="lightsecagg"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"clients": 2}, "smallest_cohort = 3"),
        ({"exact": ("item-degrees", "item-item")}, "the computation item-item"),
        ({"exact": ("user-start",)}, "the computation user-start"),
        ({"sums": 17}, "most_sums = 16"),
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
        EXACT.check_run(replace(TERMS, **change))
    assert "\n" not in str(refused.value)


def test_limits_hold_before_every_answer_too() -> None:
    policy = allowing(SUMS, most_sums=2, most_bytes_up=100, most_bytes_down=100)
    policy.check_answer("secagg+", 2, 100, 100)
    for bad in (("none", 1, 1, 1), ("secagg+", 3, 1, 1), ("secagg+", 1, 101, 1)):
        with pytest.raises(PolicyRefusal):
            policy.check_answer(*bad)
    policy.check_exact(("power-step",))
    with pytest.raises(PolicyRefusal):
        policy.check_exact(("item-item",))


def test_what_earlier_runs_opened_counts() -> None:
    EXACT.check_run(TERMS, 0.4)
    with pytest.raises(PolicyRefusal, match=r"open 0\.51 times") as refused:
        EXACT.check_run(TERMS, 0.41)
    assert refused.value.rule is Rule.OPENED


@pytest.mark.parametrize(
    ("aim", "setting"),
    [
        (Aim(1000, 16, 0.25, 0.95), ""),
        (Aim(1000, 16, 0.26, 0.3), "largest_item_share = 0.25"),
        (Aim(1000, 16, 0.1, 0.96), "largest_item_leverage = 0.95"),
        (Aim(100, 4, 0.4, 0.4), ""),  # forty over a hundred
        (Aim(100, 4, 0.41, 0.41), "largest_item_share = 0.25"),
        (Aim(100, 64, 0.2, 1.0), ""),  # nearly as many columns as items
        (Aim(40, 4, 1.0, 1.0), ""),
        (Aim(0, 4, 0.0, 0.0), ""),
    ],
)
def test_a_block_may_lie_on_one_item_so_far(aim: Aim, setting: str) -> None:
    if not setting:
        Policy().check_aim(aim)
        return
    with pytest.raises(PolicyRefusal, match=setting) as refused:
        Policy().check_aim(aim)
    assert refused.value.rule is Rule.AIMED


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
        *(f"{name} = {value}" for name in BUDGET for value in ("nan", "inf", "-1", "0", "61")),
        *(f"delta = {value}" for value in ("nan", "0", "1", "-1")),
        "most_sums = 3\nmost_rounds = 99",
        "most_rounds = 99\nmost_sums = 3",
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"policy\.toml") as refused:
        Policy.load(path)
    assert "\n" not in str(refused.value)
