"""A server's side of a batch: check reports with the other server, add them, release one share.

The leader receives the reports and sends the helper its copies. Each server computes a *proof* of
every sparse report, and adds the report only if the other's proof is equal. When the batch ends,
each releases its share of the sum once, if both added the reports of the same clients and there are
enough of them. The sum of the two shares is the sum of the clients' vectors, plus noise that the
servers add.

    checked = leader.check(report)                    # raises a ProtocolError for a bad report
    answer = helper.check(report.without_box(Role.LEADER))
    leader.add(checked, answer.proof); helper.add(answer, checked.proof)
    total = combined(task, leader.release(helper.batch), helper.release(leader.batch))
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privirec.secagg.errors import (
    BadShare,
    CohortChanged,
    CohortTooSmall,
    MalformedMessage,
    OtherAsk,
    ReplayedMessage,
    SessionClosed,
    WrongRun,
)
from privirec.secagg.prg import SEED_BYTES, MaskGenerator
from privirec.secagg.ring import Words
from privirec.secagg.two_server import point_function as dpf
from privirec.secagg.two_server.reports import (
    LABEL,
    Report,
    Role,
    ServerKey,
    SparseShare,
    Task,
    check_report,
    open_box,
    read_payloads,
)


@dataclass(frozen=True)
class Checked:
    """A report that one server has opened, ready to be added."""

    client: bytes
    proof: bytes
    """Equal for both servers if the report is well-formed."""
    words: Words
    """Dense: the server's share of the vector. Sparse: the payload corrections."""
    leaves: dpf.Leaves | None = None

    def __repr__(self) -> str:
        return f"Checked({self.client.hex()[:16]}, <redacted>)"


@dataclass(frozen=True)
class ReportBatch:
    """Clients whose reports are in a sum, as both servers compare them."""

    reports: int
    clients: bytes
    """SHA-256 of the clients' keys in ascending order."""


class Aggregator:
    """One server's reports for one task."""

    def __init__(self, role: Role, task: Task, key: ServerKey, least_reports: int) -> None:
        if least_reports < 2:
            raise ValueError("a sum of fewer than two reports is a report")
        self.role = role
        self.task = task
        self._key = key
        self._least = least_reports
        self._clients: set[bytes] = set()
        self._released = False
        shape = task.shape
        if task.is_sparse:
            size = task.table.trees.all_leaves, task.row_entries
            self._total: Words = np.zeros(size, shape.ring.dtype)
        else:
            self._total = np.zeros(shape.length, shape.ring.dtype)

    def check(self, report: Report, begun: Report | None = None) -> Checked:
        """Open a report; raise a ProtocolError, and change nothing, unless it can be added.

        `begun` is the client's report for the task that this one continues.
        """
        self._check_open()
        if report.client in self._clients:
            raise ReplayedMessage("a second report of a client for one sum")
        check_report(report, self.task, self.role)
        if self.task.is_sparse:
            return self._sparse(report, report if begun is None else begun)
        return self._dense(report)

    def _sparse(self, report: Report, begun: Report) -> Checked:
        task = self.task
        trees, cipher = task.table.trees, task.cipher(report.client)
        dealt = task.digest if task.deals_trees else task.continues
        if (begun.task, begun.client) != (dealt, report.client):
            raise OtherAsk("a report that continues with the trees of another sum or client")
        payloads = read_payloads(report, task)
        secret = open_box(begun, dealt, self.role, self._key)
        share = SparseShare.read(begun, task, self.role, secret)
        leaves = dpf.expand(trees, share.roots, share.corrections, cipher)
        if task.deals_trees:
            proof = dpf.proof(trees, leaves, share.corrections, cipher)
        else:
            proof = _seen(report, begun)
        return Checked(report.client, proof, payloads, leaves)

    def _dense(self, report: Report) -> Checked:
        shape = self.task.shape
        secret = open_box(report, self.task.digest, self.role, self._key)
        if report.shared:
            raise MalformedMessage("a dense report has no shared part")
        if self.role is Role.LEADER:
            words = shape.ring.unpack(secret, shape.length)
        else:
            if len(secret) != SEED_BYTES:
                raise MalformedMessage("a dense report seals a seed to the helper")
            words = np.zeros(shape.length, shape.ring.dtype)
            MaskGenerator().add(words, 0, [secret])
        return Checked(report.client, _seen(report), words)

    def add(self, checked: Checked, others_proof: bytes) -> None:
        """Add a report if the other server has the same proof; otherwise raise BadShare."""
        self._check_open()
        if checked.client in self._clients:
            raise ReplayedMessage("a second report of a client for one sum")
        if checked.proof != others_proof:
            raise BadShare("a report whose two parts do not belong together")
        self._clients.add(checked.client)
        if checked.leaves is None:
            np.add(self._total, checked.words, out=self._total)
        else:
            cipher = self.task.cipher(checked.client)
            trees = self.task.table.trees
            dpf.add_payloads(self._total, trees, checked.leaves, checked.words, cipher)

    def absorb(self, other: Aggregator) -> None:
        """Add the reports of another shard of this server, which releases nothing from then on."""
        self._check_open()
        other._check_open()
        if (other.role, other.task) != (self.role, self.task):
            raise WrongRun("a shard of another sum, or of the other server")
        if self._clients & other._clients:
            raise ReplayedMessage("two shards with reports of one client")
        other._released = True
        self._clients |= other._clients
        np.add(self._total, other._total, out=self._total)

    @property
    def batch(self) -> ReportBatch:
        """Clients added so far."""
        digest = hashlib.sha256(LABEL + b"batch" + self.task.digest)
        for client in sorted(self._clients):
            digest.update(client)
        return ReportBatch(len(self._clients), digest.digest())

    def release(self, others: ReportBatch, noise: Iterable[NDArray[Any]] = ()) -> bytes:
        """Return this server's share of the sum, packed; raise a ProtocolError if that is unsafe.

        `noise` is this server's own, in blocks of integers. A share is released once: two shares
        with different reports or noise would show the difference.
        """
        self._check_open()
        if others != self.batch:
            raise CohortChanged("the two servers have not added the reports of the same clients")
        if others.reports < self._least:
            raise CohortTooSmall(f"{others.reports} reports, and {self._least} are the least")
        self._released = True
        task, ring = self.task, self.task.shape.ring
        total = self._total
        if task.is_sparse:
            total = task.table.folded(total).reshape(-1)
            if self.role is Role.HELPER:
                total = -total
        first = 0
        for block in noise:
            some = total[first : first + len(block)]
            np.add(some, block.astype(ring.dtype), out=some)
            first += len(block)
        if first not in (0, task.shape.length):
            raise ValueError(f"noise for {first} of {task.shape.length} entries")
        self._total = np.zeros(0, ring.dtype)
        return ring.pack(ring.reduce(total))

    def _check_open(self) -> None:
        if self._released:
            raise SessionClosed("this batch has ended")


def _seen(*reports: Report) -> bytes:
    """Return the proof of reports whose contents are always well-formed: what the client signed."""
    signed = b"".join(report.signed for report in reports)
    return hashlib.sha256(LABEL + b"seen" + signed).digest()


def combined(task: Task, leader: bytes, helper: bytes) -> Words:
    """Return the sum of two released shares, as words of the ring."""
    ring, length = task.shape.ring, task.shape.length
    total = ring.unpack(leader, length) + ring.unpack(helper, length)
    return ring.reduce(total.astype(ring.dtype, copy=False))
