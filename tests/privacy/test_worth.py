"""Tests of the sentence that says what epsilon is worth to a person."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from privirec.federated.dp.discrete import epsilon_with
from privirec.federated.dp.loss import Loss
from privirec.privacy.worth import (
    at_least,
    figures,
    loss_of,
    promise,
    right_guesses,
    simulated,
    worth,
)


@pytest.mark.parametrize(
    ("epsilon", "cases"), [(0.5, 53), (1, 55), (2, 59), (4, 67), (8, 78), (20, 95), (61, 100)]
)
def test_the_figure_for_known_values_of_epsilon(epsilon: float, cases: int) -> None:
    assert right_guesses(loss_of(epsilon, 1e-6)) == cases
    assert f"at most {cases} of 100 cases; a coin is right in 50." in worth(loss_of(epsilon, 1e-6))


@given(st.floats(1e-6, 8), st.floats(0, 1e-3))
def test_the_figure_never_promises_too_much(mu: float, gap: float) -> None:
    """Compare with the accuracy of the likelihood-ratio test, computed by other means."""
    best = norm.cdf(mu / 2) + gap
    shown = right_guesses(Loss(mu, gap)) / 100
    assert min(best, 1) - 1e-12 <= shown < best + 0.01 + 1e-12
    assert right_guesses(Loss(mu, gap)) >= right_guesses(Loss(mu / 2, gap))


def test_the_figure_is_rounded_up_at_its_edges() -> None:
    assert right_guesses(Loss()) == 50
    assert right_guesses(Loss(1e-9)) == 51
    assert right_guesses(Loss(0.0, 1e-12)) == 51
    assert (right_guesses(Loss(0.4)), right_guesses(Loss(0.4, 0.05))) == (58, 63)
    assert right_guesses(Loss(math.inf)) == 100


@given(st.floats(0.01, 6), st.floats(0, 1e-12))
def test_a_promise_in_epsilon_covers_every_loss_behind_it(mu: float, gap: float) -> None:
    """Check that a sentence made from (epsilon, delta) holds for the noise that gave them."""
    epsilon = epsilon_with(mu, 1e-6, gap)
    assert right_guesses(loss_of(epsilon, 1e-6)) >= right_guesses(Loss(mu, gap))


def test_figures_are_rounded_up() -> None:
    assert figures(1.9941, 1 / 1_579_260, 2.9991) == (
        "epsilon 2 at delta 6.34e-07 (3 for replacing one history by another)"
    )
    assert "(no bound for replacing one history by another)" in figures(50.0, 1e-6, math.inf)
    assert Decimal(at_least(0.12345)) == Decimal("0.124")


def test_noise_from_a_seed_is_no_promise() -> None:
    said = simulated(1.0, 1e-6)
    assert said.startswith("Promised: nothing. This is a simulation")
    assert said.endswith(promise(1.0, 1e-6))
