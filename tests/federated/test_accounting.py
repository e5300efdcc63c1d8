"""Tests of privacy conversions against dp-accounting and published values."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st

from breadth import first
from privirec.federated.dp.discrete import concentrated_epsilon, distance, gaussian_variance
from privirec.federated.dp.gaussian import epsilon_of, mu_of
from privirec.federated.dp.loss import Loss, of_noise


@pytest.mark.parametrize("mu", first(2, [0.25, 1.5315, 1.0, 3.0]))
@pytest.mark.parametrize("delta", first(1, [1e-6, 1e-5, 1e-9]))
def test_one_gaussian_as_dp_accounting_has_it(mu: float, delta: float) -> None:
    """Test against privacy loss distributions, whose grid rounds up; Renyi DP gives an upper
    bound."""
    ours = Loss(mu).epsilon(delta)
    delta = of_noise(delta)
    exact = pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=1e-4)
    theirs = exact.get_epsilon_for_delta(delta)
    # dp-accounting adds probabilities in doubles: an error of 1e-16 is 1e-7 of the least delta
    # here, and epsilon changes by less than the logarithm of delta does.
    assert theirs - 0.01 < ours <= theirs + 1e-7
    renyi = RdpAccountant().compose(GaussianDpEvent(1 / mu)).get_epsilon(delta)
    assert ours < renyi
    assert ours < concentrated_epsilon(mu, delta) < renyi * (1 + 1e-6)  # over all orders


@pytest.mark.parametrize("runs", [2, 7, 30])
def test_many_gaussians_as_dp_accounting_has_them(runs: int) -> None:
    single = Loss(0.4)
    ours = Loss.together([single] * runs).epsilon(1e-6)
    one = pld.from_gaussian_mechanism(2.5, value_discretization_interval=1e-4)
    theirs = one.self_compose(runs).get_epsilon_for_delta(of_noise(1e-6))
    assert theirs * (1 - 2e-3) < ours <= theirs + 1e-6
    event = SelfComposedDpEvent(GaussianDpEvent(2.5), runs)
    assert ours < RdpAccountant().compose(event).get_epsilon(of_noise(1e-6))


def test_published_values() -> None:
    """Test Dong, Roth and Su 2022 (1-GDP is about (4.89, 1e-6)), and Balle and Wang 2018: by their
    formula, epsilon 1 and delta 1e-5 need a deviation of 3.73, where the classical bound needs
    4.84."""
    assert epsilon_of(1.0, 1e-6) == pytest.approx(4.89, abs=0.01)
    assert 1 / mu_of(1.0, 1e-5) == pytest.approx(3.73, abs=0.005)
    assert math.sqrt(2 * math.log(1.25e5)) == pytest.approx(4.84, abs=0.01)
    assert mu_of(8.0, 1e-6) == pytest.approx(1.5315, abs=1e-4)


@pytest.mark.parametrize(("deviation", "step"), [(64, 64), (64, 20), (100, 150)])
def test_whole_numbers_as_dp_accounting_has_them(deviation: int, step: int) -> None:
    """Test a discrete Gaussian on one entry that one person changes by `step` units: the stated
    epsilon is at least the one that dp-accounting computes from the probabilities."""
    exact = pld.from_discrete_gaussian_mechanism(
        deviation, sensitivity=step, value_discretization_interval=1e-4
    )
    mu = step / math.sqrt(gaussian_variance(Fraction(deviation**2)))
    for delta in (1e-4, 1e-6):
        ours = Loss(mu, distance(deviation, 1)).epsilon(delta)
        theirs = exact.get_epsilon_for_delta(of_noise(delta))
        assert theirs - 0.01 < ours
        assert ours < theirs * 1.02 + 0.01


@given(
    mus=st.lists(st.floats(0.01, 2), min_size=1, max_size=6),
    gaps=st.lists(st.floats(0, 1e-12), min_size=6, max_size=6),
    delta=st.sampled_from([1e-4, 1e-6, 1e-8]),
)
def test_losses_add_up_in_any_order_and_only_grow(
    mus: list[float], gaps: list[float], delta: float
) -> None:
    losses = [Loss(mu, gap) for mu, gap in zip(mus, gaps, strict=False)]
    total = Loss.together(losses)
    backwards = Loss.together(reversed(losses))
    assert math.isclose(total.mu, backwards.mu)
    nested = Loss.together([Loss.together(losses[:2]), Loss.together(losses[2:])])
    assert math.isclose(total.mu, nested.mu)
    assert math.isclose(total.gap, nested.gap, abs_tol=1e-30)
    assert math.isclose(total.gap, sum(one.gap for one in losses), abs_tol=1e-30)
    for one in losses:
        assert total.epsilon(delta) >= one.epsilon(delta) - 1e-9


def test_nothing_costs_nothing_and_no_noise_has_no_epsilon() -> None:
    assert Loss.together([]) == Loss()
    assert Loss().epsilon(1e-6) == Loss().epsilon_replacing(1e-6) == 0
    assert Loss(math.inf).epsilon(1e-6) == Loss(math.inf).epsilon_replacing(1e-6) == math.inf


def test_replacing_composes_on_its_own() -> None:
    """Test that a loss of which nothing more is known counts twice where a history is replaced."""
    assert Loss(0.5).replacing == 1.0
    both = Loss.together((Loss(3.0, 0.0, 5.0), Loss(4.0, 0.0, 12.0)))
    assert (both.mu, both.replacing) == (5.0, 13.0)
    assert Loss(0.5, 1e-12).epsilon_replacing(1e-6) == Loss(1.0, 1e-12).epsilon(1e-6)


@pytest.mark.parametrize("runs", [1, 5, 12])
def test_many_runs_of_whole_numbers_have_an_epsilon(runs: int) -> None:
    """Test a gap that one run can afford but many runs at a large epsilon cannot. The concentration
    of the noise then decides, and every epsilon stays near that of the continuous Gaussian."""
    one = Loss(mu_of(8, 0.99e-6), 1e-13)
    together = Loss.together([one] * runs)
    exact = Loss(together.mu).epsilon(1e-6)
    assert exact <= together.epsilon(1e-6) <= 1.15 * exact + 0.01
