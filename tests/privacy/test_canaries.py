"""Tests of canaries: artificial people in runs of real clients, and the bounds from one run."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from privirec.app.audit import AskedAgain, is_refuted, release_of
from privirec.app.real_clients import CLIENTS, through_clients
from privirec.data import Dataset
from privirec.federated.contributions import Histories, NoisyPopularity
from privirec.federated.contributions.noisy import NormedSum
from privirec.federated.dp.discrete_gaussian import DISCRETE_GAUSSIAN
from privirec.federated.dp.gaussian import epsilon_of
from privirec.federated.programs import ProtectedSettings
from privirec.federated.programs.calibration import Calibration, Promise
from privirec.privacy.attacks import Test
from privirec.privacy.attacks.canaries import Canaries, Choice, guessed, people_with
from privirec.privacy.attacks.one_run import empirical_epsilon, least_epsilon, p_value
from privirec.runtime.spec import Assumptions


@pytest.mark.parametrize("way", ["gram", "power"])
def test_canaries_bound_epsilon_from_below(small: Dataset, way: str) -> None:
    """Test one run of real clients, and the same without noise, which must look worse."""
    given = {"epsilon": 8.0, "head": 270, "way": way}
    facts = Canaries(runs=1).run(release_of("protected", small, given)).facts
    assert 0.3 < facts["empirical_epsilon"] < facts["promised_epsilon"] <= 8.0
    assert facts["empirical_epsilon_gaussian"] < facts["promised_epsilon"]
    assert 0.3 < facts["empirical_epsilon_replacing"] < facts["promised_epsilon_replacing"]
    assert not is_refuted(facts)
    assert is_refuted(facts | {"empirical_epsilon": 8.01})
    assert is_refuted(facts | {"empirical_epsilon_replacing": 20.0})
    seen = Canaries(runs=1).run(release_of("protected", small, given, noise=False)).facts
    assert seen["guesses_right"] == seen["guesses"]
    assert seen["empirical_epsilon"] >= facts["empirical_epsilon"]
    assert seen["empirical_epsilon_gaussian"] > 8.5


def noisy_popularity(epsilon: float, n_items: int) -> NoisyPopularity:
    """Return the popularity of a protected run that is all of the run's budget."""
    share = Calibration.of(Promise(epsilon, 1e-6, 20, 15), [1.0], [n_items]).shares[0]
    ask = NoisyPopularity.planned(n_items, n_items, share).ask()
    assert isinstance(ask, NoisyPopularity)
    return ask


@pytest.mark.parametrize("broken", [False, True])
def test_half_the_noise_refutes_the_promise(
    small: Dataset, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    """Test a sampler with half the deviation. One run of real clients with many canaries refutes
    the promise, without any assumption about the noise; with the right sampler it does not."""
    epsilon, n_items = 2.0, 100_000
    ask = noisy_popularity(epsilon, n_items)
    if broken:
        monkeypatch.setattr(
            NormedSum,
            "_sampler",
            lambda self, clients=1: DISCRETE_GAUSSIAN.sampler(self.deviation // 2, clients),
        )
    items = np.arange(n_items, dtype=np.int32)
    choice = Choice(list(items[:, None]), [items[:0]] * n_items)
    federation = AskedAgain(small.train, ProtectedSettings())
    found = empirical_epsilon(guessed(federation, [ask], choice, 1, 7), 1e-6)
    assert (found["empirical_epsilon"] > epsilon) == broken
    assert (found["empirical_epsilon_gaussian"] > epsilon + 1) == broken


def test_real_clients_leave_the_noise_that_the_promise_counts_on() -> None:
    """Test that drop-outs and clients that work for the attacker take their noise away, and that
    nothing but noise and people is in a sum."""
    ask = noisy_popularity(4.0, 20_000)
    people = people_with([np.array([5, 7], np.int32), np.zeros(0, np.int32)] * 9, 20_000)
    (heard,) = through_clients([ask], people, 3)
    assert heard.ask.contributors == Assumptions().contributors(CLIENTS)
    assert heard.deviation == pytest.approx(heard.ask.share.protecting_deviation)
    noise = heard.left - heard.ask.total(Histories(people.matrix), [])
    assert np.std(noise) == pytest.approx(heard.deviation, rel=0.02)
    assert abs(noise[5]) < 6 * heard.deviation
    assert heard.ask.share.protection(20_000).loss.mu <= ask.share.protection(20_000).loss.mu
    (exact,) = through_clients([ask], people, 3, noise=False)
    np.testing.assert_array_equal(exact.left, exact.ask.total(Histories(people.matrix), []))


def test_canaries_have_histories_of_all_lengths() -> None:
    items = np.arange(0, 200, 2, dtype=np.int32)
    choice = Choice.all_or_nothing(items)
    assert {len(one) for one in choice.first} == {0, 1, 2, 5, 10}
    assert {len(one) for one in choice.second} == {0}
    together = np.concatenate(choice.first)
    assert len(np.unique(together)) == len(together) > 90  # no two have an item in common
    either = Choice.one_or_another(items)
    assert all(
        a[0] == b[0] and a[1] != b[1] for a, b in zip(either.first, either.second, strict=True)
    )
    assert Choice.one_or_another(items[:2]).first == []


def test_no_canaries_bound_nothing() -> None:
    nobody = empirical_epsilon(Test(np.zeros(0), np.zeros(0, bool)), 1e-6)
    assert nobody["empirical_epsilon"] == nobody["empirical_epsilon_gaussian"] == 0
    blind = empirical_epsilon(Test(np.zeros(100), np.arange(100) < 50), 1e-6)
    assert blind["empirical_epsilon"] == blind["empirical_epsilon_gaussian"] == 0


def test_the_published_value_of_the_bound() -> None:
    """Test the example of Steinke, Nasr and Jagielski 2023, appendix D."""
    assert least_epsilon(1000, 100, 75, 1e-4, 0.05) == pytest.approx(0.673, abs=5e-4)
    assert least_epsilon(1000, 100, 50, 1e-4, 0.05) == 0.0


@given(
    st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))),
    st.floats(0, 6),
    st.sampled_from([0.0, 1e-6, 1e-3]),
)
def test_the_p_value_is_the_sum_over_all_outcomes(
    guesses: tuple[int, int], epsilon: float, delta: float
) -> None:
    n, right = guesses
    chance = 1 / (1 + math.exp(-epsilon))
    mass = binom.pmf(np.arange(n + 1), n, chance)
    steepest = max((mass[right - i : right].sum() / i for i in range(1, right + 1)), default=0.0)
    expected = min(1.0, mass[right:].sum() + 2 * 100 * delta * steepest)
    assert float(p_value(100, n, right, epsilon, delta)) == pytest.approx(expected, rel=1e-9)


def test_the_bound_holds_with_the_confidence_that_it_claims() -> None:
    """Test randomised response, for which the bound is tight, and Gaussian scores."""
    rng = np.random.default_rng(0)
    epsilon, mu, delta = 1.0, 1.0, 1e-5
    right = rng.binomial(200, 1 / (1 + math.exp(-epsilon)), 400)
    bounds = {int(v): least_epsilon(200, 200, int(v), 0.0, 0.05) for v in set(right.tolist())}
    assert sum(bounds[int(v)] > epsilon for v in right) <= 30
    too_high = 0
    for _ in range(40):
        took_part = rng.random(2000) < 0.5
        scores = rng.normal(size=2000) + mu * (took_part - 0.5)
        found = empirical_epsilon(Test(scores, took_part), delta)
        assert found["empirical_epsilon"] < epsilon_of(mu, delta)
        too_high += found["empirical_epsilon_gaussian"] > epsilon_of(mu, delta)
    assert too_high <= 6
