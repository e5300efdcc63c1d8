"""Tests of the protocol without masks: the server's view, and all other checks."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from privirec.secagg import (
    ClientPolicy,
    Parameters,
    ServerSettings,
    VectorShape,
    protocol,
)
from privirec.secagg.bell2020.messages import (
    Advertise,
    Deliver,
    Neighbours,
    SealedShares,
    Shares,
    Survivors,
    Unmask,
    decode,
)
from privirec.secagg.errors import (
    BadDump,
    BadShare,
    CohortChanged,
    CohortTooSmall,
    GraphNotRegular,
    MalformedMessage,
    NotInGraph,
    OutOfOrder,
    OversizedMessage,
    ProtocolError,
    ReplayedMessage,
    RingTooNarrow,
    RosterMismatch,
    SecondSurvivorSet,
    SecondUnmask,
    Stranger,
    TooManyDropped,
    TruncatedMessage,
    WeakParameters,
    WrongProtocol,
    WrongVersion,
)
from privirec.secagg.messages import Announce, encode
from privirec.secagg.participants import write_participants
from secagg.testing import InsecureSeededBytes

from .test_attacks import SHAPE, Run, named, refuses, start, vector

CLIENTS = 8
EVERYBODY = frozenset(range(CLIENTS))


def begun(**more: Any) -> Run:
    """Start eight clients, two of which may drop."""
    return start("none", CLIENTS, shares=(0.05, 0.25), **more)


def asked_to_open(run: Run, but: frozenset[int] = frozenset()) -> dict[int, Survivors]:
    """Run one round up to the server's question, which no client has answered yet."""
    for client in run.server.waiting_for() - but:
        assert run.server.step is not None
        number = run.server.step.sum_number
        run.server.add_vector(
            client, number, b"".join(run.clients[client].contribute(number, [vector(client)]))
        )
    return {client: survivors_in(message) for client, message in run.next_messages()}


def survivors_in(message: bytes) -> Survivors:
    found = decode(message)
    assert isinstance(found, Survivors)
    return found


def agree(run: Run, asked: dict[int, Survivors], among: Collection[int] = EVERYBODY) -> None:
    for client in asked.keys() & set(among):
        run.server.receive(client, run.clients[client].receive(encode(asked[client])) or b"")


# --- differences ----------------------------------------------------------------------------------


def test_the_server_sees_every_contribution() -> None:
    run = begun()
    run.set_up()
    packed = b"".join(run.clients[3].contribute(1, [vector(3)]))
    assert SHAPE.ring.unpack(packed, SHAPE.length).tolist() == vector(3).tolist()


def test_two_clients_without_a_graph_can_sum() -> None:
    """Test two clients: no graph parameters have to be feasible, only the summed clients are agreed
    on."""
    policy = ClientPolicy(min_cohort=2, corrupt_share=0)
    run = start("none", 2, shares=(0.0, 0.0), policy=policy, settings=ServerSettings(min_cohort=2))
    run.set_up()
    assert run.server.parameters == Parameters(0, 0)
    agree(run, asked_to_open(run))
    assert run.server.open_sum().tolist() == (vector(0) + vector(1)).tolist()


def test_a_sum_that_too_few_agree_to_is_not_opened() -> None:
    run = begun()
    run.set_up()
    agree(run, asked_to_open(run), range(5))
    with pytest.raises(TooManyDropped, match="3 of 8 clients dropped, 2 may"):
        run.server.open_blocks()
    assert run.server.aborted


def test_a_sum_is_opened_once() -> None:
    run = begun()
    run.set_up()
    agree(run, asked_to_open(run))
    total = run.server.open_sum()
    assert total.tolist() == np.sum([vector(client) for client in EVERYBODY], axis=0).tolist()
    assert run.server.survivors == tuple(EVERYBODY)
    with pytest.raises(OutOfOrder):
        run.server.open_sum()


# --- refusals by a client -------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["secagg+", "secagg"])
def test_clients_of_other_protocols_do_not_mix(other: str) -> None:
    """Test that a client started for masks never sends without them, and state is not
    transferable."""
    masked, plain = start(other, CLIENTS), begun()
    for one, server in ((masked, plain.server), (plain, masked.server)):
        refuses(one.clients[0], decode(server.announcement), WrongProtocol)
    stored, identity = plain.clients[1].dump(), plain.identities[1]
    source = InsecureSeededBytes("other")
    with pytest.raises(BadDump):
        protocol(other).load_client(stored, identity, plain.roster, ClientPolicy(), source)


@pytest.mark.parametrize(
    ("lie", "error"),
    [
        ({"roster": bytes(32)}, RosterMismatch),
        ({"min_cohort": 9}, CohortTooSmall),
        ({"shapes": (replace(SHAPE, width=21),)}, RingTooNarrow),
        ({"shapes": (replace(SHAPE, bounds_sum=True),)}, RingTooNarrow),
    ],
)
def test_an_announcement_is_checked(lie: dict[str, Any], error: type[ProtocolError]) -> None:
    run = begun()
    announced = decode(run.server.announcement)
    assert isinstance(announced, Announce)
    refuses(run.clients[0], replace(announced, **lie), error)


def test_too_large_a_dropped_share_is_refused() -> None:
    run = start("none", CLIENTS, shares=(0.05, 0.5))
    refuses(run.clients[0], decode(run.server.announcement), WeakParameters)


def test_who_takes_part_is_checked_before_anything_is_sent() -> None:
    def told(change: Callable[[Run, Neighbours], Neighbours], error: type[ProtocolError]) -> None:
        run = begun()
        run.advertise()
        message = decode(dict(run.next_messages())[0])
        assert isinstance(message, Neighbours)
        refuses(run.clients[0], change(run, message), error)

    def among(clients: set[int]) -> Callable[[Run, Neighbours], Neighbours]:
        return lambda run, message: replace(
            message, participants=write_participants(clients, run.roster)
        )

    told(among({0, 1, 2, 3, 4}), CohortTooSmall)  # two may drop
    told(among({1, 2, 3, 4, 5, 6, 7}), NotInGraph)
    told(lambda _, message: replace(message, neighbours=2, threshold=1), GraphNotRegular)
    told(lambda _, message: replace(message, threshold=1), GraphNotRegular)
    key = Advertise(bytes(16), 3, bytes(32), bytes(32), bytes(64))
    told(lambda _, message: replace(message, keys=(key,)), GraphNotRegular)
    told(lambda _, message: replace(message, root=b"r" * 32), GraphNotRegular)
    told(lambda _, message: replace(message, path=(bytes(32),)), GraphNotRegular)


def test_shares_for_nobody_are_refused() -> None:
    run = begun()
    run.advertise()
    run.answer(run.next_messages())
    shares = (SealedShares(3, bytes(12), b"shares"),)
    refuses(run.clients[0], Deliver(decode(run.server.announcement).run, 0, shares), Stranger)


@pytest.mark.parametrize(
    ("survivors", "error"),
    [
        (range(1, 7), NotInGraph),
        (range(8), Stranger),
        (range(2), CohortTooSmall),
        (range(4), TooManyDropped),
    ],
)
def test_survivors_are_checked(survivors: range, error: type[ProtocolError]) -> None:
    run = begun()
    run.advertise(range(7))
    run.answer(run.next_messages())
    run.answer(run.next_messages())
    refuses(run.clients[0], named(run, asked_to_open(run)[0], survivors), error)


def test_sums_are_answered_once_and_over_one_cohort() -> None:
    run = begun(rounds=3)
    run.set_up()
    first = asked_to_open(run)
    agree(run, first)
    run.server.open_sum()
    with pytest.raises(SecondUnmask):
        run.clients[0].receive(encode(first[0]))
    refuses(run.clients[0], named(run, first[0], range(7)), SecondSurvivorSet)
    run.server.add_vector(1, 2, b"".join(run.clients[1].contribute(2, [vector(1)])))
    others = named(run, replace(first[1], sum_number=2), range(7))
    refuses(run.clients[1], others, CohortChanged)


# --- messages that either side ignores ------------------------------------------------------------


def damaged(message: bytes) -> list[tuple[bytes, type[ProtocolError]]]:
    return [
        (message[:-1], TruncatedMessage),
        (message + b"\0", OversizedMessage),
        (bytes([message[0] + 1]) + message[1:], WrongVersion),
    ]


def test_damage_and_replays_change_nothing_at_a_client() -> None:
    run = begun()
    client = run.clients[0]
    for bad, error in damaged(run.server.announcement):
        with pytest.raises(error):
            client.receive(bad)
    run.advertise()
    with pytest.raises(ReplayedMessage):
        client.receive(run.server.announcement)
    outgoing = dict(run.next_messages())
    for bad, error in damaged(outgoing[0]):
        with pytest.raises(error):
            client.receive(bad)
    run.answer(iter(outgoing.items()))
    with pytest.raises(ReplayedMessage):
        client.receive(outgoing[0])
    run.answer(run.next_messages())
    question = encode(asked_to_open(run)[0])
    for bad in (question[:-1], question + b"\0", b"\1" + question[1:]):
        with pytest.raises(MalformedMessage):
            client.receive(bad)
    assert client.receive(question) is not None


def test_the_server_takes_no_shares_and_no_wrong_blocks() -> None:
    run = begun()
    run.advertise()
    number = decode(run.server.announcement).run

    def refused(message: Any, error: type[ProtocolError]) -> None:
        with pytest.raises(error):
            run.server.receive(0, encode(message))

    outgoing = list(run.next_messages())
    refused(Shares(number, 0, bytes(12), (b"shares",)), BadShare)
    run.answer(iter(outgoing))
    run.answer(run.next_messages())
    refused(Shares(number, 0, bytes(12), ()), ReplayedMessage)
    packed = b"".join(run.clients[0].contribute(1, [vector(0)]))
    for bad in (packed[:-1], packed + b"\0"):
        with pytest.raises(MalformedMessage):
            run.server.add_vector(0, 1, bad)
    with pytest.raises(OutOfOrder):
        run.server.add_vector(0, 2, packed)
    run.server.add_vector(0, 1, packed)
    with pytest.raises(ReplayedMessage):
        run.server.add_vector(0, 1, packed)
    asked_to_open(run)
    refused(Unmask(number, 1, 0, (bytes(33),), ()), BadShare)
    refused(Unmask(number, 2, 0, (), ()), OutOfOrder)
    run.server.receive(0, encode(Unmask(number, 1, 0, (), ())))
    refused(Unmask(number, 1, 0, (), ()), ReplayedMessage)


def test_a_ring_that_is_too_narrow_is_not_announced() -> None:
    with pytest.raises(RingTooNarrow):
        begun(shape=VectorShape(5, 8, 100))
