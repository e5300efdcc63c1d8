"""Tests of a new program, defined only in this file: it runs wherever programs run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from privirec.data import Interactions
from privirec.errors import FederationError
from privirec.federated import contributions, programs
from privirec.federated.contributions import (
    ClientContext,
    Contribution,
    Histories,
    Integers,
    ItemDegrees,
    PlannedSum,
    SumShape,
)
from privirec.federated.fixed_point import FixedPoint
from privirec.federated.programs import Broadcast, Planned, Program, ProgramSettings, Steps
from privirec.filters.components import Components
from privirec.filters.operators import LowRankOperator
from privirec.privacy.ledger import Ledger
from privirec.privacy.policy import Policy
from privirec.runtime.coordinator import Stage
from privirec.runtime.execute import execute
from privirec.runtime.local.client import clients_of
from privirec.runtime.local.in_process import InProcess
from privirec.runtime.local.secure import SecureInProcess
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.spec import RunSpec
from privirec.secagg import protocol, protocol_names

from .chaos import Federation, check_same
from .test_node import Talk


@dataclass(frozen=True)
class KeenDegrees(Contribution):
    """Number of users per item, among users with at least `least` items."""

    name: ClassVar[str] = "toy-keen-degrees"
    gives_away: ClassVar[str] = "how many keen people touched each item"
    n_items: int
    n_users: int
    least: int

    @classmethod
    def planned(cls, n_items: int, n_users: int) -> PlannedSum:
        fixed = {"n_items": n_items, "n_users": n_users}
        return PlannedSum(cls, cls(n_items, n_users, 0).shape, fixed)

    @property
    def shape(self) -> SumShape:
        return SumShape(self.n_items, self.encoding.width, signed=False, broadcast_bytes=8)

    @property
    def encoding(self) -> FixedPoint:
        return FixedPoint.counting(self.n_users)

    def check(self, context: ClientContext) -> None:
        if not 0 <= self.least <= context.n_items:
            raise FederationError("nobody can be so keen")

    def blocks(self, histories: Histories, randomness: Any = None) -> Iterator[Integers]:
        yield self.total(histories)

    def total(self, histories: Histories, randomness: Any = None) -> Integers:
        keen = histories.matrix[histories.degrees >= self.least]
        return np.bincount(keen.indices, minlength=self.n_items).astype(np.int64)


class ToySettings(ProgramSettings):
    method: Literal["toy-keen"] = "toy-keen"
    times: int = 2


class Keen(Program[ToySettings]):
    """Popularity among keen users: a matrix of rank one."""

    name: ClassVar[str] = "toy-keen"
    title: ClassVar[str] = "Keen"
    gives_away: ClassVar[str] = "how many people, and how many keen ones, touched each item"
    settings_type = ToySettings

    def outline(self, item_item_entries: int | None = None) -> list[Planned]:
        return [
            ItemDegrees.planned(self.n_items, self.n_users),
            KeenDegrees.planned(self.n_items, self.n_users),
            Broadcast("filters", 4 * self.n_items),
        ]

    def _steps(self, outline: list[Any]) -> Steps:
        degree_sum, keen_sum, filters = outline
        degrees = yield degree_sum.ask()
        mean = int(degrees.sum()) // self.n_users
        keen = yield keen_sum.ask(least=self.settings.times * mean // 2)
        yield filters
        basis = keen[:, None].astype(np.float32)
        return Components(degrees, LowRankOperator(basis, np.ones(1)), basis)


EXACT = [name for name in protocol_names() if protocol(name).is_exact]


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    contributions.REGISTRY.register(KeenDegrees)
    programs.PROGRAMS.register(Keen)
    yield
    del contributions.REGISTRY[KeenDegrees.name]
    del programs.PROGRAMS[Keen.name]


@pytest.fixture
def simulated(holes: Interactions) -> Components:
    found, ledger = execute(program_for(holes).steps(), Simulation(holes))
    planned = Ledger.planned(program_for(holes).outline())
    assert ledger.bytes_up == planned.bytes_up > 0
    assert ledger.bytes_down == planned.bytes_down > 0
    assert found.basis is not None
    assert 0 < found.basis.sum() < found.item_degrees.sum()  # some are keen, and some are not
    return found


def program_for(train: Interactions) -> Program[Any]:
    return programs.program_of(ToySettings(), train.n_users, train.n_items)


@pytest.mark.parametrize("clients", [None, 4])
def test_in_process(holes: Interactions, simulated: Components, clients: int | None) -> None:
    found, _ = execute(program_for(holes).steps(), InProcess(clients_of(holes, clients)))
    check_same(found, simulated)


@pytest.mark.parametrize("aggregator", protocol_names())
def test_under_every_aggregator(
    holes: Interactions, simulated: Components, aggregator: str
) -> None:
    program = program_for(holes)
    runtime = SecureInProcess(clients_of(holes), program.sums(), aggregator)
    found, ledger = execute(program.steps(), runtime)
    if aggregator in EXACT:
        check_same(found, simulated)
        return
    error = np.abs(found.item_degrees - simulated.item_degrees)
    assert error.max() < 6 * ledger.entries[0].residual_deviation + 1


@pytest.mark.parametrize("aggregator", EXACT)
def test_over_the_network(tmp_path: Path, aggregator: str) -> None:
    federation = Federation(tmp_path)
    computations = (ItemDegrees.name, KeenDegrees.name)
    federation.policy = Policy(computations=computations, aggregators=(aggregator,))
    spec = RunSpec(program=ToySettings(), aggregator=aggregator)
    talk = Talk(federation, spec=spec)
    talk.until(Stage.COMPUTED)
    assert talk.server.components is not None
    check_same(talk.server.components, federation.simulated(frozenset(range(6)), ToySettings()))
    sums = [entry.what for entry in talk.server.ledger.entries if entry.entries]
    assert sums == [ItemDegrees.name, KeenDegrees.name]
