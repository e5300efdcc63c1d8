"""Tests of seeded runs over a bad network."""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from privirec.secagg import ServerModel, protocol, protocol_names
from privirec.secagg.uploads import Uploads
from secagg.testing import CALM, Scenario, SimulationFailure, Weather, bad_network, simulate
from secagg.testing.lies import lie_of


def scenario(seed: int, name: str | None = None) -> Scenario:
    """Return a different federation for every seed. In one of four the server lies, and the clients
    of every second one expect that."""
    return Scenario(
        protocol=name or ("secagg+", "secagg")[seed % 2],
        clients=6 + seed % 7,
        server=tuple(ServerModel)[seed // 2 % 2],
        sums=1 + seed % 3,
        weather=Weather(dies=(0.0, 0.01, 0.03)[seed % 5 % 3], lies=0.05 if seed % 4 == 3 else 0.0),
    )


def test_in_calm_weather_every_run_finishes() -> None:
    names = ("secagg+", "secagg", "lightsecagg", "none")
    for name, server in itertools.product(names, ServerModel):
        outcome = simulate(0, Scenario(name, sums=3, server=server, weather=CALM))
        assert outcome.error is None
        assert len(outcome.sums) == 3
        assert outcome.survivors == [tuple(range(12))] * 3
        assert not outcome.refusals


def test_a_seed_replays() -> None:
    one, other = simulate(7, scenario(7)), simulate(7, scenario(7))
    assert one.transcript == other.transcript
    assert repr(one.error) == repr(other.error)
    assert one.transcript != simulate(15, scenario(7)).transcript


def run_many(seeds: range, name: str | None = None) -> tuple[Counter[str], Counter[str], int]:
    endings: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    lies = 0
    for seed in seeds:
        outcome = simulate(seed, scenario(seed, name))  # checks every promise
        endings[type(outcome.error).__name__] += 1
        refusals += outcome.refusals
        lies += outcome.lies_told
    return endings, refusals, lies


def test_forty_runs() -> None:
    endings, refusals, lies = run_many(range(40))
    assert endings["NoneType"] >= 10
    assert endings["CohortChanged"] >= 3
    assert refusals["ReplayedMessage"] > 50
    assert lies > 3


def test_forty_runs_of_lightsecagg() -> None:
    endings, refusals, lies = run_many(range(40), "lightsecagg")
    assert endings["NoneType"] >= 10
    assert endings["CohortChanged"] >= 3
    assert refusals["ReplayedMessage"] > 50
    assert lies > 3


def test_twenty_runs_without_masks() -> None:
    endings: Counter[str] = Counter()
    lies = 0
    for seed in range(20):
        weather = Weather(dies=0.01, lies=0.05 if seed % 4 == 3 else 0.0)
        outcome = simulate(seed, Scenario("none", weather=weather))
        endings[type(outcome.error).__name__] += 1
        lies += outcome.lies_told
    assert endings["NoneType"] >= 5
    assert endings["CohortChanged"] >= 1
    assert lies > 3


@pytest.mark.long
def test_a_thousand_runs() -> None:
    endings, refusals, lies = run_many(range(1000, 2000))
    assert sum(endings.values()) == 1000
    assert endings["NoneType"] > 300
    assert {"CohortChanged", "TooManyDropped"} <= endings.keys()
    assert lies > 200
    assert {"BadSignature", "WeakParameters", "NotInGraph", "TooManyDropped"} <= refusals.keys()
    assert {"KeysNotInGraph", "Unconfirmed"} <= refusals.keys()
    print(f"a thousand runs over a bad network, {lies} lies told: {dict(endings)}")


@pytest.mark.long
def test_a_thousand_runs_of_lightsecagg() -> None:
    endings, refusals, lies = run_many(range(3000, 4000), "lightsecagg")
    assert sum(endings.values()) == 1000
    assert endings["NoneType"] > 300
    assert {"CohortChanged", "TooManyDropped", "BelowThreshold"} <= endings.keys()
    assert lies > 200
    believed_by_nobody = {"BadSignature", "WeakParameters", "BadShare", "BadKey", "NotInGraph"}
    assert believed_by_nobody | {"CohortTooSmall", "CohortChanged"} <= refusals.keys()


def test_a_broken_promise_names_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test that a double count is detected: the server adds a vector twice."""
    honest = Uploads.add

    def twice(self: Uploads, offset: int, block: np.ndarray) -> None:
        honest(self, offset, block)
        if offset == 0 and not self.arrived:
            honest(self, offset, block)

    monkeypatch.setattr(Uploads, "add", twice)
    with pytest.raises(SimulationFailure, match=r"simulate\(3, Scenario"):
        simulate(3, Scenario(weather=CALM))


@pytest.mark.parametrize(
    ("deviation", "error", "good"), [(0.0, 1, False), (1.0, 7, True), (1.0, 8, False)]
)
def test_noise_is_tolerated_as_far_as_the_protocol_states_it(
    deviation: float, error: int, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = simulate(3, Scenario(weather=CALM))
    outcome.sums[1][5] += error
    noisy = replace(protocol("secagg+"), deviation=lambda *_: deviation)
    monkeypatch.setattr(bad_network, "protocol", lambda _name: noisy)
    with nullcontext() if good else pytest.raises(AssertionError, match="sum 2 is wrong by"):
        bad_network.check(outcome)


def test_every_protocol_has_lies_to_tell() -> None:
    for name in protocol_names():
        assert callable(lie_of(name))


def test_a_believed_lie_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    from privirec.secagg import bell2020

    monkeypatch.setattr(bell2020.BellClient, "check_survivors", lambda *_: None)
    liar = Scenario(weather=Weather(late=0, lost=0, duplicated=0, dies=0, restarts=0, lies=0.05))
    failures = 0
    for seed in range(20):
        try:
            simulate(seed, liar)
        except SimulationFailure as failure:
            failures += "lie was believed" in str(failure)
        except KeyError:
            continue
    assert failures > 0
