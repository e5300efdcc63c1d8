"""Tests of four real processes over HTTPS, of which one is killed for good."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privirec.data import Interactions
from privirec.device.installed import Installed
from privirec.errors import UsageError
from privirec.models.artifact import read_manifest
from privirec.runtime.federate import for_clients
from privirec.runtime.https.runs import follow_run, start_run
from privirec.runtime.one_machine import CLIENT_THREADS, OneMachine
from privirec.runtime.spec import RunSpec

from .chaos import small_policy

DYING = """
import os, signal, sys
from privirec.runtime.node.steps import StepAnswerer
contribute = StepAnswerer._contribute
def in_sum(self, state, plan, step, *more):
    if step.sum_number == NUMBER:
        os.kill(os.getpid(), signal.SIGKILL)
    return contribute(self, state, plan, step, *more)
StepAnswerer._contribute = in_sum
from privirec.app.cli import start
start()
"""


def histories() -> Interactions:
    touched = np.random.default_rng(1).random((24, 17)) < 0.35
    touched[:, 0] = True
    return Interactions.from_matrix(touched.astype(np.float32))


def spec_for(clients: int, **given: Any) -> RunSpec:
    chosen = RunSpec.of("privirec-k", rank=4, rounds=2, deadline=30.0, **given)
    return chosen.for_roster("", 17, clients)


def run_without_one(folder: Path, *, dies_in_sum: int) -> tuple[dict[str, Any], OneMachine]:
    """Run with four clients; the last one is killed before the run (0) or at its vector of a sum.

    Nobody starts it again.
    """
    with OneMachine(folder) as network:
        network.prepare(histories(), 4, small_policy())
        network.start_server()
        for path in network.clients[:3]:
            network.start_client(path)
        if dies_in_sum:
            last = network.clients[3]
            address = f"https://127.0.0.1:{network.port}"
            code = DYING.replace("NUMBER", str(dies_in_sum))
            command = [sys.executable, "-P", "-c", code, "client", "up", str(last)]
            network.processes.start(
                *(
                    last.name,
                    [*command, "--server", address],
                    OneMachine.environment() | CLIENT_THREADS,
                ),
                last / "client.out",
            )
        start_run(network.home, "one", spec_for(4, hello=120.0 if dies_in_sum else 15.0))
        return follow_run(network.home, "one", lambda status: None), network


@pytest.mark.check
@pytest.mark.parametrize("dies_in_sum", [0, 1])
def test_a_run_of_four_ends_well_without_one(dies_in_sum: int, tmp_path: Path) -> None:
    result, network = run_without_one(tmp_path, dies_in_sum=dies_in_sum)
    assert result["reason"] == ""
    last = result["status"]["clients"]["3"]
    assert last["state"] == ("dropped" if dies_in_sum else "not here")
    federation = read_manifest(network.home.run("one") / "model")[1]["federation"]
    assert (federation["clients"], federation["cohort"]) == (4, 3)
    models = [Installed(path / "model").load() for path in network.clients[:3]]
    assert len({model.components.item_degrees.tobytes() for model in models}) == 1
    people = histories().rows(0, 18)  # those of the first three clients
    assert models[0].components.item_degrees.tolist() == people.item_degrees.tolist()


@pytest.mark.check
def test_a_client_that_is_lost_after_the_first_sum_ends_the_run(tmp_path: Path) -> None:
    result, network = run_without_one(tmp_path, dies_in_sum=2)
    assert "in sum 2 of" in result["reason"]
    assert "Start a new run when the same clients are back" in result["reason"]
    assert not (network.home.run("one") / "model").exists()


def test_one_of_four_may_be_missing_without_a_word() -> None:
    spec = spec_for(4)
    assert spec.drop_share == 0.25
    assert spec.least_clients(4) == 3
    for clients in (3, 5, 40):
        assert spec_for(clients).drop_share == 0.2
    assert spec_for(4, drop_share=0.2).least_clients(4) == 4


@pytest.mark.parametrize(
    ("clients", "given", "said"),
    [
        (4, {"drop_share": 0.5}, r"give --drop-share 0\.25, and 1 may be missing"),
        (3, {"drop_share": 0.4}, "give --drop-share 0, and nobody may be missing"),
        (4, {"corrupt_share": 0.5, "drop_share": 0.3}, "--drop-share 0, and nobody"),
        (2, {"smallest_cohort": 2}, "give a smaller share, or approve more clients"),
        (2, {}, "2 clients, and a sum needs 3: approve more"),
        (40, {"corrupt_share": 0.5, "drop_share": 0.5}, "give --drop-share"),
    ],
)
@pytest.mark.parametrize("aggregator", ["secagg+", "secagg"])
def test_what_cannot_hold_is_refused_before_anybody_waits(
    clients: int, given: dict[str, Any], said: str, aggregator: str
) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        spec_for(clients, aggregator=aggregator, **given)
    assert "\n" not in str(refused.value)


def test_federate_refuses_the_same(small: Any) -> None:
    with pytest.raises(UsageError, match="4 clients are too few"):
        for_clients(RunSpec.of("privirec-k", drop_share=0.5), small, 4)
