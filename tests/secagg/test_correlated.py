"""Tests of averaging with correlated noise: sums, errors, drop-outs, stored clients."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from math import erfc, log2, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privirec.extra.correlated import CORRELATED_NOISE, NoiseRule, protocol_of
from privirec.extra.correlated.guarantee import distinguishability
from privirec.extra.correlated.levels import (
    NoiseLevels,
    graph_degree,
    noisy_shape,
    sum_range,
    upload_shape,
)
from privirec.secagg import ClientPolicy, LocalFederation, ServerSettings, Statement, protocol
from privirec.secagg.errors import (
    BadContribution,
    CohortChanged,
    CohortTooSmall,
    MalformedMessage,
    OutOfOrder,
    ParametersInfeasible,
    ProtocolError,
    RingTooNarrow,
    SecondInput,
    SessionClosed,
    Stranger,
    TooManyDropped,
)
from privirec.secagg.parameters import is_connected
from privirec.secagg.protocol import Guarantee, Phase
from privirec.secagg.ring import VectorShape
from secagg.testing import CALM, InsecureSeededBytes, Scenario, Weather, simulate

from .correlated_run import HARDLY_OWN, NEARLY_NONE, SHAPE, Run, start, started

LONG = VectorShape(20_000, 12, 9, signed=True)
WIDE = VectorShape(20_000, 32, (1 << 31) - 1, signed=True, bounds_sum=True)
"""A shape whose uploads are in coarser units than its vectors."""


def test_what_the_protocol_says_of_itself() -> None:
    found = protocol("correlated-noise")
    assert found is CORRELATED_NOISE
    assert found.guarantee is Guarantee.STATISTICAL
    assert "secure" not in found.guarantee.value
    steps = found.schedule.steps(2)
    assert [(step.name, step.phase, step.opens_sum) for step in steps] == [
        ("advertise", Phase.SETUP, False),
        ("input", Phase.INPUT, True),
        ("input", Phase.INPUT, True),
    ]


# --- sums -----------------------------------------------------------------------------------------


@st.composite
def federations(draw: st.DrawFn) -> tuple[int, VectorShape, tuple[float, float], int]:
    clients = draw(st.integers(5, 14))
    signed = draw(st.booleans())
    bound = draw(st.integers(1, 1 << draw(st.integers(1, 30))))
    length = draw(st.integers(1, 40))
    shape = VectorShape(length, 1, bound, signed).narrowest(clients)
    dropped = draw(st.sampled_from([0.0, 0.2, 0.34]))
    return clients, shape, (draw(st.sampled_from([0.0, 0.1])), dropped), draw(st.integers(0, 99))


@given(federations(), st.data())
def test_pair_noise_cancels_exactly_and_everybody_is_summed_once(
    federation: tuple[int, VectorShape, tuple[float, float], int], data: st.DataObject
) -> None:
    """Test own noise far below half a unit: opened sums equal those of the vectors, bit for bit."""
    clients, shape, shares, seed = federation
    policy = ClientPolicy(own_noise=0.0, corrupt_share=0.0, max_dropped_share=0.4)
    run = start(HARDLY_OWN, clients, (shape, shape), shares=shares, policy=policy, seed=seed)
    silent = data.draw(st.integers(0, int(clients * shares[1])))
    silent = min(silent, clients - 3)
    run.join(silent=range(silent)).tell()
    assert run.announce().noise[0].pair_bits > 25  # the noise that cancels is large
    for number in (1, 2):
        assert np.array_equal(run.sum(number), run.exact(number))
        assert run.server.survivors == tuple(range(silent, clients))
    assert run.server.step is None


def test_without_noise_to_speak_of_drop_outs_leave_nothing_either() -> None:
    run = started(NEARLY_NONE, shapes=(SHAPE,))
    assert np.array_equal(run.sum(gone=(2, 7)), run.exact(gone=(2, 7)))
    assert run.server.survivors == (0, 1, 3, 4, 5, 6, 8, 9, 10, 11)


@pytest.mark.parametrize("shape", [LONG, WIDE], ids=["finer", "coarser"])
def test_the_error_is_own_noise_when_nobody_drops(shape: VectorShape) -> None:
    run = started(shapes=(shape, shape))
    level = run.announce().noise[0]
    assert (level.unit < 0) == (shape is LONG)
    for number in (1, 2):
        error = run.sum(number) - run.exact(number)
        stated = level.residual_deviation(12, 0)
        assert run.server.deviation == stated
        if shape is WIDE:
            assert error.std() == pytest.approx(stated, rel=5 / sqrt(2 * shape.length))
            assert abs(error.mean()) < 5 * stated / sqrt(shape.length)
        else:
            assert not error.any()  # a hundredth of a unit, rounded
    largest = sum_range(shape, run.announce().statement)
    assert largest * 2.0**-13 / 1.01 < level.own * sqrt(12) <= largest * 2.0**-12


@pytest.mark.parametrize("shape", [LONG, WIDE], ids=["finer", "coarser"])
@pytest.mark.parametrize("gone", [(4,), (0, 6, 11)])
def test_what_drop_outs_leave_is_as_much_as_stated(
    shape: VectorShape, gone: tuple[int, ...]
) -> None:
    run = started(shapes=(shape,))
    error = run.sum(gone=gone) - run.exact(gone=gone)
    level = run.announce().noise[0]
    cut = len(gone) * (12 - len(gone))  # the graph is complete
    stated = level.residual_deviation(12 - len(gone), cut)
    assert run.server.deviation == stated
    assert error.std() == pytest.approx(stated, rel=5 / sqrt(2 * shape.length))
    assert abs(error.mean()) < 5 * stated / sqrt(shape.length)
    most = CORRELATED_NOISE.deviation(shape, run.announce().statement)
    assert stated <= most <= sum_range(shape, run.announce().statement) / 32
    assert np.abs(error).max() < 6 * stated


def test_in_a_sparse_graph_only_cut_edges_count() -> None:
    shape = VectorShape(4000, 16, 50)
    run = started(clients=60, shapes=(shape,), shares=(0.05, 0.1), block_entries=4096)
    degree = run.server.parameters.neighbours
    assert degree == graph_degree(run.announce().statement) < 40
    listed = {client: {key.client for key in run.neighbours(client).keys} for client in range(60)}
    gone = {3, min(listed[3])}
    cut = sum(len(peers & gone) for client, peers in listed.items() if client not in gone)
    assert cut == 2 * degree - 2  # the edge between the two disappears entirely
    error = run.sum(gone=gone) - run.exact(gone=gone)
    stated = run.announce().noise[0].residual_deviation(58, cut)
    assert run.server.deviation == stated
    assert error.std() == pytest.approx(stated, rel=5 / sqrt(8000))


def test_who_never_advertised_leaves_nothing_behind() -> None:
    run = start(shapes=(WIDE,)).join(silent=(1, 5)).tell()
    error = run.sum() - run.exact()
    stated = run.announce().noise[0].residual_deviation(10, 0)
    assert error.std() == pytest.approx(stated, rel=5 / sqrt(2 * WIDE.length))


def test_noise_is_fresh_for_every_sum_and_run() -> None:
    def uploads(seed: int) -> list[np.ndarray]:
        run = started(shapes=(LONG, LONG), seed=seed, block_entries=1 << 16)
        wire = run.server.wire_shape(1)
        found = []
        for number in (1, 2):
            (message,) = run.clients[3].contribute(number, [run.vector(3, 1)])
            found.append(wire.ring.decode_signed(wire.ring.unpack(message, LONG.length)))
            found[-1] -= run.vector(3, 1) << -run.announce().noise[0].unit
        return found

    noises = [*uploads(1), *uploads(2)]
    scale = np.std(noises[0])
    for place, one in enumerate(noises):
        for other in noises[place + 1 :]:
            correlation = float((one * other).mean() / scale**2)
            assert abs(correlation) < 5 / sqrt(LONG.length)


def test_an_upload_is_blurred_far_beyond_an_entry() -> None:
    run = started(clients=40, shapes=(VectorShape(5000, 9, 1),), shares=(0.05, 0.0))
    level = run.announce().noise[0]
    assert level.pair >= 20  # entries are 0 and 1, the sum at most 40: no client may drop out
    wire = run.server.wire_shape(1)
    for client in (0, 39):
        packed = b"".join(run.clients[client].contribute(1, [run.vector(client)]))
        words = wire.ring.unpack(packed, 5000)
        assert np.corrcoef(words.astype(float), run.vector(client))[0, 1] < 5 / sqrt(5000)


@pytest.mark.parametrize("sizes", [[300], [1, 299], [100, 0, 150, 50]])
def test_blocks_may_have_any_sizes(sizes: list[int]) -> None:
    run, other = started(), started()
    values = run.vector(2)
    cuts = np.split(values, np.cumsum(sizes)[:-1])
    assert list(run.clients[2].contribute(1, cuts)) == list(
        other.clients[2].contribute(1, [values])
    )


def test_the_sum_comes_in_blocks_as_well() -> None:
    run, other = started(), started()
    for one in (run, other):
        one.contribute(1)
    assert np.array_equal(np.concatenate(list(run.server.open_blocks())), other.server.open_sum())


# --- levels and rings -----------------------------------------------------------------------------


@st.composite
def stated_shapes(draw: st.DrawFn) -> tuple[VectorShape, Statement]:
    clients = draw(st.sampled_from([3, 5, 12, 100, 1000, 20_000]))
    corrupt, dropped = draw(st.sampled_from([(0.05, 0.05), (0.1, 0.0), (0.2, 0.3), (0.0, 0.01)]))
    statement = Statement.of(clients, corrupt, dropped)
    bound = draw(st.integers(1, 1 << draw(st.integers(1, 44))))
    length = draw(st.integers(1, 1 << draw(st.integers(1, 40))))
    bounds_sum = draw(st.booleans())
    shape = VectorShape(length, 1, bound, draw(st.booleans()), bounds_sum)
    return shape.narrowest(1 if bounds_sum else clients), statement


@given(stated_shapes(), st.sampled_from([NoiseRule(), NoiseRule(6, 3), NoiseRule(20, 4)]))
def test_levels_keep_the_bounds_they_are_chosen_for(
    given: tuple[VectorShape, Statement], rule: NoiseRule
) -> None:
    shape, statement = given
    levels, degree = rule.levels(shape, statement), graph_degree(statement)
    largest, clients = sum_range(shape, statement), statement.clients
    assert levels.is_smooth(degree)
    assert levels.own * sqrt(clients) <= largest / 2**rule.sum_bits * (1 + 1e-12)
    cut = statement.dropped * degree
    error = sqrt(clients * levels.own**2 + cut * levels.pair**2)
    if cut:
        assert error <= largest / 2**rule.dropped_bits * (1 + 1e-12)
        assert error > largest / 2 ** (rule.dropped_bits + 1) * 0.99  # and not more than needed
    else:
        assert largest / 2 < levels.pair <= largest
    for size in {clients, clients - statement.dropped, clients - statement.dropped // 2}:
        assert is_connected(statement.with_clients(size), min(degree, size - 1))


@given(stated_shapes())
def test_a_sum_wraps_round_with_the_stated_chance_at_most(
    given: tuple[VectorShape, Statement],
) -> None:
    shape, statement = given
    rule, degree = NoiseRule(), graph_degree(statement)
    levels = rule.levels(shape, statement)
    wire = upload_shape(shape, statement, degree, levels)
    opened = noisy_shape(shape, statement, degree, levels)
    assert opened == CORRELATED_NOISE.opened_shape(shape, statement)
    assert opened.signed
    assert opened.length == shape.length
    cut = statement.dropped * degree
    deviation = sqrt(
        statement.clients * (4.0**levels.own_bits + 1 / 12) + cut * 4.0**levels.pair_bits
    )
    room = 2.0 ** (wire.width - 1) - sum_range(shape, statement) / 2.0**levels.unit
    # Of normal noise; sub-Gaussian noise has the bound 2 exp(-x^2 / 2), which the rule uses.
    tail = erfc(room / deviation / sqrt(2)) * shape.length
    assert tail == 0 or log2(tail) <= -40
    assert opened.bound < 2 ** (opened.width - 1)
    assert opened.bound >= sum_range(shape, statement)


def test_the_largest_vectors_do_not_wrap_round() -> None:
    """Test all clients at the bound and the maximum of drop-outs: the sum stays near the bound."""
    shape = VectorShape(5000, 11, 127, signed=True)
    for sign in (1, -1):
        run = started(clients=8, shapes=(shape,), shares=(0.1, 0.25), block_entries=4096)
        for client in range(2, 8):
            run.server.add_vector(
                client, 1, b"".join(run.clients[client].contribute(1, [np.full(5000, sign * 127)]))
            )
        error = run.open() - sign * 6 * 127
        assert np.abs(error).max() < 7 * run.server.deviation


@pytest.mark.parametrize(
    "levels", [(-57, 4, 4), (57, 4, 4), (0, 57, 57), (50, 10, 10), (0, -1, 4), (0, 4, 57)]
)
def test_levels_have_limits(levels: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="no noise of these levels"):
        NoiseLevels(*levels)


@pytest.mark.parametrize("own_bits", [0, 1])
def test_own_noise_without_a_positive_variance_is_refused(own_bits: int) -> None:
    """Test the minimum of own noise: rounding to integers takes four square units of its
    variance."""
    with pytest.raises(ValueError, match=r"own noise of 2.* too coarse"):
        NoiseLevels(0, own_bits, 9)
    assert distinguishability(1, NoiseLevels(0, 2, 9), 1.0) > 0


def test_a_ring_without_room_for_noise_is_refused_before_anybody_is_asked() -> None:
    with pytest.raises(RingTooNarrow, match="bits"):
        start(shapes=(VectorShape(4, 64, (1 << 63) - 1, True, True),))


def test_a_single_honest_client_has_nobody_to_hide_behind() -> None:
    with pytest.raises(ParametersInfeasible, match="no other honest client"):
        start(clients=4, shares=(0.6, 0.2))


# --- membership in a sum --------------------------------------------------------------------------


def test_more_drop_outs_than_stated_end_the_run() -> None:
    run = started()
    run.contribute(1, gone=(0, 1, 2, 3))
    with pytest.raises(TooManyDropped):
        run.open()
    assert run.server.aborted


def test_too_few_participants_end_the_run() -> None:
    with pytest.raises(CohortTooSmall):
        start().join(silent=(0, 1, 2, 3))


def test_a_client_missing_from_a_later_sum_ends_the_run() -> None:
    run = started(shapes=(SHAPE, SHAPE))
    run.sum(1)
    run.contribute(2, gone=(5,))
    with pytest.raises(CohortChanged):
        run.open()


def test_half_an_upload_is_no_upload() -> None:
    run = started(NEARLY_NONE)
    packed = b"".join(run.clients[5].contribute(1, [run.vector(5)]))
    with pytest.raises(MalformedMessage):
        run.server.add_vector(5, 1, packed[: len(packed) // 2])
    run.contribute(1, gone=(5,))
    assert np.array_equal(run.open(), run.exact(gone=(5,)))
    with pytest.raises(OutOfOrder):
        run.server.add_vector(5, 1, packed)


def test_a_sum_that_is_known_can_be_skipped() -> None:
    run = started(NEARLY_NONE, shapes=(SHAPE, SHAPE))
    for client in run.clients.values():
        list(client.contribute(1, [run.vector(client.client, 1)]))
    run.server.skip_sum(range(12))
    assert np.array_equal(run.sum(2), run.exact(2))


def test_clients_know_who_can_have_been_summed() -> None:
    run = start().join(silent=(1,)).tell()
    client = run.clients[0]
    with pytest.raises(OutOfOrder):
        client.check_summed(frozenset(range(12)))
    run.contribute(1)
    everybody = frozenset(range(12)) - {1}
    assert client.participants == everybody
    client.check_summed(everybody)
    client.check_summed(everybody - {2, 3})
    for wrong in (everybody | {1}, everybody - {0}, everybody - {2, 3, 4}, frozenset({0, 2})):
        with pytest.raises(CohortChanged):
            client.check_summed(wrong)


# --- contributions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [np.full(300, 10), np.full(300, -10), np.zeros(299, int), np.zeros(301, int), np.zeros(300)],
    ids=["too large", "too small", "too short", "too long", "no integers"],
)
def test_a_vector_that_is_not_as_announced_ends_the_session(values: np.ndarray) -> None:
    run = started()
    client = run.clients[4]
    with pytest.raises(BadContribution):
        list(client.contribute(1, [values]))
    with pytest.raises(SessionClosed):
        client.dump()


def test_a_second_vector_is_refused_and_changes_nothing() -> None:
    run = started(NEARLY_NONE, shapes=(SHAPE, SHAPE))
    run.contribute(1)
    with pytest.raises(SecondInput):
        run.clients[4].contribute(1, [run.vector(5)])
    assert np.array_equal(run.open(), run.exact())
    assert np.array_equal(run.sum(2), run.exact(2))


def test_sums_come_in_order() -> None:
    run = start(shapes=(SHAPE, SHAPE)).join()
    client = run.clients[4]
    with pytest.raises(OutOfOrder):
        client.contribute(1, [run.vector(4)])  # it does not know the participants yet
    run.tell()
    for number in (0, 2, 3):
        with pytest.raises(OutOfOrder):
            client.contribute(number, [run.vector(4)])
    messages = client.contribute(1, [run.vector(4)])
    next(messages)
    with pytest.raises(SecondInput):
        client.contribute(1, [run.vector(4)])
    with pytest.raises(OutOfOrder):
        client.contribute(2, [run.vector(4)])


def test_a_closed_session_makes_no_more_blocks() -> None:
    run = started()
    messages = run.clients[4].contribute(1, [run.vector(4)])
    next(messages)
    run.clients[4].close()
    with pytest.raises(SessionClosed):
        next(messages)


# --- stored clients -------------------------------------------------------------------------------


@pytest.mark.parametrize("when", range(5))
def test_clients_can_be_stored_at_every_point(when: int) -> None:
    """Test that the messages do not depend on storing and loading a client in between."""

    def transcript(restart: Callable[[Run, int], None]) -> list[bytes]:
        run = start(shapes=(SHAPE, SHAPE))
        restart(run, 0)
        run.join()
        restart(run, 1)
        run.tell()
        restart(run, 2)
        sent: list[bytes] = []
        for number in (1, 2):
            for client in range(12):
                vector = [run.vector(client, number)]
                sent.append(b"".join(run.clients[client].contribute(number, vector)))
                run.server.add_vector(client, number, sent[-1])
            sent.append(run.server.open_sum().tobytes())
            restart(run, 2 + number)
        return sent

    def restart(run: Run, point: int) -> None:
        if point == when:
            for client in range(12):
                run.reload(client)

    assert transcript(restart) == transcript(lambda _run, _point: None)


def test_a_client_stored_in_the_middle_of_its_vector_sends_no_other() -> None:
    run = started(shapes=(SHAPE, SHAPE))
    messages = run.clients[4].contribute(1, [run.vector(4)])
    next(messages)
    run.reload(4)
    with pytest.raises(SecondInput):
        run.clients[4].contribute(1, [run.vector(4)])
    with pytest.raises(OutOfOrder):
        run.clients[4].contribute(2, [run.vector(4, 2)])


def test_seeds_are_gone_when_they_are_spent() -> None:
    run = start(shapes=(SHAPE, SHAPE)).join()
    client = run.clients[4]
    state = client.state
    private = state.private_key.reveal()
    run.tell()
    assert state.private_key.wiped == 32
    assert private not in client.dump()
    own, pairs = state.own_seeds.reveal(), state.pair_secrets.reveal()
    assert len(own) == 2 * 32
    assert len(pairs) == 2 * 11 * 32
    messages = client.contribute(1, [run.vector(4)])
    stored = client.dump()
    assert own[:32] not in stored
    assert pairs[:32] not in stored
    assert own[32:] in stored
    list(messages)
    assert client._own_seed == b""
    client.close()
    assert not any(state.own_seeds.stored() + state.pair_secrets.stored())
    assert "redacted" in repr(client)
    assert "redacted" in repr(state.pair_secrets)


def test_neighbours_hold_the_same_secrets() -> None:
    run = started(clients=30, shares=(0.05, 0.05), shapes=(SHAPE, SHAPE))
    held: dict[tuple[int, int, int], set[bytes]] = {}
    for client, session in run.clients.items():
        secrets, peers = session.state.pair_secrets.reveal(), session.state.peers
        for number in range(2):
            for place, peer in enumerate(peers):
                start_at = 32 * (number * len(peers) + place)
                pair = (number, min(client, peer), max(client, peer))
                held.setdefault(pair, set()).add(secrets[start_at : start_at + 32])
    assert all(len(found) == 1 for found in held.values())
    assert len({next(iter(found)) for found in held.values()}) == len(held)
    assert len(held) == 30 * run.server.parameters.neighbours


# --- federations and bad networks -----------------------------------------------------------------


def test_a_local_federation_sums_within_the_stated_error() -> None:
    shape = VectorShape(2000, 20, 1000)
    federation = LocalFederation(
        "correlated-noise", 30, [shape, shape], random_bytes=InsecureSeededBytes(3)
    )
    rng = np.random.default_rng(1)
    vectors = rng.integers(0, 1001, (30, 2000))
    for departures in ({"input": {7}}, None):
        opened = federation.sum(lambda client: [vectors[client]], departures)
        inside = list(opened.survivors)
        assert len(inside) == 29
        error = opened.values() - vectors[inside].sum(axis=0)
        statement = Statement.of(30, 0.05, 0.05, rounds=2)
        assert error.std() < 1.1 * CORRELATED_NOISE.deviation(shape, statement)
        assert error.std() > 0.8 * CORRELATED_NOISE.deviation(shape, statement)
    sent = federation.traffic.mean_by_step()
    assert sent["advertise"] == (122, 132)
    assert set(sent) == {"advertise", "input"}


def test_a_federation_over_a_memory_map(tmp_path: object) -> None:
    made: list[VectorShape] = []

    def accumulator(_number: int, shape: VectorShape) -> np.ndarray:
        made.append(shape)
        return np.zeros(shape.length, shape.ring.dtype)

    settings = ServerSettings(block_entries=64, accumulator=accumulator, spool=io.BytesIO)
    federation = LocalFederation("correlated-noise", 5, [SHAPE], settings=settings)
    federation.sum(lambda _client: [np.zeros(SHAPE.length, int)])
    assert made == [federation.server.wire_shape(1)]  # type: ignore[attr-defined]


def test_in_calm_weather_every_run_finishes() -> None:
    outcome = simulate(0, Scenario("correlated-noise", sums=3, weather=CALM))
    assert outcome.error is None
    assert outcome.survivors == [tuple(range(12))] * 3
    assert not outcome.refusals


def bad_weather(seed: int) -> Scenario:
    return Scenario(
        "correlated-noise",
        clients=5 + seed % 8,
        sums=1 + seed % 3,
        weather=Weather(dies=(0.0, 0.01, 0.03)[seed % 5 % 3], lies=0.1 if seed % 4 == 3 else 0.0),
    )


@pytest.mark.parametrize(
    "seeds", [range(40), pytest.param(range(1000, 2000), marks=pytest.mark.long)]
)
def test_runs_over_a_bad_network(seeds: range) -> None:
    """Test that each run keeps every promise: sums within the stated error, no lie believed."""
    finished = lies = restricted = 0
    names: set[str] = set()
    for seed in seeds:
        outcome = simulate(seed, bad_weather(seed))
        finished += outcome.error is None
        lies += outcome.lies_told
        names |= outcome.refusals.keys()
        restricted += isinstance(outcome.error, ProtocolError)
    assert finished > 0.4 * len(seeds)
    assert finished + restricted == len(seeds)
    assert lies > 0.05 * len(seeds)
    assert "ReplayedMessage" in names
    if len(seeds) == 1000:
        assert {"BadSignature", "GraphNotRegular", "NotInGraph", "TruncatedMessage"} <= names


def test_an_exact_run_over_a_bad_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test with almost no noise: the runs must identify their summands bit by bit."""
    quiet = replace(NEARLY_NONE, deviation=lambda _shape, _statement: 0.0)
    known = "secagg.testing.bad_network"
    monkeypatch.setattr(f"{known}.protocol", lambda _name: quiet)
    policy = lambda **more: ClientPolicy(own_noise=0.0, **more)  # noqa: E731
    monkeypatch.setattr(f"{known}.ClientPolicy", policy)
    finished = sum(simulate(seed, bad_weather(seed)).error is None for seed in range(40))
    assert finished >= 20


def test_strangers_are_not_summed() -> None:
    run = start().join(silent=(3,)).tell()
    packed = b"".join(run.clients[4].contribute(1, [run.vector(4)]))
    with pytest.raises(Stranger):
        run.server.add_vector(3, 1, packed)


def test_rules_make_protocols_of_their_own() -> None:
    loud = protocol_of(NoiseRule(sum_bits=4, dropped_bits=2))
    run = started(loud, shapes=(LONG,))
    error = run.sum() - run.exact()
    largest = 12 * 9
    assert largest / 32 < error.std() < largest / 16
