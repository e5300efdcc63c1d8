"""Tests of whole runs in one process: sums, drop-outs at every stage, streaming, thresholds."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privirec.errors import UsageError
from privirec.secagg import (
    ClientPolicy,
    Identity,
    LocalFederation,
    Roster,
    ServerSession,
    ServerSettings,
    Statement,
    VectorShape,
    protocol,
    protocol_names,
)
from privirec.secagg.bell2020.messages import (
    Advertise,
    Deliver,
    Neighbours,
    Shares,
    Survivors,
    Unmask,
    decode,
)
from privirec.secagg.errors import (
    BadContribution,
    BadSignature,
    BelowThreshold,
    CohortChanged,
    CohortTooSmall,
    MalformedMessage,
    OutOfOrder,
    ParametersInfeasible,
    ProtocolError,
    ReplayedMessage,
    RingTooNarrow,
    SecondInput,
    SessionClosed,
    Stranger,
    TooManyDropped,
    WeakParameters,
)
from privirec.secagg.messages import Announce, encode
from secagg.testing import InsecureSeededBytes

LENGTH = 37
SHAPE = VectorShape(LENGTH, 20, bound=500, signed=True)
ALL = pytest.mark.parametrize("name", ["secagg+", "secagg", "none"])
BOTH = pytest.mark.parametrize("name", ["secagg+", "secagg"])


def vector(client: int) -> np.ndarray:
    return np.random.default_rng(client).integers(-500, 500, LENGTH, endpoint=True)


def plain_sum(clients: set[int]) -> list[int]:
    return np.sum([vector(client) for client in clients], axis=0).tolist()


def federation(name: str = "secagg+", clients: int = 12, rounds: int = 1, **options: object):
    options = {"corrupt_share": 0.1, "dropped_share": 0.3, **options}
    seeded = InsecureSeededBytes("test_protocol")
    return LocalFederation(name, clients, [SHAPE] * rounds, random_bytes=seeded, **options)  # type: ignore[arg-type]


def delivered(run: LocalFederation) -> LocalFederation:
    """Deliver the neighbours' shares to every client, so that it is ready for the first sum."""
    for client, message in run.server.outgoing():
        run.clients[client].receive(message)
    return run


def one_block(client: int) -> list[np.ndarray]:
    return [vector(client)]


def test_protocols_have_names_and_codes_of_their_own() -> None:
    names = protocol_names()
    assert {"secagg+": 1, "secagg": 2, "none": 3, "lightsecagg": 4}.items() <= {
        name: protocol(name).code for name in names
    }.items()
    assert len({protocol(name).code for name in names}) == len(names)
    with pytest.raises(UsageError, match="choose from"):
        protocol("rot13")


@ALL
def test_everybody_stays(name: str) -> None:
    run = federation(name, rounds=3)
    for _ in range(3):
        opened = run.sum(one_block)
        assert opened.survivors == tuple(range(12))
        assert opened.values().tolist() == plain_sum(set(range(12)))
    assert run.server.step is None
    assert not run.server.aborted


@ALL
@settings(max_examples=25)
@given(st.data())
def test_survivors_are_summed_whoever_drops_wherever(name: str, data: st.DataObject) -> None:
    schedule = protocol(name).schedule
    steps = st.sampled_from(schedule.names)
    lost = data.draw(st.dictionaries(st.integers(0, 11), steps, max_size=3))
    gone = {step: {client for client, at in lost.items() if at == step} for step in schedule.names}
    try:
        run = federation(name, departures={key: gone[key] for key in schedule.setup})
        opened = run.sum(one_block, {key: gone[key] for key in ("input", "unmask")})
    except TooManyDropped:
        # The bound is 30 % of those who advertised.
        assert len(gone["share"] | gone["input"]) > 0.3 * (12 - len(gone["advertise"]))
        return
    expected = set(range(12)) - gone["advertise"] - gone["share"] - gone["input"]
    assert set(opened.survivors) == expected
    assert opened.values().tolist() == plain_sum(expected)


@pytest.mark.parametrize("width", [1, 7, 8, 12, 16, 31, 32, 33, 63, 64])
def test_rings_of_all_sizes(width: int) -> None:
    clients = 5
    bound = max(1, (2**width - 1) // clients)
    if width == 1:
        with pytest.raises(RingTooNarrow):
            LocalFederation("secagg", clients, [VectorShape(9, 1, 1)], corrupt_share=0.2)
        return
    width_needed = VectorShape(9, width, bound).narrowest(clients).width
    shape = VectorShape(9, max(width, width_needed), bound)
    values = [
        np.random.default_rng(client).integers(0, bound, 9, dtype=np.uint64, endpoint=True)
        for client in range(clients)
    ]
    run = LocalFederation("secagg", clients, [shape], corrupt_share=0.2)
    opened = run.sum(lambda client: [values[client]])
    assert opened.total.tolist() == [sum(int(v[j]) for v in values) for j in range(9)]


@ALL
def test_a_client_that_leaves_after_the_first_sum_ends_the_run(name: str) -> None:
    run = federation(name, rounds=2)
    run.sum(one_block)
    with pytest.raises(CohortChanged, match="two sums would differ"):
        run.sum(one_block, {"input": {3}})
    assert run.server.aborted
    with pytest.raises(OutOfOrder):
        run.server.open_sum()


@ALL
def test_those_who_dropped_in_the_first_sum_are_not_missed_later(name: str) -> None:
    run = federation(name, rounds=3)
    expected = plain_sum(set(range(12)) - {2, 7})
    assert run.sum(one_block, {"input": {2, 7}}).values().tolist() == expected
    for _ in range(2):
        assert run.sum(one_block).values().tolist() == expected


@ALL
def test_too_many_drop_outs_open_nothing(name: str) -> None:
    run = federation(name)
    with pytest.raises(TooManyDropped, match="4 of 12 clients dropped, 3 may"):
        run.sum(one_block, {"input": {0, 1, 2, 3}})
    assert run.server.aborted


@BOTH
def test_under_the_threshold_nothing_is_opened(name: str) -> None:
    run = federation(name)
    threshold = run.server.parameters.threshold  # type: ignore[attr-defined]
    with pytest.raises(BelowThreshold, match="no sum is opened"):
        run.sum(one_block, {"unmask": set(range(12 - threshold))})
    assert run.server.aborted


@ALL
def test_a_cohort_that_is_too_small_is_not_started(name: str) -> None:
    with pytest.raises(CohortTooSmall):
        federation(
            name, settings=ServerSettings(min_cohort=10), departures={"advertise": {0, 1, 2}}
        )
    with pytest.raises(CohortTooSmall):
        federation(name, policy=ClientPolicy(min_cohort=13))


def test_statements_that_cannot_work_are_refused_at_once() -> None:
    with pytest.raises(ParametersInfeasible):
        federation(corrupt_share=0.5, dropped_share=0.45)
    with pytest.raises(RingTooNarrow):
        LocalFederation("secagg+", 12, [VectorShape(5, 8, 100)])
    with pytest.raises(UsageError, match="multiple of 8"):
        federation(settings=ServerSettings(block_entries=12))
    with pytest.raises(UsageError, match="steps"):
        federation(departures={"lunch": {1}})
    with pytest.raises(UsageError, match="advertise, share, not"):
        federation(departures={"input": {1}})
    with pytest.raises(UsageError, match="input, unmask, not"):
        federation().sum(one_block, {"share": {1}})


def test_statements_that_do_not_fit_the_run_are_refused_at_once() -> None:
    seeded = InsecureSeededBytes("statement")
    roster = Roster({number: Identity.generate(seeded).public for number in range(12)})

    def begin(clients: int, sums: int, shapes: int) -> ServerSession:
        statement = Statement.of(clients, 0.1, 0.3, rounds=sums)
        server = protocol("secagg+").server
        return server(roster, statement, [SHAPE] * shapes, ServerSettings(), seeded)

    begin(12, 2, 2)
    with pytest.raises(UsageError, match="2 sums are stated and 1 described"):
        begin(12, 2, 1)
    with pytest.raises(UsageError, match="1 sums are stated and 0 described"):
        begin(12, 1, 0)
    with pytest.raises(UsageError, match="11 clients are stated, the roster has 12"):
        begin(11, 1, 1)


def test_a_client_computes_the_parameters_itself() -> None:
    """Test a server that states 1 corrupt client in 100, and clients that insist on 30."""
    with pytest.raises(WeakParameters):
        federation(clients=12, corrupt_share=0.01, policy=ClientPolicy(corrupt_share=0.3))


@ALL
def test_long_vectors_are_masked_in_blocks_of_any_cut(name: str) -> None:
    run = federation(name, settings=ServerSettings(block_entries=8))

    def in_pieces(client: int) -> Iterator[np.ndarray]:
        yield from np.array_split(vector(client), 1 + client)

    assert run.sum(in_pieces).values().tolist() == plain_sum(set(range(12)))
    # 37 entries of 20 bits are 93 bytes, and nothing else is sent.
    assert run.traffic.up["input"].tolist() == [93] * 12


def ready_to_send(name: str) -> tuple[LocalFederation, list[bytes]]:
    """Return a run in its input step, and every client's vector."""
    run = delivered(federation(name, settings=ServerSettings(block_entries=8)))
    found = [b"".join(one.contribute(1, one_block(one.client))) for one in run.clients]
    assert [len(packed) for packed in found] == [one.vector_bytes(1) for one in run.clients]
    return run, found


def next_messages(server: ServerSession) -> Iterator[tuple[int, bytes]]:
    server.advance()
    return server.outgoing()


def answer_all(run: LocalFederation, but: set[int]) -> None:
    for client, message in next_messages(run.server):
        assert client not in but
        reply = run.clients[client].receive(message)
        assert reply is not None
        run.server.receive(client, reply)


@ALL
def test_a_bad_vector_adds_nothing(name: str) -> None:
    """Test a vector that is too short, too long, or bad only after its last entry."""
    run, vectors = ready_to_send(name)
    good = vectors[4]
    for bad in (b"", good[:-1], good + b"\0", good[:-1] + bytes([good[-1] | 0xF0])):
        with pytest.raises(MalformedMessage):
            run.server.add_vector(4, 1, bad)
    for client in range(12):
        if client != 4:
            run.server.add_vector(client, 1, memoryview(b"." + vectors[client])[1:])
    assert run.server.waiting_for() == {4}
    answer_all(run, {4})
    total = SHAPE.ring.decode_signed(run.server.open_sum())
    assert total.tolist() == plain_sum(set(range(12)) - {4})


@ALL
def test_vectors_out_of_turn_are_noise(name: str) -> None:
    run, vectors = ready_to_send(name)
    for number in (0, 2):
        with pytest.raises(OutOfOrder):
            run.server.add_vector(0, number, vectors[0])
    with pytest.raises(Stranger):
        run.server.add_vector(12, 1, vectors[0])
    for client in range(12):
        run.server.add_vector(client, 1, vectors[client])
        with pytest.raises(ReplayedMessage):
            run.server.add_vector(client, 1, vectors[client])
    answer_all(run, set())
    total = SHAPE.ring.decode_signed(run.server.open_sum())
    assert total.tolist() == plain_sum(set(range(12)))


@ALL
def test_the_caller_may_supply_the_accumulator(tmp_path: Path, name: str) -> None:
    def on_disk(number: int, shape: VectorShape) -> np.ndarray:
        return np.memmap(
            tmp_path / f"round-{number}", shape.ring.dtype, mode="w+", shape=(shape.length,)
        )

    run = federation(name, settings=ServerSettings(block_entries=8, accumulator=on_disk))
    opened = run.sum(one_block)
    assert isinstance(opened.total, np.memmap)
    assert opened.values().tolist() == plain_sum(set(range(12)))
    words = SHAPE.ring.dtype
    other = np.uint64 if words != np.uint64 else np.uint32
    for wrong, length in (
        (np.zeros(3, words), LENGTH),
        (np.zeros(LENGTH, other), LENGTH),
        (np.zeros(LENGTH, words), LENGTH - 8),  # as long as announced, for a shorter sum
    ):
        settings = ServerSettings(accumulator=lambda *_, wrong=wrong: wrong)
        with pytest.raises(UsageError, match=f"the accumulator must hold {length} {words} words"):
            federation(name, settings=settings).sum(
                lambda client, length=length: [vector(client)[:length]], length=length
            )


@ALL
def test_the_sum_can_be_read_block_by_block(name: str) -> None:
    run, vectors = ready_to_send(name)
    for client in range(12):
        run.server.add_vector(client, 1, vectors[client])
    answer_all(run, set())
    blocks = list(run.server.open_blocks())
    assert [len(block) for block in blocks] == [8, 8, 8, 8, 5]
    total = SHAPE.ring.decode_signed(np.concatenate(blocks))
    assert total.tolist() == plain_sum(set(range(12)))


def test_a_client_masks_long_vectors_in_bounded_memory() -> None:
    length, block = 1 << 22, 1 << 14
    shape = VectorShape(length, 12, bound=100)
    run = LocalFederation(
        "secagg", 4, [shape], corrupt_share=0.25, settings=ServerSettings(block_entries=block)
    )
    delivered(run)
    messages = run.clients[0].contribute(
        1, (np.ones(block, np.int64) for _ in range(length // block))
    )
    next(messages)
    tracemalloc.start()
    for _ in messages:
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * 8 * block  # some blocks, where the vector has 256 of them


@ALL
def test_a_sum_takes_one_contribution(name: str) -> None:
    run = delivered(federation(name))
    list(run.clients[0].contribute(1, one_block(0)))
    with pytest.raises(SecondInput):
        run.clients[0].contribute(1, one_block(0))
    with pytest.raises(OutOfOrder):
        run.clients[0].contribute(2, one_block(0))


@ALL
def test_a_sum_is_not_contributed_to_before_its_turn(name: str) -> None:
    run = federation(name, rounds=2)
    with pytest.raises(OutOfOrder, match="not ready for sum 1"):
        run.clients[0].contribute(1, one_block(0))
    delivered(run)
    with pytest.raises(OutOfOrder, match="not ready for sum 2"):
        run.clients[0].contribute(2, one_block(0))
    with pytest.raises(OutOfOrder, match="no sum 0"):
        run.clients[0].contribute(0, one_block(0))
    assert list(run.clients[0].contribute(1, one_block(0)))


@ALL
def test_a_sum_that_is_over_takes_no_contribution(name: str) -> None:
    run = federation(name, rounds=2)
    run.sum(one_block)
    with pytest.raises(SecondInput):
        run.clients[0].contribute(1, one_block(0))
    assert run.sum(one_block).values().tolist() == plain_sum(set(range(12)))


@pytest.mark.parametrize(
    "values",
    [np.zeros(LENGTH - 1, int), np.zeros(LENGTH + 1, int), np.full(LENGTH, 501), np.ones(LENGTH)],
)
@ALL
def test_wrong_contributions_never_leave(values: np.ndarray, name: str) -> None:
    run = delivered(federation(name))
    with pytest.raises(BadContribution):
        list(run.clients[0].contribute(1, [values]))
    with pytest.raises(SessionClosed):
        run.clients[0].contribute(1, one_block(0))


@pytest.mark.parametrize("length", [16, 37])
def test_a_contribution_that_is_too_long_is_never_sent_whole(length: int) -> None:
    """Test lengths that end at a block boundary, of the announcement or of the caller's blocks."""
    shape = VectorShape(length, 20, bound=500)
    settings = ServerSettings(block_entries=8)
    run = LocalFederation("secagg", 5, [shape], corrupt_share=0.2, settings=settings)
    delivered(run)
    blocks = [np.ones(length, int), np.ones(0, int), np.ones(1, int)]

    def send_all() -> None:
        run.server.add_vector(0, 1, b"".join(run.clients[0].contribute(1, blocks)))

    with pytest.raises(BadContribution, match="longer"):
        send_all()
    assert 0 in run.server.waiting_for()
    exact = run.clients[1].contribute(1, [np.ones(length, int), np.ones(0, int)])
    assert len(list(exact)) == -(-length // 8)


def test_the_callers_arrays_are_left_alone() -> None:
    values = vector(0).astype(np.uint32).astype(SHAPE.ring.dtype) % 100
    before = values.copy()
    list(delivered(federation()).clients[0].contribute(1, [values]))
    assert np.array_equal(values, before)


def test_secrets_of_a_sum_are_wiped_once_it_is_answered() -> None:
    run = federation(rounds=2)
    state = run.clients[0].state  # type: ignore[attr-defined]
    assert state.sealing_private.stored() == bytes(32)
    assert bytes(32) not in (state.seeds.reveal(0, 32), state.mask_privates.reveal(0, 32))
    run.sum(one_block)
    assert set(state.opening_keys.stored()) == {0}
    half = len(state.held_shares) // 2
    assert state.seeds.stored()[:32] == state.mask_privates.stored()[:32] == bytes(32)
    assert state.held_shares.stored()[:half] == bytes(half)
    assert bytes(32) not in (state.seeds.reveal(32), state.mask_privates.reveal(32))
    run.clients[0].close()
    assert state.held_shares.stored() == bytes(2 * half)
    assert state.seeds.stored() == bytes(64)


def test_nothing_secret_shows_in_a_repr() -> None:
    run = delivered(federation())
    state = run.clients[0].state  # type: ignore[attr-defined]
    shown = repr(run.clients[0]) + repr(state) + repr(run.server)
    assert "<redacted>" in shown
    for secret in (state.seeds, state.mask_privates, state.held_shares):
        assert repr(secret.reveal())[2:20] not in shown
        assert secret.reveal().hex()[:20] not in shown


@ALL
def test_a_stored_client_goes_on_where_it_was(name: str) -> None:
    seeded = InsecureSeededBytes("store")
    identities = [Identity.generate(seeded) for _ in range(5)]
    roster = Roster({number: one.public for number, one in enumerate(identities)})
    scheme, policy = protocol(name), ClientPolicy(corrupt_share=0.2)
    statement = Statement.of(5, 0.2, 0.2, rounds=2)
    server = scheme.server(roster, statement, [SHAPE] * 2, ServerSettings(), seeded)
    stored = {
        number: scheme.client(number, identities[number], roster, policy, seeded).dump()
        for number in range(5)
    }

    def load(number: int):
        return scheme.load_client(stored[number], identities[number], roster, policy, seeded)

    def exchange(outgoing: Iterator[tuple[int, bytes]]) -> None:
        for number, message in outgoing:
            client = load(number)
            reply = client.receive(message)
            stored[number] = client.dump()
            if reply is not None:
                server.receive(number, reply)

    exchange(server.outgoing())
    exchange(next_messages(server))
    exchange(next_messages(server))
    for number in (1, 2):
        for one in range(5):
            client = load(one)
            server.add_vector(one, number, b"".join(client.contribute(number, one_block(one))))
            stored[one] = client.dump()
            with pytest.raises(SecondInput):
                load(one).contribute(number, one_block(one))
        exchange(next_messages(server))
        total = SHAPE.ring.decode_signed(server.open_sum())
        assert total.tolist() == plain_sum(set(range(5)))


@ALL
def test_the_server_takes_only_signed_keys_of_the_roster(name: str) -> None:
    seeded = InsecureSeededBytes("signed")
    identities = [Identity.generate(seeded) for _ in range(4)]
    roster = Roster({number: one.public for number, one in enumerate(identities)})
    scheme, policy = protocol(name), ClientPolicy(corrupt_share=0.2)
    server = scheme.server(roster, Statement.of(4, 0.2, 0.2), [SHAPE], ServerSettings(), seeded)
    forged = scheme.client(1, identities[0], roster, policy, seeded)
    with pytest.raises(BadSignature):
        server.receive(1, forged.receive(server.announcement) or b"")
    good = scheme.client(1, identities[1], roster, policy, seeded)
    reply = good.receive(server.announcement) or b""
    server.receive(1, reply)
    with pytest.raises(ReplayedMessage):
        server.receive(1, reply)
    advertised = decode(reply)
    assert isinstance(advertised, Advertise)
    stranger = Advertise(
        advertised.run, 9, advertised.sealing_key, advertised.mask_keys, advertised.signature
    )
    with pytest.raises(Stranger):
        server.receive(9, encode(stranger))
    assert server.waiting_for() == {0, 2, 3}


def test_shares_that_do_not_give_the_advertised_key_are_noticed() -> None:
    run = delivered(federation())
    for client in range(1, 12):
        run.server.add_vector(
            client, 1, b"".join(run.clients[client].contribute(1, one_block(client)))
        )
    for client, message in next_messages(run.server):
        reply = decode(run.clients[client].receive(message) or b"")
        assert isinstance(reply, Unmask)
        wrong = tuple(share[:-1] + bytes([share[-1] ^ 1]) for share in reply.key_shares)
        run.server.receive(client, encode(Unmask(reply.run, 1, client, reply.seed_shares, wrong)))
    with pytest.raises(ProtocolError):
        run.server.open_sum()
    assert run.server.aborted


def test_bytes_are_counted_from_real_messages() -> None:
    steps = {
        **dict.fromkeys((Announce, Advertise), "advertise"),
        **dict.fromkeys((Neighbours, Shares), "share"),
        Deliver: "input",
        **dict.fromkeys((Survivors, Unmask), "unmask"),
    }
    seen: dict[tuple[str, str], int] = {}

    def observe(direction: str, client: int, message: bytes) -> None:
        if client == 5:
            is_vector = direction == "vector"
            key = ("up", "input") if is_vector else (direction, steps[type(decode(message))])
            seen[key] = seen.get(key, 0) + len(message)

    run = federation(rounds=2, observe=observe)
    run.sum(one_block)
    run.sum(one_block)
    counted = {("up", step): int(sizes[5]) for step, sizes in run.traffic.up.items()}
    counted |= {("down", step): int(sizes[5]) for step, sizes in run.traffic.down.items()}
    assert counted == seen
    assert run.traffic.up_per_client()[5] == sum(
        size for (direction, _), size in seen.items() if direction == "up"
    )
