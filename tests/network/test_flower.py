"""Tests of Flower as the carrier: real processes over TLS; skipped if Flower is not installed."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from privirec.data import Dataset, Interactions
from privirec.errors import FederationError, UsageError
from privirec.extra.flower import installed
from privirec.federated.programs import PrivirecKSettings, program_of
from privirec.models import Recommender
from privirec.runtime import child_processes
from privirec.runtime.carriers import installed_carrier
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.execute import execute
from privirec.runtime.federate import federate
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.one_machine import OneMachine
from privirec.runtime.spec import RunSpec

from .chaos import check_same, small_policy

have_flower = importlib.util.find_spec("flwr") is not None
needs_flower = pytest.mark.skipif(not have_flower, reason="needs Flower, the extra 'flower'")
check = pytest.mark.check
PLANTED_USERS, PLANTED_ITEMS = 771_770_000, 993_990_000


def test_without_flower_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install 'flwr>=") as refused:
        installed_carrier("flower")
    assert refused.value.exit_code == 2


def test_flower_reports_nothing_home(tmp_path: Path) -> None:
    env = installed.environment(tmp_path / "flower")
    assert env["FLWR_TELEMETRY_ENABLED"] == "0"
    assert env["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert env["FLWR_HOME"] == str(tmp_path / "flower")


def test_flwr_run_takes_the_repository_as_well() -> None:
    """`server run` submits the same app as our own pyproject defines."""
    files = Path(__file__).parents[2] / "pyproject.toml", installed.APP / "pyproject.toml"
    ours, submitted = (tomllib.loads(path.read_text("utf-8"))["tool"]["flwr"] for path in files)
    ours["app"].pop("fab-include")  # no code in the bundle
    assert ours == submitted


def test_programs_end_with_all_that_they_started(tmp_path: Path) -> None:
    nested = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', "
    nested += "'import time; time.sleep(600)'], start_new_session=True); time.sleep(600)"
    with child_processes.Processes() as running:
        one = running.start("one", [sys.executable, "-c", nested], os.environ, tmp_path / "log")
        for _ in range(100):
            if len(family := child_processes.family(one.process.pid)) == 2:
                break
            time.sleep(0.1)
        assert len(family) == 2
        assert child_processes.memory(one.process.pid) > 1
    time.sleep(0.2)
    for pid in family:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_port_in_use_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match=r"cannot listen on 127\.0\.0\.1"):
            child_processes.check_free("127.0.0.1", taken.getsockname()[1])


def test_a_program_that_stops_is_named(tmp_path: Path) -> None:
    with child_processes.Processes() as running:
        command = [sys.executable, "-c", "print('no luck'); raise SystemExit(3)"]
        one = running.start("superlink", command, os.environ, tmp_path / "log")
        one.process.wait()
        with pytest.raises(FederationError, match="superlink stopped: no luck"):
            one.check()


@check
@needs_flower
def test_a_whole_federation_gives_the_simulations_model(small: Dataset, tmp_path: Path) -> None:
    spec = RunSpec.of("privirec-k", rank=4, rounds=2)
    seen: list[dict[str, Any]] = []
    row = federate(
        small,
        spec,
        3,
        carrier="flower",
        keep=tmp_path / "federation",
        check=True,
        save=tmp_path / "model",
        watch=seen.append,
    )
    assert row["same_as_simulation"] is True
    assert row["dropped"] == 0
    assert {"model.safetensors", "manifest.json", "manifest.sig"} <= {
        path.name for path in (tmp_path / "model").iterdir()
    }
    assert seen[-1]["stage"] == "done"
    for client in range(3):
        assert (tmp_path / f"federation/client-{client}/model/current").exists()
        log = (tmp_path / f"federation/client-{client}/supernode.log").read_text()
        assert "insecure" not in log.lower()
    assert not _leftovers(tmp_path)


@check
@needs_flower
def test_a_killed_client_comes_back(tmp_path: Path) -> None:
    """Kill a client's SuperNode with SIGKILL after the first sum; Flower lets it reconnect."""
    train, settings = _planted(), PrivirecKSettings(rank=4, rounds=2)
    # A message lives as long as `silence`, and Flower starts a program for each: on a busy machine
    # that takes many seconds.
    spec = RunSpec(program=settings, config={"rank": 4}, silence=60.0, hello=600.0)
    killed: list[int] = []
    with OneMachine(tmp_path / "federation", "flower") as network:
        network.prepare(train, 3, small_policy())
        network.start()

        def watch(status: dict[str, Any]) -> None:
            if killed or status.get("sum_number", 0) < 2:
                return
            (client,) = (one for one in network.processes.running if one.name == "client-1")
            for pid in child_processes.family(client.process.pid) - {client.process.pid}:
                killed.append(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

        result = network.run("one", spec, watch)
    assert result["reason"] == ""
    assert killed
    expected, _ = execute(
        program_of(settings, train.n_users, train.n_items).steps(), Simulation(train)
    )
    model = Recommender.load(tmp_path / "federation/server/runs/one/model", mmap=False)
    check_same(model.components, expected)
    _check_nothing_leaked(tmp_path / "federation")


def test_a_run_that_cannot_be_started_burns_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = OperatorFolder.create(tmp_path / "server")
    files = [RunSpec(program=PrivirecKSettings(rank=rank)) for rank in (4, 8)]
    down = mock.Mock(side_effect=FederationError("flwr run failed: nobody listens"))
    monkeypatch.setattr(installed, "flwr", down)
    for file in files:
        with pytest.raises(FederationError, match=r"could not be started.*privirec server up"):
            installed.CARRIER.start_run(home, "monday", file)
        assert not (home.folder / "runs/monday").exists()
    monkeypatch.setattr(installed, "flwr", mock.Mock(return_value={"run-id": 7}))
    installed.CARRIER.start_run(home, "monday", files[1])
    assert (home.folder / "runs/monday" / installed.NUMBER).read_text() == "7"


def _planted() -> Interactions:
    """Return histories whose users and items are recognisable wherever they appear."""
    rng = np.random.default_rng(7)
    touched = (rng.random((24, 40)) < 0.3).astype(np.float32)
    touched[:, 0] = 1
    return Interactions.from_matrix(
        touched, PLANTED_USERS + np.arange(24), PLANTED_ITEMS + np.arange(40)
    )


def _check_nothing_leaked(folder: Path) -> None:
    """Fail if names leak: users outside their own histories, items outside catalogue and models."""
    for path in folder.rglob("*"):
        if not path.is_file() or path.name in ("history.txt", "catalogue.txt"):
            continue
        content = path.read_bytes()
        assert str(PLANTED_USERS)[:5].encode() not in content, path
        if "model" not in path.relative_to(folder).parts:
            assert str(PLANTED_ITEMS)[:5].encode() not in content, path


def _leftovers(folder: Path) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [
        line for line in listed.stdout.splitlines() if str(folder) in line and "ps " not in line
    ]


def test_a_node_that_ends_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    log.write_text("not registered")
    started: list[Path] = []

    def start(_running: object, folder: Path, _address: str) -> Any:
        started.append(folder)
        return mock.Mock(log=log)

    said: list[str] = []
    monkeypatch.setattr(installed, "start_supernode", start)
    monkeypatch.setattr(installed, "Processes", mock.MagicMock())
    monkeypatch.setattr("time.sleep", mock.Mock(side_effect=[None, KeyboardInterrupt]))
    with pytest.raises(KeyboardInterrupt):
        installed.CARRIER.stay(tmp_path, "server:1", said.append)
    assert started == [tmp_path] * 2
    assert said[1:] == ["Not connected: not registered; trying again"] * 2
