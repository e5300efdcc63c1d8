"""Tests of the limits of a budget: whatever a server chooses, they hold."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from privirec.federated.dp.discrete import concentrated_epsilon
from privirec.federated.dp.gaussian import delta_of, mu_of, root_downward
from privirec.federated.dp.loss import LARGEST_GAP, Loss
from privirec.federated.dp.normal import exp, upward
from privirec.federated.programs.calibration import Promise
from privirec.privacy.accountant import Account, Limit, Room, Spent
from privirec.privacy.policy import YEAR, Policy

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
DELTA = 1e-6


def spent(loss: Loss, days: float) -> Spent:
    return Spent(BEGIN + timedelta(days=days), "run", 1, "noisy-popularity", "server", loss)


def test_defaults_allow_monthly_runs_for_years() -> None:
    life, year = Policy().limits
    usual = Promise(2.0, DELTA, 1, 1).mu
    assert year.runs(usual) >= 13  # thirteen runs in 365 days if a month has 30
    assert life.runs(usual) >= 3 * 12
    account, now = Account(), BEGIN
    for _ in range(3 * 12):
        assert all(limit.admits(account, Loss(usual), now) for limit in (life, year))
        account = Account((*account.sums, spent(Loss(usual), (now - BEGIN).days)))
        now += timedelta(days=30)


@pytest.mark.parametrize("delta", [1e-6, 1e-8])
@pytest.mark.parametrize("epsilon", [0.01, 1, 4, 9, 14, 16, 20, 60])
def test_a_cap_keeps_its_epsilon(epsilon: float, delta: float) -> None:
    cap = Loss.allowed(epsilon, delta)
    if cap.gap == LARGEST_GAP:
        for_gaps = (1 + Fraction(upward(exp(epsilon)))) * Fraction(cap.gap)
        assert Fraction(delta_of(epsilon, cap.mu)) + for_gaps <= Fraction(delta)
        assert cap.epsilon(delta) <= epsilon * (1 + 1e-6)  # its search may end a little higher
        assert cap.mu > 0.97 * mu_of(epsilon, delta)
    else:
        assert concentrated_epsilon(cap.mu, delta) <= epsilon
        assert cap.mu > 0.94 * mu_of(epsilon, delta)


@pytest.mark.parametrize("epsilon", [0.1, 1, 2, 4, 8, 10])
def test_a_limit_admits_a_run_of_its_own_epsilon(epsilon: float) -> None:
    assert Loss(Promise(epsilon, DELTA, 1, 1).mu, 1e-14).fits(Loss.allowed(epsilon, DELTA))


def test_gaps_have_a_cap_of_their_own() -> None:
    cap = Loss.allowed(9, DELTA)
    assert Loss(0.1, LARGEST_GAP).fits(cap)
    assert not Loss(0.1, 2 * LARGEST_GAP).fits(cap)
    assert Loss(0.1, 2 * LARGEST_GAP).left(cap) == 0


@given(
    st.lists(
        st.tuples(st.floats(1e-4, 2), st.floats(0, 1e-13), st.floats(0, 100)),
        min_size=1,
        max_size=30,
    ),
    st.sampled_from([1.0, 4.0, 9.0, 16.0]),
    st.sampled_from([None, YEAR]),
)
def test_no_choice_of_runs_exceeds_a_limit(
    asked: list[tuple[float, float, float]], epsilon: float, window: timedelta | None
) -> None:
    """Ask for any sums at any times, and look back at every window."""
    limit = Limit("a", epsilon, DELTA, window)
    account, now = Account(), 0.0
    for mu, gap, days in asked:
        now += days
        more, at = Loss(mu, gap), BEGIN + timedelta(days=now)
        if limit.admits(account, more, at):
            account = Account((*account.sums, spent(more, now)))
        elif window is None:
            left = limit.left(account, at)
            assert left < mu or limit.spent(account, at).gap + gap > limit.cap.gap
    for one in account.sums:
        inside = limit.spent(Account.of(x for x in account.sums if x.at <= one.at), one.at)
        assert inside.fits(limit.cap)
        assert inside.epsilon(DELTA) <= epsilon * (1 + 1e-6)


@given(
    st.floats(0.05, 0.99),
    st.lists(st.tuples(st.floats(-4, 4), st.floats(0, 1)), min_size=1, max_size=4),
    st.sampled_from([1.0, 4.0, 9.0, 20.0]),
)
def test_a_server_that_chooses_by_earlier_results_learns_no_more(
    first: float, choices: list[tuple[float, float]], epsilon: float
) -> None:
    """Compute delta of an adaptive attack exactly, by integration over the first result.

    The attacker sees a first noisy number. By the interval that it falls into, the attacker
    chooses which part of the remaining budget the second one spends. No choice reaches more than
    the delta of the limit.
    """
    cap = Loss.allowed(epsilon, DELTA).mu
    mu = first * cap
    left = np.sqrt(cap**2 - mu**2)
    x = np.linspace(mu - 12, mu + 12, 20_001)
    level = np.full(x.shape, left)
    for start, share in choices:
        level = np.where(x > mu / 2 + start, max(share, 1e-9) * left, level)
    rest = epsilon - (mu * x - mu**2 / 2)  # epsilon that is left after the first result
    second = norm.cdf(level / 2 - rest / level) - np.exp(
        rest + norm.logcdf(-level / 2 - rest / level)
    )
    density = norm.pdf(x - mu)
    delta = np.sum(density * np.maximum(second, 0)) * (x[1] - x[0])
    assert delta <= DELTA * (1 + 1e-3)  # the sum stands for an integral


@given(st.fractions(min_value=0, max_value=10**6))
def test_a_root_is_rounded_down(square: Fraction) -> None:
    root = root_downward(square)
    assert Fraction(root) ** 2 <= square < Fraction(np.nextafter(root, np.inf).item()) ** 2


def test_room_returns_when_a_run_leaves_the_year() -> None:
    limits = Policy(most_epsilon=20, most_epsilon_per_year=5).limits
    run = Loss(Promise(3.5, DELTA, 1, 1).mu)
    account = Account((spent(run, 0), spent(Loss(0.1), 100)))
    now = BEGIN + timedelta(days=101)
    room = Room.of(limits, account, run, now)
    assert 2 < room.epsilon(DELTA) < 3.5
    assert room.until == BEGIN + timedelta(days=365, seconds=1)
    assert room.day == "2027-01-02"
    assert all(limit.admits(account, run, room.until) for limit in limits)
    fitting = Loss(Promise(room.epsilon(DELTA), DELTA, 1, 1).mu)
    assert all(limit.admits(account, fitting, now) for limit in limits)
    never = Room.of(limits, account, Loss(4.0), now)
    assert (never.until, never.day) == (None, "")


@given(st.floats(1e-3, 3))
def test_the_room_in_epsilon_fits(level: float) -> None:
    epsilon = Room(level).epsilon(DELTA)
    assert Promise(epsilon, DELTA, 1, 1).mu <= level if epsilon else level < 1e-3
    assert Promise(1.02 * epsilon, DELTA, 1, 1).mu > level
    assert Room(Promise(2.0, DELTA, 1, 1).mu).epsilon(DELTA) == 2.0
