"""Tests with a second noise mechanism, defined here, in place of the discrete Gaussian."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from math import isqrt
from typing import Any, ClassVar

import numpy as np
import pytest

from privirec.data.synthetic import synthetic
from privirec.errors import FederationError, UsageError
from privirec.federated import wire
from privirec.federated.contributions import NoiseShare, NoisyPopularity, PlannedSum
from privirec.federated.dp import DEFAULT_MECHANISM
from privirec.federated.dp.loss import Loss
from privirec.federated.dp.mechanism import MECHANISMS, Mechanism
from privirec.federated.programs import Protected, ProtectedSettings, program_of, settings_of
from privirec.runtime.execute import execute
from privirec.runtime.local.simulation import Simulation

BITS = 12


class EveryEntry:
    """Noise with one constant number in every entry."""

    def __init__(self, number: int) -> None:
        self.number = number

    def add(self, block: np.ndarray[Any, Any], offset: int, seeds: Iterable[bytes]) -> None:
        for _ in seeds:
            block += self.number


class Constant(Mechanism):
    """A mechanism with constant noise: its sums are known, and its privacy statement is
    invented."""

    name: ClassVar[str] = "toy constant"

    def sampler(self, deviation: int, clients: int = 1) -> EveryEntry:
        return EveryEntry(deviation * clients)

    def loss(self, deviation: int, contributors: int, fraction_bits: int, entries: int) -> Loss:
        return Loss(2.0**fraction_bits / (deviation * contributors), 0.0)

    def least_noise(
        self, square: Fraction, entries: int, contributors: int, largest_gap: float
    ) -> tuple[int, int]:
        return isqrt(int(4**BITS / square)) // contributors + 1, BITS

    def reach(self, entries: int, tail_bits: int) -> float:
        return 100.0


@pytest.fixture
def toy() -> Iterator[Mechanism]:
    made = Constant()
    MECHANISMS.register(made)
    yield made
    del MECHANISMS[made.name]


def settings(mechanism: str = DEFAULT_MECHANISM) -> ProtectedSettings:
    sizes: dict[str, Any] = {"way": "gram", "head": 20, "clients": 10, "contributors": 8}
    return ProtectedSettings(mechanism=mechanism, **sizes)


def test_a_second_mechanism_runs_through_the_simulation(toy: Mechanism) -> None:
    train = synthetic("synthetic:small").train
    program = program_of(settings(toy.name), train.n_users, train.n_items)
    components, ledger = execute(program.steps(), Simulation(train, 10))
    assert components.n_items == train.n_items
    sums = [row for row in ledger.as_rows() if row["entries"]]
    assert [row["noise"]["distribution"] for row in sums] == [toy.name] * 2
    ask = program.sums()[0].ask()
    assert isinstance(ask, NoisyPopularity)
    total = Simulation(train, 10).sum(ask, ledger)
    usual = replace(ask, mechanism=DEFAULT_MECHANISM)
    exact = next(usual.exact_blocks(Simulation(train, 10)._histories))
    assert np.array_equal(total - exact, np.full(train.n_items, 10 * ask.deviation))


def test_the_promise_is_made_of_what_the_mechanism_says(toy: Mechanism) -> None:
    program = Protected(settings(toy.name), 1000, 500)
    first, later = program.forecast()[:2]
    assert isinstance(first, PlannedSum)
    assert isinstance(later, PlannedSum)
    for planned in (first, later):
        assert planned.fixed["mechanism"] == toy.name
        entries, few = planned.shape.length, planned.fixed["contributors"]
        loss = toy.loss(planned.fixed["deviation"], few, BITS, entries)
        assert planned.protection is not None
        assert planned.protection.loss.mu == loss.mu
    assert program.loss.epsilon(program.delta) <= 8.0


def test_requests_and_settings_name_only_another_mechanism(toy: Mechanism) -> None:
    for name in (toy.name, DEFAULT_MECHANISM):
        chosen = settings(name)
        assert settings_of(chosen.model_dump()) == chosen
        ask = Protected(chosen, 1000, 500).sums()[0].ask()
        message = wire.encode(ask)
        assert wire.decode(message) == ask
        assert (b"mechanism" in message) == (name == toy.name)
        assert ("mechanism" in chosen.model_dump()) == (name == toy.name)


def test_a_default_mechanism_that_is_written_out_is_refused(toy: Mechanism) -> None:
    message = wire.encode(Protected(settings(toy.name), 1000, 500).sums()[0].ask())
    header, position = wire.FRAME.read(message)
    for given in (DEFAULT_MECHANISM, 3):
        header["fields"]["mechanism"] = given
        with pytest.raises(FederationError, match=r"canonical|not text"):
            wire.decode(wire.FRAME.head(header) + message[position:])


def test_another_mechanism_than_planned_is_refused(toy: Mechanism) -> None:
    planned = Protected(settings(), 1000, 500).sums()[0]
    ask = planned.ask()
    assert isinstance(ask, NoisyPopularity)
    other = replace(ask, mechanism=toy.name)
    with pytest.raises(FederationError, match=r"another mechanism|another length, ring or sign"):
        planned.check(other)
    with pytest.raises(FederationError, match="unknown mechanism 'mine'"):
        planned.check(replace(ask, mechanism="mine"))


@pytest.mark.parametrize("entries", [1, 1000, 10**9])
def test_a_gaussian_stays_within_its_reach_in_all_entries(entries: int) -> None:
    """Test that an entry exceeds r deviations with a probability of at most 2 exp(-r^2 / 2)."""
    reach = MECHANISMS.named(DEFAULT_MECHANISM).reach(entries, 64)
    assert math.log2(2 * entries) - reach**2 / 2 / math.log(2) == pytest.approx(-64, abs=1e-9)


def test_names_are_known_and_given_once(toy: Mechanism) -> None:
    with pytest.raises(UsageError, match="there is a mechanism 'toy constant' already"):
        MECHANISMS.register(Constant())
    with pytest.raises(UsageError, match="no mechanism 'mine'; there are discrete Gaussian, toy"):
        MECHANISMS.named("mine")
    with pytest.raises(ValueError, match="no mechanism of this name; there are discrete Gaussian"):
        settings("mine")
    assert NoiseShare(40, 10, 9, BITS).mechanism == DEFAULT_MECHANISM
