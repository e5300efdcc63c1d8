"""Tests that sums, plans and data are bit-identical on every CPU, as clients and server must
agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sums_of_asks

import cpus
from privirec.data.synthetic import synthetic
from privirec.federated import wire
from privirec.federated.contributions import REGISTRY, Contribution
from privirec.privacy.ledger import Ledger
from privirec.runtime.execute import execute
from privirec.runtime.local.simulation import Simulation


class Noting(Simulation):
    """A simulation that records its requests."""

    def __init__(self, folder: Path, place: int, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._folder, self._place, self._number = folder, place, 0
        self.names: set[str] = set()

    def sum(self, ask: Contribution, ledger: Ledger) -> Any:
        self._number += 1
        self.names.add(ask.name)
        name = f"{self._place:02} {self._number:02} {ask.name}.ask"
        (self._folder / name).write_bytes(wire.encode(ask))
        return super().sum(ask, ledger)


@pytest.fixture(scope="module")
def asks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the requests of every program, covering every kind."""
    folder = tmp_path_factory.mktemp("asks")
    train = synthetic("synthetic:small").train
    names: set[str] = set()
    for place, program in enumerate(sums_of_asks.programs(train)):
        runtime = Noting(folder, place, train, sums_of_asks.CLIENTS, held_out=program.held_out)
        execute(program.steps(), runtime)
        names |= runtime.names
    ours = {name for name, kind in REGISTRY.items() if kind.__module__.startswith("privirec")}
    assert names >= ours
    return folder


@pytest.fixture(scope="module")
def here(asks: Path) -> dict[str, Any]:
    """Return the results of this machine, with compiled loops."""
    return sums_of_asks.answers(asks)


@pytest.mark.check
@pytest.mark.parametrize("machine", cpus.unlike())
def test_everything_that_is_agreed_on(
    machine: cpus.Machine, asks: Path, here: dict[str, Any]
) -> None:
    there = cpus.run(machine, sums_of_asks.__file__, str(asks), compiled=False)
    cpus.check_taken(machine, there.pop("taken for"))
    for part, found in there.items():
        unlike = {name for name in here[part] if found[name] != here[part][name]}
        assert not unlike, f"{part} on {machine.name}"
