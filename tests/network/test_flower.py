"""Real processes over TLS. Skips visibly where Flower is not installed."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from privirec.data import Dataset
from privirec.errors import FederationError, UsageError
from privirec.experiments.federate import Wanted, federate
from privirec.experiments.run import Plan
from privirec.federated.programs import FederatedSettings
from privirec.privacy.policy import Policy
from privirec.runtime.flower import processes

have_flower = importlib.util.find_spec("flwr") is not None
needs_flower = pytest.mark.skipif(
    not have_flower, reason="needs Flower: pip install 'privirec[flower]'"
)
heavy = pytest.mark.heavy


@pytest.mark.skipif(have_flower, reason="Flower is installed here")
def test_without_flower_one_line_says_what_to_install(small: Dataset) -> None:
    with pytest.raises(UsageError, match=r"pip install 'privirec\[flower\]'") as refused:
        federate(small, Wanted(Plan(method="privirec-k"), 3))
    assert refused.value.exit_code == 2


def test_nothing_leaves_without_being_asked(tmp_path: Path) -> None:
    env = processes.environment(tmp_path / "flower")
    assert env["FLWR_TELEMETRY_ENABLED"] == "0"
    assert env["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert env["FLWR_HOME"] == str(tmp_path / "flower")
    assert not {"http_proxy", "HTTPS_PROXY"} & env.keys()
    app = processes.write_app(tmp_path / "app")
    assert [path.name for path in app.iterdir()] == ["pyproject.toml"]


def test_flwr_run_takes_the_repository_as_well(tmp_path: Path) -> None:
    """What `server up` writes for an installed package is the app of our own pyproject."""
    written = processes.write_app(tmp_path / "app") / "pyproject.toml"
    ours = Path(__file__).parents[2] / "pyproject.toml"
    one, other = (tomllib.loads(path.read_text("utf-8")) for path in (written, ours))
    other["tool"]["flwr"]["app"].pop("fab-include")  # no code in the bundle
    assert one["tool"]["flwr"] == other["tool"]["flwr"]
    assert one["project"]["version"] == other["project"]["version"]


def test_programs_end_with_all_that_they_started(tmp_path: Path) -> None:
    nested = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', "
    nested += "'import time; time.sleep(600)'], start_new_session=True); time.sleep(600)"
    with processes.Processes() as running:
        one = running.start("one", [sys.executable, "-c", nested], os.environ, tmp_path / "log")
        for _ in range(100):
            if len(family := processes.family(one.process.pid)) == 2:
                break
            time.sleep(0.1)
        assert len(family) == 2
        assert processes.memory(one.process.pid) > 1
    time.sleep(0.2)
    for pid in family:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_program_that_stops_is_named(tmp_path: Path) -> None:
    with processes.Processes() as running:
        command = [sys.executable, "-c", "print('no luck'); raise SystemExit(3)"]
        one = running.start("superlink", command, os.environ, tmp_path / "log")
        one.process.wait()
        with pytest.raises(FederationError, match="superlink stopped: no luck"):
            running.check()


@heavy
@needs_flower
def test_a_whole_federation_gives_the_simulations_model(small: Dataset, tmp_path: Path) -> None:
    plan = Plan(method="privirec-k", rank=8, rounds=2)
    seen: list[dict[str, Any]] = []
    wanted = Wanted(plan, 4, keep=tmp_path / "federation", check=True)
    row = federate(small, wanted, tmp_path / "model", seen.append)
    assert row["same_as_simulation"] is True
    assert row["dropped"] == 0
    assert {"model.safetensors", "manifest.json", "manifest.sig"} <= {
        path.name for path in (tmp_path / "model").iterdir()
    }
    assert seen[-1]["stage"] == "done"
    for client in range(4):
        assert (tmp_path / f"federation/client-{client}/model/current").exists()
        log = (tmp_path / f"federation/client-{client}/supernode.log").read_text()
        assert "insecure" not in log.lower()
    assert not _leftovers(tmp_path)


@heavy
@needs_flower
def test_a_client_and_the_server_are_killed_and_come_back(small: Dataset, tmp_path: Path) -> None:
    from privirec.runtime.flower.local import LocalNetwork
    from privirec.runtime.flower.runs import RunFile, result_of, start_run
    from privirec.runtime.run_plan import RunTerms

    settings = FederatedSettings(method="privirec-k", rank=4, rounds=2)
    file = RunFile(terms=RunTerms(settings=settings), config={"rank": 4})
    file.deadlines = file.deadlines.model_copy(update={"silence": 30.0})
    with LocalNetwork(tmp_path / "federation") as network:
        network.prepare(small.train, 3, Policy())
        network.start()
        assert network.server is not None
        number = start_run(network.server, "one", file, network.env)
        killed: set[str] = set()

        def watch(status: dict[str, Any]) -> None:
            for client in network.kept:
                client.look()
            if status.get("round") == 1 and "client" not in killed:
                killed.add("client")
                (old,) = [one for one in network.kept if one.folder == network.clients[0]]
                assert old.node is not None
                _kill_family(old.node.process.pid)
                network.processes.end(old.node)
                old.node = None
            if status.get("round") == 2 and "server" not in killed:
                killed.add("server")
                _kill_by_name(network.processes, "flwr-serverapp")
                raise _Killed

        with pytest.raises(_Killed):
            result_of(network.server, "one", number, network.env, watch)
        number = start_run(network.server, "one", file, network.env)
        result = result_of(network.server, "one", number, network.env, lambda status: None)
    assert result["reason"] == ""
    assert killed == {"client", "server"}
    journal = (tmp_path / "federation/server/runs/one/journal").read_bytes()
    assert journal.count(b'"what": "opened"') == 3


@heavy
@needs_flower
def test_who_has_no_business_there_cannot_connect(
    small: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node with an unregistered key, and one that trusts another authority."""
    from privirec.runtime.certificates import make_certificates
    from privirec.runtime.flower.local import LocalNetwork
    from privirec.runtime.homes import make_node_key

    with LocalNetwork(tmp_path / "federation") as network:
        network.prepare(small.train, 3, Policy())
        clients, network.clients = network.clients, []
        network.start()
        make_node_key(clients[0])
        make_certificates(tmp_path / "other")
        (clients[1] / "ca.crt").write_bytes((tmp_path / "other/ca.crt").read_bytes())
        monkeypatch.setattr(processes, "MOST_TRIES", 0)
        for folder, said in zip(clients, ("does not know its key", "vouches for"), strict=False):
            client = network.start_client(folder)
            with pytest.raises(FederationError, match=said) as refused:
                _look_for_a_minute(client)
            assert "\n" not in str(refused.value)


class _Killed(Exception):
    pass


def _look_for_a_minute(client: processes.Client) -> None:
    for _ in range(120):
        client.look()
        time.sleep(0.5)


def _kill_family(pid: int) -> None:
    for one in processes.family(pid):
        try:
            os.kill(one, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _kill_by_name(running: processes.Processes, name: str) -> None:
    """Only among what this test started."""
    for one in running.running:
        for pid in processes.family(one.process.pid):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if name.encode() in command:
                os.kill(pid, signal.SIGKILL)


def _leftovers(folder: Path) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [
        line for line in listed.stdout.splitlines() if str(folder) in line and "ps " not in line
    ]
