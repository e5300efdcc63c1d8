"""Tests of whole runs of LightSecAgg: sums, drop-outs at every step, stored clients, sizes."""

from __future__ import annotations

import io
import tracemalloc
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privirec.extra.lightsecagg import totals
from privirec.extra.lightsecagg.code import MaskCode
from privirec.extra.lightsecagg.field import ElementShape, Field
from privirec.extra.lightsecagg.messages import Pieces
from privirec.extra.lightsecagg.thresholds import Thresholds
from privirec.extra.lightsecagg.totals import PieceRelay
from privirec.secagg import (
    ClientPolicy,
    LocalFederation,
    ServerSettings,
    Statement,
    VectorShape,
    protocol,
)
from privirec.secagg.errors import (
    BadContribution,
    BadDump,
    BelowThreshold,
    CohortChanged,
    CohortTooSmall,
    OtherAsk,
    OutOfOrder,
    ParametersInfeasible,
    ReplayedMessage,
    SecondInput,
    SessionClosed,
    Stranger,
    TooManyDropped,
)
from privirec.secagg.messages import MAX_MESSAGE_BYTES
from privirec.secagg.protocol import Phase, Step
from secagg.testing import InsecureSeededBytes

from .lightsecagg_run import LENGTH, PROTOCOL, Run, plain_sum, start, vector

STEPS = ("advertise", "share", "input", "confirm", "recover")


def federation(clients: int = 12, sums: int = 1, **options: object) -> LocalFederation:
    options = {"corrupt_share": 0.1, "dropped_share": 0.3, **options}
    shape = VectorShape(LENGTH, 32, 10**6)
    seeded = InsecureSeededBytes("lightsecagg")
    return LocalFederation(
        "lightsecagg",
        clients,
        [shape] * sums,
        random_bytes=seeded,
        **options,  # type: ignore[arg-type]
    )


def one_block(client: int) -> list[np.ndarray]:
    return [vector(client)]


# --- sums -----------------------------------------------------------------------------------------


def test_the_steps_of_a_run() -> None:
    schedule = PROTOCOL.schedule
    assert schedule.names == STEPS
    assert schedule.steps(2)[-4:] == (
        Step(Phase.PREPARATION, "share", 2, opens_sum=False),
        Step(Phase.INPUT, "input", 2, opens_sum=False),
        Step(Phase.RECOVERY, "confirm", 2, opens_sum=False),
        Step(Phase.RECOVERY, "recover", 2, opens_sum=True),
    )


@pytest.mark.parametrize("clients", [2, 3, 4, 5, 9, 17])
def test_everybody_stays(clients: int) -> None:
    policy = ClientPolicy(min_cohort=2)
    run = federation(clients, 3, policy=policy, settings=ServerSettings(min_cohort=2))
    for number in (1, 2, 3):
        opened = run.sum(one_block)
        assert (opened.sum_number, opened.survivors) == (number, tuple(range(clients)))
        assert opened.values().tolist() == plain_sum(range(clients))
    assert run.server.step is None
    assert not run.server.aborted


@settings(max_examples=40)
@given(st.dictionaries(st.integers(0, 11), st.sampled_from(STEPS), max_size=4))
def test_survivors_are_summed_whoever_drops_wherever(lost: dict[int, str]) -> None:
    """Test drop-outs of up to 30 % of the advertised clients, at any step."""
    gone = {step: {client for client, at in lost.items() if at == step} for step in STEPS}
    there = 12 - len(gone["advertise"])
    before = len(gone["share"] | gone["input"])
    after = before + len(gone["confirm"] | gone["recover"])
    allowed = Statement.of(12, 0.1, 0.3).with_clients(there).dropped
    if there < 9:
        expected: type[Exception] | None = CohortTooSmall
    elif before > allowed:
        expected = TooManyDropped
    else:
        expected = BelowThreshold if after > allowed else None

    def whole_run() -> None:
        run = federation(departures={"advertise": gone["advertise"]})
        opened = run.sum(one_block, {step: gone[step] for step in STEPS[1:]})
        inside = set(range(12)) - gone["advertise"] - gone["share"] - gone["input"]
        assert set(opened.survivors) == inside
        assert opened.values().tolist() == plain_sum(inside)

    if expected is None:
        whole_run()
    else:
        with pytest.raises(expected):
            whole_run()


@settings(max_examples=40)
@given(st.integers(1, 61), st.booleans(), st.integers(1, 40), st.integers(0, 2**32))
def test_rings_of_all_sizes(width: int, signed: bool, length: int, seed: int) -> None:
    """Test bounds on the sum alone, as programs announce them: the sum fills the ring."""
    clients, most = 5, 2 ** (width - signed) - 1
    if not most:
        return
    shape = VectorShape(length, width, most, signed, bounds_sum=True)
    rng = np.random.default_rng(seed)
    total = rng.integers(-most if signed else 0, most, length, endpoint=True, dtype=np.int64)
    # Summands whose partial sums also stay inside: the total cut into five.
    cuts = np.sort(rng.random((clients - 1, length)), axis=0)
    edges = np.vstack([np.zeros(length), cuts, np.ones(length)])
    partial = np.trunc(edges * total.astype(np.float64) * 0.99).astype(np.int64)
    vectors = np.diff(partial, axis=0)
    vectors[-1] += total - vectors.sum(axis=0)
    run = LocalFederation(
        "lightsecagg",
        clients,
        [shape],
        corrupt_share=0.2,
        policy=ClientPolicy(corrupt_share=0.2, proven_sums=True),
        settings=ServerSettings(block_entries=8, spool=io.BytesIO),
    )
    opened = run.sum(lambda client: [vectors[client]])
    assert opened.shape == shape
    assert opened.values().astype(np.int64).tolist() == total.tolist()


def test_the_protocols_open_the_same_words() -> None:
    shape = VectorShape(500, 24, 2**23 - 1, signed=True, bounds_sum=True)
    vectors = np.random.default_rng(5).integers(-(2**19), 2**19, (9, 500))
    words = []
    for name in ("secagg+", "lightsecagg", "none"):
        policy = ClientPolicy(proven_sums=True)
        run = LocalFederation(name, 9, [shape], dropped_share=0.2, policy=policy)
        opened = run.sum(lambda client: [vectors[client]], {"input": {4}})
        assert opened.total.dtype == shape.ring.dtype
        words.append(opened.total.tobytes())
    assert words[0] == words[1] == words[2]


# --- drop-outs ------------------------------------------------------------------------------------


def test_those_who_dropped_in_the_first_sum_are_not_missed_later() -> None:
    run = federation(sums=3, departures={"advertise": {5}})
    expected = plain_sum(set(range(12)) - {2, 5, 7})
    assert run.sum(one_block, {"share": {2}, "input": {7}}).values().tolist() == expected
    for _ in range(2):
        assert run.sum(one_block).values().tolist() == expected


@pytest.mark.parametrize("step", ["share", "input"])
def test_a_client_that_leaves_after_the_first_sum_ends_the_run(step: str) -> None:
    run = federation(sums=2)
    run.sum(one_block)
    with pytest.raises(CohortChanged, match="two sums would differ"):
        run.sum(one_block, {step: {3}})
    assert run.server.aborted
    with pytest.raises(OutOfOrder):
        run.server.open_sum()


@pytest.mark.parametrize("step", ["confirm", "recover"])
def test_who_leaves_in_the_last_recovery_is_in_the_sum(step: str) -> None:
    run = federation(sums=2)
    run.sum(one_block)
    opened = run.sum(one_block, {step: {3, 4, 9}})
    assert opened.survivors == tuple(range(12))
    assert opened.values().tolist() == plain_sum(range(12))


@pytest.mark.parametrize("step", ["confirm", "recover"])
def test_under_the_threshold_nothing_is_opened(step: str) -> None:
    run = federation()
    with pytest.raises(BelowThreshold, match=r"8 clients .* 9 are needed: no sum is opened"):
        run.sum(one_block, {step: {0, 1, 2, 3}})
    assert run.server.aborted


def test_who_has_not_confirmed_is_not_waited_for() -> None:
    run = start().go_to("confirm")
    run.answer(but=[6])
    run.server.advance()
    run.listen()
    assert run.told.keys() == run.server.waiting_for() == {0, 1, 2, 3, 4, 5, 7}
    run.answer()
    assert run.server.waiting_for() == set()
    assert run.server.open_sum().tolist() == plain_sum(range(8))


def test_a_cohort_that_is_too_small_is_not_started() -> None:
    with pytest.raises(CohortTooSmall):
        federation(departures={"advertise": {0, 1, 2, 3}})
    with pytest.raises(CohortTooSmall):
        federation(policy=ClientPolicy(min_cohort=13))


# --- statements and lengths that cannot be satisfied ----------------------------------------------


def test_statements_that_cannot_work_are_refused_at_once() -> None:
    with pytest.raises(ParametersInfeasible, match="12 clients are too few: with 2 corrupt and 5"):
        federation(dropped_share=0.45)
    with pytest.raises(ParametersInfeasible, match="64 bits: this protocol carries at most 61"):
        LocalFederation("lightsecagg", 12, [VectorShape(5, 64, 100)])


def test_vectors_whose_pieces_fill_a_message_are_refused_with_the_numbers() -> None:
    def server(length: int) -> None:
        run = start(100, shares=(0.05, 0.05), shape=VectorShape(length, 32, 1))
        assert run.server.step

    # At worst 95 of 100 take part: 4 may drop, 86 elements a column.
    server(13_500_000)
    with pytest.raises(ParametersInfeasible, match=rf"\d+ bytes .* at most {MAX_MESSAGE_BYTES}"):
        server(16_000_000)


# --- streaming of vectors -------------------------------------------------------------------------


def test_long_vectors_are_masked_in_blocks_of_any_cut() -> None:
    run = federation(settings=ServerSettings(block_entries=8))
    opened = run.sum(lambda client: np.array_split(vector(client), 1 + client))
    assert opened.values().tolist() == plain_sum(range(12))
    # 20 elements of 33 bits are 83 bytes, and nothing else is sent.
    assert run.traffic.up["input"].tolist() == [83] * 12


def test_the_caller_may_supply_the_accumulator(tmp_path: Path) -> None:
    asked = []

    def on_disk(number: int, shape: VectorShape) -> np.ndarray:
        asked.append((number, shape.length, shape.width))
        return np.memmap(
            tmp_path / f"sum-{number}", shape.ring.dtype, mode="w+", shape=(shape.length,)
        )

    run = federation(settings=ServerSettings(accumulator=on_disk))
    assert run.sum(one_block).values().tolist() == plain_sum(range(12))
    assert asked == [(1, LENGTH, 33)]


def test_the_sum_can_be_read_block_by_block() -> None:
    run = start(shape=VectorShape(LENGTH, 23, 10**6)).go_to("recover")
    run.answer()
    blocks = list(run.server.open_blocks())
    # Two entries in an element, eight elements in a block.
    assert [len(block) for block in blocks] == [16, 4]
    assert np.concatenate(blocks).tolist() == plain_sum(range(8))


def test_a_client_masks_long_vectors_in_bounded_memory() -> None:
    length, block = 1 << 21, 1 << 14
    shape = VectorShape(length, 32, bound=100)
    run = start(4, shares=(0.2, 0.0), shape=shape, settings=ServerSettings(block_entries=block))
    run.go_to("input")
    messages = run.clients[0].contribute(
        1, (np.ones(block, np.int64) for _ in range(length // block))
    )
    next(messages)
    tracemalloc.start()
    for _ in messages:
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * 8 * block


def test_pieces_wait_in_the_spool() -> None:
    spools: list[io.BytesIO] = []

    def spool() -> io.BytesIO:
        spools.append(io.BytesIO())
        return spools[-1]

    run = start(settings=ServerSettings(block_entries=64, spool=spool)).go_to("share")
    pieces = run.answer()[0]
    assert isinstance(pieces, Pieces)
    (store,) = spools
    assert pieces.sealed in store.getvalue()
    run.server.advance()
    run.listen()
    assert run.finish_sum() == plain_sum(range(8))
    assert store.closed


@settings(max_examples=400)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=9, unique=True).map(sorted), st.data())
def test_every_piece_reaches_its_holder(holders: list[int], data: st.DataObject) -> None:
    """Test any number of receivers at a time, from memory and from a spool."""
    relay = PieceRelay(data.draw(st.sampled_from([None, io.BytesIO])), holders)
    for sender in data.draw(st.permutations(holders)):
        sealed = [bytes([sender, one, 7]) for one in holders if one != sender]
        relay.put(sender, bytes([sender]) * 12, b"".join(sealed))
    some = st.lists(st.sampled_from(holders), min_size=1, unique=True).map(sorted)
    receivers, senders = data.draw(some), data.draw(some)
    with (
        mock.patch.object(totals, "_RELAY_BYTES", data.draw(st.integers(1, 400))),
        mock.patch.object(totals, "_LONG_PIECE", data.draw(st.sampled_from([1, 100]))),
    ):
        delivered = dict(relay.deliveries(receivers, senders))
    assert delivered == {
        receiver: b"".join(
            bytes([sender]) * 12 + bytes([sender, receiver, 7])
            for sender in senders
            if sender != receiver
        )
        for receiver in receivers
    }


# --- misuse by the caller -------------------------------------------------------------------------


def test_a_sum_takes_one_contribution() -> None:
    run = start(sums=2).go_to("input")
    list(run.clients[0].contribute(1, [vector(0)]))
    with pytest.raises(SecondInput):
        run.clients[0].contribute(1, [vector(0)])
    for number in (0, 2, 3):
        with pytest.raises(OutOfOrder):
            run.clients[0].contribute(number, [vector(0)])


def test_a_vector_of_another_length_than_its_pieces_is_refused() -> None:
    run = start().go_to("input")
    shorter = vector(0)[: LENGTH - 8]
    with pytest.raises(OtherAsk, match="longer or shorter than its pieces"):
        list(run.clients[0].contribute(1, [shorter], length=len(shorter)))


def test_no_vector_without_a_mask() -> None:
    run = start().go_to("share")
    with pytest.raises(OutOfOrder, match="not ready"):
        run.clients[0].contribute(1, [vector(0)])


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(LENGTH - 1, int),
        np.zeros(LENGTH + 1, int),
        np.full(LENGTH, 10**6 + 1),
        np.full(LENGTH, -1),
        np.ones(LENGTH),
    ],
)
def test_wrong_contributions_never_leave(values: np.ndarray) -> None:
    run = start().go_to("input")
    with pytest.raises(BadContribution):
        list(run.clients[0].contribute(1, [values]))
    with pytest.raises(SessionClosed):
        run.clients[0].contribute(1, [vector(0)])


@pytest.mark.parametrize("sent", range(4))
def test_a_closed_session_masks_nothing_more(sent: int) -> None:
    run = start().go_to("input")
    blocks = run.clients[3].contribute(1, [vector(3)])
    for _ in range(sent):
        next(blocks)
    run.clients[3].close()
    with pytest.raises(SessionClosed if sent < 3 else StopIteration):
        next(blocks)


# --- the knowledge of a client --------------------------------------------------------------------


def test_a_client_knows_who_takes_part_and_who_was_summed() -> None:
    run = start(sums=2)
    assert run.clients[0].participants == frozenset()
    run.go_to("confirm", gone=[6])
    client = run.clients[0]
    assert client.participants == frozenset(range(8)) - {6}  # client 6 never advertised
    with pytest.raises(OutOfOrder, match="not known yet"):
        client.check_summed(frozenset(range(8)) - {6})
    for _ in range(2):  # once the survivors are confirmed, and when they were summed
        run.finish_step()
        client.check_summed(frozenset(range(8)) - {6})
        for other in (range(8), range(6)):
            with pytest.raises(CohortChanged):
                client.check_summed(frozenset(other))
        run.listen()


def test_secrets_are_wiped_once_they_are_spent() -> None:
    run = start(sums=2).go_to("share")
    state = run.clients[0].state  # type: ignore[attr-defined]
    assert any(state.sealing_private.stored())
    run.finish_step()
    assert not any(state.sealing_private.stored())
    assert any(state.seed.reveal())
    run.listen()
    run.finish_step()
    run.listen()
    run.finish_step()  # confirmed: the mask is no longer needed
    assert not any(state.seed.stored())
    assert any(state.own_piece.reveal())
    run.listen()
    run.finish_step()
    assert not any(state.own_piece.stored())
    assert any(state.sealing_keys.reveal())
    run.listen()
    run.finish_sum()
    assert not any(state.sealing_keys.stored())


def test_a_closed_session_has_no_secrets() -> None:
    run = start().go_to("confirm")
    state = run.clients[3].state  # type: ignore[attr-defined]
    secrets = (state.sealing_keys, state.seed, state.own_piece)
    shown = repr(run.clients[3]) + repr(state) + repr(run.server)
    for secret in secrets:
        assert any(secret.reveal())
        assert repr(secret.reveal())[2:20] not in shown
        assert secret.reveal().hex()[:20] not in shown
    run.clients[3].close()
    assert not any(any(secret.stored()) for secret in secrets)


def test_no_secret_is_in_the_clear_anywhere_in_a_transcript() -> None:
    heard: list[bytes] = []
    run = federation(observe=lambda _direction, _client, message: heard.append(message))
    keys = [client.state.sealing_private.reveal() for client in run.clients]  # type: ignore[attr-defined]
    seeds: list[bytes] = []

    def remember(client: int) -> list[np.ndarray]:
        seeds.append(run.clients[client].state.seed.reveal())  # type: ignore[attr-defined]
        return [vector(client)]

    run.sum(remember)
    everything = b"".join(heard)
    assert len(keys) == len(seeds) == 12
    assert not any(secret in everything for secret in keys + seeds)


# --- stored clients -------------------------------------------------------------------------------


def test_clients_that_are_stored_before_every_message_go_on() -> None:
    run, straight = start(sums=2, stored=True), start(sums=2)
    for one in (run, straight):
        one.go_to("share")
        assert one.finish_sum(but=[6]) == plain_sum(set(range(8)) - {6})
        one.listen()
        assert one.finish_sum() == plain_sum(set(range(8)) - {6})
    assert [client.dump() for client in run.clients] != [b""] * 8


@pytest.mark.parametrize("step", STEPS)
def test_a_dump_is_loaded_to_the_byte_or_refused(step: str) -> None:
    run = start().go_to(step)
    dumped = run.clients[0].dump()
    assert run.load(0).dump() == dumped
    for size in (0, 31, 33, len(dumped) // 2, len(dumped) - 1):
        with pytest.raises(BadDump):
            run.load(0, dumped[:size])
    for place in (0, 24, len(dumped) // 2, len(dumped) - 40, len(dumped) - 1):
        with pytest.raises(BadDump):
            run.load(0, dumped[:place] + bytes([dumped[place] ^ 1]) + dumped[place + 1 :])
    if step != "advertise":
        with pytest.raises(BadDump, match="identity"):
            PROTOCOL.load_client(
                dumped, run.identities[1], run.roster, ClientPolicy(), InsecureSeededBytes(0)
            )
    with pytest.raises(BadDump):
        protocol("secagg").load_client(
            dumped, run.identities[0], run.roster, ClientPolicy(), InsecureSeededBytes(0)
        )


def test_a_contribution_is_spent_when_it_begins() -> None:
    run = start().go_to("input")
    run.clients[0].contribute(1, [vector(0)])
    with pytest.raises(SecondInput):
        run.load(0).contribute(1, [vector(1)])


# --- a server that was restarted ------------------------------------------------------------------


def test_a_known_sum_is_skipped_after_a_restart() -> None:
    run = start(sums=2).go_to("recover", gone=[7])
    run.finish_sum()
    fresh = start(sums=2)
    assert fresh.server.announcement == run.server.announcement
    twin = Run(fresh.server, fresh.clients, fresh.identities, fresh.roster)
    twin.listen()
    for client in range(7):
        reply = twin.clients[client].receive(twin.told[client])
        assert reply is not None
        twin.server.receive(client, reply)
    twin.server.advance()
    twin.server.skip_sum(range(7))
    # The old clients continue with the new server.
    twin.clients = run.clients
    twin.listen()
    assert twin.finish_sum() == plain_sum(range(7))
    assert twin.server.survivors == tuple(range(7))


def test_a_sum_over_others_is_not_skipped() -> None:
    run = start(sums=2).go_to("confirm")
    with pytest.raises(CohortChanged):
        run.server.skip_sum(range(7))
    run = start(sums=2).go_to("share", gone=[7])
    with pytest.raises(Stranger):
        run.server.skip_sum(range(8))


# --- messages that the server accepts -------------------------------------------------------------


def test_messages_out_of_turn_are_noise_to_the_server() -> None:
    run = start(sums=2).go_to("share")
    replies = {client: run.clients[client].receive(raw) for client, raw in run.told.items()}
    for client, reply in replies.items():
        assert reply is not None
        run.server.receive(client, reply)
        with pytest.raises(ReplayedMessage):
            run.server.receive(client, reply)
    run.server.advance()
    with pytest.raises(ReplayedMessage):
        run.server.receive(0, replies[0] or b"")
    run.listen()
    assert run.finish_sum() == plain_sum(range(8))


def test_sizes_are_as_specified() -> None:
    """Test the formulas of docs/reference/lightsecagg.md."""
    clients, sums, length, width = 20, 3, 50, 12
    shape = VectorShape(length, width, bound=100)
    run = LocalFederation(
        "lightsecagg", clients, [shape] * sums, corrupt_share=0.1, dropped_share=0.1
    )
    for _ in range(sums):
        run.sum(lambda _client: [np.ones(length, int)])
    elements = -(-length // (61 // width))
    element_bits = 61 // width * width + 1
    columns = -(-elements // (18 - 2))
    piece = -(-columns * element_bits // 8)
    others, bitmap, quorum = clients - 1, 3, 12
    assert ElementShape(shape).length == elements
    assert MaskCode(Field(60), clients, Thresholds(20, 2, 18), elements).piece_bytes == piece
    assert run.traffic.mean_by_step() == {
        "advertise": (26 + 96, 86 + 18 * sums),
        "share": (
            sums * (46 + others * (piece + 16)),
            sums * (82 + bitmap) + 96 * clients,
        ),
        "input": (sums * -(-elements * element_bits // 8), 0),
        "confirm": (sums * 26 + 64, sums * (26 + bitmap)),
        "recover": (
            sums * (26 + piece),
            sums * (42 + others * (28 + piece)) + bitmap + 64 * quorum,
        ),
    }
