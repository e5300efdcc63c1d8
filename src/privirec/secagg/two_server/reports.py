"""Reports: what a client sends for a sum, and how each server reads its part.

A report has a header, a *shared* part for both servers and a *box* for each of them, sealed with
HPKE. It is signed with the client's identity. A dense report seals a seed to the helper, and the
vector less the mask of that seed to the leader. A sparse report seals a seed to each server, from
which the roots of its point functions follow; the shared part has the corrections.

Everything is bound to the task: a report for another run, sum or question does not open.
docs/reference/two-server-wire.md is the specification.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from numpy.typing import NDArray

from privirec.secagg.errors import BadShare, MalformedMessage, OtherAsk
from privirec.secagg.keys import KEY_BYTES, SIGNATURE_BYTES, Identity, RandomBytes, Secret, verify
from privirec.secagg.messages import RUN_BYTES, Reader
from privirec.secagg.prg import SEED_BYTES as MASK_SEED_BYTES
from privirec.secagg.prg import MaskGenerator
from privirec.secagg.ring import VectorShape, Words, rechunked
from privirec.secagg.two_server import point_function as dpf
from privirec.secagg.two_server.placing import Table, buckets_for

VERSION = 1
LABEL = b"privirec-two-server-" + bytes([VERSION])
"""Prefix of everything that is derived, signed or sealed."""
DIGEST_BYTES = 32
MOST_REPORT_BYTES = 1 << 30
_TASK = struct.Struct(">16sI32sQBBQII32s32s")
_HEADER = struct.Struct(">B32s32sQQQ")
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


class Role(IntEnum):
    """The two servers; the helper's sum counts with a minus in sparse reports."""

    LEADER = 0
    HELPER = 1


@dataclass(frozen=True)
class Task:
    """One sum over the reports of a batch, as clients and servers agree on it."""

    run: bytes
    sum_number: int
    asked: bytes
    """Digest of the question that the integers answer."""
    shape: VectorShape
    row_entries: int = 0
    """Entries per row of a sparse sum; 0 for a dense one."""
    most_rows: int = 0
    """Most rows of a client in a sparse sum; further ones are cut."""
    table_key: bytes = bytes(DIGEST_BYTES)
    """Public bytes from which the buckets of the rows follow."""
    continues: bytes = bytes(DIGEST_BYTES)
    """Digest of an earlier task with the same rows, whose trees also serve this sum; or zeros."""

    def __post_init__(self) -> None:
        digests = self.asked, self.table_key, self.continues
        if len(self.run) != RUN_BYTES or any(len(one) != DIGEST_BYTES for one in digests):
            raise ValueError("a run has 16 bytes and a digest 32")
        if bool(self.row_entries) != bool(self.most_rows):
            raise ValueError("a sparse sum has entries per row and a limit of rows")
        if self.row_entries and self.shape.length % self.row_entries:
            raise ValueError(f"{self.shape.length} entries are no rows of {self.row_entries}")

    @property
    def is_sparse(self) -> bool:
        return self.row_entries > 0

    @property
    def deals_trees(self) -> bool:
        """True for a sparse sum that does not continue with the trees of an earlier one."""
        return self.is_sparse and not any(self.continues)

    @cached_property
    def digest(self) -> bytes:
        shape = self.shape
        flags = shape.signed | shape.bounds_sum << 1
        sizes = shape.length, shape.width, flags, shape.bound, self.row_entries, self.most_rows
        named = self.table_key, self.continues
        packed = _TASK.pack(self.run, self.sum_number, self.asked, *sizes, *named)
        return hashlib.sha256(LABEL + b"task" + packed).digest()

    @cached_property
    def table(self) -> Table:
        """Buckets of the rows of a sparse sum."""
        rows = self.shape.length // self.row_entries
        return Table(rows, buckets_for(min(self.most_rows, rows)), self.table_key)

    def cipher(self, client: bytes) -> dpf.ReportCipher:
        """Return the hashes of a client's point functions."""
        trees = self.digest if self.deals_trees else self.continues
        return dpf.ReportCipher(LABEL + trees + client, LABEL + self.digest + client)

    def rows_kept(self, rows: Iterable[int]) -> dict[int, int]:
        """Return the bucket of each of a client's rows that is not cut.

        Which rows exceed `most_rows` follows from public hashes, not from their contents.
        """
        choices = self.table.choices
        ordered = sorted(rows, key=lambda row: (*choices[row].tolist(), row))
        return self.table.place(ordered[: self.most_rows])


@dataclass(frozen=True)
class ServerKey:
    """HPKE key pair of a server (X25519, HKDF-SHA256, AES-256-GCM)."""

    private: Secret

    @classmethod
    def generate(cls, random_bytes: RandomBytes = os.urandom) -> ServerKey:
        return cls(Secret(random_bytes(KEY_BYTES)))

    @property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    @property
    def _key(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self.private.reveal())

    def open(self, box: bytes, info: bytes) -> bytes:
        """Return the contents of a box, or raise BadShare."""
        try:
            return _SUITE.decrypt(box, self._key, info)
        except (InvalidTag, ValueError):
            raise BadShare("a report that is not sealed to this server for this sum") from None


def seal(public: bytes, plain: bytes, info: bytes) -> bytes:
    """Return a box that only the owner of the private key opens, with the same `info`."""
    return _SUITE.encrypt(plain, X25519PublicKey.from_public_bytes(public), info)


@dataclass(frozen=True)
class Report:
    """A client's message for one sum. A server's copy lacks the other one's box, but not its hash.

    `boxes` and `hashes` are in the order of `Role`.
    """

    task: bytes
    """Digest of the task."""
    client: bytes
    """Ed25519 key."""
    shared: bytes
    boxes: tuple[bytes, bytes]
    signature: bytes
    hashes: tuple[bytes, bytes]
    """SHA-256 of the boxes."""

    def encode(self) -> bytes:
        """Return the report as a client sends it."""
        sizes = len(self.shared), len(self.boxes[0]), len(self.boxes[1])
        head = _HEADER.pack(VERSION, self.task, self.client, *sizes)
        return b"".join((head, self.shared, *self.boxes, self.signature))

    @classmethod
    def decode(cls, data: bytes) -> Report:
        """Parse a report; raise MalformedMessage for what `encode` does not write."""
        if len(data) > MOST_REPORT_BYTES:
            raise MalformedMessage(f"a report of {len(data)} bytes")
        reader = Reader(data)
        version, task, client, *sizes = reader.unpack(_HEADER)
        if version != VERSION:
            raise MalformedMessage(f"reports of version {version}, expected {VERSION}")
        shared, leader, helper = (reader.take(size) for size in sizes)
        signature = reader.take(SIGNATURE_BYTES)
        reader.finish()
        return cls(task, client, shared, (leader, helper), signature, _hashes(leader, helper))

    def without_box(self, role: Role) -> Report:
        """Return the copy for the other server."""
        boxes = tuple(b"" if place == role else box for place, box in enumerate(self.boxes))
        return replace(self, boxes=(boxes[0], boxes[1]))

    @property
    def signed(self) -> bytes:
        """Bytes that the client signs."""
        about = self.task + self.client + hashlib.sha256(self.shared).digest()
        return LABEL + b"report" + about + b"".join(self.hashes)


def _hashes(leader: bytes, helper: bytes) -> tuple[bytes, bytes]:
    return hashlib.sha256(leader).digest(), hashlib.sha256(helper).digest()


def _info(task: bytes, client: bytes, shared: bytes, role: Role) -> bytes:
    return LABEL + b"box" + bytes([role]) + task + client + hashlib.sha256(shared).digest()


@dataclass(frozen=True)
class SparseRows:
    """The rows of a client's vector that are not zero."""

    rows: NDArray[np.int64]
    values: NDArray[Any]
    """Integers of shape (rows, entries)."""

    def __repr__(self) -> str:
        return "SparseRows(<redacted>)"


@dataclass(frozen=True)
class DealtTrees:
    """A client's point functions: where its rows are, and the seeds of both servers.

    They must not be used with other rows, or for a task that neither deals nor continues them.
    """

    buckets: dict[int, int]
    """Row -> bucket, for all rows that are not cut."""
    alphas: NDArray[np.int64]
    """Leaf of each bucket's row; any leaf in a bucket without a row."""
    seeds: tuple[Secret, Secret]

    @classmethod
    def deal(
        cls, task: Task, rows: Iterable[int], random_bytes: RandomBytes = os.urandom
    ) -> DealtTrees:
        """Return new trees for some rows."""
        table, trees = task.table, task.table.trees
        buckets = task.rows_kept(rows)
        drawn = np.frombuffer(random_bytes(8 * trees.buckets), np.uint64)
        alphas = (drawn % np.uint64(trees.leaves)).astype(np.int64)
        for row, bucket in buckets.items():
            alphas[bucket] = table.leaf(bucket, row)
        seeds = Secret(random_bytes(MASK_SEED_BYTES)), Secret(random_bytes(MASK_SEED_BYTES))
        return cls(buckets, alphas, seeds)

    def __repr__(self) -> str:
        return "DealtTrees(<redacted>)"


@dataclass(frozen=True)
class Sealing:
    """A client with the public keys of both servers, which its owner has from the operators."""

    identity: Identity
    servers: tuple[bytes, bytes]

    def dense(
        self, task: Task, blocks: Iterable[NDArray[Any]], random_bytes: RandomBytes = os.urandom
    ) -> Report:
        """Return the report of a whole vector, given in blocks of any sizes."""
        shape = task.shape
        words = np.concatenate(list(rechunked(blocks, shape, shape.length)))
        seed = random_bytes(MASK_SEED_BYTES)
        MaskGenerator().subtract(words, 0, [seed])
        return self._sealed(task, b"", shape.ring.pack(words), seed)

    def sparse(self, task: Task, rows: SparseRows, dealt: DealtTrees) -> Report:
        """Return the report of a vector that is zero but for some rows.

        `dealt` has the client's trees, which further sums with the same rows continue. The size of
        the report does not depend on the rows.
        """
        ring, trees = task.shape.ring, task.table.trees
        wanted = np.zeros((trees.buckets, task.row_entries), ring.dtype)
        for row, values in zip(rows.rows.tolist(), rows.values, strict=True):
            if (bucket := dealt.buckets.get(row)) is not None:
                wanted[bucket] = ring.encode(values, task.shape.bound, task.shape.signed)
        cipher = task.cipher(self.identity.public)
        seeds = tuple(seed.reveal() for seed in dealt.seeds)
        roots = _roots(seeds[0], trees, Role.LEADER), _roots(seeds[1], trees, Role.HELPER)
        corrections, leaves = dpf.generate(trees, dealt.alphas, cipher, roots)
        payloads = dpf.payload_corrections(wanted, leaves, cipher)
        shared = ring.pack(payloads.reshape(-1))
        if task.deals_trees:
            return self._sealed(task, _write_corrections(corrections) + shared, *seeds)
        return self._signed(task, shared, (b"", b""))

    def _sealed(self, task: Task, shared: bytes, leader: bytes, helper: bytes) -> Report:
        client = self.identity.public
        boxes = (
            seal(self.servers[0], leader, _info(task.digest, client, shared, Role.LEADER)),
            seal(self.servers[1], helper, _info(task.digest, client, shared, Role.HELPER)),
        )
        return self._signed(task, shared, boxes)

    def _signed(self, task: Task, shared: bytes, boxes: tuple[bytes, bytes]) -> Report:
        client = self.identity.public
        report = Report(task.digest, client, shared, boxes, b"", _hashes(*boxes))
        return replace(report, signature=self.identity.sign(report.signed))


def check_report(report: Report, task: Task, role: Role) -> None:
    """Raise a ProtocolError unless the client signed this report for this task."""
    if report.task != task.digest:
        raise OtherAsk("a report for another run, sum or question")
    if hashlib.sha256(report.boxes[role]).digest() != report.hashes[role]:
        raise BadShare("a box that is not the one that the client signed")
    verify(report.client, report.signature, report.signed, "of a report")


def open_box(report: Report, task: bytes, role: Role, key: ServerKey) -> bytes:
    """Return what a client sealed to this server for the task with this digest."""
    return key.open(report.boxes[role], _info(task, report.client, report.shared, role))


@dataclass(frozen=True)
class SparseShare:
    """A server's part of a sparse report."""

    roots: dpf.Seeds
    corrections: dpf.Corrections

    @classmethod
    def read(cls, report: Report, task: Task, role: Role, secret: bytes) -> SparseShare:
        """Return the trees of the report that deals them."""
        if len(secret) != MASK_SEED_BYTES:
            raise MalformedMessage("a sparse report seals a seed to each server")
        trees = task.table.trees
        corrections = _read_corrections(Reader(report.shared), trees)
        return cls(_roots(secret, trees, role), corrections)


def read_payloads(report: Report, task: Task) -> Words:
    """Return the payload corrections of a sparse report, one row for each bucket."""
    trees, ring = task.table.trees, task.shape.ring
    reader = Reader(report.shared)
    if task.deals_trees:
        reader.take(_corrections_bytes(trees))
    elif any(report.boxes):
        raise MalformedMessage("a report that continues with earlier trees seals nothing")
    entries = trees.buckets * task.row_entries
    payloads = ring.unpack(reader.take(ring.packed_bytes(entries)), entries)
    reader.finish()
    return payloads.reshape(trees.buckets, task.row_entries)


def report_bytes(task: Task) -> int:
    """Return the size of a report."""
    size = _HEADER.size + SIGNATURE_BYTES
    if not task.is_sparse:
        return size + task.shape.packed_bytes + MASK_SEED_BYTES + 2 * _OVERHEAD
    trees = task.table.trees
    size += task.shape.ring.packed_bytes(trees.buckets * task.row_entries)
    if task.deals_trees:
        size += _corrections_bytes(trees) + 2 * (MASK_SEED_BYTES + _OVERHEAD)
    return size


def _corrections_bytes(trees: dpf.Trees) -> int:
    level = trees.buckets * dpf.SEED_BYTES + -(-2 * trees.buckets // 8)
    return trees.depth * level + trees.buckets * dpf.HASH_BYTES


_OVERHEAD = 48
"""Bytes of a box more than of its contents: an X25519 key and a tag."""


def _roots(seed: bytes, trees: dpf.Trees, role: Role) -> dpf.Seeds:
    """Return the root seeds that follow from a server's seed, with the control bits of its role."""
    size = trees.buckets * dpf.SEED_BYTES
    stream = hashlib.shake_256(LABEL + b"roots" + seed).digest(size)
    roots = np.frombuffer(stream, "<u8").reshape(-1, 2).astype(np.uint64)
    roots[:, 0] = roots[:, 0] >> np.uint64(1) << np.uint64(1) | np.uint64(role)
    return roots


def _write_corrections(corrections: dpf.Corrections) -> bytes:
    levels = []
    for seeds, bits in zip(corrections.seeds, corrections.bits, strict=True):
        packed = np.packbits(bits.reshape(-1), bitorder="little").tobytes()
        levels.append(seeds.astype("<u8").tobytes() + packed)
    return b"".join(levels) + corrections.hashes.tobytes()


def _read_corrections(reader: Reader, trees: dpf.Trees) -> dpf.Corrections:
    seeds = np.empty((trees.depth, trees.buckets, 2), np.uint64)
    bits = np.empty((trees.depth, trees.buckets, 2), np.uint8)
    for level in range(trees.depth):
        some = np.frombuffer(reader.take(trees.buckets * dpf.SEED_BYTES), "<u8")
        seeds[level] = some.reshape(-1, 2)
        packed = np.frombuffer(reader.take(-(-2 * trees.buckets // 8)), np.uint8)
        every = np.unpackbits(packed, bitorder="little")
        if every[2 * trees.buckets :].any():
            raise MalformedMessage("the bits after the last control bit are not zero")
        bits[level] = every[: 2 * trees.buckets].reshape(-1, 2)
    if (seeds[:, :, 0] & np.uint64(1)).any():
        raise MalformedMessage("a correction of a seed has a control bit")
    hashes = np.frombuffer(reader.take(trees.buckets * dpf.HASH_BYTES), np.uint8)
    return dpf.Corrections(seeds, bits, hashes.reshape(-1, dpf.HASH_BYTES))
