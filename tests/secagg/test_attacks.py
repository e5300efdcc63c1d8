"""Tests of attacks by a lying server, misuse by a caller, and broken clients."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from privirec.secagg import (
    ClientPolicy,
    ClientSession,
    Identity,
    Roster,
    ServerModel,
    ServerSession,
    ServerSettings,
    Statement,
    VectorShape,
    protocol,
)
from privirec.secagg import keys as secagg_keys
from privirec.secagg.bell2020.messages import (
    Advertise,
    Deliver,
    Neighbours,
    SealedShares,
    Survivors,
    Unmask,
    decode,
)
from privirec.secagg.errors import (
    BadDump,
    BadKey,
    BadShare,
    BelowThreshold,
    CohortChanged,
    CohortTooSmall,
    MalformedMessage,
    NotInGraph,
    OutOfOrder,
    SecondInput,
    SecondSurvivorSet,
    SessionClosed,
    Stranger,
    TooManyDropped,
    WeakParameters,
)
from privirec.secagg.messages import ProtocolMessage, encode
from privirec.secagg.participants import read_participants, write_participants
from secagg.testing import InsecureSeededBytes

LENGTH = 20
SHAPE = VectorShape(LENGTH, 32, 10**6)
BOTH = pytest.mark.parametrize("name", ["secagg+", "secagg"])


@dataclass
class Run:
    """All parties, and a server whose messages a test may change on the way."""

    server: ServerSession
    clients: list[ClientSession]
    identities: list[Identity]
    roster: Roster

    def next_messages(self) -> Iterator[tuple[int, bytes]]:
        """End a step and return the server's messages of the next one."""
        self.server.advance()
        return self.server.outgoing()

    def advertise(self, among: range | list[int] | None = None) -> None:
        for client in among if among is not None else range(len(self.clients)):
            self.server.receive(client, self.clients[client].receive(self.server.announcement))

    def answer(self, outgoing: Iterator[tuple[int, bytes]]) -> dict[int, ProtocolMessage]:
        """Let every client answer, and return the messages to the clients."""
        asked = {}
        for client, message in outgoing:
            asked[client] = decode(message)
            reply = self.clients[client].receive(message)
            if reply is not None:
                self.server.receive(client, reply)
        return asked

    def set_up(self) -> None:
        self.advertise()
        self.answer(self.next_messages())
        self.answer(self.next_messages())

    def recover(self) -> None:
        """Run all steps between the vectors and the opening of their sum."""
        self.answer(self.next_messages())
        while self.server.step is not None and not self.server.step.opens_sum:
            self.answer(self.next_messages())

    def contribute(self, number: int) -> None:
        for client in self.server.waiting_for():
            self.server.add_vector(
                client, number, b"".join(self.clients[client].contribute(number, [vector(client)]))
            )


def vector(client: int) -> np.ndarray:
    return np.random.default_rng(client).integers(0, 10**6, LENGTH)


def start(
    name: str = "secagg",
    clients: int = 8,
    *,
    rounds: int = 1,
    shares: tuple[float, float] = (0.05, 0.05),
    policy: ClientPolicy | None = None,
    shape: VectorShape = SHAPE,
    settings: ServerSettings | None = None,
    server: ServerModel = ServerModel.SEMI_HONEST,
) -> Run:
    seeded = InsecureSeededBytes("attacks")
    scheme = protocol(name)
    identities = [Identity.generate(seeded) for _ in range(clients)]
    roster = Roster({number: one.public for number, one in enumerate(identities)})
    session = scheme.server(
        roster,
        Statement.of(clients, *shares, rounds=rounds, server=server),
        [shape] * rounds,
        settings or ServerSettings(block_entries=8),
        seeded,
    )
    sessions = [
        scheme.client(number, identity, roster, policy or ClientPolicy(server=server), seeded)
        for number, identity in enumerate(identities)
    ]
    return Run(session, sessions, identities, roster)


def named(run: Run, told: Survivors, clients: Iterable[int]) -> Survivors:
    """Return the message with these clients in the sum."""
    return replace(told, survivors=write_participants(clients, run.roster))


def refuses(client: ClientSession, message: ProtocolMessage, error: type[Exception]) -> None:
    """Check that the client refuses with this error, and has left."""
    with pytest.raises(error) as refusal:
        client.receive(encode(message))
    assert type(refusal.value) is error
    with pytest.raises(SessionClosed):
        client.dump()


# --- a session that is closed while it masks ------------------------------------------------------


@pytest.mark.parametrize("sent", range(4))
def test_a_closed_session_masks_nothing_more(sent: int) -> None:
    """Test 20 entries in three blocks; the session is closed before any of them or after all."""
    run = start()
    run.set_up()
    blocks = run.clients[3].contribute(1, [vector(3)])
    for _ in range(sent):
        next(blocks)
    run.clients[3].close()
    with pytest.raises(SessionClosed if sent < 3 else StopIteration):
        next(blocks)


def test_a_refusal_of_an_old_round_stops_the_masking_of_the_new_one() -> None:
    """Test that no masks come from wiped keys, since anybody could compute those."""
    run = start(rounds=2)
    run.set_up()
    run.contribute(1)
    asked = run.answer(run.next_messages())
    run.server.open_sum()
    blocks = run.clients[3].contribute(2, [vector(3)])
    survivors = asked[3]
    assert isinstance(survivors, Survivors)
    refuses(run.clients[3], named(run, survivors, range(1, 8)), SecondSurvivorSet)
    with pytest.raises(SessionClosed):
        next(blocks)


# --- a server that tells clients different things, complete graph ---------------------------------


def test_shares_of_chosen_neighbours_alone_are_refused() -> None:
    """Test 20 clients, one of which may drop; the server names only a threshold of them to client
    7."""
    run = start(clients=20)
    run.advertise()
    run.answer(run.next_messages())
    threshold = run.server.parameters.threshold
    delivered = decode(dict(run.next_messages())[7])
    assert isinstance(delivered, Deliver)
    few = replace(delivered, shares=delivered.shares[:threshold])
    refuses(run.clients[7], few, TooManyDropped)


@BOTH
@pytest.mark.parametrize("server", ServerModel)
def test_clients_named_as_dropped_count_against_the_cohort(name: str, server: ServerModel) -> None:
    """Test that the server must call many clients dropped to open the keys of one's neighbours."""
    run = start(name, clients=20, server=server)
    run.set_up()
    run.contribute(1)
    honest = decode(dict(run.next_messages())[2])
    assert isinstance(honest, Survivors)
    refuses(run.clients[2], named(run, honest, [2, *range(10, 20)]), TooManyDropped)


@BOTH
@pytest.mark.parametrize("server", ServerModel)
def test_the_list_of_survivors_is_checked_name_by_name(name: str, server: ServerModel) -> None:
    """Test 20 clients: one takes no part, and the shares of another are withheld from one
    neighbour."""
    run = start(name, clients=20, shares=(0.1, 0.2), server=server)
    run.advertise(range(19))
    run.answer(run.next_messages())
    delivered = {client: decode(message) for client, message in run.next_messages()}
    kept_back = delivered[2]
    assert isinstance(kept_back, Deliver)
    lost = kept_back.shares[0].sender
    delivered[2] = replace(kept_back, shares=kept_back.shares[1:])
    for client, message in delivered.items():
        run.clients[client].receive(encode(message))
    run.contribute(1)
    told = {client: decode(message) for client, message in run.next_messages()}
    refuses(run.clients[3], named(run, told[3], range(20)), Stranger)  # type: ignore[arg-type]
    others = set(range(19)) - {4}
    refuses(run.clients[4], named(run, told[4], others), NotInGraph)  # type: ignore[arg-type]
    assert lost in run.server.survivors
    refuses(run.clients[2], told[2], Stranger)


# --- a server that picks the participants ---------------------------------------------------------


@BOTH
def test_one_client_among_the_servers_friends_takes_no_part(name: str) -> None:
    """Test a roster of 200 with 10 corrupt clients: a graph of those and one more protects
    nobody."""
    run = start(name, clients=200)
    friends = [*range(10), 150]
    run.advertise(friends)
    with pytest.raises(CohortTooSmall, match="11 clients take part, 190 are needed"):
        run.server.advance()
    picked = Neighbours(
        *(run.server.announcement[2:18], 150, 10, 6, write_participants(friends, run.roster)),
        *(bytes(32), (), ()),
    )
    refuses(run.clients[150], picked, CohortTooSmall)


def test_the_parameters_withstand_the_corrupt_clients_of_the_whole_roster() -> None:
    run = start("secagg+", clients=200, shares=(0.1, 0.2))
    run.advertise(list(range(40, 200)))
    messages = dict(run.next_messages())
    told = decode(messages[150])
    assert isinstance(told, Neighbours)
    expected = protocol("secagg+").parameters(Statement.of(200, 0.1, 0.2).with_clients(160))
    assert (told.neighbours, told.threshold) == (expected.neighbours, expected.threshold)
    weaker = protocol("secagg+").parameters(Statement.of(160, 0.1, 0.2))
    assert weaker != expected
    assert run.clients[150].receive(messages[150]) is not None


@pytest.mark.parametrize("name", ["secagg+", "secagg", "none"])
def test_a_client_minds_the_announced_cohort_too(name: str) -> None:
    """Test four of 20 clients that may drop, although at least 19 were announced."""
    settings = ServerSettings(block_entries=8, min_cohort=19)
    run = start(name, clients=20, shares=(0.05, 0.2), settings=settings)
    run.advertise()
    told = decode(dict(run.next_messages())[0])
    assert isinstance(told, Neighbours)
    fewer = replace(told, participants=write_participants(range(18), run.roster))
    refuses(run.clients[0], fewer, CohortTooSmall)


@pytest.mark.parametrize("name", ["secagg+", "secagg", "none"])
def test_a_client_that_is_not_in_the_roster_does_not_join(name: str) -> None:
    run = start(name)
    seeded = InsecureSeededBytes("outsider")
    outsider = protocol(name).client(
        99, Identity.generate(seeded), run.roster, ClientPolicy(), seeded
    )
    refuses(outsider, decode(run.server.announcement), NotInGraph)


# --- a server that weakens the parameters ---------------------------------------------------------


@BOTH
def test_an_absurd_share_of_drop_outs_is_not_accepted(name: str) -> None:
    run = start(name, clients=100, shares=(0.05, 0.49))
    with pytest.raises(WeakParameters, match="accepts 300000"):
        run.clients[0].receive(run.server.announcement)
    willing = start(name, 100, shares=(0.05, 0.49), policy=ClientPolicy(max_dropped_share=0.49))
    assert willing.clients[0].receive(willing.server.announcement)


def test_the_complete_graph_needs_more_than_half_of_all_shares() -> None:
    """Test 100 clients, 49 of which may drop: 6 shares open a secret, and 99 + 5 can be
    collected."""
    policy = ClientPolicy(max_dropped_share=0.49)
    run = start(clients=100, shares=(0.05, 0.49), policy=policy)
    run.advertise()
    refuses(run.clients[0], decode(dict(run.next_messages())[0]), WeakParameters)


def test_more_neighbours_do_not_make_up_for_a_lower_part_of_them() -> None:
    run = start("secagg+", clients=100)
    run.advertise()
    told = decode(dict(run.next_messages())[0])
    assert isinstance(told, Neighbours)
    assert (told.neighbours, told.threshold) == (22, 6)
    wider = replace(told, neighbours=99)
    with pytest.raises(WeakParameters, match="99 neighbours and threshold 6"):
        run.clients[0].receive(encode(wider))


# --- stored clients -------------------------------------------------------------------------------


def test_the_masks_are_spent_when_a_contribution_begins() -> None:
    run = start()
    run.set_up()
    run.clients[0].contribute(1, [vector(0)])
    seeded = InsecureSeededBytes("restored")
    restored = protocol("secagg").load_client(
        run.clients[0].dump(), run.identities[0], run.roster, ClientPolicy(), seeded
    )
    with pytest.raises(SecondInput):
        restored.contribute(1, [vector(1)])


def test_a_damaged_or_foreign_dump_is_refused() -> None:
    run = start()
    run.set_up()
    dumped = run.clients[0].dump()
    seeded = InsecureSeededBytes("restored")

    def load(data: bytes, name: str = "secagg", identity: int = 0, roster: Roster = run.roster):
        return protocol(name).load_client(
            data, run.identities[identity], roster, ClientPolicy(), seeded
        )

    assert load(dumped).dump() == dumped
    for size in (0, 1, 31, 32, 33, len(dumped) - 400, len(dumped) - 1):
        with pytest.raises(BadDump):
            load(dumped[:size])
    for place in (0, 22, 24, 100, len(dumped) - 40, len(dumped) - 1):
        with pytest.raises(BadDump):
            load(dumped[:place] + bytes([dumped[place] ^ 1]) + dumped[place + 1 :])
    with pytest.raises(BadDump):
        load(dumped, name="secagg+")
    with pytest.raises(BadDump, match="identity"):
        load(dumped, identity=1)
    with pytest.raises(BadDump, match="roster"):
        load(dumped, roster=Roster({0: run.roster[0], 1: run.roster[1]}))


def test_the_server_drops_who_advertises_a_key_of_small_order() -> None:
    run = start(rounds=2)
    honest = decode(run.clients[2].receive(run.server.announcement) or b"")
    assert isinstance(honest, Advertise)
    masks = honest.mask_keys[:32] + bytes(32)
    digest = hashlib.sha256(run.server.announcement).digest()
    signed = secagg_keys.advertised_bytes(digest, 2, honest.sealing_key, masks)
    bad = replace(honest, mask_keys=masks, signature=run.identities[2].sign(signed))
    with pytest.raises(BadKey):
        run.server.receive(2, encode(bad))
    assert 2 in run.server.waiting_for()


def test_the_server_drops_who_advertises_a_key_too_few() -> None:
    run = start(rounds=2)
    honest = decode(run.clients[2].receive(run.server.announcement) or b"")
    assert isinstance(honest, Advertise)
    digest = hashlib.sha256(run.server.announcement).digest()
    masks = honest.mask_keys[:32]
    signed = secagg_keys.advertised_bytes(digest, 2, honest.sealing_key, masks)
    bad = replace(honest, mask_keys=masks, signature=run.identities[2].sign(signed))
    with pytest.raises(BadKey, match="one key for each sum"):
        run.server.receive(2, encode(bad))
    assert 2 in run.server.waiting_for()


# --- a client that answers with a wrong share -----------------------------------------------------


@pytest.mark.parametrize("liar", [0, 3, 5, 7])
def test_one_wrong_seed_share_opens_nothing(liar: int) -> None:
    """Test eight clients, where any five shares open a seed: a sixth share does not fit."""
    run = start()
    run.set_up()
    run.contribute(1)
    assert run.server.parameters.threshold == 5
    order = [liar, *(client for client in range(8) if client != liar)]
    messages = dict(run.next_messages())
    for client in order:
        reply = decode(run.clients[client].receive(messages[client]) or b"")
        assert isinstance(reply, Unmask)
        if client == liar:
            wrong = (int.from_bytes(reply.seed_shares[0], "big") ^ 1).to_bytes(33, "big")
            reply = replace(reply, seed_shares=(wrong, *reply.seed_shares[1:]))
        run.server.receive(client, encode(reply))
    with pytest.raises(BadShare, match="not what was dealt"):
        run.server.open_sum()
    assert run.server.aborted


def test_a_key_that_was_not_advertised_opens_nothing() -> None:
    """Test with exactly the threshold of shares, so that only the public key can show the error."""
    run = start(shares=(0.05, 0.25))
    run.set_up()
    for client in range(1, 8):
        run.server.add_vector(
            client, 1, b"".join(run.clients[client].contribute(1, [vector(client)]))
        )
    messages = dict(run.next_messages())
    threshold = run.server.parameters.threshold
    for client in range(1, 1 + threshold):
        reply = decode(run.clients[client].receive(messages[client]) or b"")
        assert isinstance(reply, Unmask)
        wrong = tuple(
            (int.from_bytes(share, "big") ^ 1).to_bytes(33, "big") for share in reply.key_shares
        )
        assert len(wrong) == 1
        run.server.receive(client, encode(replace(reply, key_shares=wrong)))
    with pytest.raises(BadShare, match="not the advertised one"):
        run.server.open_sum()
    assert run.server.aborted


def test_neighbours_that_deal_too_few_shares_are_noticed() -> None:
    """Test all neighbours: strings of two lengths do not fit into one message."""
    run = start(rounds=2)
    run.advertise()
    privates = [one.state.sealing_private.reveal() for one in run.clients]  # type: ignore[attr-defined]
    messages = dict(run.next_messages())
    told = decode(messages[1])
    assert isinstance(told, Neighbours)
    public = next(key.sealing_key for key in told.keys if key.client == 0)
    run.answer(iter(messages.items()))
    delivered = decode(dict(run.next_messages())[0])
    assert isinstance(delivered, Deliver)
    digest = hashlib.sha256(run.server.announcement).digest()

    def forged(share: SealedShares) -> SealedShares:
        (agreed,) = secagg_keys.agree(privates[share.sender], [public])
        key = secagg_keys.sealing_key(
            run.clients[0].exchange.label, agreed, told.run, share.sender, 0
        )
        context = secagg_keys.shares_context(digest, share.sender, 0)
        assert len(share.sealed) == 2 * 66 + 16
        return replace(share, sealed=secagg_keys.seal(key, share.nonce, bytes(66), context))

    short = replace(delivered, shares=tuple(map(forged, delivered.shares)))
    with pytest.raises(BadShare, match="two shares for each sum"):
        run.clients[0].receive(encode(short))


def test_fewer_neighbours_than_the_threshold_are_too_few_in_the_sparse_graph() -> None:
    """Test 40 of 200 clients that may drop: 44 neighbours with a threshold of 11 cannot spare
    34."""
    run = start("secagg+", clients=200, shares=(0.05, 0.2))
    run.set_up()
    threshold = run.server.parameters.threshold
    run.contribute(1)
    honest = decode(dict(run.next_messages())[0])
    assert isinstance(honest, Survivors)
    gone = set(run.clients[0].state.active[threshold - 1 :])  # type: ignore[attr-defined]
    assert len(gone) < 40
    refuses(run.clients[0], named(run, honest, set(range(200)) - gone), BelowThreshold)


# --- a server that changes the cohort -------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("server", ServerModel)
def test_clients_insist_on_the_cohort_of_the_first_sum(name: str, server: ServerModel) -> None:
    """Test a client that is missing in the second sum: the difference of the sums would show it."""
    run = start(name, clients=20, rounds=2, shares=(0.1, 0.2), server=server)
    run.set_up()
    run.contribute(1)
    run.recover()
    run.server.open_sum()
    run.contribute(2)
    messages = dict(run.next_messages())
    honest = decode(messages[2])
    assert isinstance(honest, Survivors)
    refuses(run.clients[2], named(run, honest, range(19)), CohortChanged)


# --- other cases ----------------------------------------------------------------------------------


def test_there_is_no_sum_after_the_last() -> None:
    run = start()
    run.set_up()
    run.contribute(1)
    run.answer(run.next_messages())
    run.server.open_sum()
    with pytest.raises(OutOfOrder, match="no sum 2"):
        run.clients[0].contribute(2, [vector(0)])


def test_a_map_that_is_too_long_is_not_unpacked() -> None:
    roster = start().roster
    tracemalloc.start()
    with pytest.raises(MalformedMessage):
        read_participants(bytes(1 << 22), roster)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 23


def test_shares_do_not_show_in_messages() -> None:
    shown = repr(Unmask(bytes(16), 1, 1, (b"SEED SHARE",), (b"KEY SHARE",)))
    assert not any(word in shown for word in ("SEED SHARE", "KEY SHARE"))
