"""Tests of changes between two runs: the difference of the sums does not reveal them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

import numpy as np
import pytest

from privirec.device import Catalogue, Store
from privirec.device import store as store_module
from privirec.device.store import _stamp as stamp
from privirec.runtime import envelope
from privirec.runtime.coordinator import Stage
from privirec.runtime.histories import FromFile, FromStore
from privirec.runtime.messages import Answer, Exchange, Here, Refused, SendVector, Vector
from privirec.runtime.node import Node
from privirec.runtime.node.calendar import Calendar
from privirec.runtime.node.cohort_guard import CohortGuard
from privirec.runtime.node.run_state import Participation
from privirec.runtime.refusals import Code

from .chaos import PLANTED_ITEM, TERMS, Federation
from .test_guards import hand_out
from .test_node import Talk, refused, remembered, said_in

NEXT_PERIOD = timedelta(days=7)


class InTime(Federation):
    """Federation whose clients have a clock that tests can set."""

    later = timedelta()
    later_still: Mapping[int, timedelta] = MappingProxyType({})
    """Additional clock offset per client."""
    days = 7

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.sources: dict[int, FromFile] = {}
        """Clients whose histories are in a file instead of a store."""

    def node(self, client: int, **changes: Any) -> Node:
        policy = self.policy.model_copy(update={"days_between_changes": self.days})
        given: dict[str, Any] = {
            "policy": policy,
            "clock": lambda: (
                datetime.now(UTC) + self.later + self.later_still.get(client, timedelta())
            ),
        }
        if client in self.sources:
            given["histories"] = self.sources[client]
        return super().node(client, **(given | changes))

    def store(self, client: int) -> Store:
        return Store(self.folder / f"client-{client}/history.db")

    def degrees(self, name: str) -> np.ndarray:
        """Return the item degrees that a run opens."""
        talk = Talk(self, name=name)
        talk.until(Stage.COMPUTED)
        assert talk.server.components is not None
        return talk.server.components.item_degrees


@pytest.fixture
def federation(tmp_path: Path) -> InTime:
    return InTime(tmp_path)


def forget_one(federation: InTime, client: int = 0) -> int:
    """Delete one interaction; return the item's index in the catalogue."""
    with federation.store(client) as store:
        user = store.users()[0]
        item = store.items(user)[-1]
        store.forget_items(user, [item])
    return int(item.removeprefix(PLANTED_ITEM))


def add_one(federation: InTime, client: int) -> int:
    with federation.store(client) as store:
        user = store.users()[0]
        new = next(i for i in range(17) if f"{PLANTED_ITEM}{i:03d}" not in store.items(user))
        store.add([(user, f"{PLANTED_ITEM}{new:03d}")])
    return new


def lines_of(federation: InTime, client: int) -> list[str]:
    rows = federation.rows(client)
    places = zip(*rows.matrix.nonzero(), strict=True)
    return [f"{rows.user_ids[user]},{rows.item_ids[item]}" for user, item in places]


def write_file(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(["user,item", *lines]) + "\n")


def one(place: int) -> np.ndarray:
    return np.eye(17, dtype=np.int64)[place]


# --- between two runs -----------------------------------------------------------------------------


def test_without_a_calendar_the_difference_of_two_runs_is_what_was_forgotten(
    federation: InTime,
) -> None:
    federation.days = 0
    before = federation.degrees("first")
    item = forget_one(federation)
    np.testing.assert_array_equal(before - federation.degrees("second"), one(item))


def test_who_has_forgotten_sits_out_until_the_next_period(
    federation: InTime, caplog: pytest.LogCaptureFixture
) -> None:
    before = federation.degrees("first")
    gone = [forget_one(federation, client) for client in (0, 3)]
    talk = Talk(federation, name="second")
    reply = talk.forged(0, talk.hello())
    refused(reply, "a problem of its own", Code.OWN_PROBLEM, final=False)
    assert "forgotten" in caplog.text  # on the client, readable by its owner
    assert PLANTED_ITEM not in caplog.text
    assert isinstance(said_in(talk.forged(1, talk.hello())), Here)
    for client in (0, 3):
        assert not remembered(federation, client).knows(talk.server.run)
    federation.later = NEXT_PERIOD
    after = federation.degrees("third")  # the changes of all clients together
    np.testing.assert_array_equal(before - after, one(gone[0]) + one(gone[1]))


def test_without_a_calendar_the_difference_of_two_runs_is_what_was_added(
    federation: InTime,
) -> None:
    federation.days = 0
    before = federation.degrees("first")
    item = add_one(federation, 0)
    np.testing.assert_array_equal(federation.degrees("second") - before, one(item))


def test_what_was_added_waits_for_the_next_period(federation: InTime) -> None:
    """The server cannot tell that a change is waiting: the client answers as before."""
    before = federation.degrees("first")
    added = [add_one(federation, client) for client in (0, 4)]
    np.testing.assert_array_equal(federation.degrees("second"), before)
    federation.later = NEXT_PERIOD
    after = federation.degrees("third")
    np.testing.assert_array_equal(after - before, one(added[0]) + one(added[1]))


def test_clients_of_different_periods_are_in_no_run_together(federation: InTime) -> None:
    """One client is asked a week later, so its histories are of another period."""
    federation.later_still = {VICTIM: NEXT_PERIOD}
    talk = Talk(federation)
    talk.until("advertise")
    for client in (0, VICTIM):
        reply = federation.node(client).answer(talk.message_for(client))
        refused(reply, "of another calendar period", Code.COHORT, final=True)


def test_a_file_that_changed_since_the_period_began_sits_out(
    federation: InTime, tmp_path: Path
) -> None:
    """Refuse it also if it was not yet used in this period: its content at the start is unknown."""
    histories = tmp_path / "shop.csv"
    lines = lines_of(federation, 0)
    write_file(histories, lines)
    federation.sources[0] = FromFile(histories)
    federation.later = -2 * NEXT_PERIOD
    federation.degrees("first")
    write_file(histories, lines[:-1])
    federation.later = timedelta()
    talk = Talk(federation, name="second")
    refused(talk.forged(0, talk.hello()), "it sits out until", Code.OWN_PROBLEM, final=False)
    write_file(histories, lines)  # unchanged again, so its content is known
    assert isinstance(said_in(talk.forged(0, talk.hello())), Here)
    federation.later = NEXT_PERIOD
    write_file(histories, lines[:-1])
    third = Talk(federation, name="third")
    assert isinstance(said_in(third.forged(0, third.hello())), Here)


VICTIM = 2


def difference_where_one_is_asked_late(folder: Path, wait: timedelta) -> np.ndarray:
    """Return the difference of two runs when the server asks the victim later than the others.

    Every client adds an item in the second period. All but the victim are asked within its first
    minute; the victim is asked after `wait`.
    """
    federation = InTime(folder)
    before = federation.degrees("first")
    begin = Calendar(folder, 7, lambda: datetime.now(UTC) + NEXT_PERIOD).period()
    assert begin is not None
    federation.later = begin - datetime.now(UTC) + timedelta(minutes=1)
    talk = Talk(federation, name="second")
    talk.step(skip={VICTIM})
    at_noon = federation.later + timedelta(hours=12)
    with mock.patch.object(store_module, "_stamp", lambda now: stamp(now + at_noon)):
        for client in range(6):
            add_one(federation, client)
    federation.later_still = {VICTIM: wait}
    talk.server.receive(VICTIM, federation.node(VICTIM).answer(talk.last[VICTIM]))
    with suppress(AssertionError):  # the run never finishes
        talk.until(Stage.COMPUTED)
    components = talk.server.components
    return before * 0 if components is None else components.item_degrees - before


@pytest.mark.parametrize("wait", [timedelta(days=6), timedelta(days=7)])
def test_the_server_does_not_choose_whose_changes_are_collected_for_longer(
    tmp_path: Path, wait: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test a wait within the same period and one into the next."""
    assert not difference_where_one_is_asked_late(tmp_path / "on", wait).any()

    as_asked = Store._in_run
    with monkeypatch.context() as off:
        off.setattr(Store, "_in_run", lambda *given: as_asked(*given[:3], ""))
        off.setattr(CohortGuard, "_check_period", lambda *_: None)
        shown = difference_where_one_is_asked_late(tmp_path / "off", wait)
    assert shown.sum() == shown.max() == 1  # the item that one person added


def test_a_run_that_took_nothing_holds_nothing_back(federation: InTime) -> None:
    """Until a vector leaves, there is nothing to compare."""
    Talk(federation, name="first").until("share")
    forget_one(federation)
    add_one(federation, 1)
    federation.degrees("second")


def test_a_file_that_changed_sits_out_too(federation: InTime, tmp_path: Path) -> None:
    histories = tmp_path / "shop.csv"
    lines = lines_of(federation, 0)
    write_file(histories, lines)
    federation.sources[0] = FromFile(histories)
    before = federation.degrees("first")
    np.testing.assert_array_equal(federation.degrees("second"), before)
    write_file(histories, lines[:-1])
    talk = Talk(federation, name="third")
    refused(talk.forged(0, talk.hello()), "it sits out until", Code.OWN_PROBLEM, final=False)
    federation.later = NEXT_PERIOD
    assert (before - federation.degrees("fourth")).sum() == 1


def two_catalogues(folder: Path, *, later: timedelta = timedelta()) -> tuple[np.ndarray, Talk]:
    """Return the degrees of a first run, and a second run over a catalogue with one more item.

    Between the two runs an interaction is deleted from the file of client 0.
    """
    federation = InTime(folder)
    histories = folder / "shop.csv"
    write_file(histories, lines_of(federation, 0))
    federation.sources[0] = FromFile(histories)
    before = federation.degrees("first")
    write_file(histories, lines_of(federation, 0)[:-1])
    federation.later = later
    federation.catalogue = Catalogue([*federation.catalogue.item_ids.tolist(), "one more"])
    return before, Talk(federation, name="second")


def test_another_catalogue_does_not_begin_another_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as off:
        off.setattr(Calendar, "check_catalogue", lambda *_: None)
        off.setattr(Calendar, "check_histories", lambda *_, **__: None)
        before, talk = two_catalogues(tmp_path / "off")
        talk.until(Stage.COMPUTED)
        assert talk.server.components is not None
        gone = before - talk.server.components.item_degrees[:17]
        assert gone.sum() == gone.max() == 1  # the interaction deleted from one file

    _, talk = two_catalogues(tmp_path / "on")
    for client in (0, 1):  # a file and a store
        reply = talk.forged(client, talk.hello())
        refused(reply, "in a run over another catalogue", Code.OTHER_CATALOGUE, final=False)
    _, talk = two_catalogues(tmp_path / "later", later=NEXT_PERIOD)
    talk.until(Stage.COMPUTED)


def finish_and_forget(store: Store, run: str) -> None:
    """Finish a run and delete the records of all earlier runs."""
    with store._change() as db:
        (number,) = db.execute("SELECT number FROM runs WHERE run = ?", (run,)).fetchone()
        db.execute("UPDATE runs SET finished = 1 WHERE run = ?", (run,))
        db.execute("DELETE FROM runs WHERE number < ?", (number,))


def after_an_early_model(federation: InTime) -> np.ndarray:
    """Return the difference of two runs; between them a barely started run sends a model."""
    before = federation.degrees("first")
    add_one(federation, 0)
    talk = Talk(federation, name="second")
    talk.until("share")
    model = federation.artifact(federation.simulated(frozenset(range(6)), TERMS.program))
    assert said_in(hand_out(talk, model)).installed
    return federation.degrees("third") - before


def test_a_model_that_comes_early_does_not_make_a_client_forget_what_it_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as off:
        off.setattr(Store, "finish_run", finish_and_forget)
        off.setattr(Calendar, "check_histories", lambda *_, **__: None)  # the guard behind it
        shown = after_an_early_model(InTime(tmp_path / "off"))
    assert shown.sum() == shown.max() == 1  # the item that client 0 added

    assert not after_an_early_model(InTime(tmp_path / "on")).any()  # and no client has to sit out


def test_a_file_that_changes_within_a_run_ends_the_clients_part(
    federation: InTime, tmp_path: Path
) -> None:
    histories = tmp_path / "shop.csv"
    write_file(histories, lines_of(federation, 0))
    source = FromFile(histories)
    talk = Talk(federation)
    talk.server.connected({0})
    talk.until("input", 1)
    state = remembered(federation, 0).load(talk.server.run)
    assert state is not None
    assert source.begin("run", federation.catalogue).fingerprint() == state.histories
    write_file(histories, lines_of(federation, 0)[:-1])
    reply = federation.node(0, histories=source).answer(talk.message_for(0))
    said = said_in(reply)
    assert isinstance(said, Refused)
    state = remembered(federation, 0).load(talk.server.run)
    assert state is not None
    assert state.part is Participation.LEFT
    assert not list(federation.folder.glob("client-0/runs/*/upload-*"))


# --- in the middle of a run -----------------------------------------------------------------------


def test_forgetting_before_the_vector_has_left_keeps_it_here(federation: InTime) -> None:
    talk = Talk(federation)
    talk.until("input", 1)
    forget_one(federation)
    reply = federation.node(0).answer(talk.message_for(0))
    refused(reply, "a problem of its own", Code.OWN_PROBLEM, final=False)
    assert not list(federation.folder.glob("client-0/runs/*/upload-*"))


def test_forgetting_after_an_upload_that_was_lost_keeps_the_vector_here(
    federation: InTime,
) -> None:
    talk = Talk(federation)
    talk.until("input", 2)
    message = talk.message_for(0)
    assert isinstance(said_in(federation.node(0).answer(message)), Vector)
    forget_one(federation)
    asked = envelope.peek(message, "to-client").message
    assert isinstance(asked, Exchange)
    reply = talk.forged(0, SendVector(step=asked.step))
    refused(reply, "a problem of its own", Code.OWN_PROBLEM, final=False)
    again = federation.node(0).answer(message)
    refused(again, "has left this run", Code.OWN_PROBLEM, final=False)
    assert not list(federation.folder.glob("client-0/runs/*/upload-*"))


def test_forgetting_after_the_upload_opens_nothing(federation: InTime) -> None:
    """The client can withhold only its own answer."""
    talk = Talk(federation)
    talk.until("unmask", 1)
    message = talk.message_for(0)
    forget_one(federation)
    reply = federation.node(0).answer(message)
    refused(reply, "a problem of its own", Code.OWN_PROBLEM, final=False)


def test_without_the_check_a_client_opens_what_was_forgotten(
    federation: InTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk(federation)
    talk.until("unmask", 1)
    message = talk.message_for(0)
    forget_one(federation)
    monkeypatch.setattr(FromStore, "check", lambda *_: None)
    assert isinstance(said_in(federation.node(0).answer(message)), Answer)


def test_the_server_hears_the_same_whatever_the_reason(
    federation: InTime, caplog: pytest.LogCaptureFixture
) -> None:
    """Any deletion, before or during the run, in a store or a file, gives the same reply."""
    caplog.set_level(logging.INFO)
    federation.degrees("first")
    talk = Talk(federation, name="second")
    talk.until("input", 1)
    forget_one(federation)
    in_the_run = said_in(federation.node(0).answer(talk.message_for(0)))
    next_one = Talk(federation, name="third")
    before_the_run = said_in(next_one.forged(0, next_one.hello()))
    assert isinstance(in_the_run, Refused)
    assert in_the_run == before_the_run


# --- the calendar itself --------------------------------------------------------------------------


def at(text: str) -> Callable[[], datetime]:
    return lambda: datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("days", "now", "begins"),
    [
        (7, "2026-11-16T00:00:00", "2026-11-16"),  # a Monday
        (7, "2026-11-22T23:59:59", "2026-11-16"),
        (7, "2026-11-23T00:00:00", "2026-11-23"),
        (1, "2026-11-18T12:00:00", "2026-11-18"),
        (7, "1969-12-31T12:00:00", "1969-12-29"),
    ],
)
def test_periods_are_the_same_for_everybody(
    tmp_path: Path, days: int, now: str, begins: str
) -> None:
    period = Calendar(tmp_path, days, at(now)).period()
    assert period is not None
    assert f"{period:%Y-%m-%d %H:%M}" == f"{begins} 00:00"


def test_a_clock_that_was_set_back_brings_no_period_back(tmp_path: Path) -> None:
    calendar = Calendar(tmp_path, 7, at("2026-11-24T12:00:00"))
    calendar.note(str(calendar.period()), "catalogue", "histories")
    earlier = Calendar(tmp_path, 7, at("2026-11-17T12:00:00"))
    assert earlier.period() == calendar.period()


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b'["x", "y", "z"]', b"\xff", b"[1, 2, 3]"])
def test_a_damaged_note_is_none(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "used-histories").write_bytes(damage)
    Calendar(tmp_path, 7).check_catalogue(0, "catalogue")
    Calendar(tmp_path, 7).check_histories("histories", changed=True)
