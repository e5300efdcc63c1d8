"""Tests of the HTTPS carrier over real TLS, and with real processes that are killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privirec.data import Dataset, Interactions
from privirec.errors import FederationError, UsageError
from privirec.federated.programs import PrivirecKSettings, program_of
from privirec.models import Recommender
from privirec.runtime.carriers import Listening
from privirec.runtime.child_processes import Running, free_port
from privirec.runtime.enrolment.certificates import make_certificates
from privirec.runtime.enrolment.folders import ClientFolder, OperatorFolder
from privirec.runtime.execute import execute
from privirec.runtime.federate import federate
from privirec.runtime.https import server as server_module
from privirec.runtime.https.client import Answering
from privirec.runtime.https.connection import Connection, Unreachable, trusting
from privirec.runtime.https.limits import Limits
from privirec.runtime.https.runs import follow_run, is_up, start_run
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.one_machine import OneMachine, make_federation
from privirec.runtime.spec import RunSpec

from .chaos import check_same, small_policy

SETTINGS = PrivirecKSettings(rank=4, rounds=2)
FILE = RunSpec(program=SETTINGS, config={"rank": 4})
REAL_RUNS = int(os.environ.get("PRIVIREC_CHAOS_PROCESSES", "1"))


def histories() -> Interactions:
    touched = np.random.default_rng(1).random((18, 17)) < 0.35
    touched[:, 0] = True
    return Interactions.from_matrix(touched.astype(np.float32))


def check_model(home: OperatorFolder, train: Interactions) -> None:
    """Fail unless the model equals the simulation's, bit for bit."""
    program = program_of(SETTINGS, train.n_users, train.n_items)
    expected, _ = execute(program.steps(), Simulation(train))
    model = Recommender.load(home.folder / "runs/one/model", mmap=False)
    check_same(model.components, expected)


@contextlib.contextmanager
def serving(home: OperatorFolder, listening: Listening) -> Iterator[threading.Thread]:
    """Start a server in a thread of this process; it ends with the process."""
    ready = threading.Event()
    limits = Limits(busy_pause=0.0, idle_pause=0.0)
    servers: list[Any] = []
    made = server_module.uvicorn.Server

    def making(config: Any) -> Any:
        servers.append(made(config))
        return servers[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_module.uvicorn, "Server", making)
        thread = threading.Thread(
            target=server_module.serve, args=(home, listening, limits, ready.set)
        )
        thread.start()
        try:
            assert ready.wait(20)
            yield thread
        finally:
            for one in servers:
                one.should_exit = True
            thread.join(20)
    assert not thread.is_alive()


def device_of(path: Path, url: str, ca: Path | None = None) -> tuple[Connection, Answering]:
    home = ClientFolder(path)
    answering = Answering(home)
    client = answering.node().client
    answering.close()  # another thread will answer
    server_key = bytes.fromhex(home.members.server)
    tls = trusting(ca or path / "ca.crt")
    return Connection(url, client, home.identity, server_key, tls, answering.answer), answering


def run_with(home: OperatorFolder, clients: list[Path], url: str) -> dict[str, Any]:
    """Run with one thread per device until the result is available."""
    start_run(home, "one", FILE)
    result = home.run("one") / "result.json"
    both = [device_of(path, url) for path in clients]

    deadline = time.monotonic() + 60

    def stay(device: Connection, answering: Answering) -> None:
        with contextlib.closing(device), contextlib.closing(answering):
            while not result.exists() and time.monotonic() < deadline:
                try:
                    pause = device.turn()
                except Unreachable as error:
                    pause = device.back_off(error)
                time.sleep(min(pause, 1.0))

    threads = [threading.Thread(target=stay, args=each) for each in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return follow_run(home, "one", lambda status: None)


def test_a_run_over_tls_is_the_simulation(tmp_path: Path) -> None:
    train, port, watched = histories(), free_port(), free_port()
    home, clients = make_federation(tmp_path, train, 3, small_policy())
    with pytest.raises(FederationError, match="nobody listens"):
        start_run(home, "one", FILE)
    assert not home.run("one").joinpath("run.json").exists()  # the name is still free
    with serving(home, Listening("127.0.0.1", port, watched)):
        assert is_up(home)
        url = f"https://127.0.0.1:{port}"
        make_certificates(tmp_path / "other")
        stranger, answering = device_of(clients[0], url, tmp_path / "other" / "ca.crt")
        with pytest.raises(Unreachable, match=r"not one that ca\.crt vouches for"):
            stranger.turn()
        answering.close()
        assert run_with(home, clients, url)["reason"] == ""
        local = f"http://127.0.0.1:{watched}"
        with urllib.request.urlopen(f"{local}/metrics", timeout=5) as found:  # noqa: S310
            assert b"privirec_clients_approved 3.0" in found.read()
    assert not is_up(home)
    check_model(home, train)
    for path in clients:
        assert (path / "model" / "current").exists()


def test_behind_a_proxy_that_does_tls(tmp_path: Path) -> None:
    """The server speaks HTTP on this machine only; a proxy terminates TLS for it."""
    train, inside, outside = histories(), free_port(), free_port()
    home, clients = make_federation(tmp_path, train, 3, small_policy())
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(home.folder / "tls/server.crt", home.folder / "tls/server.key")
    loop = asyncio.new_event_loop()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", inside)

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, ssl.SSLError):
                while data := await source.read(1 << 16):
                    target.write(data)
                    await target.drain()
            target.close()

        await asyncio.gather(pump(reader, to_writer), pump(to_reader, writer))

    proxy = loop.run_until_complete(
        asyncio.start_server(pass_on, "127.0.0.1", outside, ssl=context)
    )
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        with serving(home, Listening("127.0.0.1", inside, 0, behind_proxy=True)):
            assert run_with(home, clients, f"https://127.0.0.1:{outside}")["reason"] == ""
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        proxy.close()

        async def end() -> None:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

        loop.run_until_complete(end())
        loop.close()
    check_model(home, train)


def test_a_connection_that_says_nothing_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privirec.runtime import lines

    monkeypatch.setattr(lines, "HEAD_WITHIN", 0.5)
    port = free_port()
    home, _ = make_federation(tmp_path, histories(), 2, small_policy())
    with serving(home, Listening("127.0.0.1", port, 0)):
        context = trusting(home.folder / "tls" / "ca.crt")
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as line,
            context.wrap_socket(line, server_hostname="localhost") as tls,
        ):
            tls.sendall(b"GET /v1/next HTTP/1.1\r\n")
            began = time.monotonic()
            with contextlib.suppress(OSError):
                assert tls.recv(100) == b""
            assert time.monotonic() - began < 8


def test_without_a_certificate_one_line(tmp_path: Path) -> None:
    home = OperatorFolder.create(tmp_path / "server")
    with pytest.raises(UsageError, match=r"server\.crt: missing"):
        server_module.serve(home, Listening("127.0.0.1", free_port(), 0))


@pytest.mark.check
@pytest.mark.parametrize("seed", range(REAL_RUNS))
def test_killed_processes_come_back(seed: int, tmp_path: Path) -> None:
    """Kill a client's or the server's process with SIGKILL at each sum.

    A restarted server continues the run by itself.
    """
    rng = random.Random(seed)
    plan = [rng.choice(("client", "server")) for _ in range(3)] if seed else ["client", "server"]
    train, done = histories(), []
    with OneMachine(tmp_path) as network:
        network.prepare(train, 3, small_policy())
        network.start()
        assert network.server is not None

        def kill(one: Running) -> None:
            os.kill(one.process.pid, signal.SIGKILL)
            one.process.wait()
            network.processes.running.remove(one)

        def watch(status: dict[str, Any]) -> None:
            if len(done) == len(plan) or status.get("sum_number", 0) <= len(done):
                return
            kind = plan[len(done)]
            done.append(kind)
            if kind == "server":
                assert network.link is not None
                kill(network.link)
                network.start_server()
                return
            path = rng.choice(network.clients)
            (one,) = [one for one in network.processes.running if one.name == path.name]
            kill(one)
            network.start_client(path)

        file = FILE.model_copy(update={"silence": 15.0})
        start_run(network.server, "one", file)
        result = follow_run(network.server, "one", watch)
        assert result["reason"] == ""
        assert done == plan
        check_model(network.server, train)
    journal = (network.server.run("one") / "journal").read_bytes()
    assert journal.count(b'"event":"opened"') == 3


@pytest.mark.check
def test_a_federation_on_one_machine_gives_what_the_simulation_gives(small: Dataset) -> None:
    spec = RunSpec.of("privirec-k", rank=8, rounds=2)
    row = federate(small, spec, 3, check=True, carrier="https")
    assert row["same_as_simulation"]
    assert row["runtime"] == "https"
    assert row["peak_client_rss_mb"] < 120
