"""Tests of the client's node: lies are refused in one line each, and crashes change nothing."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pytest

from privirec.device import Catalogue, Store
from privirec.errors import FederationError
from privirec.federated import wire
from privirec.federated.contributions import ItemDegrees, ItemItem
from privirec.federated.programs import PrivirecSettings, program_of
from privirec.privacy.policy import Policy
from privirec.runtime import envelope
from privirec.runtime.coordinator import Coordinator, Stage
from privirec.runtime.envelope import EVERYBODY, Envelope, Sealed
from privirec.runtime.messages import Answer, Exchange, Hello, Message, Refused, SendVector, Vector
from privirec.runtime.node.memory import Memory
from privirec.runtime.node.run_state import Participation
from privirec.runtime.pledges import Pledges
from privirec.runtime.refusals import Code
from privirec.runtime.run_plan import RunPlan
from privirec.secagg.keys import Identity
from privirec.secagg.participants import write_participants
from privirec.version import __version__

from .chaos import PLANTED_ITEM, TERMS, Federation, Killed, killing, small_policy


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


class Talk:
    """Conversation of a server and its clients, one message at a time, under the test's control."""

    def __init__(self, federation: Federation, **changes: Any) -> None:
        self.federation = federation
        self.server: Coordinator = federation.server(**changes)
        self.last: dict[int, bytes] = {}

    def step(self, skip: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        """Exchange one message with each client."""
        self.server.connected(set(self.federation.roster))
        for address, message in list(self.server.outgoing()):
            self.last[int(str(address))] = message
            if address not in skip:
                self.server.receive(
                    address, self.federation.node(int(str(address))).answer(message)
                )
        self.server.tick()

    def until(self, place: Stage | str, number: int = 0) -> None:
        """Exchange messages up to a stage, or to a step of this name in this sum or a later one."""
        for _ in range(200):
            status = self.server.status()
            there = place in (self.server.stage, status["step"])
            if there and status["sum_number"] >= number:
                return
            self.step()
        raise AssertionError(f"never came to {place}: {self.server} {self.server.reason}")

    def message_for(self, client: int) -> bytes:
        """Return the message that the server has for this client now."""
        self.server.connected(set(self.federation.roster))
        return self.server.message_for(client)

    def forged(self, client: int, message: Message, *parts: bytes) -> Envelope:
        """Return the reply to an arbitrary message signed with the operator's key."""
        sealed = Envelope(self.server.run, client, message, parts)
        answer = self.federation.node(client).answer(
            sealed.seal(self.federation.operator, "to-client")
        )
        return envelope.peek(answer, "to-server")

    def greeting(self) -> bytes:
        """Return the server's greeting."""
        self.server.connected(set(self.federation.roster))
        return next(message for _, message in self.server.outgoing())

    def hello(self, **changes: Any) -> Hello:
        told = {
            "version": __version__,
            "catalogue": self.federation.catalogue.fingerprint,
            "items": len(self.federation.catalogue),
            "roster": self.federation.roster.digest.hex(),
            "protected": self.federation.spec.protected,
        }
        return Hello(**(told | changes))


class _Remembered(logging.Handler):
    """Last lines of the clients' logs, which keep the details of refusals."""

    lines: ClassVar[deque[str]] = deque(maxlen=3)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


logging.getLogger("privirec.client").addHandler(_Remembered())


def refused(reply: Sealed | Envelope, said: str, code: Code, *, final: bool) -> None:
    """Fail unless refused with this code, and with the reason in the reply or the client's log."""
    found = said_in(reply)
    assert isinstance(found, Refused), found
    assert any(said in words for words in (found.reason, *_Remembered.lines)), found
    assert "\n" not in found.reason
    assert (found.code, found.final) == (code, final)


def said_in(reply: Sealed | Envelope) -> Message:
    found = reply if isinstance(reply, Envelope) else envelope.peek(reply, "to-server")
    return found.message


# --- identity -------------------------------------------------------------------------------------


def test_a_message_of_another_operator_is_dropped(federation: Federation) -> None:
    hello = Talk(federation).hello()
    message = Envelope("0" * 32, 0, hello).seal(Identity(bytes(32)), "to-client")
    refused(federation.node(0).answer(message), "signature", Code.BAD_MESSAGE, final=False)


def test_a_message_for_another_client_is_dropped(federation: Federation) -> None:
    hello = Talk(federation).hello()
    message = Envelope("0" * 32, 1, hello).seal(federation.operator, "to-client")
    refused(federation.node(0).answer(message), "for client 1", Code.BAD_MESSAGE, final=False)


def test_noise_is_dropped(federation: Federation) -> None:
    for noise in (b"", b"PRE", os.urandom(500), b"PRE\x03" + bytes(100)):
        assert isinstance(said_in(federation.node(0).answer(noise)), Refused)


def test_another_catalogue_is_refused_in_both_logs(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    talk = Talk(federation)
    talk.server.connected({0})
    ((_, hello),) = talk.server.outgoing()
    other = federation.node(0, catalogue=Catalogue(["other", "items"]))
    reply = other.answer(hello)
    refused(reply, "another catalogue", Code.OTHER_CATALOGUE, final=False)
    talk.server.receive(0, reply)
    told = [record for record in caplog.records if "another catalogue" in record.message]
    assert {record.name for record in told} == {"privirec.client", "privirec.server"}
    assert PLANTED_ITEM not in caplog.text


def test_another_version_is_refused(federation: Federation) -> None:
    talk = Talk(federation)
    reply = talk.forged(0, talk.hello(version="9.9.9"))
    refused(reply, "version 9.9.9", Code.OTHER_VERSION, final=False)
    message = bytearray(Envelope("0" * 32, 0, talk.hello()).seal(federation.operator, "to-client"))
    message[3] += 1
    reply_bytes = federation.node(0).answer(bytes(message))
    refused(reply_bytes, "of version 5", Code.BAD_MESSAGE, final=False)


def test_another_roster_is_refused(federation: Federation) -> None:
    talk = Talk(federation)
    reply = talk.forged(0, talk.hello(roster="00"))
    refused(reply, "another roster", Code.OTHER_ROSTER, final=False)


def test_a_client_that_is_not_in_its_roster_does_not_start(federation: Federation) -> None:
    with pytest.raises(FederationError, match="not in its own roster"):
        federation.node(0, identity=Identity(bytes(32)))


def test_a_replayed_invitation_is_refused(federation: Federation) -> None:
    first = Talk(federation)
    first.until("advertise")
    Talk(federation, name="second").until("advertise")
    reply = first.forged(0, first.hello())
    refused(reply, "replayed invitation", Code.REPLAYED_RUN, final=False)


# --- asks -----------------------------------------------------------------------------------------


def plan_with(talk: Talk, **changes: Any) -> bytes:
    return talk.server.plan.model_copy(update=changes).model_dump_json().encode()


@pytest.mark.parametrize(
    ("change", "said", "code"),
    [
        ({"run": "f" * 32}, "another run", Code.BAD_PLAN),
        ({"pledges": Pledges.unsigned({0: 99, 1: 4, 2: 4})}, "miscounts", Code.BAD_PLAN),
        ({"n_items": 18}, "another catalogue", Code.BAD_PLAN),
        ({"roster": "00"}, "another roster", Code.BAD_PLAN),
        ({"clients": 7}, "another roster", Code.BAD_PLAN),
        ({"version": "7.0.0"}, "version 7.0.0", Code.BAD_PLAN),
        ({"pledges": Pledges.unsigned({0: 4, 77: 4, 2: 4})}, "another roster", Code.BAD_PLAN),
        ({"pledges": Pledges.unsigned({0: 4, 1: 4})}, "smallest_cohort", Code.TOO_FEW_PEOPLE),
        (
            {"spec": TERMS.model_copy(update={"corrupt_share": 0.0})},
            "corrupt_share",
            Code.POLICY,
        ),
        (
            {"spec": TERMS.model_copy(update={"aggregator": "none"})},
            'the aggregator none; this client\'s policy says aggregators = ["secagg+", "secagg"]',
            Code.POLICY,
        ),
        (
            {"spec": TERMS.model_copy(update={"program": PrivirecSettings(rank=3, rounds=2)})},
            "item-item",
            Code.POLICY,
        ),
        (
            {
                "spec": TERMS.model_copy(
                    update={"program": TERMS.program.model_copy(update={"rounds": 3})}
                )
            },
            "not what was agreed on",
            Code.PROTOCOL,
        ),
        (
            {"spec": TERMS.model_copy(update={"block_entries": 32})},
            "not what was agreed on",
            Code.PROTOCOL,
        ),
    ],
    ids=str,
)
def test_a_plan_that_lies_ends_the_clients_part(
    federation: Federation, change: dict[str, Any], said: str, code: Code
) -> None:
    talk = Talk(federation)
    talk.until("advertise")
    honest = talk.message_for(0)
    announcement = bytes(envelope.peek(honest, "to-client").parts[0])
    text = plan_with(talk, **change)
    reply = talk.forged(0, Exchange(step=0), announcement, text)
    refused(reply, said, code, final=True)
    refused(federation.node(0).answer(honest), "has left this run", Code.OWN_PROBLEM, final=False)


def test_nobody_sends_in_the_clear_without_consent(tmp_path: Path, federation: Federation) -> None:
    """Refuse it in the plan, in the announcement alone, and after consent was withdrawn."""
    spec = TERMS.model_copy(update={"aggregator": "none"})
    talk = Talk(federation, spec=spec)
    for _ in range(4):
        talk.step()
    assert talk.server.stage is Stage.STOPPED
    assert all("aggregators = " in client.gone for client in talk.server.clients.values())
    plain = Federation(tmp_path / "plain", aggregator="none")
    talk = Talk(plain)
    talk.until("advertise")
    announcement = bytes(envelope.peek(talk.message_for(0), "to-client").parts[0])
    text = plan_with(talk, spec=TERMS)
    sealed = Envelope(talk.server.run, 0, Exchange(step=0), (announcement, text))
    strict = plain.node(0, policy=small_policy())
    reply = strict.answer(sealed.seal(plain.operator, "to-client"))
    refused(reply, "protocol 3 is not secagg+", Code.PROTOCOL, final=True)
    talk = Talk(plain, name="second")
    talk.until("input", 1)
    reply = plain.node(0, policy=small_policy()).answer(talk.message_for(0))
    refused(reply, "the aggregator none", Code.POLICY, final=True)
    assert not list(tmp_path.glob("**/upload*"))


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(
    "clients",
    [
        {1, 2, 3, 4, 5},  # not itself
        {0, 1, 2, 3, 4},  # fewer than in the sum
        set(),
    ],
)
def test_a_list_of_clients_that_does_not_fit_the_sum_ends_the_clients_part(
    federation: Federation, number: int, clients: set[int]
) -> None:
    talk = Talk(federation)
    talk.until("unmask", number)
    told = envelope.peek(talk.message_for(0), "to-client")
    listed = write_participants(clients, federation.roster)
    lie = talk.forged(0, told.message, bytes(told.parts[0]), listed)
    refused(lie, "does not fit", Code.PROTOCOL, final=True)
    assert len(remembered(federation, 0).cohorts(told=True)) == number - 1
    assert len(remembered(federation, 0).cohorts(told=False)) == 2 - number


def test_every_cohort_is_remembered_once(federation: Federation) -> None:
    for name in ("server", "second"):
        talk = Talk(federation, name=name)
        talk.until(Stage.COMPUTED)
    everybody = frozenset(key.hex() for key in federation.roster.values())
    assert remembered(federation, 0).cohorts(told=True) == [everybody]
    assert not remembered(federation, 0).cohorts(told=False)


def remembered(federation: Federation, client: int) -> Memory:
    return Memory(federation.folder / f"client-{client}/runs")


def asked(talk: Talk, ask: Any) -> Envelope:
    honest = envelope.peek(talk.message_for(0), "to-client")
    return talk.forged(0, honest.message, bytes(honest.parts[0]), wire.encode(ask))


def degrees_of(federation: Federation) -> np.ndarray:
    return federation.train.item_degrees


def seeded(federation: Federation, degrees: np.ndarray, **changes: Any) -> Any:
    """Return the second sum as planned, with these changes."""
    plan = program_of(TERMS.program, federation.train.n_users, 17)
    return replace(plan.sums()[1].ask(item_degrees=degrees), **changes)


LIES: dict[str, tuple[int, Callable[[Federation], Any]]] = {
    "is not the item-degrees": (1, lambda f: ItemItem(17, 5)),
    "another number of users": (1, lambda f: ItemDegrees(17, 20)),
    "another seed than planned": (2, lambda f: seeded(f, degrees_of(f), seed=bytes(32))),
    "more than there are users": (2, lambda f: seeded(f, degrees_of(f) + 25)),
    "is not the seeded-step": (2, lambda f: seeded(f, degrees_of(f), columns=4)),
}


@pytest.mark.parametrize("said", LIES)
def test_an_ask_that_was_not_planned_ends_the_clients_part(
    federation: Federation, said: str
) -> None:
    number, lie = LIES[said]
    talk = Talk(federation)
    talk.until("input", number)
    refused(asked(talk, lie(federation)), said, Code.BAD_ASK, final=True)
    assert not list((federation.folder / "client-0/runs").glob("*/upload*"))


def test_item_degrees_may_not_change_between_sums(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("input", 3)
    honest = wire.decode(bytes(envelope.peek(talk.message_for(0), "to-client").parts[-1]))
    lie = replace(honest, item_degrees=np.minimum(honest.item_degrees + 1, 24))  # type: ignore
    said = "other item degrees than in an earlier sum"
    refused(asked(talk, lie), said, Code.BAD_ASK, final=True)


def test_a_policy_is_checked_before_every_answer(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("input", 2)
    strict = federation.node(0, policy=Policy(computations=("item-degrees",)))
    reply = strict.answer(talk.message_for(0))
    refused(reply, "the computation seeded-step", Code.POLICY, final=True)


def test_limits_are_checked_before_every_answer(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("input", 2)
    allowed = federation.policy.model_copy(update={"most_sums": 1})
    reply = federation.node(0, policy=allowed).answer(talk.message_for(0))
    refused(reply, "secure sum 2", Code.POLICY, final=True)


def test_bytes_are_counted_over_the_run(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("input", 1)
    strict = federation.node(0, policy=Policy(most_bytes_down=500))
    refused(strict.answer(talk.message_for(0)), "bytes down", Code.POLICY, final=True)


def test_forgetting_in_the_middle_of_a_run_ends_the_clients_part(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("input", 1)
    with Store(federation.folder / "client-0/history.db") as store:
        user = store.users()[0]
        store.forget_items(user, store.items(user)[:1])
    reply = federation.node(0).answer(talk.message_for(0))
    found = said_in(reply)
    assert isinstance(found, Refused)
    left = remembered(federation, 0).load(talk.server.run)
    assert left is not None
    assert left.part is Participation.LEFT
    assert PLANTED_ITEM.encode() not in reply


# --- crashes --------------------------------------------------------------------------------------


STEPS = [("advertise", 0), ("share", 0), ("input", 1), ("unmask", 1), ("input", 2)]


class Countdown:
    """Generator that spares the first `left` chances and takes every later one."""

    def __init__(self, left: int) -> None:
        self._left = left

    def random(self) -> float:
        self._left -= 1
        return 0.0 if self._left < 0 else 1.0


def test_the_same_message_gets_the_same_answer(federation: Federation) -> None:
    talk = Talk(federation)
    for step, number in STEPS:
        talk.until(step, number)
        message = talk.message_for(0)
        first = federation.node(0).answer(message)
        assert not isinstance(said_in(first), Refused)
        assert federation.node(0).answer(message) == first
    talk.until(Stage.DONE if talk.server.components else Stage.COMPUTED)


def test_a_kill_at_every_write_of_every_stage_changes_nothing(federation: Federation) -> None:
    """Kill the client at each write in turn: the final answer is always the same."""
    talk = Talk(federation)
    kills = 0
    for step, number in STEPS:
        talk.until(step, number)
        message = talk.message_for(0)
        for writes in range(60):
            try:
                with killing(Countdown(writes), 0.5):  # type: ignore[arg-type]
                    answer = federation.node(0).answer(message)
                break
            except Killed:
                kills += 1
        assert federation.node(0).answer(message) == answer
    assert kills > 20
    talk.until(Stage.COMPUTED)


def test_an_older_state_is_not_answered_from(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("unmask", 1)
    state = federation.folder / "client-0/runs/memory.db"
    shutil.copy(state, state.with_name("backup"))
    message = talk.message_for(0)
    assert isinstance(said_in(federation.node(0).answer(message)), Answer)
    shutil.copy(state.with_name("backup"), state)
    reply = federation.node(0).answer(message)
    refused(reply, "restored from before an answer", Code.OWN_PROBLEM, final=False)


@pytest.mark.parametrize(("step", "number"), STEPS)
def test_a_step_answers_one_message_only_even_after_a_crash(
    federation: Federation, step: str, number: int
) -> None:
    """A client killed at any write never answers another message in place of the first."""
    talk = Talk(federation)
    talk.until(step, number)
    message = talk.message_for(0)
    honest = envelope.peek(message, "to-client")
    other = Envelope(talk.server.run, 0, honest.message, honest.parts).seal(
        federation.operator, "to-client"
    )
    if other == message:  # sealed for this client: seal it for all clients instead
        other = Envelope(talk.server.run, EVERYBODY, honest.message, honest.parts).seal(
            federation.operator, "to-client"
        )
    assert isinstance(honest.message, Exchange)
    asked_step, kills = honest.message.step, 0
    for writes in range(60):
        try:
            with killing(Countdown(writes), 0.5):  # type: ignore[arg-type]
                federation.node(0).answer(message)
            break
        except Killed:
            kills += 1
        if writes < 2:
            continue  # nothing is bound before the first write
        reply = federation.node(0).answer(other)
        refused(reply, "another message", Code.ANSWERED_BEFORE, final=False)
        state = remembered(federation, 0).load(talk.server.run)
        assert state is not None
        if state.step < asked_step:  # not committed: the stored answer must not leave
            upload = talk.forged(0, SendVector(step=asked_step))
            refused(upload, "no such upload", Code.NO_UPLOAD, final=False)
    assert kills > 2
    assert isinstance(said_in(federation.node(0).answer(message)), Answer | Vector)


def test_a_full_disk_answers_nothing_and_loses_nothing(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    talk = Talk(federation)
    talk.until("input", 1)
    message = talk.message_for(0)
    full = OSError(errno.ENOSPC, "No space left on device")
    with mock.patch("os.fsync", side_effect=full):
        reply = federation.node(0).answer(message)
        refused(reply, "a problem of its own", Code.OWN_PROBLEM, final=False)
    node = federation.node(0)
    with mock.patch("privirec.runtime.node.node.alone", side_effect=full):
        refused(node.answer(message), "a problem of its own", Code.OWN_PROBLEM, final=False)
    assert "No space left" in caplog.text
    assert isinstance(said_in(federation.node(0).answer(message)), Vector)


def test_secrets_are_for_their_owner_and_leave_with_the_run(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("unmask", 1)
    folder = federation.folder / "client-0"
    for path in (folder / "runs").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    state = remembered(federation, 0).load(talk.server.run)
    assert state is not None
    secrets = [state.session[at : at + 40] for at in range(0, len(state.session) - 40, 40)]
    assert secrets[-2] in (folder / "runs/memory.db").read_bytes()
    talk.server.abort("enough")
    talk.step()
    closed = remembered(federation, 0).load(talk.server.run)
    assert closed is not None
    assert (closed.session, closed.noise_seed, closed.reply) == (b"", b"", b"")
    left = (folder / "runs/memory.db").read_bytes()
    assert not any(secret in left for secret in secrets if any(secret))
    assert not list(folder.glob("runs/*/upload*"))
    assert "redacted" in repr(federation.node(0))


def test_plans_survive_their_bytes(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("advertise")
    plan = talk.server.plan
    assert RunPlan.model_validate_json(plan.model_dump_json()) == plan
    assert [plan.first_user(client) for client in range(6)] == [0, 4, 8, 12, 16, 20]
