"""Tests of clients' noise: in every runtime's sum, bit for bit, and in the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privirec.data import Interactions
from privirec.errors import FederationError, OverflowRefused
from privirec.federated import contributions, programs
from privirec.federated.contributions import (
    ClientContext,
    Contribution,
    Histories,
    Integers,
    PlannedSum,
    SumShape,
    base,
)
from privirec.federated.fixed_point import FixedPoint
from privirec.federated.noise import AddedNoise, Noise, noise_of
from privirec.federated.programs import Planned, Program, ProgramSettings, Steps
from privirec.federated.randomness import NO_RANDOMNESS, ClientStream, RandomStream
from privirec.filters.components import Components
from privirec.filters.operators import LowRankOperator
from privirec.privacy.policy import Policy
from privirec.runtime.coordinator import Stage
from privirec.runtime.execute import Runtime, execute
from privirec.runtime.local.client import clients_of
from privirec.runtime.local.in_process import InProcess
from privirec.runtime.local.secure import SecureInProcess
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.spec import RunSpec

from .chaos import Federation
from .test_node import Talk

REACH = 50


@dataclass(frozen=True)
class NoisyDegrees(Contribution):
    """Item degrees, to which every client adds integers from -REACH to REACH."""

    name: ClassVar[str] = "toy-noisy-degrees"
    gives_away: ClassVar[str] = "about how many people touched each item"
    n_items: int
    n_users: int

    @classmethod
    def planned(cls, n_items: int, n_users: int) -> PlannedSum:
        fixed = {"n_items": n_items, "n_users": n_users}
        return PlannedSum(cls, cls(n_items, n_users).shape, fixed)

    @property
    def shape(self) -> SumShape:
        return SumShape(self.n_items, self.encoding.width, self.encoding.signed)

    @property
    def noise(self) -> Noise:
        """Noise of all clients, of which there are at most as many as users."""
        scale = float(np.sqrt(self.n_users * REACH * (REACH + 1) / 3))
        return AddedNoise("uniform", scale, "nothing", float(self.n_users * REACH))

    @property
    def encoding(self) -> FixedPoint:
        return FixedPoint.counting(self.n_users, self.noise)

    def check(self, context: ClientContext) -> None:
        pass

    def drawn(self, stream: RandomStream, start: int, count: int) -> Integers:
        return (stream.words(start, count) % np.uint64(2 * REACH + 1)).astype(np.int64) - REACH

    def blocks(
        self, histories: Histories, randomness: RandomStream = NO_RANDOMNESS
    ) -> Iterator[Integers]:
        start = 0
        for length in self.block_lengths():
            exact = histories.item_degrees[start : start + length]
            yield exact + self.drawn(randomness, start, length)
            start += length

    def total(
        self, histories: Histories, randomness: Iterable[ClientStream] = NO_RANDOMNESS
    ) -> Integers:
        out = histories.item_degrees
        for client in randomness:
            out += self.drawn(client.stream, 0, self.n_items)
        return out


class NoisySettings(ProgramSettings):
    method: Literal["toy-noisy"] = "toy-noisy"


class Noisy(Program[NoisySettings]):
    """Program that asks for one noisy sum twice, with two draws of noise."""

    name: ClassVar[str] = "toy-noisy"
    title: ClassVar[str] = "Noisy"
    gives_away: ClassVar[str] = "little"
    settings_type = NoisySettings

    def outline(self, item_item_entries: int | None = None) -> list[Planned]:
        return [NoisyDegrees.planned(self.n_items, self.n_users)] * 2

    def _steps(self, outline: list[Any]) -> Steps:
        first = yield outline[0].ask()
        second = yield outline[1].ask()
        basis = np.stack([first, second], axis=1).astype(np.float32)
        return Components(np.abs(first), LowRankOperator(basis, np.ones(2)), basis)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    contributions.REGISTRY.register(NoisyDegrees)
    programs.PROGRAMS.register(Noisy)
    yield
    del contributions.REGISTRY[NoisyDegrees.name]
    del programs.PROGRAMS[Noisy.name]


def sums(train: Interactions, runtime: Runtime) -> np.ndarray:
    program = programs.program_of(NoisySettings(), train.n_users, train.n_items)
    components, ledger = execute(program.steps(), runtime)
    for row in ledger.as_rows():
        noise = noise_of(row["noise"])
        assert isinstance(noise, AddedNoise)
        assert noise.largest == REACH * train.n_users
    assert components.basis is not None
    return components.basis


@settings(max_examples=15)
@given(
    n_users=st.integers(3, 9),
    n_items=st.integers(1, 12),
    clients=st.integers(3, 9),
    entries=st.sampled_from([1, 3, 5, 1 << 22]),
    seed=st.integers(0, 2**70),
)
def test_all_runtimes_draw_the_same_noise(
    n_users: int, n_items: int, clients: int, entries: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    touched = rng.random((n_users, n_items)) < 0.4
    train = Interactions.from_matrix(touched.astype(np.float32))
    clients = min(clients, n_users)
    simulated = sums(train, Simulation(train, clients, seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "BLOCK_ENTRIES", entries)
        plain = sums(train, InProcess(clients_of(train, clients, seed)))
        planned = programs.program_of(NoisySettings(), n_users, n_items).sums()
        secure = SecureInProcess(clients_of(train, clients, seed), planned, "secagg+")
        masked = sums(train, secure)
    np.testing.assert_array_equal(plain, simulated)
    np.testing.assert_array_equal(masked, simulated)
    assert np.abs(simulated - train.item_degrees[:, None]).max() <= clients * REACH


def test_noise_differs_by_seed_by_sum_and_by_number_of_clients(holes: Interactions) -> None:
    runs = [
        sums(holes, Simulation(holes, clients, seed))
        for clients, seed in ((None, 0), (None, 1), (5, 0))
    ]
    drawn = np.concatenate(runs, axis=1)
    assert len(np.unique(drawn, axis=1).T) == 6
    noise = drawn - holes.item_degrees[:, None]
    assert (noise < 0).any()
    assert (noise > 0).any()


def test_noise_that_was_forgotten_is_an_error(holes: Interactions) -> None:
    ask = NoisyDegrees(holes.n_items, holes.n_users)
    with pytest.raises(FederationError, match="no randomness"):
        list(ask.blocks(Histories(holes.matrix)))
    with pytest.raises(FederationError, match="no randomness"):
        ask.total(Histories(holes.matrix))


def test_a_ring_that_cannot_hold_the_noise_is_refused() -> None:
    with pytest.raises(OverflowRefused, match="no ring"):
        _ = NoisyDegrees(5, 2**60).encoding


def test_over_the_network_noise_is_a_client_s_own(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.policy = Policy(computations=(NoisyDegrees.name,))
    found = []
    for name in ("first", "second"):
        spec = RunSpec(program=NoisySettings(), drop_share=0.2)
        talk = Talk(federation, spec=spec, name=name)
        talk.until("input", 1)
        # A client that is asked again in another process draws the same noise.
        message = talk.message_for(0)
        assert federation.node(0).answer(message) == federation.node(0).answer(message)
        talk.until(Stage.COMPUTED)
        assert talk.server.components is not None
        found.append(talk.server.components.basis)
        assert all(row["noise"] != "none" for row in talk.server.ledger.as_rows())
    noise = np.concatenate(found, axis=1) - federation.train.item_degrees[:, None]
    assert np.abs(noise).max() <= 6 * REACH
    assert len(np.unique(noise, axis=1).T) == 4
    repeatable = sums(federation.train, Simulation(federation.train, 6))
    assert (noise[:, :2] != repeatable - federation.train.item_degrees[:, None]).any()
