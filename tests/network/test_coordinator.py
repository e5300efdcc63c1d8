"""Tests of the coordinator: accepted senders, missing clients, deadlines and restarts."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from unittest import mock

import pytest

from breadth import first
from privirec.errors import FederationError, UsageError
from privirec.privacy.policy import Aggregator
from privirec.runtime import envelope
from privirec.runtime.coordinator import Stage, arrivals
from privirec.runtime.coordinator.clients import MOST_COMPLAINTS, ClientState
from privirec.runtime.envelope import Envelope
from privirec.runtime.messages import Abort, Here, Refused, TurnedAway
from privirec.runtime.node.memory import Memory
from privirec.runtime.refusals import Code
from privirec.secagg import Phase
from privirec.secagg.keys import Identity
from privirec.version import __version__

from .chaos import TERMS, Federation, check_same, small_policy
from .test_node import Talk


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


def warned(caplog: pytest.LogCaptureFixture, said: str) -> None:
    assert any(said in r.message and r.name == "privirec.server" for r in caplog.records), said


def test_an_unknown_client_is_turned_away_in_both_logs(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    talk = Talk(federation)
    talk.server.connected({"stranger"})
    list(talk.server.outgoing())
    run = talk.server.run
    told = set()
    for client in (99, 0):
        here = Here(users=4, demands=(0, 0, 1), period="", signature="0" * 128, version=__version__)
        reply = Envelope(run, client, here)
        with mock.patch.object(arrivals.envelope, "check", wraps=envelope.check) as checked:
            talk.server.receive("stranger", reply.seal(Identity(bytes(32)), "to-server"))
        assert checked.call_count == 1  # same work, same messages
        told.add(next(r.message for r in caplog.records).replace(str(client), "N"))
        warned(caplog, "signed by nobody in the roster")
        ((address, notice),) = list(talk.server.outgoing())
        assert address == "stranger"
        federation.node(5).answer(notice)
        assert any("turned away by the server" in r.message for r in caplog.records)
        caplog.clear()
    assert talk.server.stage is Stage.GATHERING
    assert len(told) == 1


@pytest.mark.parametrize(
    ("run", "code", "taken"),
    [
        ("own", Code.POLICY, True),
        ("", Code.BAD_MESSAGE, True),
        ("", Code.POLICY, False),
        ("f" * 32, Code.POLICY, False),
        ("f" * 32, Code.BAD_MESSAGE, False),
    ],
)
def test_refusals_of_other_runs_are_not_taken(
    federation: Federation, run: str, code: Code, taken: bool
) -> None:
    """A recorded refusal could otherwise exclude the client from every later run."""
    talk = Talk(federation)
    talk.server.connected({0})
    list(talk.server.outgoing())
    said = Refused(code=code, reason="no", final=False)
    reply = Envelope(talk.server.run if run == "own" else run, 0, said)
    talk.server.receive(0, reply.seal(federation.identities[0], "to-server"))
    assert (talk.server.clients[0].state is ClientState.REFUSES) == taken


def test_vectors_too_large_for_the_carrier_stop_a_run_at_once(federation: Federation) -> None:
    """Otherwise every client would compute for nothing and be refused at the gate."""
    talk = Talk(federation)
    talk.server.largest_reply = 10
    talk.until(Stage.STOPPED)
    assert "--largest-reply" in talk.server.reason
    assert not list(federation.folder.glob("client-*/runs/*/upload-*"))


def test_junk_does_not_fill_the_log(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [0.0]
    talk = Talk(federation, clock=lambda: clock[0])
    talk.server.connected(set(federation.roster))
    list(talk.server.outgoing())
    for number in range(500):
        talk.server.receive(0, b"junk %d" % number)
    assert len(caplog.records) <= MOST_COMPLAINTS + 1
    for _ in range(100):  # and it is asked again
        clock[0] += 4
        talk.step()
    assert talk.server.stage is not Stage.GATHERING
    assert 0 in talk.server.plan.users


def test_what_a_client_says_cannot_write_lines_or_steer_the_terminal(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    talk = Talk(federation)
    talk.server.connected({0})
    list(talk.server.outgoing())
    said = Refused.model_construct(
        code=Code.POLICY, reason="no\n2026 INFO all is well \x1b[2J[red]", final=False
    )
    reply = Envelope(talk.server.run, 0, said)
    talk.server.receive(0, reply.seal(federation.identities[0], "to-server"))
    warned(caplog, "no 2026 INFO all is well  [2J[red]")


def test_a_second_machine_with_one_identity_is_turned_away(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    talk = Talk(federation)
    talk.server.connected({"one", "other"})
    for address, hello in list(talk.server.outgoing()):
        talk.server.receive(address, federation.node(0).answer(hello))
    warned(caplog, "two machines with one identity")
    notices = list(talk.server.outgoing())
    assert len(notices) == 1
    assert isinstance(envelope.peek(notices[0][1], "to-client").message, TurnedAway)


def test_a_replayed_registration_is_dropped(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    old = Talk(federation)
    old.server.connected({0})
    ((_, hello),) = old.server.outgoing()
    recorded = federation.node(0).answer(hello)
    new = Talk(federation, name="second")
    new.server.connected({0})
    list(new.server.outgoing())
    new.server.receive(0, recorded)
    warned(caplog, "a message of another run: a replay")
    assert new.server.clients[0].state is ClientState.NOT_HERE


@pytest.mark.parametrize("aggregator", ["secagg+", "lightsecagg", "none"])
def test_whoever_is_missing_before_the_first_sum_drops_out(
    tmp_path: Path, aggregator: Aggregator
) -> None:
    federation = Federation(tmp_path, aggregator=aggregator)
    clock = [0.0]
    talk = Talk(federation, clock=lambda: clock[0])
    talk.until("input", 1)
    for _ in range(200):
        if talk.server.status()["step"] != "input":
            break
        clock[0] += 4
        talk.step(skip={3})
    first = next(step.name for step in talk.server.plan.steps if step.phase is Phase.RECOVERY)
    assert talk.server.status()["step"] == first, talk.server.reason
    assert talk.server.cohort == (0, 1, 2, 4, 5)
    talk.until(Stage.COMPUTED)
    assert talk.server.components is not None
    expected = federation.simulated(frozenset(talk.server.cohort), TERMS.program)
    check_same(talk.server.components, expected)


@pytest.mark.parametrize("aggregator", ["secagg+", "lightsecagg", "none"])
def test_whoever_is_missing_later_ends_the_run(tmp_path: Path, aggregator: Aggregator) -> None:
    federation = Federation(tmp_path, aggregator=aggregator)
    clock = [0.0]
    talk = Talk(federation, clock=lambda: clock[0])
    talk.until("input", 2)
    for _ in range(300):
        if talk.server.finished:
            break
        clock[0] += 4
        talk.step(skip={3})
    with pytest.raises(FederationError, match="would show their histories") as stopped:
        talk.server.raise_if_stopped()
    assert stopped.value.exit_code == 3
    assert "(3)" in str(stopped.value)
    assert "Start a new run when the same clients are back" in str(stopped.value)
    assert not (federation.folder / "server/sums/2").exists()
    talk.step()  # every client is told
    assert all(client.state is ClientState.TOLD for client in talk.server.clients.values())
    resumed = federation.server()
    assert resumed.stage is Stage.STOPPED
    with pytest.raises(FederationError, match="would show"):
        resumed.raise_if_stopped()


def test_whoever_leaves_before_it_confirms_ends_the_run(tmp_path: Path) -> None:
    """No sum was opened, but a client that has sent its vector cannot know that."""
    federation = Federation(tmp_path)
    clock = [0.0]
    talk = Talk(federation, clock=lambda: clock[0])
    talk.until("confirm", 1)
    for _ in range(300):
        if talk.server.finished:
            break
        clock[0] += 4
        talk.step(skip={3})
    with pytest.raises(FederationError, match="1 of 6 clients have not confirmed") as stopped:
        talk.server.raise_if_stopped()
    assert stopped.value.exit_code == 3
    assert not (federation.folder / "server/sums/1").exists()
    memory = Memory(federation.folder / "client-0/runs")
    assert not memory.cohorts(told=True)
    assert [len(cohort) for cohort in memory.cohorts(told=False)] == [6]


def test_the_run_after_a_stopped_one_needs_the_same_clients(federation: Federation) -> None:
    """A sum was open when the run stopped: a run without client 3 would reveal its vector."""
    talk = Talk(federation)
    talk.until("input", 2)
    talk.server.abort("stopped")
    clock = [0.0]
    second = Talk(federation, name="second", clock=lambda: clock[0])
    for _ in range(200):
        if second.server.finished:
            break
        clock[0] += 4
        second.step(skip={3})
    assert second.server.stage is Stage.STOPPED
    said = " ".join(client.gone for client in second.server.clients.values())
    assert "the same clients as before, or with more people" in said
    third = Talk(federation, name="third")
    third.until(Stage.COMPUTED)


def test_too_few_clients_stop_before_anything_is_asked(federation: Federation) -> None:
    clock = [0.0]
    talk = Talk(federation, clock=lambda: clock[0])
    for _ in range(60):
        clock[0] += 4
        talk.step(skip={1, 2, 3, 4, 5})
    with pytest.raises(FederationError, match="1 of 6 clients came and 5 are needed"):
        talk.server.raise_if_stopped()


def test_a_run_that_all_refuse_says_so_and_why(federation: Federation) -> None:
    federation.policy = small_policy(most_bytes_up=1)
    talk = Talk(federation)
    for _ in range(20):
        talk.step()
    said = r"0 clients take part, \d are needed: 6 refused, client 0 with: .*most_bytes_up"
    with pytest.raises(FederationError, match=said):
        talk.server.raise_if_stopped()


def test_nobody_hears_the_words_of_another(federation: Federation) -> None:
    """Refusals describe one client's policy or budget."""
    federation.policy = small_policy(most_bytes_up=1)
    talk = Talk(federation)
    for _ in range(20):
        talk.step()
    assert "most_bytes_up" in talk.server.reason
    told = envelope.peek(talk.server.message_for(5), "to-client").message
    assert isinstance(told, Abort)
    assert "0 clients take part" in told.reason
    assert "most_bytes_up" not in told.reason


RESTARTS: dict[str, list[tuple[Stage | str, int]]] = {
    name: [
        (Stage.GATHERING, 0),
        ("advertise", 0),
        ("share", 0),
        ("input", 1),
        ("unmask", 1),
        ("input", 2),
        ("unmask", 3),
        (Stage.COMPUTED, 0),
    ]
    for name in ("secagg+", "none")
}
RESTARTS["lightsecagg"] = [
    ("advertise", 0),
    ("share", 1),
    ("input", 1),
    ("confirm", 1),
    ("recover", 1),
    ("share", 2),
    ("input", 2),
    ("confirm", 3),
    ("recover", 3),
    (Stage.COMPUTED, 0),
]


@pytest.mark.parametrize(
    ("aggregator", "place", "number"),
    [one for name, places in RESTARTS.items() for one in first(3, [(name, *it) for it in places])],
)
def test_a_restart_at_every_stage_goes_on(
    tmp_path: Path, aggregator: Aggregator, place: Stage | str, number: int
) -> None:
    federation = Federation(tmp_path, aggregator=aggregator)
    talk = Talk(federation, clock=lambda: 0.0)  # kernels may have to be compiled first
    talk.until(place, number)
    before = talk.server.run
    talk.server.close()
    talk.server = federation.server(clock=lambda: 0.0)
    assert talk.server.run == before
    talk.until(Stage.COMPUTED)
    assert talk.server.components is not None
    check_same(talk.server.components, federation.simulated(frozenset(range(6)), TERMS.program))
    assert talk.server.ledger.bytes_up > 0


def test_a_restart_with_other_settings_is_refused(federation: Federation) -> None:
    Talk(federation).until("advertise")
    with pytest.raises(UsageError, match="other settings"):
        federation.server(spec=TERMS.model_copy(update={"smallest_cohort": 4}))


def test_a_restart_that_computes_other_numbers_stops(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("input", 3)
    talk.server.close()
    path = federation.folder / "server/sums/2"
    content = bytearray(path.read_bytes())
    content[0] ^= 64
    path.write_bytes(content)
    talk.server = federation.server()
    with pytest.raises(FederationError, match="other numbers than before"):
        talk.server.raise_if_stopped()


def test_a_full_disk_stops_the_process_and_not_the_run(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("share")
    replies = [
        (address, federation.node(int(str(address))).answer(message))
        for address, message in talk.server.outgoing()
    ]
    full = OSError(errno.ENOSPC, "No space left on device")
    with mock.patch("os.fsync", side_effect=full), pytest.raises(OSError, match="No space"):
        talk.server.receive(*replies[0])
    talk.server.close()
    talk.server = federation.server()
    talk.until(Stage.COMPUTED)


def test_settings_that_cannot_work_are_refused_at_the_start(federation: Federation) -> None:
    wide = TERMS.program.model_copy(update={"rank": 99})
    with pytest.raises(UsageError, match="rank 99"):
        federation.server(spec=TERMS.model_copy(update={"program": wide}))


def test_the_ledger_counts_what_was_carried(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    talk = Talk(federation)
    talk.until(Stage.COMPUTED)
    sums = [entry for entry in talk.server.ledger.entries if entry.revealed_to == "server"]
    assert [entry.what for entry in sums] == ["item-degrees", "seeded-step", "power-step"]
    up = sum(client.bytes_up for client in talk.server.clients.values()) / 6
    assert talk.server.ledger.bytes_up == pytest.approx(up, abs=5)
