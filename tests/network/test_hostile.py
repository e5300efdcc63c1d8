"""What a client of the roster can do to the server, and to the others, on real processes."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from privirec.privacy.policy import Policy
from privirec.runtime import child_processes

from .test_flower import _planted

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        importlib.util.find_spec("flwr") is None,
        reason="needs Flower, the extra 'flower'",
    ),
]

MEGABYTE = 1 << 20


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def test_a_hostile_client_does_not_keep_the_others_out(tmp_path: Path) -> None:
    """Floods, half-open and slow requests and huge heads, with an honest client beside them."""
    from privirec.extra.flower.allowance import BURST, RATE
    from privirec.extra.flower.one_machine import FlowerNetwork

    from .hostile import Hostile

    with FlowerNetwork(tmp_path / "federation") as network:
        network.prepare(_planted(), 3, Policy())
        clients, network.clients = network.clients, []
        network.start()
        assert network.link is not None
        assert network.server is not None
        host, port = network.address.split(":")
        bad, good = (Hostile(folder, (host, int(port))) for folder in clients[:2])
        bad.activate()
        good.activate()
        pid = network.link.process.pid
        before, kept = child_processes.memory(pid), _size(network.server.folder)
        honest = []

        def stay() -> None:
            while not over.is_set():
                good.pull()
                over.wait(0.2)

        over = threading.Event()
        staying = threading.Thread(target=stay)
        staying.start()
        began = time.monotonic()
        with bad.half_open(300) as lines, bad.slow(20):
            bad.flood(4, at_once=24)
            for _ in range(3):
                assert b"200 OK" not in bad.huge_head()
            flooded = time.monotonic() - began
            cut = 0
            for line in lines:
                line.settimeout(20)
                with contextlib.suppress(OSError):
                    cut += line.recv(1) == b""
        over.set()
        staying.join()
        honest = [status for status in good.heard if not status.endswith(" 200")]
        assert not honest, good.heard
        assert good.heard["pull-messages 200"] > 5
        served = bad.heard["pull-messages 200"]
        assert served <= BURST + RATE * flooded + 10
        assert bad.heard["pull-messages 429"] > 0
        assert cut >= len(lines) - 5
        assert child_processes.memory(pid) - before < 150
        assert _size(network.server.folder) - kept < 5 * MEGABYTE
        network.link.check()


def test_an_honest_run_finishes_beside_a_hostile_client(tmp_path: Path) -> None:
    """One of four clients of the roster replies with what is no message, and with as much junk as
    it may, never finished, and sends messages to the others in the server's name."""
    from privirec.extra.flower.one_machine import FlowerNetwork
    from privirec.federated.programs import PrivirecKSettings
    from privirec.runtime.spec import Deadlines, RunSpec

    from .hostile import Hostile

    spec = RunSpec(program=PrivirecKSettings(rank=2, rounds=2), dropped_share=0.3)
    file = spec.model_copy(
        update={"config": {"rank": 2}, "deadlines": Deadlines(hello=10, silence=20)}
    )
    largest = 8 * MEGABYTE
    with FlowerNetwork(tmp_path / "federation") as network:
        network.prepare(_planted(), 4, Policy(largest_opened_share=2))
        *network.clients, folder = network.clients
        network.start(largest_reply=largest)
        assert network.link is not None
        assert network.server is not None
        host, port = network.address.split(":")
        bad = Hostile(folder, (host, int(port)))
        bad.activate()
        taken: list[int] = []
        malformed: list[int] = []
        injected: list[int] = []
        over = threading.Event()

        def harm() -> None:
            while not over.wait(0.5):
                for question in bad.pull():
                    injected.append(bad.inject(question, to=bad.node + 1))
                    if malformed:
                        taken.append(bad.store_junk(question, 3 * largest))
                    else:
                        malformed.append(bad.store_junk(question, 99, malformed=True))

        harming = threading.Thread(target=harm)
        harming.start()
        peak = [child_processes.memory(network.link.process.pid)]
        first = peak[0]

        def watch(_: dict[str, Any]) -> None:
            assert network.link is not None
            peak.append(child_processes.memory(network.link.process.pid))

        while not all(client.connected for client in network.running_clients):
            network.link.check()
            time.sleep(0.2)
        try:
            result = network.run("beside", file, watch)
        finally:
            over.set()
            harming.join()
        assert result["reason"] == "", result
        states = {int(number): one["state"] for number, one in result["status"]["clients"].items()}
        assert [states[number] for number in range(3)] == ["installed"] * 3
        assert malformed[0] > 99  # all of it was taken, and changed nothing
        assert taken, bad.heard
        assert all(0 < size <= largest for size in taken), bad.heard
        assert set(injected) == {403}
        assert max(peak) - first < 400
        assert _size(network.server.folder / "runs") < 5 * MEGABYTE


# --- the same bounds, and without them ------------------------------------------------------------

LIFTED = """
import runpy
from privirec.extra.flower import allowance, front_door, lines
allowance.RATE = allowance.BURST = 1e9
allowance.AT_ONCE = front_door.AT_ONCE = lines.UNPROVEN = lines.PROVEN = 1 << 30
lines.HEAD_WITHIN, lines.LARGEST_HEAD, front_door.SAID_AGAIN = 1e9, 1 << 30, 0.0
runpy.run_module("privirec.extra.flower.link", run_name="__main__")
"""
"""The server's process, without the bounds at its door."""


@contextlib.contextmanager
def door(folder: Path, *, lifted: bool, largest: int = 8 * MEGABYTE) -> Iterator[Any]:
    """A server that is up, with its bounds or without, and a hostile client of its roster."""
    from privirec.extra.flower import launch
    from privirec.extra.flower.one_machine import FlowerNetwork

    from .hostile import Hostile

    module = launch.module

    def unbounded(name: str, *arguments: str) -> list[str]:
        if name != "privirec.extra.flower.link":
            return module(name, *arguments)
        return [sys.executable, "-P", "-c", LIFTED, *arguments]

    with FlowerNetwork(folder / "federation") as network, pytest.MonkeyPatch.context() as patch:
        if lifted:
            patch.setattr(launch, "module", unbounded)
        network.prepare(_planted(), 3, Policy())
        clients, network.clients = network.clients, []
        network.start(1 << 40 if lifted else largest)
        host, port = network.address.split(":")
        bad = Hostile(clients[0], (host, int(port)))
        bad.activate()
        yield network, bad


def _memory(network: Any) -> float:
    return child_processes.memory(network.link.process.pid)


@pytest.mark.parametrize("lifted", [False, True], ids=["bounded", "lifted"])
def test_heads_that_do_not_end_fill_the_memory_only_without_a_bound(
    tmp_path: Path, lifted: bool
) -> None:
    with door(tmp_path, lifted=lifted) as (network, bad):
        before = _memory(network)
        with bad.unfinished_heads(100, 2 * MEGABYTE):
            grown = _memory(network) - before
        assert (grown > 150) == lifted, grown
        assert grown > 150 or grown < 60, grown  # far from the line, on either side


@pytest.mark.parametrize("lifted", [False, True], ids=["bounded", "lifted"])
def test_floods_are_served_and_logged_only_without_a_bound(tmp_path: Path, lifted: bool) -> None:
    from privirec.extra.flower.allowance import BURST, RATE

    with door(tmp_path, lifted=lifted) as (network, bad):
        log = network.server.folder / "superlink.log"
        kept = log.stat().st_size
        began = time.monotonic()
        bad.flood(8, at_once=24)
        served = bad.heard["pull-messages 200"]
        most = BURST + RATE * (time.monotonic() - began) + 10
        assert (served > most) == lifted, (served, most)
        assert (bad.heard["pull-messages 429"] > 0) != lifted
        for _ in range(100):
            bad.post("pull-messages", bytes(1 << 17))  # more than a question may have
        lines = log.read_bytes()[kept:].count(b"turned away")
        assert (lines > 50) == lifted, (lines, bad.heard)


@pytest.mark.parametrize("lifted", [False, True], ids=["bounded", "lifted"])
def test_junk_in_replies_fills_the_memory_only_without_a_bound(
    tmp_path: Path, lifted: bool
) -> None:
    from privirec.extra.flower.runs import start_run
    from privirec.federated.programs import PrivirecKSettings
    from privirec.runtime.spec import Deadlines, RunSpec

    spec = RunSpec(program=PrivirecKSettings(rank=2, rounds=2))
    file = spec.model_copy(
        update={"config": {"rank": 2}, "deadlines": Deadlines(hello=60, silence=60)}
    )
    with door(tmp_path, lifted=lifted) as (network, bad):
        start_run(network.server, "waiting", file, network.env)
        questions: list[Any] = []
        end = time.monotonic() + 60
        while not questions and time.monotonic() < end:
            questions = bad.pull()
            time.sleep(0.2)
        before = _memory(network)
        taken = bad.store_junk(questions[0], 256 * MEGABYTE)
        grown = _memory(network) - before
        assert (taken > 200 * MEGABYTE) == lifted, bad.heard
        assert (grown > 150) == lifted, grown
        assert grown > 150 or grown < 60, grown
