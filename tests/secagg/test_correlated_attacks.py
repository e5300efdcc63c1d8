"""Tests of servers and clients that deviate from averaging with correlated noise."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from privirec.extra.correlated.messages import NoisyAdvertise, NoisyAnnounce, decode
from privirec.secagg import ClientPolicy, Roster, protocol
from privirec.secagg.errors import (
    BadDump,
    BadKey,
    BadSignature,
    CohortTooSmall,
    GraphNotRegular,
    GraphNotSymmetric,
    OutOfOrder,
    ProtocolError,
    ReplayedMessage,
    SessionClosed,
    Stranger,
    WeakParameters,
    WrongProtocol,
    WrongRun,
)
from privirec.secagg.graph import graph_seed, ring_graph
from privirec.secagg.messages import encode
from privirec.secagg.participants import write_participants
from privirec.secagg.ring import VectorShape
from secagg.testing import InsecureSeededBytes

from .correlated_run import ANY_NOISE, NEARLY_NONE, SHAPE, Run, start, started

SPARSE = {"clients": 60, "shares": (0.05, 0.05)}
"""Settings in which each client has about 18 neighbours."""


def refused(run: Run, client: int, message: bytes, error: type[ProtocolError]) -> None:
    """Check that the client refuses and is closed, with all its secrets wiped."""
    session = run.clients[client]
    with pytest.raises(error):
        session.receive(message)
    with pytest.raises(SessionClosed):
        session.dump()
    state = session.state
    secrets = (state.private_key, state.own_seeds, state.pair_secrets)
    assert not any(any(secret.stored()) for secret in secrets)


# --- announcements by the server ------------------------------------------------------------------


def changed(run: Run, **changes: int) -> bytes:
    terms = run.announce()
    levels = terms.noise[0]
    moved = {name: getattr(levels, name) + by for name, by in changes.items()}
    return encode(replace(terms, noise=(replace(levels, **moved),)))


def test_the_default_policy_accepts_the_default_noise_and_hardly_less() -> None:
    policy = ClientPolicy(corrupt_share=0.1)
    run = start(policy=policy)
    assert run.clients[0].receive(run.server.announcement)
    refused(run, 1, changed(run, unit=-2, pair_bits=2), WeakParameters)
    refused(
        start(NEARLY_NONE, policy=policy), 0, start(NEARLY_NONE).server.announcement, WeakParameters
    )


def test_less_noise_between_clients_than_the_rule_gives_is_refused() -> None:
    """Test pair noise below the rule: under the policy's minimum alone, vectors would be almost
    visible."""
    policy = ClientPolicy(corrupt_share=0.1)
    levels = start(policy=policy).announce().noise[0]
    for by in (-1, levels.own_bits - levels.pair_bits):
        run = start(policy=policy)
        refused(run, 0, changed(run, pair_bits=by), WeakParameters)
    run = start(policy=policy)
    assert run.clients[0].receive(changed(run, pair_bits=1))


@pytest.mark.parametrize(
    "policy",
    [
        replace(ANY_NOISE, own_noise=2.0**-11),
        replace(ANY_NOISE, pair_noise=1000.0),
        replace(ANY_NOISE, max_dropped_share=0.2),
    ],
)
def test_less_than_the_policy_asks_for_is_refused(policy: ClientPolicy) -> None:
    run = start(policy=policy)
    refused(run, 0, run.server.announcement, WeakParameters)


def test_more_than_the_policy_asks_for_will_do() -> None:
    terms = start().announce()
    levels = terms.noise[0]
    share = levels.own * sqrt(12) / (12 * SHAPE.bound)
    policy = replace(ANY_NOISE, own_noise=share * 0.999, pair_noise=levels.pair / levels.own)
    run = start(policy=policy)
    assert run.clients[0].receive(run.server.announcement)


def test_a_client_of_another_protocol_does_not_answer() -> None:
    run = start()
    source = InsecureSeededBytes("other")
    for name in ("secagg+", "none", "lightsecagg"):
        other = protocol(name).client(0, run.identities[0], run.roster, ClientPolicy(), source)
        with pytest.raises(ProtocolError):
            other.receive(run.server.announcement)
    announced = replace(run.announce(), protocol=2)
    refused(run, 0, encode(announced), WrongProtocol)


def test_fewer_neighbours_than_the_client_computes_are_refused() -> None:
    run = start(**SPARSE)  # type: ignore[arg-type]
    fewer = replace(run.announce(), neighbours=run.announce().neighbours - 4)
    refused(run, 0, encode(fewer), WeakParameters)
    careful = replace(ANY_NOISE, corrupt_share=0.3)
    run = start(**SPARSE, policy=careful)  # type: ignore[arg-type]
    refused(run, 0, run.server.announcement, WeakParameters)


# --- participants ---------------------------------------------------------------------------------


def test_a_graph_that_is_not_the_public_one_is_refused() -> None:
    run = start(**SPARSE).join()  # type: ignore[arg-type]
    told = run.neighbours(7)
    advertised = {key.client: key for client in range(60) for key in run.neighbours(client).keys}
    chosen = sorted(set(range(60)) - {7})[: len(told.keys)]
    own_graph = replace(told, keys=tuple(advertised[peer] for peer in chosen))
    refused(run, 7, encode(own_graph), GraphNotSymmetric)
    refused(
        run, 8, encode(replace(run.neighbours(8), keys=run.neighbours(8).keys[1:])), GraphNotRegular
    )


def test_a_map_of_too_few_is_refused() -> None:
    run = start(**SPARSE).join()  # type: ignore[arg-type]
    told = run.neighbours(7)
    few = write_participants(range(50), run.roster)
    refused(run, 7, encode(replace(told, participants=few)), CohortTooSmall)


def test_keys_of_another_run_are_refused() -> None:
    """Test keys that are signed by the right client, but for another announcement."""
    run, other = start().join(), start(shapes=(SHAPE, SHAPE)).join()
    told, stale = run.neighbours(3), other.neighbours(3)
    assert [key.client for key in told.keys] == [key.client for key in stale.keys]
    assert run.identities[0].public == other.identities[0].public
    mixed = replace(told, keys=(*told.keys[:-1], stale.keys[-1]))
    refused(run, 3, encode(mixed), BadSignature)


def test_messages_out_of_turn_change_nothing() -> None:
    run = start().join()
    client = run.clients[3]
    before = client.dump()
    for message, error in (
        (run.server.announcement, ReplayedMessage),
        (run.told[4], WrongRun),
        (encode(run.neighbours(3).keys[0]), WrongRun),
    ):
        with pytest.raises(error):
            client.receive(message)
    assert client.dump() == before
    client.receive(run.told[3])
    told = client.dump()
    with pytest.raises(ReplayedMessage):
        client.receive(run.told[3])
    assert client.dump() == told


def test_different_lists_of_participants_only_add_noise() -> None:
    """Test an attack that clients cannot detect: the server names different participants to
    different clients. Their graphs differ, noise does not cancel, and only the server's sum is
    spoilt."""
    shape = VectorShape(2000, 16, 50)
    run = start(**SPARSE, shapes=(shape,), block_entries=2048).join()  # type: ignore[arg-type]
    advertised: dict[int, NoisyAdvertise] = {}
    for client in range(60):
        advertised |= {key.client: key for key in run.neighbours(client).keys}
    left_out = write_participants(range(59), run.roster)
    seed = graph_seed(run.server.digest, left_out)
    graph = ring_graph(59, run.announce().neighbours, seed)
    for client in range(30):
        peers = graph.neighbours(client).tolist()
        lie = replace(
            run.neighbours(client),
            participants=left_out,
            keys=tuple(advertised[peer] for peer in peers),
        )
        assert run.clients[client].receive(encode(lie)) is None
    for client in range(30, 60):
        run.clients[client].receive(run.told[client])
    error = run.sum() - run.exact()
    assert error.std() > 100 * run.server.deviation


# --- uploads of clients ---------------------------------------------------------------------------


def test_the_server_checks_keys() -> None:
    run = start()
    answer = run.clients[3].receive(run.server.announcement)
    assert answer is not None
    key = decode(answer)
    assert isinstance(key, NoisyAdvertise)
    for wrong, sender, error in (
        (replace(key, noise_key=bytes(32)), 3, BadKey),
        (replace(key, noise_key=bytes([5]) * 32), 3, BadSignature),
        (replace(key, client=4), 4, BadSignature),
        (replace(key, client=77), 77, Stranger),
        (key, 4, WrongRun),
        (replace(key, run=bytes(16)), 3, WrongRun),
    ):
        with pytest.raises(error):
            run.server.receive(sender, encode(wrong))
    run.server.receive(3, answer)
    with pytest.raises(ReplayedMessage):
        run.server.receive(3, answer)


def test_the_server_takes_each_vector_once_and_from_participants_only() -> None:
    run = start(NEARLY_NONE).join(silent=(5,)).tell()
    late = run.clients[5].receive(run.server.announcement)
    assert late is not None
    with pytest.raises(OutOfOrder):
        run.server.receive(5, late)
    packed = b"".join(run.clients[4].contribute(1, [run.vector(4)]))
    run.server.add_vector(4, 1, packed)
    with pytest.raises(ReplayedMessage):
        run.server.add_vector(4, 1, packed)
    run.contribute(1)
    assert np.array_equal(run.open(), run.exact())


def test_an_announcement_is_not_for_the_server() -> None:
    run = start()
    with pytest.raises(WrongRun):
        run.server.receive(3, run.server.announcement)


# --- stored clients -------------------------------------------------------------------------------


def test_stored_state_of_somebody_else_is_refused() -> None:
    run = started()
    stored = run.clients[3].dump()
    source = InsecureSeededBytes("other")
    load = run.protocol.load_client
    with pytest.raises(BadDump, match="another identity"):
        load(stored, run.identities[4], run.roster, ANY_NOISE, source)
    other = Roster({client: key for client, key in run.roster.items() if client != 7})
    with pytest.raises(BadDump, match="another roster"):
        load(stored, run.identities[3], other, ANY_NOISE, source)
    damaged = stored[:100] + bytes([stored[100] ^ 1]) + stored[101:]
    for wrong in (damaged, b"", stored[:-1]):
        with pytest.raises(BadDump):
            load(wrong, run.identities[3], run.roster, ANY_NOISE, source)
    for name in ("secagg+", "lightsecagg", "none"):
        with pytest.raises(BadDump):
            protocol(name).load_client(stored, run.identities[3], run.roster, ANY_NOISE, source)


def test_announcements_are_read_strictly() -> None:
    raw = start().server.announcement
    terms = decode(raw)
    assert isinstance(terms, NoisyAnnounce)
    assert encode(terms) == raw
    for cut in (raw[:-1], raw[:-3], raw + b"\0"):
        with pytest.raises(ProtocolError):
            decode(cut)
