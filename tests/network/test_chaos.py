"""Seeded runs under kills, delays, duplicates, damage, clock jumps and restarts.

Each run gives exactly the simulation's numbers or stops safely. `make chaos` runs a hundred;
PRIVIREC_CHAOS sets the number of runs, PRIVIREC_CHAOS_SEED the first seed.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from privirec.privacy.policy import Aggregator
from privirec.runtime.coordinator import Stage

from .chaos import (
    TERMS,
    ChaosCarrier,
    Federation,
    Trouble,
    check_nobody_answered_twice,
    check_same,
    one_run,
)

RUNS = int(os.environ.get("PRIVIREC_CHAOS", "4"))
FIRST = int(os.environ.get("PRIVIREC_CHAOS_SEED", "0"))


@pytest.mark.parametrize("aggregator", ["secagg+", "lightsecagg", "none"])
def test_without_trouble_every_client_ends_with_the_simulations_model(
    tmp_path: Path, aggregator: Aggregator
) -> None:
    federation = Federation(tmp_path, aggregator=aggregator)
    outcome = ChaosCarrier(federation, 0, Trouble()).run()
    assert outcome.stage is Stage.DONE, outcome.reason
    assert outcome.cohort == frozenset(range(6))
    assert outcome.installed == 6
    assert outcome.components is not None
    check_same(outcome.components, federation.simulated(outcome.cohort, TERMS.program))
    check_nobody_answered_twice(outcome.messages)


@pytest.mark.parametrize(
    "aggregator",
    [
        "secagg+",
        pytest.param("lightsecagg", marks=pytest.mark.check),
        pytest.param("none", marks=pytest.mark.check),
    ],
)
def test_ends_right_or_stops_safely(
    tmp_path: Path, aggregator: Aggregator, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    finished = 0
    for seed in range(FIRST, FIRST + RUNS):
        caplog.clear()
        outcome = one_run(tmp_path / str(seed), seed, lambda: caplog.text, aggregator)
        finished += outcome.stage is Stage.DONE
    assert finished >= RUNS // 3, f"only {finished} of {RUNS} runs came to their end"


@pytest.mark.parametrize(
    "trouble",
    [
        Trouble(kill=0.04),
        Trouble(duplicate=0.5, delay=0.5),
        Trouble(corrupt=0.15),
        Trouble(drop=0.1, fail=0.1),
        Trouble(restart=0.04),
        Trouble(clock=0.2),
    ],
    ids=["kills", "duplicates and delays", "damage", "losses", "server restarts", "clock jumps"],
)
def test_one_kind_of_trouble_alone_is_survived(tmp_path: Path, trouble: Trouble) -> None:
    federation = Federation(tmp_path)
    outcome = ChaosCarrier(federation, 3, trouble).run()
    check_nobody_answered_twice(outcome.messages)
    assert outcome.stage is Stage.DONE, outcome.reason
    assert outcome.components is not None
    check_same(outcome.components, federation.simulated(outcome.cohort, TERMS.program))
