"""Tests of faults at every write of a client: two vectors never leave under one mask.

An honest run is recorded: every message for client 0, and its folder before each message. Then, for
every write made in answering a message, the client is killed there (in a child process) or the disk
is full there (`ENOSPC`, also halfway through a write). Afterwards a lying server asks for
everything it could. At the end the test compares everything that left the client.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privirec.device.installed import Installed
from privirec.errors import FederationError
from privirec.federated import wire
from privirec.federated.contributions import Histories, PowerStep, SeededStep, answer
from privirec.federated.randomness import NO_RANDOMNESS
from privirec.runtime import envelope
from privirec.runtime.coordinator import Stage
from privirec.runtime.envelope import EVERYBODY, Envelope
from privirec.runtime.messages import (
    ARTIFACT_FILES,
    Answer,
    ArtifactPiece,
    Exchange,
    Hello,
    Message,
    Refused,
    SendVector,
    Vector,
)
from privirec.runtime.node import Node, memory, steps
from privirec.runtime.node.memory import Memory
from privirec.runtime.node.run_state import ClientRun
from privirec.runtime.node.upload import upload_file
from privirec.runtime.refusals import Code, Refusal
from privirec.runtime.run_plan import RunPlan
from privirec.secagg import Phase, Step
from privirec.secagg.bell2020.messages import decode
from privirec.secagg.errors import ProtocolError
from privirec.secagg.keys import NOTHING_ASKED
from privirec.secagg.messages import encode
from secagg.testing.lies import lie_of

from .chaos import TERMS, Federation, check_same
from .crashing import Fault, Trap, in_a_process_of_its_own, kernel_writes, watched
from .test_node import Talk

CLIENT = 0


@pytest.fixture(autouse=True)
def _the_whole_disk_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare modification times, which copies keep, instead of change times.

    These tests restore folders, which a client would otherwise notice by the change time of its
    note.
    """
    monkeypatch.setattr(memory, "changed_at", lambda path: path.stat().st_mtime_ns)


# --- an honest run, recorded ----------------------------------------------------------------------


@dataclass
class Recorded:
    """Run as client 0 sees it."""

    federation: Federation
    run: str
    messages: list[bytes]
    folders: list[Path]
    """Copies of the client's folder before each message."""
    plan: RunPlan

    def node(self, home: Path) -> Node:
        elsewhere = object.__new__(Federation)
        elsewhere.__dict__ |= self.federation.__dict__ | {"folder": home}
        return elsewhere.node(CLIENT)

    def place(self, name: str, number: int = 0) -> int:
        """Return the index of this step's message; "hello" is the first."""
        if name == "hello":
            return 0
        steps = self.plan.steps
        return 1 + next(
            place
            for place, step in enumerate(steps)
            if (step.name, step.sum_number) == (name, number)
        )

    def step(self, place: int) -> Step | None:
        return self.plan.steps[place - 1] if place else None

    def seal(self, client: int, message: Message, *parts: bytes) -> bytes:
        sealed = Envelope(self.run, client, message, parts)
        return sealed.seal(self.federation.operator, "to-client")


class _Recorder(Talk):
    messages: list[bytes]
    folders: list[Path]

    def step(self, skip: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        home = self.federation.folder / f"client-{CLIENT}"
        self.server.connected(set(self.federation.roster))
        for address, message in list(self.server.outgoing()):
            client = int(str(address))
            told = envelope.peek(message, "to-client").message
            if client == CLIENT and isinstance(told, Hello | Exchange):
                copy = self.federation.folder / f"before-{len(self.messages)}"
                shutil.copytree(home, copy / f"client-{CLIENT}")
                self.messages.append(message)
                self.folders.append(copy)
            self.server.receive(client, self.federation.node(client).answer(message))
        self.server.tick()


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder in memory if possible, because waiting for the disk is not tested."""
    memory_disk = Path("/dev/shm")  # noqa: S108
    inside = memory_disk if os.access(memory_disk, os.W_OK) else tmp_path_factory.mktemp("writes")
    with tempfile.TemporaryDirectory(dir=inside) as folder:
        yield Path(folder)


@pytest.fixture
def folder(shared_folder: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=shared_folder) as inside:
        yield Path(inside)


@pytest.fixture(scope="module")
def recorded(shared_folder: Path) -> Recorded:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "changed_at", lambda path: path.stat().st_mtime_ns)
        federation = Federation(shared_folder / "recorded")
        talk = _Recorder(federation)
        talk.messages, talk.folders = [], []
        talk.until(Stage.COMPUTED)
    assert len(talk.messages) == 1 + len(talk.server.plan.steps)
    return Recorded(federation, talk.server.run, talk.messages, talk.folders, talk.server.plan)


# --- a lying server -------------------------------------------------------------------------------


def other_messages(recorded: Recorded, place: int) -> list[bytes]:
    """Return messages that a server could send instead of this one, under the same number."""
    honest = envelope.peek(recorded.messages[place], "to-client")
    parts = [bytes(part) for part in honest.parts]
    step, said = recorded.step(place), honest.message
    other = EVERYBODY if honest.client == CLIENT else CLIENT
    found = [recorded.seal(other, said, *parts)]
    if step is None:
        return found
    if step.phase is Phase.INPUT:
        ask = wire.encode(another_ask(wire.decode(parts[1])))
        found.insert(0, recorded.seal(CLIENT, said, parts[0], ask))
    elif place == 1:
        users = recorded.plan.users | {1: 5}
        text = recorded.plan.model_copy(update={"users": users}).model_dump_json().encode()
        found.append(recorded.seal(CLIENT, said, parts[0], text))
    else:
        lies = [
            lie_of("secagg+")(parts[0], random.Random(s), recorded.federation.roster)
            for s in range(6)
        ]
        told = [another_survivor(parts[0]), *dict.fromkeys(lies)]
        found += [recorded.seal(CLIENT, said, one, *parts[1:]) for one in told if one]
    return found


def another_ask(ask: Any) -> Any:
    """Return a different ask that the plan allows too."""
    if isinstance(ask, PowerStep):
        return replace(ask, block=-ask.block)
    if isinstance(ask, SeededStep):
        return replace(ask, item_degrees=np.minimum(ask.item_degrees + 1, 24))
    return ask


def another_survivor(message: bytes) -> bytes | None:
    """Return the message with one surviving client declared as dropped, or None."""
    told: Any = decode(message)
    if not getattr(told, "survivors", ()) or not hasattr(told, "dropped"):
        return None
    dropped = tuple(sorted({*told.dropped, told.survivors[-1]}))
    changes: dict[str, Any] = {"survivors": told.survivors[:-1], "dropped": dropped}
    if hasattr(told, "cohort"):
        changes["cohort"] = told.cohort - 1
    return encode(replace(told, **changes))


@dataclass
class Heard:
    """Everything that left a client in one life."""

    vectors: dict[tuple[str, int], set[bytes]] = field(default_factory=lambda: defaultdict(set))
    """Vectors by run and step."""
    answers: dict[tuple[str, int], set[bytes]] = field(default_factory=lambda: defaultdict(set))
    codes: list[Code] = field(default_factory=list)

    def listen(self, reply: bytes | None) -> Message | None:
        if not reply:
            return None
        sealed = envelope.peek(reply, "to-server")
        said = sealed.message
        if isinstance(said, Vector):
            self.vectors[sealed.run, said.step].add(bytes(sealed.parts[0]))
        elif isinstance(said, Answer):
            self.answers[sealed.run, said.step].add(bytes(sealed.parts[0]))
        elif isinstance(said, Refused):
            self.codes.append(said.code)
        return said

    def two_time_pads(self) -> list[tuple[str, int]]:
        return sorted(key for key, found in self.vectors.items() if len(found) > 1)

    def check(self) -> None:
        """Fail unless there is one vector per sum, one answer per step, one secret per client."""
        assert not self.two_time_pads()
        for key, found in self.answers.items():
            assert len(found) == 1, key
            for answered in found:
                try:
                    told: Any = decode(answered)
                except ProtocolError:
                    continue
                if hasattr(told, "seed_shares"):  # at most one share of each of the five others
                    assert len(told.seed_shares) + len(told.key_shares) <= 5


class Liar:
    """Server that asks a client for everything, in a given order."""

    def __init__(self, recorded: Recorded, place: int, heard: Heard) -> None:
        self._recorded = recorded
        self._place = place
        self._heard = heard

    def ask(self, node: Node, order: int) -> None:
        """Ask in one of three orders: an altered message, the upload or the honest one first."""
        here = self._here()
        for turn in ((1, 0, 2), (2, 1, 0), (0, 2, 1))[order % 3]:
            here[turn](node)
        for question in here:
            question(node)
        for message in self._rest():
            self._heard.listen(node.answer(message))
        self._uploads(node)

    def _here(self) -> list[Callable[[Node], None]]:
        recorded, place = self._recorded, self._place

        def honest(node: Node) -> None:
            self._heard.listen(node.answer(recorded.messages[place]))

        def others(node: Node) -> None:
            for message in other_messages(recorded, place):
                self._heard.listen(node.answer(message))

        return [honest, others, self._uploads]

    def _uploads(self, node: Node) -> None:
        """Ask for every possible upload."""
        recorded = self._recorded
        for step in range(max(self._place - 3, 0), self._place + 2):
            ask = recorded.seal(CLIENT, SendVector(step=step))
            self._heard.listen(node.answer(ask))

    def _rest(self) -> Iterator[bytes]:
        """Yield earlier and later messages, honest and altered, and the invitation again."""
        recorded = self._recorded
        for place in range(len(recorded.messages)):
            yield recorded.messages[place]
            if abs(place - self._place) < 3:
                yield from other_messages(recorded, place)[:2]


# --- one write, one fault, one life ---------------------------------------------------------------


@dataclass
class Life:
    """Client that meets a fault while it answers one message."""

    recorded: Recorded
    place: int
    home: Path
    heard: Heard = field(default_factory=Heard)

    def begin(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.copytree(self.recorded.folders[self.place], self.home)

    def suffer(self, at: int, fault: Fault) -> bool:
        """Answer the message with a fault at this write; return False if there is no such write."""
        message = self.recorded.messages[self.place]
        trap = Trap(at, fault)
        if fault.kills:
            reply = in_a_process_of_its_own(
                lambda: self.recorded.node(self.home).answer(message), trap
            )
            self.heard.listen(reply)
            return reply is None
        try:
            with watched(trap):
                node = self.recorded.node(self.home)
                self.heard.listen(node.answer(message))
            node.close()
        except (OSError, FederationError):
            assert trap.sprung  # the client did not even start
        return trap.sprung

    def go_on(self, order: int) -> None:
        node = self.recorded.node(self.home)
        Liar(self.recorded, self.place, self.heard).ask(node, order)
        node.close()

    def check(self) -> None:
        """Check also that every vector that left, or may have, is in the spending record."""
        self.heard.check()
        node = self.recorded.node(self.home)
        counted = {(one.run, one.sum_number) for one in node.budget.account().sums}
        node.close()
        steps = self.recorded.plan.steps
        for run, step in self.heard.vectors:
            assert (run, steps[step].sum_number) in counted


def lives(recorded: Recorded, place: int, fault: Fault, folder: Path) -> Iterator[Life]:
    """Yield one life per write made in answering this message, after the liar has asked."""
    at = 0
    while True:
        life = Life(recorded, place, folder / "life")
        life.begin()
        if not life.suffer(at, fault):
            return
        life.go_on(at)
        yield life
        at += 1


PLACES = [
    ("hello", 0),
    ("advertise", 0),
    ("share", 0),
    ("input", 1),
    ("unmask", 1),
    ("input", 2),
    ("unmask", 2),
    ("input", 3),
    ("unmask", 3),
]


@pytest.fixture
def _no_logs() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("_no_logs")
def test_every_write_is_seen(recorded: Recorded, folder: Path) -> None:
    """The trap counts as many writes as the kernel."""
    for name, number in PLACES:
        life = Life(recorded, recorded.place(name, number), folder / "life")
        life.begin()
        trap = Trap()
        before = kernel_writes()
        with watched(trap):
            node = recorded.node(life.home)
            node.answer(recorded.messages[life.place])
            assert kernel_writes() - before == trap.writes, (name, trap.seen)
        node.close()
        assert {"write", "fsync", "open", "os.rename"} <= set(trap.seen)
        assert trap.writes >= 8


@pytest.mark.check
@pytest.mark.parametrize(
    ("name", "number", "fault"), [("input", 3, Fault.KILL), ("input", 3, Fault.FULL)]
)
def test_no_write_leads_to_a_second_vector(
    recorded: Recorded, name: str, number: int, fault: Fault, folder: Path
) -> None:
    place, count, answered = recorded.place(name, number), 0, 0
    for life in lives(recorded, place, fault, folder):
        life.check()
        answered += bool(life.heard.answers or life.heard.vectors)
        count += 1
    assert count > 30
    assert answered > count // 2  # some clients answered, so the checks above were not empty


@pytest.mark.long
@pytest.mark.parametrize(("name", "number"), PLACES)
@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name)
def test_no_write_of_any_step_leads_to_a_second_vector(
    recorded: Recorded, name: str, number: int, fault: Fault, folder: Path
) -> None:
    count = 0
    for life in lives(recorded, recorded.place(name, number), fault, folder):
        life.check()
        count += 1
    assert count > 20


# --- without the guard ----------------------------------------------------------------------------


def _any_message_for_the_next_step(self: Node, state: ClientRun, step: int, digest: str) -> None:
    if step != state.step + 1:
        raise Refusal(Code.TOO_EARLY, "")


def _any_upload_on_the_disk(self: Node, state: ClientRun, step: int) -> bytes:
    path = upload_file(self._folder_of(state.run), step)
    if not path.exists():
        raise Refusal(Code.NO_UPLOAD, "")
    return path.read_bytes()


def without_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bind steps to no message, and send uploads before the state records them."""
    monkeypatch.setattr(Node, "_check_next", _any_message_for_the_next_step)
    monkeypatch.setattr(Node, "_vector", _any_upload_on_the_disk)


def without_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send answers before their state reaches the disk."""
    monkeypatch.setattr(Memory, "save", lambda *_: None)
    monkeypatch.setattr(Memory, "commit", lambda *_: None)
    monkeypatch.setattr(Memory, "note_answer", lambda *_: None)


@pytest.mark.parametrize(
    "guard_off", [pytest.param(without_order, marks=pytest.mark.check), without_commit]
)
def test_without_the_order_two_vectors_leave_under_one_mask(
    recorded: Recorded,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    guard_off: Callable[[pytest.MonkeyPatch], None],
) -> None:
    """Their difference is that of the plain vectors, so the mask no longer hides them."""
    guard_off(monkeypatch)
    # Masks depend on the ask, so another ask gives other masks between clients.
    monkeypatch.setattr(steps, "asked_digest", lambda _plan, _ask: NOTHING_ASKED)
    place = recorded.place("input", 3)
    found = []
    for life in lives(recorded, place, Fault.KILL, folder):
        if found := life.heard.two_time_pads():
            break
    assert found
    (step,) = {step for _, step in found}
    planned = recorded.plan.shapes[2]
    asked = wire.decode(bytes(envelope.peek(recorded.messages[place], "to-client").parts[1]))
    own = Histories(recorded.federation.rows(CLIENT).matrix, 0)
    plain = [
        np.concatenate([np.ravel(block) for block in answer(ask, own, NO_RANDOMNESS)])
        for ask in (asked, another_ask(asked))
    ]
    for run, _ in found:
        one, other = (
            planned.ring.unpack(sent, planned.length) for sent in life.heard.vectors[run, step]
        )
        expected = (plain[0] - plain[1]).astype(one.dtype)
        assert expected.any()
        assert np.array_equal(one - other, expected) or np.array_equal(other - one, expected)


# --- an honest server -----------------------------------------------------------------------------


def is_early_piece(message: bytes) -> bool:
    """Return True for a piece of the artifact other than the last; all of these behave the same."""
    told = envelope.peek(message, "to-client")
    if not isinstance(told.message, ArtifactPiece):
        return False
    total = sum(size for _, size in told.message.files)
    return told.message.offset + len(told.parts[0]) < total


class _Unlucky(Talk):
    """Conversation in which client 0 meets the fault at each write of each message in turn."""

    fault: Fault
    met = 0

    def step(self, skip: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        self.server.connected(set(self.federation.roster))
        for address, message in list(self.server.outgoing()):
            client = int(str(address))
            if client == CLIENT and not is_early_piece(message):
                self.meet(message)
            self.server.receive(client, self.federation.node(client).answer(message))
        self.server.tick()

    def meet(self, message: bytes) -> None:
        for at in range(1000):
            trap = Trap(at, self.fault)
            if self.fault.kills:
                met = in_a_process_of_its_own(lambda: self._answer(message), trap) is None
            else:
                with suppress(OSError, FederationError), watched(trap):
                    self._answer(message)
                met = trap.sprung
            if not met:
                return
            self.met += 1

    def _answer(self, message: bytes) -> bytes:
        return self.federation.node(CLIENT).answer(message)


@pytest.mark.parametrize(
    "fault", [pytest.param(Fault.KILL, marks=pytest.mark.long), Fault.FULL], ids=["KILL", "FULL"]
)
def test_an_honest_run_ends_right_whatever_write_fails(folder: Path, fault: Fault) -> None:
    """Every write fails once in one run, which still gives the simulation's numbers and a model."""
    # Kernels look for a cache folder when they are imported; that must not fail here.
    for kernels in ("federated.dp.sampler_loops", "federated.kernels", "secagg.ring_loops"):
        import_module(f"privirec.{kernels}")
    federation = Federation(folder)
    talk = _Unlucky(federation)
    talk.fault = fault
    talk.until(Stage.COMPUTED)
    assert talk.met > (300 if fault.kills else 100)
    assert talk.server.components is not None
    check_same(talk.server.components, federation.simulated(frozenset(range(6)), TERMS.program))
    if fault.kills:
        return  # tests/device/test_installed.py kills installations
    artifact = federation.artifact(talk.server.components)
    talk.server.distribute(artifact)
    talk.until(Stage.DONE)
    installed = Installed(federation.folder / f"client-{CLIENT}/model").current()
    for name in ARTIFACT_FILES:
        assert (installed / name).read_bytes() == (artifact / name).read_bytes()


# --- a full disk ----------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 512 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    if (
        os.geteuid()
        or shutil.which("mount") is None
        or subprocess.run(mount, check=False).returncode
    ):
        pytest.skip("a file system can be mounted by root only")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize(("name", "number"), [("share", 0), ("input", 3), ("unmask", 3)])
def test_a_disk_that_is_full_at_any_page(
    recorded: Recorded, small_disk: Path, name: str, number: int
) -> None:
    """Fill a real disk up to a number of free pages, from none to enough."""
    place = recorded.place(name, number)
    message = recorded.messages[place]
    refused = 0
    for pages in range(40):
        life = Life(recorded, place, small_disk / "life")
        life.begin()
        ballast = small_disk / "ballast"
        room = os.statvfs(small_disk).f_bavail
        ballast.write_bytes(bytes(4096 * (room - pages)))
        said = None
        try:
            node = recorded.node(life.home)
            said = life.heard.listen(node.answer(message))
            node.close()
        except OSError:
            pass  # the client did not even start
        refused += not isinstance(said, Answer | Vector)
        if pages % 2:
            ballast.unlink()  # free again; in the other lives the disk stays full for the liar
        try:
            life.go_on(pages // 2)
        except OSError:
            assert not pages % 2
        life.heard.check()
        ballast.unlink(missing_ok=True)
        if isinstance(said, Answer | Vector):
            break
    assert refused > 1
    assert isinstance(said, Answer | Vector)
