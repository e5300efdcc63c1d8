"""Tests of a federation of unlike machines: real processes over HTTPS that emulate other CPUs.

Each client runs as another CPU (`cpus`), with another number of threads. It derives the plan, the
scales and its noise itself; the server adds up what the clients send. If a client rounded a scale
differently, it would refuse the plan, or the sum would differ from the simulation's.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cpus
from privirec.data import Interactions
from privirec.data.synthetic import synthetic
from privirec.federated.contributions import Contribution, PlannedSum
from privirec.federated.programs import PrivirecKSettings, ProgramSettings, program_of
from privirec.federated.programs.protected import ProtectedSettings
from privirec.federated.randomness import ClientRandomness
from privirec.filters.components import Components
from privirec.filters.earlier import Earlier
from privirec.models.artifact import read_manifest
from privirec.privacy.ledger import Ledger
from privirec.runtime.child_processes import Running
from privirec.runtime.earlier import EarlierModel, run_to_go_on_from
from privirec.runtime.execute import execute, total_of
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.one_machine import OneMachine
from privirec.runtime.spec import RunSpec, vector_shape

from .chaos import small_policy

MACHINES = [one for one in (*cpus.MACHINES, cpus.PLAIN) if not one.cannot_be()]

CLIENT = """
# Runs `privirec client up`, and writes down the CPU that it detects and the seed of its noise.
import json, os, sys
from pathlib import Path

sys.path.insert(0, os.environ["TESTS"])
import cpus
from privirec.federated.randomness import ClientRandomness

told = Path(os.environ["TOLD"])
told.with_suffix(".cpu").write_text(json.dumps(cpus.taken_for()))
made = ClientRandomness.__init__

def noting(self, seed):
    made(self, seed)
    told.write_bytes(seed)

ClientRandomness.__init__ = noting
from privirec.app.cli import start
start()
"""


@dataclass
class UnlikeNetwork(OneMachine):
    """Federation of clients on different machines, with the server on this one."""

    program: Path = field(default_factory=Path)

    def start_client(self, folder: Path) -> Running:
        number = self.clients.index(folder)
        machine = MACHINES[number % len(MACHINES)]
        command = ["client", "up", str(folder), "--server", f"https://127.0.0.1:{self.port}"]
        threads = str(1 + number % 2)
        env = machine.environment(compiled=False) | {
            "TESTS": str(Path(cpus.__file__).parent),
            "TOLD": str(self.told(number)),
            "OPENBLAS_NUM_THREADS": threads,
            "OMP_NUM_THREADS": threads,
            "PYTHONPATH": str(Path(sys.modules["privirec"].__path__[0]).parent),
        }
        return self.processes.start(
            folder.name, [sys.executable, "-P", str(self.program), *command], env, folder / "out"
        )

    def told(self, number: int) -> Path:
        return self.folder / f"told-{number}"


def run(
    folder: Path, train: Interactions, file: RunSpec, *later: str
) -> tuple[UnlikeNetwork, dict[str, Any]]:
    """Run with one client per machine to the end; every client installs the model.

    Runs with the names in `later` follow, each of which adds to the one before.
    """
    program = folder / "client.py"
    folder.mkdir()
    program.write_text(CLIENT)
    with UnlikeNetwork(folder / "f", program=program) as network:
        policy = small_policy(most_epsilon_per_year=20.0, smallest_cohort=2)
        network.prepare(train, len(MACHINES), policy)
        network.start()
        result = network.run("one", file, lambda status: None)
        for name in later:
            earlier = run_to_go_on_from(network.home, None)
            assert earlier is not None
            result = network.run(name, file.changed(after=earlier.digest), lambda status: None)
    assert result["reason"] == ""
    for number, path in enumerate(network.clients):
        assert (path / "model" / "current").exists(), (path / "out").read_text()
        said = cpus.json.loads(network.told(number).with_suffix(".cpu").read_text())
        cpus.check_taken(MACHINES[number % len(MACHINES)], said)
    return network, result


@pytest.fixture(scope="module")
def train() -> Interactions:
    return synthetic("synthetic:small").train


@pytest.mark.check
def test_an_exact_run(tmp_path: Path, train: Interactions) -> None:
    settings = PrivirecKSettings(rank=4, rounds=2)
    file = RunSpec(program=settings, config={"rank": 4})
    network, _ = run(tmp_path / "exact", train, file)
    check_sums(network, settings, train, Simulation(train))


@pytest.mark.check
@pytest.mark.parametrize("way", ["gram", "power"])
def test_a_protected_run(
    tmp_path: Path, train: Interactions, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A simulation whose clients draw noise from the same seeds gives the same sums."""
    settings = ProtectedSettings(
        epsilon=16.0,
        clients=len(MACHINES),
        contributors=2,
        way=way,
        head=12,
        columns=3 if way == "power" else None,
    )
    file = RunSpec(program=settings, model="denoised")
    network, _ = run(tmp_path / way, train, file)
    seeds = [network.told(number).read_bytes() for number in range(len(MACHINES))]
    assert len(set(seeds)) == len(MACHINES)
    monkeypatch.setattr(
        ClientRandomness, "insecure", lambda seed, client: ClientRandomness(seeds[client])
    )
    check_sums(network, settings, train, Simulation(train, len(MACHINES)))


@pytest.mark.check
@pytest.mark.parametrize("way", ["gram", "power"])
def test_a_later_run(
    tmp_path: Path, train: Interactions, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It adds to the sums of the first one as the simulation does, and says so in its manifest."""
    settings = ProtectedSettings(
        epsilon=4.0, clients=len(MACHINES), contributors=2, way=way, head=12, columns=3
    )
    network, _ = run(tmp_path / way, train, RunSpec(program=settings, model="denoised"), "two")
    seeds = [network.told(number).read_bytes() for number in range(len(MACHINES))]
    monkeypatch.setattr(
        ClientRandomness, "insecure", lambda seed, client: ClientRandomness(seeds[client])
    )
    first, second = (network.home.run(name) / "model" for name in ("one", "two"))
    earlier = EarlierModel.read(first)
    assert read_manifest(second)[1]["earlier"] == earlier.runs
    settings = settings.model_copy(update={"after": earlier.digest})
    simulation = Simulation(train, len(MACHINES))
    components = check_sums(
        network, settings, train, simulation, "two", earlier.over(train.item_ids)
    )
    assert components.released is not None
    found = EarlierModel.read(second).sums.arrays()
    for name, array in components.released.arrays().items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def check_sums(
    network: UnlikeNetwork,
    settings: ProgramSettings,
    train: Interactions,
    simulation: Simulation,
    name: str = "one",
    earlier: Earlier | None = None,
) -> Components:
    """Fail unless every sum that the server opened is the simulation's, bit for bit."""
    folder = network.home.folder / "runs" / name
    assert RunSpec.model_validate_json((folder / "run.json").read_text()).program == settings
    program = program_of(settings, train.n_users, train.n_items)
    if earlier is not None:
        program.go_on_from(earlier)
    opened = Opened(folder / "sums", program.sums(), simulation)
    components, _ = execute(program.steps(), opened)
    assert opened.number == len(list((folder / "sums").iterdir())) > 1
    return components


class Opened:
    """Runtime that takes the sums on a server's disk and compares them with the simulation's."""

    def __init__(self, folder: Path, planned: list[PlannedSum], simulation: Simulation) -> None:
        self.folder = folder
        self.planned = planned
        self.simulation = simulation
        self.number = 0

    @property
    def clients(self) -> int:
        return self.simulation.clients

    def sum(self, ask: Contribution, ledger: Ledger) -> Any:
        self.number += 1
        expected = self.simulation.sum(ask, ledger)
        shape = vector_shape(self.planned[self.number - 1]).shortened(ask.length)
        words = np.fromfile(self.folder / str(self.number), shape.ring.dtype)
        found = total_of(ask, words, shape)
        np.testing.assert_array_equal(found, expected)
        return found
