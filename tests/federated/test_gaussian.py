"""Tests of noise levels against published values, and of integer noise against the Gaussian."""

from __future__ import annotations

import math
import sys
from decimal import Decimal
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from privirec.errors import UsageError
from privirec.federated.dp import discrete, normal
from privirec.federated.dp.discrete import (
    LEAST_TOTAL_DEVIATION,
    concentrated_epsilon,
    distance,
    epsilon_with,
    gaussian_variance,
)
from privirec.federated.dp.gaussian import (
    LARGEST_EPSILON,
    LEAST_EPSILON,
    composed,
    delta_for,
    delta_of,
    epsilon_of,
    mu_of,
)
from privirec.federated.dp.loss import Loss, of_noise

levels = st.floats(0.05, 6)
deltas = st.floats(-9, -3).map(lambda power: 10**power)


@pytest.mark.parametrize(
    ("mu", "delta", "epsilon"),
    [
        (1.0, 1e-6, 4.8866),
        (1.5315, 1e-6, 8.0),
        # Balle and Wang 2018: deviation 3.730632 for epsilon 1, delta 1e-5, length 1.
        (1 / 3.730632, 1e-5, 1.0),
    ],
)
def test_published_values(mu: float, delta: float, epsilon: float) -> None:
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=2e-3)


def exact_delta(epsilon: float, mu: float) -> mpmath.mpf:
    """Return delta by the same formula, in 60 digits."""
    level, wanted = mpmath.mpf(mu), mpmath.mpf(epsilon)
    first = mpmath.ncdf(level / 2 - wanted / level)
    return first - mpmath.exp(wanted) * mpmath.ncdf(-level / 2 - wanted / level)


@given(st.floats(0, 60), st.floats(-5, 1).map(lambda power: 10**power))
@example(8.0, 1.5315)
@example(60.0, 0.9)
def test_delta_is_rounded_up(epsilon: float, mu: float) -> None:
    with mpmath.workdps(400):  # the difference of two numbers that agree in hundreds of digits
        exact = exact_delta(epsilon, mu)
        found = mpmath.mpf(delta_of(epsilon, mu))
        assert found >= exact
        assert found <= exact * (1 + mpmath.mpf(2) ** -51) or found < 1e-300


@given(st.floats(-320, -20).map(lambda power: 10**power), st.floats(0, 40))
@example(1e-60, 0.0)
@example(7e-39, 0.0)
@example(2.0**-1074, 1.0)
def test_delta_of_a_tiny_level_is_rounded_up(mu: float, apart: float) -> None:
    """Test where both terms of the formula agree in more digits than are computed."""
    with mpmath.workdps(800):
        epsilon = apart * mu
        assert mpmath.mpf(delta_of(epsilon, mu)) >= exact_delta(epsilon, mu) > 0
        assert delta_of(1.0, mu) > 0


@given(
    st.floats(-320, -5).map(lambda power: 10**power),
    st.floats(-320, -5).map(lambda power: 10**power),
)
@example(1e-45, 1e-46)
@example(4.088e-33, 1.338e-118)
@example(2.0**-1074, 2.0**-1074)
def test_epsilon_of_a_tiny_level_is_found(mu: float, delta: float) -> None:
    with mpmath.workdps(800):
        epsilon = epsilon_of(mu, delta)
        assert exact_delta(epsilon, mu) <= delta
    assert epsilon <= 60 * mu or epsilon <= 2e-308


@given(st.floats(0.05, 6), deltas)
def test_an_epsilon_is_rounded_up_and_a_level_down(mu: float, delta: float) -> None:
    with mpmath.workdps(60):
        epsilon = epsilon_of(mu, delta)
        if 0 < epsilon < math.inf:
            assert exact_delta(epsilon, mu) <= delta
            assert exact_delta(epsilon * (1 - 1e-12), mu) > delta
        if LEAST_EPSILON <= epsilon < math.inf:
            level = mu_of(epsilon, delta)
            assert exact_delta(epsilon, level) <= delta
            assert exact_delta(epsilon, level * (1 + 1e-12)) > delta


sizes = st.floats(-323, 308).map(lambda power: 10.0**power)


@given(st.lists(st.floats(1e-9, 1e3), max_size=20) | st.lists(sizes, max_size=5))
@example([1e-200])
@example([1e200])
@example([2.0**-1074, 2.0**-1074])
@example([1.7e308, 1.7e308])
def test_levels_are_composed_upwards(parts: list[float]) -> None:
    square = sum((Fraction(mu) ** 2 for mu in parts), Fraction(0))
    found = composed(parts)
    if math.isinf(found):
        assert square > Fraction(sys.float_info.max) ** 2
        return
    assert Fraction(found) ** 2 >= square
    assert found == 0 or Fraction(math.nextafter(found, 0)) ** 2 < square


@given(st.lists(st.floats(0, 1e-6), max_size=20))
def test_sums_are_rounded_up(parts: list[float]) -> None:
    exact = sum(map(Fraction, parts), Fraction(0))
    found = normal.sum_upward(parts)
    assert exact <= Fraction(found)
    assert found == 0 or Fraction(math.nextafter(found, 0)) < exact


@given(levels, deltas, st.floats(-18, -9).map(lambda power: 10**power))
def test_epsilon_with_a_gap_holds_in_exact_arithmetic(mu: float, delta: float, gap: float) -> None:
    epsilon = epsilon_with(mu, delta, gap)
    concentrated = concentrated_epsilon(mu, delta)
    assert epsilon <= concentrated
    with mpmath.workdps(60):
        if epsilon < concentrated:
            paid = (1 + mpmath.exp(mpmath.mpf(epsilon))) * mpmath.mpf(gap)
            assert exact_delta(epsilon, mu) + paid <= delta


@pytest.mark.parametrize("mu", [0.01, 0.3, 0.5, 0.7, 0.9, 1.0, 1.1, 1.3, 2.0, 3.0])
def test_what_a_gap_leaves_of_delta_is_rounded_down(mu: float) -> None:
    """Test a gap of a third of delta's last place, which rounding to nearest would lose."""
    delta = delta_of(0.0, mu)
    gap = math.ulp(delta) / 5
    assert delta - 2 * gap == delta
    epsilon = epsilon_with(mu, delta, gap)
    with mpmath.workdps(60):
        paid = (1 + mpmath.exp(mpmath.mpf(epsilon))) * mpmath.mpf(gap)
        assert exact_delta(epsilon, mu) + paid <= delta


def test_the_cost_of_a_gap_is_rounded_up() -> None:
    """Test that the cost is rounded up. At the first epsilon, the cost rounded to the nearest
    double leaves one last place of delta, enough for the Gaussian; the exact cost leaves too
    little."""
    step = Fraction(discrete._FIRST_STEP)
    gap = 1e-8  # from a delta of e^-17 on, the concentrated epsilon of a tiny level is zero
    while True:
        cost = (2 + step + step**2 / 2) * Fraction(gap)  # e^x, up to 10^-37
        nearest = float(cost)
        place = math.ulp(nearest)
        if (cost - Fraction(nearest)) / Fraction(place) > Fraction(2, 5):
            break
        gap += 1e-13
    delta = nearest + place
    mu = normal.root(
        lambda level: Decimal(delta_of(float(step), level)) - Decimal(place), 1e-13, 1e-12
    )
    assert 0.9 * place < delta_of(float(step), mu) < place
    epsilon = epsilon_with(mu, delta, gap)
    with mpmath.workdps(60):
        paid = (1 + mpmath.exp(mpmath.mpf(float(step)))) * mpmath.mpf(gap)
        assert exact_delta(float(step), mu) + paid > delta
    assert epsilon == concentrated_epsilon(mu, delta) > step


@pytest.mark.parametrize(
    ("mu", "delta"),
    [(2.5066282746316563e-06, 1e-6), (1.0, delta_of(0.0, 1.0)), (6.0, delta_of(0.0, 6.0))],
)
def test_the_search_for_epsilon_leaves_zero(mu: float, delta: float) -> None:
    """Test where epsilon zero meets delta exactly, but not the next smaller double, which the
    search needs."""
    epsilon = epsilon_with(mu, delta, 0.0)
    assert 0 < epsilon <= 1e-9
    assert delta_of(epsilon, mu) <= delta


def test_a_gap_alone_is_paid_from_delta_or_has_no_epsilon() -> None:
    half = of_noise(1e-6) / 2
    assert Loss(0.0, half).epsilon(1e-6) == 0
    assert Loss(0.0, math.nextafter(half, 1)).epsilon(1e-6) == math.inf
    assert Loss(0.0, 0.5).epsilon(1e-6) == math.inf
    assert Loss(0.0, 0.0).epsilon(1e-6) == 0


@given(levels, deltas)
def test_there_and_back(mu: float, delta: float) -> None:
    epsilon = epsilon_of(mu, delta)
    assert delta_of(epsilon, mu) <= delta
    if 0 < epsilon < 100:
        assert delta_of(epsilon * 0.999, mu) > delta
        assert mu_of(epsilon, delta) == pytest.approx(mu, rel=1e-6)
        assert epsilon_of(mu_of(epsilon, delta), delta) <= epsilon * (1 + 1e-12)


@given(st.floats(1e-4, 60), st.floats(-30, -1e-9).map(lambda power: 10**power))
def test_the_level_of_any_promise_keeps_it(epsilon: float, delta: float) -> None:
    """Test against the same formula in arbitrary precision."""
    with mpmath.workdps(60):
        mu = mu_of(epsilon, delta)
        assert mu > 0
        assert exact_delta(epsilon, mu) <= delta


@given(st.lists(levels, min_size=1, max_size=5), deltas)
def test_more_releases_are_never_more_private(parts: list[float], delta: float) -> None:
    together = composed(parts)
    assert together >= max(parts)
    assert epsilon_of(together, delta) >= max(epsilon_of(mu, delta) for mu in parts) - 1e-9


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, 1e9, math.inf])
def test_a_promise_that_is_none(bad: float) -> None:
    with pytest.raises(UsageError, match="epsilon"):
        mu_of(bad, 1e-6)
    with pytest.raises(UsageError, match="delta"):
        mu_of(1.0, bad)


@pytest.mark.parametrize("deviation", [4, 8, 16, 32])
def test_whole_numbers_are_as_near_as_stated(deviation: int) -> None:
    """Test the divergence of the discrete from the rounded Gaussian, by quadrature in long
    doubles."""
    real = np.longdouble
    nodes, weights = np.polynomial.legendre.leggauss(24)
    spread = nodes.astype(real) / 2
    x = np.arange(-12 * deviation, 12 * deviation + 1).astype(real)
    smaller = real(deviation) ** 2 - real(1) / 12
    # log of (probability of rounding to x) / (density at x), over a unit interval.
    exponent = -np.outer(spread, x) / smaller - (spread**2 / (2 * smaller))[:, None]
    rounded = np.log1p((weights.astype(real) / 2) @ np.expm1(exponent))
    ratio = rounded - x**2 / 2 * (1 / smaller - 1 / real(deviation) ** 2)
    chance = np.exp(-(x**2) / (2 * real(deviation) ** 2))
    chance /= chance.sum()
    ratio -= (chance * ratio).sum()
    divergence = float((chance * ratio**2).sum() / 2)
    assert divergence * 691_200 * deviation**8 == pytest.approx(1, rel=1e-3)
    total_variation = float((chance * np.abs(np.expm1(ratio))).sum() / 2)
    assert total_variation < 2 / (1175 * deviation**4)
    assert math.sqrt(divergence / 2) < 2 / (1175 * deviation**4)


@pytest.mark.parametrize(("deviation", "entries"), [(64, 1), (64, 10_000), (1000, 500_500)])
def test_the_distance_is_the_one_that_was_shown(deviation: int, entries: int) -> None:
    """Test against twice Pinsker's bound on the divergence of the test above; it grows with the
    entries."""
    pinsker = math.sqrt(entries / 691_200 / deviation**8 / 2)
    assert distance(deviation, entries) == pytest.approx(2 * pinsker, rel=1e-3)


@pytest.mark.parametrize(
    ("mu", "gap"), [(0.1, 3e-7), (1.0, 1e-9), (1.5, 1e-11), (1.5, 0.0), (0.01, 1e-10)]
)
def test_a_gap_is_paid_on_both_sides(mu: float, gap: float) -> None:
    """Test that a gap costs one distance for the outcomes with a person plus e^epsilon distances
    for those without, and that epsilon is the least one at which this fits into delta."""

    def paid(epsilon: float) -> float:
        return delta_of(epsilon, mu) + (1 + math.exp(epsilon)) * gap

    found = epsilon_with(mu, 1e-6, gap)
    assert found < concentrated_epsilon(mu, 1e-6)
    assert paid(found) <= 1e-6
    assert paid(found * 0.999) > 1e-6


def test_no_figure_beyond_what_can_be_shown() -> None:
    """Test the limit of epsilon: the sampler's tables are wrong by at most 2^-160 for each of 2^16
    values, in each of up to 2^26 draws of a client; e^epsilon times that must be negligible next to
    delta."""
    assert math.exp(LARGEST_EPSILON) * 2.0 ** (-160 + 16 + 26) < 0.01 * 1e-6
    largest = mu_of(LARGEST_EPSILON, 1e-6)
    assert epsilon_of(largest, 1e-6) <= LARGEST_EPSILON
    for level in (1.1 * largest, 1e3, 1e9):
        assert epsilon_of(level, 1e-6) == math.inf
        assert concentrated_epsilon(level, 1e-6) == math.inf
        assert epsilon_with(level, 1e-6, 1e-15) == math.inf


def test_no_step_of_the_search_leads_beyond_what_can_be_shown() -> None:
    mu = mu_of(LARGEST_EPSILON * (1 - 0.5e-9), 1e-6)
    assert LARGEST_EPSILON * (1 - 1e-9) < epsilon_of(mu, 1e-6) < LARGEST_EPSILON
    assert epsilon_with(mu, 1e-6, 1e-41) == math.inf


def test_what_discreteness_costs() -> None:
    mu, delta = mu_of(8, 0.99e-6), 1e-6
    assert distance(1000, 500_500) < 3e-12
    assert 0 < epsilon_with(mu, delta, distance(1000, 500_500)) <= 8
    assert epsilon_with(mu, delta, 1e-6) == concentrated_epsilon(mu, delta) > 8.5
    assert gaussian_variance(Fraction(64**2)) < 64**2
    with pytest.raises(UsageError, match="too coarse"):
        distance(LEAST_TOTAL_DEVIATION - 1, 1)


@pytest.mark.check
def test_epsilon_is_found_in_few_steps_where_the_gap_eats_delta(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Test 30,000 people and two runs. At some mu near which the search passes, the gap takes
    exactly all of delta, and a search in steps of 1e-9 would not end."""
    exact, asked = discrete.epsilon_of, 0

    def counted(mu: float, delta: float) -> float:
        nonlocal asked
        asked += 1
        assert asked < 100
        return exact(mu, delta)

    monkeypatch.setattr(discrete, "epsilon_of", counted)
    low, high = 3.0, 3.3
    for _ in range(50):
        mu, asked = (low + high) / 2, 0
        found = epsilon_with(mu, 1e-6, 1.5e-15)
        assert exact(mu, 1e-6) <= found <= concentrated_epsilon(mu, 1e-6)
        low, high = (mu, high) if found < concentrated_epsilon(mu, 1e-6) else (low, mu)
    assert 3.1 < low < 3.2


@given(st.integers(1, 1 << 40))
def test_the_default_delta_is_at_most_a_tenth_per_person(people: int) -> None:
    delta = delta_for(people)
    assert Fraction(delta) <= Fraction(1, 10 * people)
    assert delta <= 1e-6
    assert delta == 1e-6 or Fraction(math.nextafter(delta, 1.0)) > Fraction(1, 10 * people)


def test_the_default_delta_has_the_same_bits_everywhere() -> None:
    assert (delta_for(1), delta_for(99_999)) == (1e-6, 1e-6)
    assert delta_for(157_926).hex() == "0x1.53f37068d0389p-21"
