"""Tests of a protocol without recovery and with noise in its sums, over the same network."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import numpy as np
import pytest

from privirec.filters.components import Components
from privirec.filters.operators import LowRankOperator
from privirec.runtime.coordinator import Stage

from .chaos import TERMS, ChaosCarrier, Federation, Trouble, check_nobody_answered_twice
from .test_node import Talk


def low_rank(components: Components) -> np.ndarray:
    operator = components.item_item
    assert isinstance(operator, LowRankOperator)
    return (operator.basis * operator.eigenvalues) @ operator.basis.T


def check_close(found: Components, expected: Components) -> None:
    """Fail unless the noise of six clients vanishes in rounded counts and is small in the rest."""
    assert np.array_equal(found.item_degrees, expected.item_degrees)
    difference = low_rank(found) - low_rank(expected)
    assert 0 < np.linalg.norm(difference) < 0.02 * np.linalg.norm(low_rank(expected))


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path, aggregator="correlated-noise")


def test_every_client_ends_with_nearly_the_simulations_model(federation: Federation) -> None:
    outcome = ChaosCarrier(federation, 0, Trouble()).run()
    assert outcome.stage is Stage.DONE, outcome.reason
    assert outcome.installed == 6
    assert outcome.components is not None
    check_close(outcome.components, federation.simulated(outcome.cohort, TERMS.program))
    check_nobody_answered_twice(outcome.messages)


def test_what_a_client_that_drops_out_leaves_is_in_the_ledger(federation: Federation) -> None:
    clock = [0.0]
    talk = Talk(federation, clock=lambda: clock[0])
    talk.until("input", 1)
    for _ in range(200):
        if talk.server.status()["sum_number"] != 1:
            break
        clock[0] += 4
        talk.step(skip={3})
    assert talk.server.cohort == (0, 1, 2, 4, 5)
    talk.until(Stage.COMPUTED)
    assert talk.server.components is not None
    exact = federation.simulated(frozenset(talk.server.cohort), TERMS.program)
    error = talk.server.components.item_degrees - exact.item_degrees
    degrees = talk.server.ledger.entries[0]
    assert 0.3 < degrees.residual_deviation < 2  # a thirty-second of 31 users is about one
    assert 0 < np.abs(error).max() < 6 * degrees.residual_deviation


@pytest.mark.check
def test_ends_right_or_stops_safely(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    complete = 0
    for seed in range(4):
        federation = Federation(tmp_path / str(seed), aggregator="correlated-noise")
        trouble = Trouble.drawn(random.Random(seed))
        outcome = ChaosCarrier(federation, seed, trouble).run()
        check_nobody_answered_twice(outcome.messages)
        assert outcome.stage in (Stage.DONE, Stage.STOPPED), outcome.reason
        if outcome.stage is Stage.DONE and len(outcome.cohort) == 6:
            assert outcome.components is not None
            check_close(outcome.components, federation.simulated(outcome.cohort, TERMS.program))
            complete += 1
    assert complete >= 2
