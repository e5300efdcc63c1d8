"""Tests of sums by two servers: right totals, and each lie of a client or of one server."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privirec.secagg.errors import (
    BadShare,
    BadSignature,
    CohortChanged,
    CohortTooSmall,
    MalformedMessage,
    OtherAsk,
    ProtocolError,
    ReplayedMessage,
    SessionClosed,
)
from privirec.secagg.keys import Identity
from privirec.secagg.ring import VectorShape
from privirec.secagg.two_server.aggregator import Aggregator, combined
from privirec.secagg.two_server.reports import (
    DealtTrees,
    Report,
    Role,
    Sealing,
    ServerKey,
    SparseRows,
    Task,
    report_bytes,
)

KEYS = ServerKey.generate(), ServerKey.generate()
ROWS, ENTRIES, MOST = 90, 5, 8
SHAPE = VectorShape(ROWS * ENTRIES, 13, 2000, signed=True, bounds_sum=True)
RUN = bytes(range(16))
DENSE = Task(RUN, 1, bytes(32), SHAPE)
SPARSE = Task(RUN, 2, bytes(32), SHAPE, ENTRIES, MOST)
LATER = replace(SPARSE, sum_number=3, continues=SPARSE.digest)


class Client:
    """A client with some rows, and reports of them."""

    def __init__(self, rng: np.random.Generator) -> None:
        rows = np.sort(rng.choice(ROWS, 6, replace=False))
        self.rows = SparseRows(rows, rng.integers(-300, 300, (6, ENTRIES)))
        self.sealing = Sealing(Identity.generate(os.urandom), (KEYS[0].public, KEYS[1].public))
        self.dealt = DealtTrees.deal(SPARSE, rows.tolist())

    def vector(self) -> np.ndarray:
        whole = np.zeros((ROWS, ENTRIES), np.int64)
        whole[self.rows.rows] = self.rows.values
        return whole.reshape(-1)

    def report(self, task: Task) -> Report:
        if task.is_sparse:
            return self.sealing.sparse(task, self.rows, self.dealt)
        return self.sealing.dense(task, [self.vector()])


def clients(count: int, seed: int = 0) -> list[Client]:
    rng = np.random.default_rng(seed)
    return [Client(rng) for _ in range(count)]


def aggregators(task: Task, least: int = 3) -> tuple[Aggregator, Aggregator]:
    leader, helper = (Aggregator(role, task, KEYS[role], least) for role in Role)
    return leader, helper


def put(pair: tuple[Aggregator, Aggregator], report: Report, begun: Report | None = None) -> None:
    """Let both servers check and add a report, each with its own copy."""
    copies = report.without_box(Role.HELPER), report.without_box(Role.LEADER)
    earlier = (begun, begun and begun.without_box(Role.LEADER))
    checked = [
        server.check(copy, first) for server, copy, first in zip(pair, copies, earlier, strict=True)
    ]
    pair[0].add(checked[0], checked[1].proof)
    pair[1].add(checked[1], checked[0].proof)


def total(pair: tuple[Aggregator, Aggregator], noise: Sequence[Iterable] = ((), ())) -> np.ndarray:
    batches = pair[0].batch, pair[1].batch
    shares = pair[0].release(batches[1], noise[0]), pair[1].release(batches[0], noise[1])
    return SHAPE.decode(combined(pair[0].task, *shares))


def expected(some: Sequence[Client]) -> np.ndarray:
    return np.sum([one.vector() for one in some], axis=0)


@given(st.integers(0, 2**32), st.sampled_from([DENSE, SPARSE]), st.integers(3, 6))
def test_shares_add_up_to_the_sum(seed: int, task: Task, count: int) -> None:
    some, pair = clients(count, seed), aggregators(task)
    for client in some:
        sent = client.report(task).encode()
        assert len(sent) == report_bytes(task)
        put(pair, Report.decode(sent))
    assert (total(pair) == expected(some)).all()


def test_later_sum_continues_with_the_trees_of_an_earlier_one() -> None:
    some, pair, first = clients(4), aggregators(LATER), aggregators(SPARSE)
    for client in some:
        begun = client.report(SPARSE)
        put(first, begun)
        later = client.report(LATER)
        assert len(later.encode()) == report_bytes(LATER) < report_bytes(SPARSE) / 3
        put(pair, later, begun)
    assert (total(first) == expected(some)).all()
    assert (total(pair) == expected(some)).all()


def test_each_server_adds_its_noise_to_the_sum() -> None:
    some, pair = clients(3), aggregators(SPARSE)
    for client in some:
        put(pair, client.report(SPARSE))
    noise = [np.arange(SHAPE.length) % 7 - 3, np.arange(SHAPE.length) % 5]
    found = total(pair, [[noise[0][:100], noise[0][100:]], [noise[1]]])
    assert (found == expected(some) + noise[0] + noise[1]).all()


def test_shards_of_a_server_add_up() -> None:
    some = clients(5)
    pair, others = aggregators(SPARSE), aggregators(SPARSE)
    for number, client in enumerate(some):
        put(pair if number < 2 else others, client.report(SPARSE))
    for one, other in zip(pair, others, strict=True):
        one.absorb(other)
        with pytest.raises(SessionClosed):
            other.release(other.batch)
    assert (total(pair) == expected(some)).all()


def test_shards_with_reports_of_one_client_are_not_added() -> None:
    client, pair, others = clients(1)[0], aggregators(SPARSE), aggregators(SPARSE)
    put(pair, client.report(SPARSE))
    put(others, client.report(SPARSE))
    with pytest.raises(ReplayedMessage):
        pair[0].absorb(others[0])


def test_size_of_a_report_tells_nothing_about_the_rows() -> None:
    client = clients(1)[0]
    few = SparseRows(client.rows.rows[:1], client.rows.values[:1])
    dealt = DealtTrees.deal(SPARSE, few.rows.tolist())
    report = client.sealing.sparse(SPARSE, few, dealt)
    assert len(report.encode()) == len(client.report(SPARSE).encode())


def test_rows_beyond_the_limit_are_cut() -> None:
    client = clients(1)[0]
    dealt = DealtTrees.deal(SPARSE, range(MOST + 20))
    assert len(dealt.buckets) <= MOST
    rows = SparseRows(np.arange(MOST + 20), np.ones((MOST + 20, ENTRIES), np.int64))
    pair = aggregators(SPARSE)
    put(pair, client.sealing.sparse(SPARSE, rows, dealt))
    for other in clients(2, 1):
        put(pair, other.report(SPARSE))
    left = total(pair) - expected(clients(2, 1))
    kept = sorted(dealt.buckets)
    assert (left.reshape(ROWS, ENTRIES)[kept] == 1).all()
    assert left.sum() == len(kept) * ENTRIES


# --- what a client may try ------------------------------------------------------------------------


@pytest.mark.parametrize("task", [DENSE, SPARSE])
def test_second_report_of_a_client_is_refused_at_once(task: Task) -> None:
    client, pair = clients(1)[0], aggregators(task)
    put(pair, client.report(task))
    for server in pair:
        with pytest.raises(ReplayedMessage):
            server.check(client.report(task))


@pytest.mark.parametrize("task", [DENSE, SPARSE])
def test_two_reports_of_a_client_that_were_checked_together_count_once(task: Task) -> None:
    client, pair = clients(1)[0], aggregators(task)
    checked = [[server.check(client.report(task)) for server in pair] for _ in range(2)]
    for one in (0, 1):
        pair[one].add(checked[0][one], checked[0][one].proof)
        with pytest.raises(ReplayedMessage):
            pair[one].add(checked[1][one], checked[1][one].proof)
        assert pair[one].batch.reports == 1


@pytest.mark.parametrize(
    "other",
    [
        replace(SPARSE, run=bytes(16)),
        replace(SPARSE, sum_number=9),
        replace(SPARSE, asked=b"\1" * 32),
        replace(SPARSE, most_rows=9),
        replace(SPARSE, table_key=b"\1" * 32),
    ],
)
def test_report_for_another_task_is_refused(other: Task) -> None:
    client = clients(1)[0]
    report = client.report(SPARSE)
    dense = replace(other, row_entries=0, most_rows=0)
    with pytest.raises(OtherAsk):
        aggregators(dense)[1].check(client.report(DENSE))
    with pytest.raises(OtherAsk):
        aggregators(other)[0].check(report)
    relabelled = replace(report, task=other.digest)
    relabelled = replace(relabelled, signature=client.sealing.identity.sign(relabelled.signed))
    with pytest.raises(ProtocolError):
        aggregators(other)[0].check(relabelled)


@pytest.mark.parametrize("task", [DENSE, SPARSE])
def test_damaged_report_is_refused(task: Task) -> None:
    sent = clients(1)[0].report(task).encode()
    rng = np.random.default_rng(0)
    for place in [*range(100), *rng.integers(0, len(sent), 60).tolist()]:
        damaged = bytearray(sent)
        damaged[place] ^= 1 << int(rng.integers(8))
        pair = aggregators(task)
        with pytest.raises(ProtocolError):
            put(pair, Report.decode(bytes(damaged)))
        assert pair[1].batch.reports == 0
    for cut in (0, 5, 60, len(sent) - 1):
        with pytest.raises(MalformedMessage):
            Report.decode(sent[:cut])
    with pytest.raises(MalformedMessage):
        Report.decode(sent + b"\0")


def test_report_with_two_rows_in_a_tree_is_refused() -> None:
    """A client that makes its point functions wrong spoils nothing."""
    client, pair = clients(1)[0], aggregators(SPARSE)
    report = client.report(SPARSE)
    shared = bytearray(report.shared)
    shared[3] ^= 8
    sealing = client.sealing
    seeds = [seed.reveal() for seed in client.dealt.seeds]
    lying = sealing._sealed(SPARSE, bytes(shared), *seeds)
    with pytest.raises(BadShare, match="do not belong together"):
        put(pair, lying)
    assert pair[0].batch.reports == 0


def test_report_that_continues_with_trees_of_another_client_is_refused() -> None:
    one, other = clients(2)
    with pytest.raises(OtherAsk):
        put(aggregators(LATER), one.report(LATER), other.report(SPARSE))
    with pytest.raises(OtherAsk):
        put(aggregators(LATER), one.report(LATER))


# --- what a server may try ------------------------------------------------------------------------


def test_server_cannot_put_words_into_a_clients_mouth() -> None:
    client, pair = clients(1)[0], aggregators(SPARSE)
    report = client.report(SPARSE)
    shared = bytearray(report.shared)
    shared[-1] ^= 1
    with pytest.raises(BadSignature):
        pair[1].check(replace(report, shared=bytes(shared)).without_box(Role.LEADER))
    stranger = Identity.generate(os.urandom)
    forged = replace(report, client=stranger.public)
    forged = replace(forged, signature=stranger.sign(forged.signed))
    with pytest.raises(BadShare):
        pair[1].check(forged.without_box(Role.LEADER))


def test_a_box_that_was_not_signed_is_refused() -> None:
    """A server cannot be given another box of the same client, such as one that was replaced."""
    client = clients(1)[0]
    report, other = client.report(DENSE), client.report(DENSE)
    mixed = replace(report, boxes=other.boxes)
    for role in Role:
        with pytest.raises(BadShare, match="not the one that the client signed"):
            Aggregator(role, DENSE, KEYS[role], 3).check(mixed)


def test_neither_server_can_open_the_others_box() -> None:
    report = clients(1)[0].report(SPARSE)
    swapped = replace(report, boxes=(report.boxes[1], report.boxes[0]))
    for role in Role:
        with pytest.raises(BadShare):
            Aggregator(role, SPARSE, KEYS[role], 3).check(swapped)
    with pytest.raises(BadShare):
        Aggregator(Role.HELPER, SPARSE, KEYS[Role.LEADER], 3).check(report)


def test_sum_is_not_released_over_other_clients_than_the_other_servers() -> None:
    some, pair = clients(5), aggregators(DENSE)
    for client in some[:4]:
        put(pair, client.report(DENSE))
    extra = some[4].report(DENSE)
    checked = pair[0].check(extra)
    pair[0].add(checked, checked.proof)  # the leader adds one that the helper never saw
    with pytest.raises(CohortChanged):
        pair[1].release(pair[0].batch)
    assert (pair[1].batch.reports, pair[0].batch.reports) == (4, 5)


def test_too_few_reports_are_not_released() -> None:
    pair = aggregators(SPARSE)
    for client in clients(2):
        put(pair, client.report(SPARSE))
    with pytest.raises(CohortTooSmall):
        pair[1].release(pair[0].batch)
    with pytest.raises(ValueError, match="fewer than two"):
        Aggregator(Role.HELPER, SPARSE, KEYS[1], 1)


def test_share_is_released_once() -> None:
    some, pair = clients(4), aggregators(SPARSE)
    for client in some[:3]:
        put(pair, client.report(SPARSE))
    total(pair)
    with pytest.raises(SessionClosed):
        put(pair, some[3].report(SPARSE))
    with pytest.raises(SessionClosed):
        pair[1].release(pair[0].batch)


def test_one_servers_share_alone_looks_random() -> None:
    """The share of a sum of zeros takes every value of the ring about equally often."""
    pair = aggregators(SPARSE)
    for client in clients(3):
        nothing = SparseRows(client.rows.rows, np.zeros((6, ENTRIES), np.int64))
        put(pair, client.sealing.sparse(SPARSE, nothing, client.dealt))
    share = SHAPE.ring.unpack(pair[0].release(pair[1].batch), SHAPE.length)
    counts = np.bincount(share >> 11, minlength=4)
    assert counts.min() > SHAPE.length / 4 - 6 * np.sqrt(SHAPE.length)


def test_secrets_do_not_show() -> None:
    client = clients(1)[0]
    shown = repr(client.dealt) + repr(client.rows) + repr(KEYS[0])
    shown += repr(aggregators(SPARSE)[0].check(client.report(SPARSE)))
    assert shown.count("<redacted>") == 4
    assert KEYS[0].private.reveal().hex() not in shown
