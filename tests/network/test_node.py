"""A client believes nothing: lies are refused in one line each, and crashes change nothing."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from privirec.device import Catalogue, Store
from privirec.errors import FederationError
from privirec.federated import wire
from privirec.federated.contributions import ItemDegrees, ItemItem, SeededStep
from privirec.privacy.policy import Policy
from privirec.runtime.network import envelope
from privirec.runtime.network.coordinator import Coordinator, Stage
from privirec.runtime.network.envelope import Envelope
from privirec.runtime.network.run_plan import RunPlan
from privirec.secagg.keys import Identity
from privirec.secagg.participants import write_participants

from .chaos import PLANTED_ITEM, TERMS, Federation, Killed, killing


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


class Talk:
    """A server and its clients, one message after the other, with a hand on each."""

    def __init__(self, federation: Federation, **changes: Any) -> None:
        self.federation = federation
        self.server: Coordinator = federation.server(**changes)
        self.last: dict[int, bytes] = {}

    def step(self, skip: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        """One exchange with everybody."""
        self.server.met(set(self.federation.roster))
        for address, message in list(self.server.outgoing()):
            self.last[int(str(address))] = message
            if address not in skip:
                self.server.receive(
                    address, self.federation.node(int(str(address))).answer(message)
                )
        self.server.tick()

    def until(self, stage: Stage, number: int = 0) -> None:
        for _ in range(200):
            if self.server.stage is stage and self.server.status()["round"] >= number:
                return
            self.step()
        raise AssertionError(f"never came to {stage}: {self.server} {self.server.reason}")

    def forged(
        self, kind: str, client: int, step: int, more: Any = None, *parts: bytes
    ) -> Envelope:
        """A message that the operator's key signed, whatever is in it."""
        sealed = Envelope(kind, self.server.run, client, step, more or {}, parts)
        return envelope.peek(
            self.federation.node(client).answer(sealed.seal(self.federation.operator, "to-client"))
        )


def refused(reply: bytes | Envelope, said: str, *, final: bool) -> None:
    found = envelope.peek(reply) if isinstance(reply, bytes) else reply
    assert found.kind == "refused", found
    assert said in found.more["reason"], found.more
    assert "\n" not in found.more["reason"]
    assert found.more["final"] is final


# --- who is it? -----------------------------------------------------------------------------------


def test_a_message_of_another_operator_is_dropped(federation: Federation) -> None:
    message = Envelope("hello", "0" * 32, 0, 0).seal(Identity(bytes(32)), "to-client")
    refused(federation.node(0).answer(message), "signature", final=False)


def test_noise_is_dropped(federation: Federation) -> None:
    for noise in (b"", b"PRE", os.urandom(500), b"PRE\x02" + bytes(100)):
        assert envelope.peek(federation.node(0).answer(noise)).kind == "refused"


def test_another_catalogue_is_refused_in_both_logs(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    talk = Talk(federation)
    talk.server.met({0})
    ((_, hello),) = talk.server.outgoing()
    other = federation.node(0, catalogue=Catalogue(["other", "items"]))
    reply = other.answer(hello)
    refused(reply, "another catalogue", final=False)
    talk.server.receive(0, reply)
    told = [record for record in caplog.records if "another catalogue" in record.message]
    assert {record.name for record in told} == {"privirec.client", "privirec.server"}
    assert PLANTED_ITEM not in caplog.text


def test_another_version_is_refused(federation: Federation) -> None:
    talk = Talk(federation)
    hello = {"version": "9.9.9", "catalogue": federation.catalogue.fingerprint}
    refused(talk.forged("hello", 0, 0, hello), "version 9.9.9", final=False)
    message = bytearray(Envelope("hello", "0" * 32, 0, 0).seal(federation.operator, "to-client"))
    message[3] += 1
    refused(federation.node(0).answer(bytes(message)), "protocol version 2", final=False)


def test_another_roster_is_refused(federation: Federation) -> None:
    talk = Talk(federation)
    hello = {"version": "0.1", "catalogue": federation.catalogue.fingerprint, "roster": "00"}
    refused(talk.forged("hello", 0, 0, hello), "another roster", final=False)


def test_a_client_that_is_not_in_its_roster_does_not_start(federation: Federation) -> None:
    with pytest.raises(FederationError, match="not in its own roster"):
        federation.node(0, identity=Identity(bytes(32)))


def test_a_replayed_invitation_is_refused(federation: Federation) -> None:
    first = Talk(federation)
    first.until(Stage.ADVERTISE)
    Talk(federation, name="second").until(Stage.ADVERTISE)
    hello = first.server._hello
    refused(federation.node(0).answer(hello), "replayed invitation", final=False)


# --- what is asked --------------------------------------------------------------------------------


def plan_with(talk: Talk, **changes: Any) -> bytes:
    return talk.server.plan.model_copy(update=changes).model_dump_json().encode()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"run": "f" * 32}, "another run"),
        ({"users": {0: 99, 1: 4, 2: 4}}, "miscounts"),
        ({"n_items": 18}, "another catalogue"),
        ({"roster": "00"}, "another roster"),
        ({"version": "7.0.0"}, "version 7.0.0"),
        ({"users": {0: 4, 77: 4, 2: 4}}, "another roster"),
        ({"users": {0: 4, 1: 4}}, "smallest_cohort"),
        (
            {"terms": TERMS.model_copy(update={"corrupt_share": 0.0})},
            "corrupt_share",
        ),
        (
            {"terms": TERMS.model_copy(update={"aggregator": "none"})},
            'the aggregator none; this client\'s policy says aggregators = ["secagg+", "secagg"]',
        ),
        (
            {
                "terms": TERMS.model_copy(
                    update={"settings": TERMS.settings.model_copy(update={"method": "privirec"})}
                )
            },
            "item-item",
        ),
        (
            {
                "terms": TERMS.model_copy(
                    update={"settings": TERMS.settings.model_copy(update={"rounds": 3})}
                )
            },
            "not those of the plan",
        ),
    ],
    ids=str,
)
def test_a_plan_that_lies_ends_the_clients_part(
    federation: Federation, change: dict[str, Any], said: str
) -> None:
    talk = Talk(federation)
    talk.until(Stage.ADVERTISE)
    session = talk.server._session
    assert session is not None
    text = plan_with(talk, **change)
    refused(talk.forged("invite", 0, 1, {}, text, session.announcement), said, final=True)
    honest = next(message for message in talk.server._messages.values())
    refused(federation.node(0).answer(honest), "has left this run", final=False)


def test_nobody_sends_in_the_clear_without_consent(tmp_path: Path, federation: Federation) -> None:
    """Neither where the plan says so, nor where only the announcement does, nor after the client
    has changed its mind."""
    terms = TERMS.model_copy(update={"aggregator": "none"})
    talk = Talk(federation, terms=terms)
    for _ in range(4):
        talk.step()
    assert talk.server.stage is Stage.ABORTED
    assert all("aggregators = " in line.gone for line in talk.server.lines.values())
    plain = Federation(tmp_path / "plain", aggregator="none")
    talk = Talk(plain)
    talk.until(Stage.ADVERTISE)
    assert talk.server._session is not None
    announcement = talk.server._session.announcement
    text = plan_with(talk, terms=TERMS)
    sealed = Envelope("invite", talk.server.run, 0, 1, {}, (text, announcement))
    strict = plain.node(0, policy=Policy(most_of_item_item=2))
    reply = strict.answer(sealed.seal(plain.operator, "to-client"))
    refused(reply, "protocol 3 is not secagg+", final=True)
    talk = Talk(plain, name="second")
    talk.until(Stage.INPUT, 1)
    reply = plain.node(0, policy=Policy(most_of_item_item=2)).answer(talk.server._messages[0])
    refused(reply, "the aggregator none", final=True)
    assert not list(tmp_path.glob("**/upload*"))


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(
    "clients",
    [
        {1, 2, 3, 4, 5},  # not itself
        {0, 1, 2, 3, 4},  # fewer than are in the sum
        set(),
    ],
)
def test_a_list_of_clients_that_does_not_fit_the_sum_ends_the_clients_part(
    federation: Federation, number: int, clients: set[int]
) -> None:
    talk = Talk(federation)
    talk.until(Stage.UNMASK, number)
    told = envelope.peek(talk.server._messages[0])
    listed = write_participants(clients, federation.roster)
    lie = talk.forged("survivors", 0, told.step, {}, bytes(told.parts[0]), listed)
    refused(lie, "does not fit the sum", final=True)
    assert federation.node(0)._cohorts().keys() <= ({talk.server.run} if number == 2 else set())


def test_every_cohort_is_remembered_once(federation: Federation) -> None:
    for name in ("server", "second"):
        talk = Talk(federation, name=name)
        talk.until(Stage.COMPUTED)
    assert list(federation.node(0)._cohorts().values()) == [[0, 1, 2, 3, 4, 5]]


def asked(talk: Talk, ask: Any, number: int) -> Envelope:
    parts = [wire.encode(ask)]
    if number == 1:
        delivered = envelope.peek(talk.server._messages[0]).parts[0]
        parts.insert(0, bytes(delivered))
    return talk.forged("ask", 0, 2 * number + 1, {}, *parts)


def degrees_of(federation: Federation) -> np.ndarray:
    return federation.train.item_degrees


LIES: dict[str, tuple[int, Callable[[Federation], Any]]] = {
    "is not the item-degrees": (1, lambda f: ItemItem(17, 5)),
    "another number of users": (1, lambda f: ItemDegrees(17, 20)),
    "this client has more": (2, lambda f: SeededStep(degrees_of(f) * 0, bytes(32), 3)),
    "not the one of the public seed": (2, lambda f: SeededStep(degrees_of(f), bytes(32), 3)),
    "is not the seeded-step": (2, lambda f: SeededStep(degrees_of(f), bytes(32), 4)),
}


@pytest.mark.parametrize("said", LIES)
def test_an_ask_that_was_not_planned_ends_the_clients_part(
    federation: Federation, said: str
) -> None:
    number, lie = LIES[said]
    talk = Talk(federation)
    talk.until(Stage.INPUT, number)
    refused(asked(talk, lie(federation), number), said, final=True)
    assert not list((federation.folder / "client-0/runs").glob("*/upload*"))


def test_a_policy_is_checked_before_every_answer(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until(Stage.INPUT, 2)
    strict = federation.node(0, policy=Policy(computations=("item-degrees",)))
    message = talk.server._messages[0]
    refused(strict.answer(message), "the computation seeded-step", final=True)


def test_bytes_are_counted_over_the_run(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until(Stage.INPUT, 1)
    strict = federation.node(0, policy=Policy(most_bytes_down=500))
    refused(strict.answer(talk.server._messages[0]), "bytes down", final=True)


def test_forgetting_in_the_middle_of_a_run_ends_the_clients_part(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until(Stage.INPUT, 1)
    with Store(federation.folder / "client-0/history.db") as store:
        user = store.users()[0]
        store.forget_items(user, store.items(user)[:1])
    reply = federation.node(0).answer(talk.server._messages[0])
    assert envelope.peek(reply).more["final"] is True
    assert PLANTED_ITEM.encode() not in reply


# --- crashes --------------------------------------------------------------------------------------


def test_the_same_message_gets_the_same_answer(federation: Federation) -> None:
    talk = Talk(federation)
    for stage, number in (
        (Stage.ADVERTISE, 0),
        (Stage.SHARES, 0),
        (Stage.INPUT, 1),
        (Stage.UNMASK, 1),
    ):
        talk.until(stage, number)
        message = talk.server._message_for(0)
        first = federation.node(0).answer(message)
        assert envelope.peek(first).kind != "refused"
        assert federation.node(0).answer(message) == first
    talk.until(Stage.DONE if talk.server.components else Stage.COMPUTED)


def test_a_kill_at_every_write_of_every_stage_changes_nothing(federation: Federation) -> None:
    """Die at the first write, then at the second, ...: the answer is the same in the end."""

    class Countdown:
        def __init__(self) -> None:
            self.left = 0

        def random(self) -> float:
            self.left -= 1
            return 0.0 if self.left < 0 else 1.0

    talk = Talk(federation)
    kills = 0
    for stage, number in (
        (Stage.ADVERTISE, 0),
        (Stage.SHARES, 0),
        (Stage.INPUT, 1),
        (Stage.UNMASK, 1),
    ):
        talk.until(stage, number)
        message = talk.server._message_for(0)
        for writes in range(60):
            clock = Countdown()
            clock.left = writes
            try:
                with killing(clock, 0.5):  # type: ignore[arg-type]
                    answer = federation.node(0).answer(message)
                break
            except Killed:
                kills += 1
        assert federation.node(0).answer(message) == answer
    assert kills > 20
    talk.until(Stage.COMPUTED)


def test_an_older_state_is_not_answered_from(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until(Stage.UNMASK, 1)
    state = federation.folder / "client-0/runs" / talk.server.run / "state"
    shutil.copy(state, state.with_name("backup"))
    message = talk.server._message_for(0)
    assert envelope.peek(federation.node(0).answer(message)).kind == "unmask"
    shutil.copy(state.with_name("backup"), state)
    refused(federation.node(0).answer(message), "restored from before an answer", final=False)


def test_a_full_disk_answers_nothing_and_loses_nothing(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    talk = Talk(federation)
    talk.until(Stage.INPUT, 1)
    message = talk.server._messages[0]
    full = OSError(errno.ENOSPC, "No space left on device")
    with mock.patch("os.fsync", side_effect=full):
        refused(federation.node(0).answer(message), "a problem of its own", final=False)
    assert "No space left" in caplog.text
    assert envelope.peek(federation.node(0).answer(message)).kind == "upload"


def test_secrets_are_for_their_owner_and_leave_with_the_run(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until(Stage.UNMASK, 1)
    folder = federation.folder / "client-0"
    for path in (folder / "runs").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    talk.server.abort("enough")
    talk.step()
    assert (folder / "runs" / talk.server.run / "state").stat().st_size < 3000
    assert not list(folder.glob("runs/*/upload*"))
    assert "redacted" in repr(federation.node(0))


def test_plans_survive_their_bytes(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until(Stage.ADVERTISE)
    plan = talk.server.plan
    assert RunPlan.model_validate_json(plan.model_dump_json()) == plan
    assert [plan.first_user(client) for client in range(6)] == [0, 4, 8, 12, 16, 20]
