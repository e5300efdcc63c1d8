"""Tests of the schedule that carriers rely on: the steps of a run, and the server's progress."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from importlib import import_module
from pkgutil import walk_packages

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import privirec.extra.lightsecagg
import privirec.secagg
from privirec.secagg import Phase, Schedule, ServerModel, Statement, protocol, protocol_names
from privirec.secagg.bell2020.messages import Neighbours
from privirec.secagg.errors import (
    CohortChanged,
    CohortTooSmall,
    OutOfOrder,
    ReplayedMessage,
    Stranger,
    TooManyDropped,
    WrongRun,
)
from privirec.secagg.messages import (
    ProtocolMessage,
    SetupMessage,
    SumMessage,
    SurvivorsMessage,
    encode,
)

from .test_attacks import LENGTH, Run, start, vector

ALL = pytest.mark.parametrize(
    "name", ["secagg+", "secagg", "none", "secagg+ active", "secagg active"]
)
words = st.lists(
    st.text("abcdefgh", min_size=1, max_size=3), min_size=1, max_size=6, unique=True
).filter(lambda names: "input" not in names)


@given(words, st.data(), st.integers(1, 5))
def test_every_schedule_has_one_input_and_one_opening_a_sum(
    names: list[str], data: st.DataObject, sums: int
) -> None:
    first = data.draw(st.integers(1, len(names)))
    second = data.draw(st.integers(first, len(names)))
    schedule = Schedule(tuple(names[:first]), tuple(names[first:second]), tuple(names[second:]))
    check_steps(schedule, sums)
    if schedule.recovery:
        check_steps(replace(schedule, first_recovery=("once", "more")), sums)


@pytest.mark.parametrize("name", protocol_names())
def test_the_schedules_there_are(name: str) -> None:
    for model in ServerModel:
        schedule = protocol(name).schedule_for(Statement.of(20, 0.1, 0.2, server=model))
        check_steps(schedule, 3)
        assert len(set(schedule.names)) == len(schedule.names)


def test_an_active_server_costs_one_exchange_a_run() -> None:
    for name in protocol_names():
        plain, active = (
            protocol(name).schedule_for(Statement.of(20, 0.1, 0.2, server=model)).steps(3)
            for model in ServerModel
        )
        if name not in ("secagg+", "secagg"):
            assert plain == active
            continue
        (more,) = set(active) - set(plain)
        assert (more.name, more.sum_number, more.opens_sum) == ("confirm", 1, False)
        assert active[active.index(more) - 1].phase is Phase.INPUT


def check_steps(schedule: Schedule, sums: int) -> None:
    steps = schedule.steps(sums)
    assert len({(step.name, step.sum_number) for step in steps}) == len(steps)
    assert [step.name for step in steps if step.sum_number == 0] == list(schedule.setup)
    inputs = Counter(step.sum_number for step in steps if step.phase is Phase.INPUT)
    opened = Counter(step.sum_number for step in steps if step.opens_sum)
    assert inputs == opened == Counter(range(1, sums + 1))
    for number in range(1, sums + 1):
        of_sum = [step for step in steps if step.sum_number == number]
        names = [name for name in schedule.names if name not in schedule.setup]
        if number > 1:
            names = [name for name in names if name not in schedule.first_recovery]
        assert [step.name for step in of_sum] == names
        assert of_sum[-1].opens_sum
    assert [step.sum_number for step in steps] == sorted(step.sum_number for step in steps)


def begun(name: str, sums: int = 2) -> Run:
    """Start the protocol of this name; "active" after it means an active server."""
    protocol_name, _, model = name.partition(" ")
    server = ServerModel(model or "semi-honest")
    return start(protocol_name, clients=20, rounds=sums, shares=(0.1, 0.2), server=server)


def schedule_of(name: str) -> Schedule:
    protocol_name, _, model = name.partition(" ")
    statement = Statement.of(20, 0.1, 0.2, server=ServerModel(model or "semi-honest"))
    return protocol(protocol_name).schedule_for(statement)


@ALL
def test_a_server_takes_the_steps_of_its_schedule(name: str) -> None:
    run = begun(name)
    seen = []
    while (step := run.server.step) is not None:
        seen.append(step)
        told = dict(run.server.outgoing())
        assert list(told) == list(range(20))
        empty = {message == b"" for message in told.values()}
        assert empty == {step.phase is Phase.INPUT and step.sum_number > 1}
        run.answer((client, message) for client, message in told.items() if message)
        if step.phase is Phase.INPUT:
            run.contribute(step.sum_number)
        assert run.server.waiting_for() == set()
        if step.opens_sum:
            expected = np.sum([vector(client) for client in range(20)], axis=0)
            assert run.server.open_sum().tolist() == expected.tolist()
            assert run.server.survivors == tuple(range(20))
        else:
            run.server.advance()
    assert tuple(seen) == schedule_of(name).steps(2)
    assert not run.server.aborted
    assert run.server.waiting_for() == set()


@ALL
def test_the_messages_of_a_step_are_there_once_and_in_it(name: str) -> None:
    run = begun(name)
    announcements = run.server.outgoing()
    assert next(announcements) == (0, run.server.announcement)
    with pytest.raises(OutOfOrder, match="before"):
        run.server.outgoing()
    run.advertise()
    run.server.advance()
    with pytest.raises(OutOfOrder, match="over"):
        next(announcements)
    neighbours = run.server.outgoing()
    first = next(neighbours)
    with pytest.raises(OutOfOrder, match="before"):
        run.server.outgoing()
    run.answer(iter([first, *neighbours]))


@ALL
def test_steps_end_in_one_way_each(name: str) -> None:
    """Test that `advance` ends steps without a sum, `open_blocks` those with one; misuse is
    harmless."""
    run = begun(name, sums=1)
    run.advertise()
    with pytest.raises(OutOfOrder, match="no sum to open"):
        run.server.open_blocks()
    with pytest.raises(OutOfOrder, match="no sum to open"):
        run.server.open_sum()
    run.answer(run.next_messages())
    run.answer(run.next_messages())
    run.contribute(1)
    with pytest.raises(OutOfOrder, match="no sum to open"):
        run.server.open_blocks()
    run.recover()
    with pytest.raises(OutOfOrder, match="opening"):
        run.server.advance()
    assert not run.server.aborted
    assert run.server.open_sum().shape == (LENGTH,)
    for call in (run.server.advance, run.server.open_blocks, run.server.outgoing):
        with pytest.raises(OutOfOrder, match="done"):
            call()
    with pytest.raises(OutOfOrder, match="done"):
        run.server.skip_sum(range(20))


@ALL
def test_an_aborted_run_stays_aborted(name: str) -> None:
    run = begun(name)
    run.set_up()
    late = b"".join(run.clients[0].contribute(1, [vector(0)]))
    with pytest.raises(CohortTooSmall):
        run.server.advance()
    assert run.server.aborted
    assert run.server.step is None
    assert run.server.waiting_for() == set()
    for call in (run.server.advance, run.server.open_blocks, run.server.outgoing):
        with pytest.raises(OutOfOrder, match="aborted"):
            call()
    with pytest.raises(OutOfOrder):
        run.server.add_vector(0, 1, late)


@ALL
def test_answers_of_past_steps_are_replays_and_those_who_left_are_strangers(name: str) -> None:
    run = begun(name)
    advertised = {c: run.clients[c].receive(run.server.announcement) or b"" for c in range(20)}
    for client in range(19):
        run.server.receive(client, advertised[client])
    shares = {c: run.clients[c].receive(m) or b"" for c, m in run.next_messages()}
    for client in range(18):
        run.server.receive(client, shares[client])
    with pytest.raises(ReplayedMessage):
        run.server.receive(0, shares[0])
    with pytest.raises(ReplayedMessage):
        run.server.receive(0, advertised[0])
    with pytest.raises(OutOfOrder):  # it is too late to join
        run.server.receive(19, advertised[19])
    for client, message in run.next_messages():
        run.clients[client].receive(message)
    with pytest.raises(OutOfOrder):
        run.server.receive(18, shares[18])
    packed = b"".join(run.clients[0].contribute(1, [vector(0)]))
    assert run.server.waiting_for() == set(range(18))
    with pytest.raises(ReplayedMessage):
        run.server.receive(0, shares[0])
    with pytest.raises(Stranger):
        run.server.add_vector(18, 1, packed)


@ALL
def test_the_server_drops_what_is_not_for_it(name: str) -> None:
    run = begun(name)
    reply = run.clients[0].receive(run.server.announcement) or b""
    other_run = reply[:2] + bytes(16) + reply[18:]
    with pytest.raises(WrongRun, match="another run"):
        run.server.receive(0, other_run)
    with pytest.raises(WrongRun, match="of client 0"):
        run.server.receive(1, reply)
    with pytest.raises(WrongRun):
        run.server.receive(0, run.server.announcement)
    echo = Neighbours(reply[2:18], 0, 0, 0, b"", bytes(32), (), ())
    with pytest.raises(OutOfOrder, match="not for the server"):
        run.server.receive(0, encode(echo))
    run.server.receive(0, reply)


# --- a restarted server ---------------------------------------------------------------------------


def ready(name: str) -> Run:
    run = begun(name, sums=3)
    run.set_up()
    return run


@ALL
def test_a_known_sum_is_skipped_and_the_next_one_is_right(name: str) -> None:
    """Test a server that lost the clients' vectors of the first sum."""
    run, lost = ready(name), ready(name)  # the same randomness: the same run
    survivors = [client for client in range(20) if client not in (4, 9)]
    assert run.server.announcement == lost.server.announcement
    for client in survivors:
        run.server.add_vector(
            client, 1, b"".join(run.clients[client].contribute(1, [vector(client)]))
        )
    run.recover()
    run.server.open_sum()
    lost.server.skip_sum(survivors)
    assert lost.server.survivors == tuple(survivors)
    assert lost.server.waiting_for() == set(survivors)
    assert lost.server.step == run.server.step
    lost.clients = run.clients
    lost.contribute(2)
    lost.answer(lost.next_messages())
    expected = np.sum([vector(client) for client in survivors], axis=0)
    assert lost.server.open_sum().tolist() == expected.tolist()
    lost.server.skip_sum(survivors)
    assert lost.server.step is None
    assert not lost.server.aborted


@ALL
def test_a_sum_can_be_skipped_while_it_is_being_opened(name: str) -> None:
    run = ready(name)
    run.contribute(1)
    run.server.advance()
    run.server.skip_sum(range(20))
    assert run.server.step is not None
    assert (run.server.step.name, run.server.step.sum_number) == ("input", 2)
    other = ready(name)
    other.contribute(1)
    other.server.advance()
    with pytest.raises(CohortChanged):
        other.server.skip_sum(range(19))
    assert other.server.aborted


@ALL
def test_no_sum_is_skipped_over_clients_that_cannot_be_in_it(name: str) -> None:
    early = begun(name)
    with pytest.raises(OutOfOrder, match="no sum is under way"):
        early.server.skip_sum(range(20))
    assert not early.server.aborted
    for survivors, error in (
        (range(21), Stranger),
        (range(15), TooManyDropped),
    ):
        run = ready(name)
        with pytest.raises(error):
            run.server.skip_sum(survivors)
        assert run.server.aborted
    changed = ready(name)
    changed.server.skip_sum(range(18))
    with pytest.raises(CohortChanged):
        changed.server.skip_sum(range(17))
    assert changed.server.aborted


# --- kinds of messages ----------------------------------------------------------------------------


def test_kinds_of_messages_are_unique_over_all_protocols() -> None:
    modules = [
        import_module(found.name)
        for package in (privirec.secagg, privirec.extra.lightsecagg)
        for found in walk_packages(package.__path__, f"{package.__name__}.")
        if found.name.endswith(".messages")
    ]
    types = {
        one
        for module in modules
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, ProtocolMessage)
    } - {ProtocolMessage, SetupMessage, SumMessage, SurvivorsMessage}  # bases, which are never sent
    assert len(types) >= 8
    assert len({one.kind for one in types}) == len(types)
    assert {one.kind for one in types if one.__module__.startswith("privirec.secagg.bell")} == {
        *(2, 3, 4, 5, 7, 8, 9, 10)
    }
