"""Clients in one process whose sums are computed by two servers, with real cryptography."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp

from privirec.errors import FederationError
from privirec.federated import wire
from privirec.federated.contributions import Contribution, Histories, Integers
from privirec.federated.contributions import answer as answer_of
from privirec.privacy.ledger import Ledger
from privirec.runtime.execute import total_of
from privirec.runtime.local.client import LocalClient, randomness_of
from privirec.runtime.spec import SMALLEST_COHORT
from privirec.secagg import Identity, VectorShape
from privirec.secagg.messages import RUN_BYTES
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
from privirec.threads import one_kernel_thread


@dataclass
class _Dealt:
    """Trees of all clients, and the reports that dealt them to the servers."""

    task: Task
    trees: list[DealtTrees] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)


class TwoServers:
    """Sums of the clients' answers by a leader and a helper. Each adds all of the noise."""

    def __init__(
        self, clients: Sequence[LocalClient], seed: int | None, most_items: int | None
    ) -> None:
        """Set up both servers; their noise comes from `seed`, or is secret without one.

        Reports are sparse where that is shorter, if no client has more than `most_items` items.
        """
        self._clients = clients
        self._most_items = most_items
        self._noise = [randomness_of(seed, int(role)) for role in Role]
        self._keys = [ServerKey.generate() for _ in Role]
        servers = self._keys[0].public, self._keys[1].public
        self._senders = [Sealing(Identity.generate(os.urandom), servers) for _ in clients]
        self._run = os.urandom(RUN_BYTES)
        self._dealt: dict[tuple[bytes, int], _Dealt] = {}
        self._asked = 0
        self.cut = 0
        """Rows of all clients that found no bucket, over all sums."""
        self.secret_noise = seed is None

    @property
    def clients(self) -> int:
        return len(self._noise)  # the servers add the noise

    def sum(self, ask: Contribution, ledger: Ledger) -> Any:
        self._asked += 1
        task, dealt = self._task(ask)
        pair = [Aggregator(role, task, self._keys[role], SMALLEST_COHORT) for role in Role]
        sent = 0
        with one_kernel_thread():
            for number in range(len(self._clients)):
                report = self._report(ask, task, dealt, number)
                sent += len(report)
                self._receive(pair, Report.decode(report), dealt, number)
            shares = [
                server.release(other.batch, self._noise_of(ask, server.role))
                for server, other in zip(pair, pair[::-1], strict=True)
            ]
        words = combined(task, shares[0], shares[1])
        overhead = round(sent / len(self._clients)) - ask.encoding.payload_bytes(ask.length)
        ledger.add_sum(ask, overhead)
        return total_of(ask, words, task.shape)

    def _task(self, ask: Contribution) -> tuple[Task, _Dealt | None]:
        """Return the task of a sum, with the trees that its reports deal or continue."""
        shape = ask.shape
        bound = 2 ** (shape.ring_bits - shape.signed) - 1
        vector = VectorShape(shape.length, shape.ring_bits, bound, shape.signed, bounds_sum=True)
        asked = hashlib.sha256(wire.encode(ask)).digest()
        dense = Task(self._run, self._asked, asked, vector)
        rows = shape.length // ask.row_entries
        if self._most_items is None or ask.rows_of(self._clients[0].histories) is None:
            return dense, None
        space = ask.row_space, rows
        sizes = ask.row_entries, ask.most_rows(self._most_items)
        key = hashlib.sha256(b"privirec/table\0" + self._run + ask.row_space).digest()
        earlier = self._dealt.get(space)
        continues = (earlier.task.digest,) if earlier else ()
        sparse = Task(self._run, self._asked, asked, vector, *sizes, key, *continues)
        if report_bytes(sparse) >= report_bytes(dense):
            return dense, None
        return sparse, earlier or self._dealt.setdefault(space, _Dealt(sparse))

    def _report(self, ask: Contribution, task: Task, dealt: _Dealt | None, number: int) -> bytes:
        """Return the bytes that a client sends."""
        client, sender = self._clients[number], self._senders[number]
        blocks = client.answer(ask, self._asked, with_noise=False)
        if dealt is None:
            return sender.dense(task, blocks).encode()
        rows = ask.rows_of(client.histories)
        if rows is None:
            raise FederationError(f"{ask.name} has rows for some clients only")
        if task.deals_trees:
            dealt.trees.append(DealtTrees.deal(task, rows.tolist()))
        self.cut += len(rows) - len(dealt.trees[number].buckets)
        whole = np.concatenate(list(blocks)).reshape(-1, ask.row_entries)
        values = whole[rows].copy()
        whole[rows] = 0
        if whole.any():
            raise FederationError(f"{ask.name} has numbers outside the rows of a client's items")
        return sender.sparse(task, SparseRows(rows, values), dealt.trees[number]).encode()

    def _receive(
        self, pair: list[Aggregator], report: Report, dealt: _Dealt | None, number: int
    ) -> None:
        """Let both servers check and add a report, each with its own copy."""
        if dealt is not None and report.task == dealt.task.digest:
            dealt.reports.append(report)
        begun = dealt.reports[number] if dealt is not None else None
        checked = [
            server.check(report.without_box(other), begun and begun.without_box(other))
            for server, other in zip(pair, (Role.HELPER, Role.LEADER), strict=True)
        ]
        for server, own, others in zip(pair, checked, checked[::-1], strict=True):
            server.add(own, others.proof)

    def _noise_of(self, ask: Contribution, role: Role) -> Iterator[Integers]:
        """Yield a server's noise: the contribution of nobody."""
        if not ask.noise.largest:
            return iter(())
        nobody = Histories(sp.csr_array((1, ask.n_items), dtype=np.int8))
        return answer_of(ask, nobody, self._noise[role].stream(self._asked, ask.name))
