"""Tests of `test_chaos` over the HTTPS carrier: real requests over an unreliable network."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from privirec.runtime.coordinator import Stage

from .chaos import (
    TERMS,
    Federation,
    Trouble,
    check_nobody_answered_twice,
    check_same,
    one_run,
)
from .https_chaos import HttpsChaos, in_small_pieces

RUNS = int(os.environ.get("PRIVIREC_CHAOS", "1"))
FIRST = int(os.environ.get("PRIVIREC_CHAOS_SEED", "0"))


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_pieces(monkeypatch)


def test_without_trouble_every_client_ends_with_the_simulations_model(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    outcome = HttpsChaos(federation, 0, Trouble()).run()
    assert outcome.stage is Stage.DONE, outcome.reason
    assert outcome.cohort == frozenset(range(6))
    assert outcome.installed == 6
    assert outcome.components is not None
    check_same(outcome.components, federation.simulated(outcome.cohort, TERMS.program))
    check_nobody_answered_twice(outcome.messages)


@pytest.mark.check
def test_ends_right_or_stops_safely(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="privirec")
    finished = 0
    for seed in range(FIRST, FIRST + RUNS):
        caplog.clear()
        outcome = one_run(tmp_path / str(seed), seed, lambda: caplog.text, carrier=HttpsChaos)
        finished += outcome.stage is Stage.DONE
    assert finished >= RUNS // 3, f"only {finished} of {RUNS} runs came to their end"


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param(Trouble(kill=0.04), marks=pytest.mark.check),
        pytest.param(Trouble(duplicate=0.3, delay=0.2), marks=pytest.mark.long),
        pytest.param(Trouble(corrupt=0.1), marks=pytest.mark.long),
        pytest.param(Trouble(drop=0.1, fail=0.1), marks=pytest.mark.check),
        pytest.param(Trouble(restart=0.04), marks=pytest.mark.long),
    ],
    ids=["kills", "duplicates and delays", "damage", "losses", "server restarts"],
)
def test_one_kind_of_trouble_alone_is_survived(tmp_path: Path, trouble: Trouble) -> None:
    federation = Federation(tmp_path)
    outcome = HttpsChaos(federation, 3, trouble).run()
    check_nobody_answered_twice(outcome.messages)
    assert outcome.stage is Stage.DONE, outcome.reason
    assert outcome.components is not None
    check_same(outcome.components, federation.simulated(outcome.cohort, TERMS.program))
