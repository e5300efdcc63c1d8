"""Real processes over TLS. Skips visibly where Flower is not installed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib.util
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from privirec.data import Dataset, Interactions
from privirec.errors import FederationError, UsageError
from privirec.extra.flower import allowed_programs, answering, launch
from privirec.extra.flower.launch import write_app
from privirec.federated.programs import PrivirecKSettings, program_of
from privirec.models import Recommender
from privirec.privacy.policy import Policy
from privirec.runtime import child_processes
from privirec.runtime.enrolment.cards import Card
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.execute import execute
from privirec.runtime.federate import federate
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.plan import NETWORK, Plan
from privirec.secagg.keys import Identity

from .chaos import check_same, small_policy

have_flower = importlib.util.find_spec("flwr") is not None
needs_flower = pytest.mark.skipif(not have_flower, reason="needs Flower, the extra 'flower'")
check = pytest.mark.check
REAL_RUNS = int(os.environ.get("PRIVIREC_CHAOS_PROCESSES", "1"))
PLANTED_USERS, PLANTED_ITEMS = 771_770_000, 993_990_000


@pytest.mark.skipif(have_flower, reason="Flower is installed here")
def test_without_flower_one_line_says_what_to_install(small: Dataset) -> None:
    with pytest.raises(UsageError, match=r"pip install 'flwr==") as refused:
        federate(small, Plan(method="privirec-k", clients=3))
    assert refused.value.exit_code == 2


def test_nothing_leaves_without_being_asked(tmp_path: Path) -> None:
    env = launch.environment(tmp_path / "flower")
    assert env["FLWR_TELEMETRY_ENABLED"] == "0"
    assert env["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert env["FLWR_HOME"] == str(tmp_path / "flower")
    assert not {"http_proxy", "HTTPS_PROXY"} & env.keys()
    app = launch.write_app(tmp_path / "app")
    assert [path.name for path in app.iterdir()] == ["pyproject.toml"]


def test_flwr_run_takes_the_repository_as_well(tmp_path: Path) -> None:
    """What `server up` writes for an installed package is the app of our own pyproject."""
    written = launch.write_app(tmp_path / "app") / "pyproject.toml"
    ours = Path(__file__).parents[2] / "pyproject.toml"
    one, other = (tomllib.loads(path.read_text("utf-8")) for path in (written, ours))
    other["tool"]["flwr"]["app"].pop("fab-include")  # no code in the bundle
    assert one["tool"]["flwr"] == other["tool"]["flwr"]
    assert one["project"]["version"] == other["project"]["version"]


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


@needs_flower
def test_the_door_for_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reaches the port must not start runs, register nodes or pose as the server; and who
    is not approved is not listened to."""
    from privirec.extra.flower import front_door

    home = OperatorFolder.create(tmp_path / "server")
    members = home.members
    keys = [ec.generate_private_key(ec.SECP384R1()) for _ in range(3)]
    for number, key in enumerate(keys[:2]):
        members = members.approve(_card(number, key))
    home.save(members.revoke(1))
    asked: list[str] = []
    heard: list[dict[str, Any]] = []
    answers: list[list[dict[str, Any]]] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200 if len(asked) < 4 else 409})

    monkeypatch.setattr(front_door, "REFUSED_AFTER", 0)
    door = front_door.FrontDoor(application, home)

    def status(path: str, headers: dict[str, str], body: bytes = b"", kind: str = "http") -> Any:
        said: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            said.extend([message["status"]] if "status" in message else [])
            heard.append({name: value for name, value in message.items() if name != "type"})

        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": kind, "path": path, "headers": raw, "client": ("192.0.2.7", 1)}
        asyncio.run(door(scope, receive, send))
        return said[0] if said else None

    pull, connect = "/v1/fleet/pull-messages", "/v1/fleet/activate-node"
    good = _signed(keys[0])
    assert status(pull, good) == 200
    assert status("/v1/fleet/get-run", good | {"content-length": str(1 << 12)}) == 200
    for path in (
        *("/v1/control/start-run", "/v1/runtime/pull-messages", "/docs", "", "/v1/fleet"),
        *("/v1/fleet/register-node", "/v1/fleet/unregister-node", "/v1/fleet/../control/x"),
    ):
        assert status(path, good) == 404
    assert status(pull, good | {"content-type": "application/json"}) == 415
    assert status(pull, good | {"content-encoding": "gzip"}) == 415
    # Whoever was never approved, or only shows a member's key, hears the same; whoever proves to be
    # a client that was revoked hears that.
    for bad in (
        _signed(keys[2]),
        _shown(keys[1], keys[2]),
        _shown(keys[0], keys[2]),
        _shown(keys[2], keys[0]),
    ):
        heard.clear()
        assert status(connect, bad) == 401
        answers.append(list(heard))
    assert answers.count(answers[0]) == 4
    assert status(pull, good, kind="websocket") is None
    assert status(pull, good | {"content-length": str(1 << 22)}) == 413
    for bad in (
        {},
        {**good, "flwr-public-key": "%"},
        {**good, "flwr-timestamp": "yesterday"},
        {**good, "content-length": "many"},
        {**good, "flwr-signature": _signed(keys[2])["flwr-signature"]},
        _signed(keys[0], late=1000),
        _signed(keys[2]),
    ):
        assert status(connect, bad) == 401
    assert status(connect, _signed(keys[1])) == 410
    assert asked == [pull, "/v1/fleet/get-run"]
    assert status(connect, good) == 200
    assert status(connect, good) == 409
    told = capsys.readouterr().out
    assert "client 1 (shop 1): it is revoked, from 192.0.2.7" in told
    assert "turned away a client that is not approved, from 192.0.2.7" in told
    assert "turned away client 0 (shop 0): one with its keys is here already" in told
    assert told.count("something that is no client") == 1  # however often he knocks


@needs_flower
def test_a_request_that_grows_is_cut_off(tmp_path: Path) -> None:
    from privirec.extra.flower import front_door

    events: list[str] = []
    key = ec.generate_private_key(ec.SECP384R1())
    home = OperatorFolder.create(tmp_path / "server")
    home.save(home.members.approve(_card(0, key)))

    async def application(scope: Any, receive: Any, send: Any) -> None:
        while not events or events[-1] != "http.disconnect":
            events.append((await receive())["type"])

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": bytes(1 << 15), "more_body": True}

    raw = [(name.encode(), value.encode()) for name, value in _signed(key).items()]
    scope = {"type": "http", "path": "/v1/fleet/pull-messages", "headers": raw}
    send = mock.AsyncMock()
    asyncio.run(front_door.FrontDoor(application, home)(scope, receive, send))
    assert send.call_args_list[0].args[0]["status"] == 413
    assert not events  # nobody has heard of it


def _card(number: int, node: ec.EllipticCurvePrivateKey) -> Card:
    public = node.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return Card.make(f"shop {number}", Identity(number.to_bytes(32, "big")), public)


def _shown(key: ec.EllipticCurvePrivateKey, other: ec.EllipticCurvePrivateKey) -> dict[str, str]:
    """A key that somebody shows who has another one."""
    return _signed(other) | {"flwr-public-key": _signed(key)["flwr-public-key"]}


def _signed(key: ec.EllipticCurvePrivateKey, late: float = 0) -> dict[str, str]:
    """The headers by which a SuperNode shows who it is."""
    stamp = (datetime.now(UTC) - timedelta(seconds=late)).isoformat()
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signature = key.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
    return {
        "flwr-public-key": base64.b64encode(pem).decode(),
        "flwr-timestamp": stamp,
        "flwr-signature": base64.b64encode(signature).decode(),
    }


@pytest.mark.check
@needs_flower
def test_no_code_but_ours_is_run(tmp_path: Path) -> None:
    """In processes of their own, because it changes Flower."""
    client = (
        "from privirec.extra.flower import answering, client_app; answering.only_our_own()\n"
        "from flwr.supernode.runtime import run_clientapp as flower\n"
        "assert flower.install_from_fab(b'no bundle', skip_prompt=True) is None\n"
        "load = flower.get_load_client_app_fn(default_app_ref='', app_path=None, multi_app=True)\n"
        "assert load('evil/app', '1.0.0', 'aa') is client_app.app\n"
    )
    server = (
        "import sys\n"
        "from unittest import mock\n"
        "from privirec.extra.flower import serve_run, server_app; serve_run.only_our_own()\n"
        "server_app.app = mock.Mock()\n"
        "import flwr.superlink.runtime\n"
        "flower = sys.modules['flwr.superlink.runtime.run_serverapp']\n"
        "flower.run_(grid=1, context=2, server_app_dir='/evil', server_app_attr='evil:app')\n"
        "server_app.app.assert_called_once_with(grid=1, context=2)\n"
    )
    for text in (client, server):
        subprocess.run([sys.executable, "-c", text], check=True)


@pytest.mark.check
@needs_flower
@pytest.mark.parametrize(
    ("side", "parts"),
    [
        (
            "client",
            ("Error", "install_from_fab", "get_load_client_app_fn", "install_app_dependencies"),
        ),
        ("server", ("run_", "install_app_dependencies")),
    ],
)
def test_a_release_that_no_longer_calls_our_parts_is_not_started(
    side: str, parts: tuple[str, ...]
) -> None:
    """A bundle that would leave a mark, and that asks for a dependency, goes through Flower's own
    function with installing switched on."""
    program = Path(__file__).with_name("flower_releases.py")
    done = subprocess.run(
        [sys.executable, str(program), side], capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "as it is: goes on", done
    assert sorted(lines[1:]) == sorted(f"{part}: refused" for part in parts)
    assert "without the guard: the bundle's code ran: True" in done.stderr


@needs_flower
def test_only_the_flower_that_was_tried_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    extra = ours["project"]["optional-dependencies"]["flower"]
    assert f"flwr=={launch.FLOWER}" in extra
    assert " ".join(f"'{each}'" for each in extra) == launch.INSTALL
    launch.check_flower()
    monkeypatch.setattr("importlib.metadata.version", lambda _: "1.41.1")
    with pytest.raises(UsageError, match=r"Flower 1\.41\.1 is installed, and 1\.41\.0"):
        launch.check_flower()


@needs_flower
def test_flower_finds_no_programs_but_ours(tmp_path: Path) -> None:
    env = launch.environment(tmp_path / "flower")
    ours, _ = answering.hand_over(tmp_path / "a folder" / "bin", env)
    assert ours["PATH"] == str(tmp_path / "a folder" / "bin")
    for name in ("flwr-clientapp", "flwr-agentapp", "flwr-serverapp", "flwr-simulation"):
        done = subprocess.run([name], env=ours, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr.startswith("privirec: ")
    with pytest.raises(FileNotFoundError):
        subprocess.run(["flwr"], env=ours, check=False)
    shutil.rmtree(tmp_path / "a folder")
    with (
        mock.patch.object(allowed_programs, "write_whole"),
        pytest.raises(FederationError, match="noexec"),
    ):
        allowed_programs.write_programs(tmp_path / "bin", env, {})  # nothing can be written there


@check
@needs_flower
def test_a_whole_federation_gives_the_simulations_model(small: Dataset, tmp_path: Path) -> None:
    plan = Plan(
        method="privirec-k", rank=8, rounds=2, runtime=NETWORK, clients=4, aggregator="secagg+"
    )
    seen: list[dict[str, Any]] = []
    row = federate(
        small,
        plan,
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
    for client in range(4):
        assert (tmp_path / f"federation/client-{client}/model/current").exists()
        log = (tmp_path / f"federation/client-{client}/supernode.log").read_text()
        assert "insecure" not in log.lower()
    assert not _leftovers(tmp_path)


@pytest.mark.long
@needs_flower
@pytest.mark.parametrize("seed", range(REAL_RUNS))
def test_killed_programs_come_back(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 at each sum: of the process that answers for a client, of all processes of a client
    (which Flower lets in again after a minute, so not in the first seed), of the server's.

    The run's bundle has a client and a server of its own, which must not be run."""
    from privirec.extra.flower.one_machine import FlowerNetwork
    from privirec.extra.flower.runs import follow_run, start_run
    from privirec.runtime.spec import RunSpec

    rng = random.Random(seed)
    kinds = ("answer", "client", "server")
    plan = [rng.choice(kinds) for _ in range(3)] if seed else ["answer", "server", "answer"]
    train = _planted()
    settings = PrivirecKSettings(rank=4, rounds=2)
    file = RunSpec(program=settings, config={"rank": 4})
    deadlines = file.deadlines.model_copy(update={"silence": 15.0})
    file = file.model_copy(update={"deadlines": deadlines})
    killed: list[str] = []
    mark = tmp_path / "code of the bundle was run"
    monkeypatch.setattr(launch, "write_app", lambda folder: _bundle(folder, mark))
    with FlowerNetwork(tmp_path / "federation") as network:
        network.prepare(train, 3, small_policy())
        network.start()
        assert network.server is not None

        def watch(status: dict[str, Any]) -> None:
            for client in network.running_clients:
                client.keep_up()
            if len(killed) == len(plan) or status.get("sum_number", 0) <= len(killed):
                return
            kind = plan[len(killed)]
            client = rng.choice(network.running_clients)
            if kind == "answer" and not _kill_answering(client):
                return
            if kind == "client" and client.node is not None:
                _kill(child_processes.family(client.node.process.pid))
                network.processes.end(client.node)
                client.node = None
            if kind == "server" and not _kill_by_name(network.processes, "serve_run"):
                return  # it is on its way
            killed.append(kind)
            if kind == "server":
                raise _Killed

        for _ in range(6):
            number = start_run(network.server, "one", file, network.env)
            try:
                result = follow_run(network.server, "one", number, network.env, watch)
                break
            except _Killed:
                continue
            except FederationError as error:  # started while the killed one was not quite dead
                assert "start it again" in str(error)  # noqa: PT017
    assert result["reason"] == ""
    assert not mark.exists()
    assert "server" not in plan or "server" in killed
    assert killed
    expected, _ = execute(
        program_of(settings, train.n_users, train.n_items).steps(), Simulation(train)
    )
    model = Recommender.load(tmp_path / "federation/server/runs/one/model", mmap=False)
    check_same(model.components, expected)
    journal = (tmp_path / "federation/server/runs/one/journal").read_bytes()
    assert journal.count(b'"event":"opened"') == 3
    _check_nothing_leaked(tmp_path / "federation")


@pytest.mark.long  # the door itself is tried in `test_the_door_for_clients`
@check
@needs_flower
def test_who_has_no_business_there_cannot_connect(
    small: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node with an unregistered key, and one that trusts another authority."""
    from privirec.extra.flower.one_machine import FlowerNetwork
    from privirec.runtime.enrolment.certificates import make_certificates
    from privirec.runtime.enrolment.identities import make_node_key

    with FlowerNetwork(tmp_path / "federation") as network:
        network.prepare(small.train, 3, Policy())
        clients, network.clients = network.clients, []
        network.start()
        assert network.server is not None
        trusted = ssl.create_default_context(cafile=network.server.folder / "tls/ca.crt")
        url = f"https://{network.address}/v1/control/list-runs"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url, b"", context=trusted, timeout=10)
        make_node_key(clients[0])
        make_certificates(tmp_path / "other")
        (clients[1] / "ca.crt").write_bytes((tmp_path / "other/ca.crt").read_bytes())
        monkeypatch.setattr(launch, "MOST_TRIES", 0)
        for folder, said in zip(clients, ("does not know its key", "vouches for"), strict=False):
            client = network.start_client(folder)
            with pytest.raises(FederationError, match=said) as refused:
                _look_for_a_minute(client)
            assert "\n" not in str(refused.value)
        told = (network.server.folder / "superlink.log").read_text()
        assert "privirec: turned away a client that is not approved, from 127.0.0.1" in told


class _Killed(Exception):
    pass


def _look_for_a_minute(client: launch.FlowerClient) -> None:
    for _ in range(120):
        client.keep_up()
        time.sleep(0.5)


def _bundle(folder: Path, mark: Path) -> Path:
    """An app with another client and another server."""
    text = (write_app(folder) / "pyproject.toml").read_text()
    text = text.replace("privirec.extra.flower.client_app:app", "evil:app")
    text = text.replace("privirec.extra.flower.server_app:app", "evil:server")
    (folder / "pyproject.toml").write_text(text)
    (folder / "evil.py").write_text(
        f"open({str(mark)!r}, 'w').close()\n"
        "from flwr.clientapp import ClientApp\napp = server = ClientApp()\n"
    )
    return folder


def _planted() -> Interactions:
    """Histories whose users and items can be found again wherever they turn up."""
    rng = np.random.default_rng(7)
    touched = (rng.random((24, 40)) < 0.3).astype(np.float32)
    touched[:, 0] = 1
    return Interactions.from_matrix(
        touched, PLANTED_USERS + np.arange(24), PLANTED_ITEMS + np.arange(40)
    )


def _check_nothing_leaked(folder: Path) -> None:
    """Names of users nowhere outside a client's own histories; of items in the catalogue and in
    models only."""
    for path in folder.rglob("*"):
        if not path.is_file() or path.name in ("history.txt", "catalogue.txt"):
            continue
        content = path.read_bytes()
        assert str(PLANTED_USERS)[:5].encode() not in content, path
        if "model" not in path.relative_to(folder).parts:
            assert str(PLANTED_ITEMS)[:5].encode() not in content, path


def _kill_answering(client: launch.FlowerClient) -> bool:
    """Kill the process that works on the next message for this client."""
    assert client.answering is not None
    pid = client.answering.process.pid
    for _ in range(200):
        if at_work := child_processes.family(pid) - {pid}:
            _kill(at_work)
            return True
        time.sleep(0.02)
    return False


def _kill(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _kill_by_name(running: child_processes.Processes, name: str) -> bool:
    """Only among what this test started."""
    killed = False
    for one in running.running:
        for pid in child_processes.family(one.process.pid):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if name.encode() in command:
                os.kill(pid, signal.SIGKILL)
                killed = True
    return killed


def _leftovers(folder: Path) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [
        line for line in listed.stdout.splitlines() if str(folder) in line and "ps " not in line
    ]


def test_what_a_node_said_last_is_where_it_stands(tmp_path: Path) -> None:
    log = tmp_path / "supernode.log"
    node = SimpleNamespace(log=log)
    client = launch.FlowerClient(None, tmp_path, "", {}, node=node)  # type: ignore[arg-type]
    begun, tries = (
        "Starting Flower SuperNode",
        "Connection attempt failed, retrying in 1.70 seconds",
    )
    let_in, again = "SuperNode ID: 7", "Connection successful after 3.10 seconds and 2 tries."
    for lines, connected, unanswered in (
        ([begun], False, False),
        ([begun, tries], False, True),
        ([begun, tries, again], False, False),
        ([begun, tries, again, let_in], True, False),
        ([begun, let_in, tries], False, True),
        ([begun, let_in, tries, again], True, False),
        ([begun, let_in, begun, tries], False, True),
    ):
        log.write_text("\n".join(lines))
        assert (client.connected, client.unanswered) == (connected, unanswered), lines
    log.write_text(f"{begun}\n{let_in}\nClient error '410 Gone' for url 'https://server'")
    with pytest.raises(FederationError, match="the operator has revoked this client"):
        client.keep_up()


def test_a_run_that_cannot_be_started_burns_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privirec.extra.flower.runs import start_run

    home = OperatorFolder.create(tmp_path / "server")
    files = [mock.Mock(**{"model_dump_json.return_value": text}) for text in ("{}", '{"k": 8}')]
    down = mock.Mock(side_effect=FederationError("flwr run failed: nobody listens"))
    monkeypatch.setattr(launch, "flwr", down)
    for file in files:
        with pytest.raises(FederationError, match=r"could not be started.*privirec server up"):
            start_run(home, "monday", file, {})
        assert not (home.folder / "runs/monday").exists()
    monkeypatch.setattr(launch, "flwr", mock.Mock(return_value='{"run-id": "7"}'))
    assert start_run(home, "monday", files[1], {}) == "7"
