"""Tests of two-server vectors, and of a second server written from its specification alone.

The second server follows docs/reference/two-server-wire.md, one node at a time, with nothing of
privirec.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from privirec.secagg import errors
from privirec.secagg.keys import Secret
from privirec.secagg.two_server.aggregator import Aggregator
from privirec.secagg.two_server.reports import Report, Role, ServerKey
from secagg.two_server_vectors import FILE, SHAPE, tasks

VECTORS: dict[str, Any] = json.loads(Path(FILE).read_text())
GOOD = {one["name"]: one for one in VECTORS["good"]}
KEYS = [bytes.fromhex(key) for key in VECTORS["private_keys"]]
LABEL = b"privirec-two-server-\x01"
HELPER = 1


@pytest.mark.parametrize("name", GOOD)
def test_good_reports_are_accepted_with_the_recorded_proofs(name: str) -> None:
    task = tasks()[name]
    assert task.digest.hex() == GOOD[name]["task"]["digest"]
    report = Report.decode(bytes.fromhex(GOOD[name]["report"]))
    assert report.encode().hex() == GOOD[name]["report"]
    begun = Report.decode(bytes.fromhex(GOOD["sparse"]["report"])) if name == "continued" else None
    servers = [Aggregator(role, task, ServerKey(Secret(KEYS[role])), 2) for role in Role]
    checked = [server.check(report, begun) for server in servers]
    assert [one.proof.hex() for one in checked] == GOOD[name]["proofs"]
    totals = []
    for server, own, other in zip(servers, checked, checked[::-1], strict=True):
        server.add(own, other.proof)
        totals.append(server._total)
    if task.is_sparse:
        leader, helper = (task.table.folded(total).reshape(-1) for total in totals)
        found = SHAPE.ring.reduce(leader - helper)
    else:
        found = SHAPE.ring.reduce(totals[0] + totals[1])
    assert SHAPE.decode(found).tolist() == VECTORS["vector"]


@pytest.mark.parametrize("case", VECTORS["bad"], ids=lambda case: case["name"])
def test_bad_reports_are_refused(case: dict[str, str]) -> None:
    server = Aggregator(Role.HELPER, tasks()[case["task"]], ServerKey(Secret(KEYS[HELPER])), 2)
    with pytest.raises(getattr(errors, case["error"])):
        server.check(Report.decode(bytes.fromhex(case["report"])))


# --- the second server ----------------------------------------------------------------------------


def xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def aes(key: bytes, block: bytes) -> bytes:
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(block)  # noqa: S305 - as specified


def key_stream(key: bytes, size: int) -> bytes:
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(size))


def mixed(seed: bytes) -> bytes:
    return xor(seed[:8], seed[8:]) + seed[:8]


def without_control(seed: bytes) -> bytes:
    return bytes([seed[0] & 0xFE]) + seed[1:]


class SecondServer:
    """A server that reads a recorded report with struct, one node at a time."""

    def __init__(self, role: int, recorded: dict[str, Any], begun: dict[str, Any]) -> None:
        self.role, self.task = role, recorded["task"]
        digest, self.client, self.shared, box = self.parts(recorded)
        assert digest == self.digest_of(self.task)
        self.digest = digest
        dealt, _, self.trees_shared, tree_box = self.parts(begun)
        self.dealt = dealt
        given = tree_box if begun is not recorded else box
        info = LABEL + b"box" + bytes([role]) + dealt + self.client
        info += hashlib.sha256(self.trees_shared).digest()
        suite = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
        key = X25519PrivateKey.from_private_bytes(KEYS[role])
        self.secret = suite.decrypt(given, key, info)

    def parts(self, recorded: dict[str, Any]) -> tuple[bytes, bytes, bytes, bytes]:
        data = bytes.fromhex(recorded["report"])
        version, digest, client, *sizes = struct.unpack(">B32s32sQQQ", data[:89])
        assert version == 1
        fields, start = [], 89
        for size in sizes:
            fields.append(data[start : start + size])
            start += size
        assert len(data) == start + 64
        return digest, client, fields[0], fields[1 + self.role]

    @staticmethod
    def digest_of(task: dict[str, Any]) -> bytes:
        packed = bytes.fromhex(task["run"]) + struct.pack(">I", task["sum"])
        packed += bytes.fromhex(task["asked"]) + struct.pack(">Q", task["length"])
        packed += bytes([task["width"], task["signed"] + 2 * task["bounds_sum"]])
        packed += struct.pack(">QII", task["bound"], task["row_entries"], task["most_rows"])
        packed += bytes.fromhex(task["table_key"]) + bytes.fromhex(task["continues"])
        return hashlib.sha256(LABEL + b"task" + packed).digest()

    def unpacked(self, packed: bytes, entries: int) -> list[int]:
        width = self.task["width"]
        number = int.from_bytes(packed, "little")
        return [number >> (width * entry) & ((1 << width) - 1) for entry in range(entries)]

    def values(self) -> list[int]:
        """Return this server's share of the vector, modulo 2^width."""
        return self.sparse() if self.task["row_entries"] else self.dense()

    def dense(self) -> list[int]:
        length = self.task["length"]
        if self.role != HELPER:
            return self.unpacked(self.secret, length)
        stream = key_stream(self.secret, 2 * length)
        return list(struct.unpack(f"<{length}H", stream))

    def buckets(self) -> list[list[int]]:
        rows = self.task["length"] // self.task["row_entries"]
        count = 5 * min(self.task["most_rows"], rows) // 4 + 4
        words = struct.unpack(
            f"<{3 * rows}Q", key_stream(bytes.fromhex(self.task["table_key"]), 24 * rows)
        )
        held: list[list[int]] = [[] for _ in range(count)]
        for row in range(rows):
            for bucket in {word % count for word in words[3 * row : 3 * row + 3]}:
                held[bucket].append(row)
        return held

    def leaves(self) -> list[list[bytes]]:
        """Return the leaves of all trees, with control bits, and check the proof."""
        held = self.buckets()
        count, leaves = len(held), max(map(len, held))
        depth = (leaves - 1).bit_length()
        named = b"privirec/point-function/trees/1\0" + LABEL + self.dealt + self.client
        keys = hashlib.shake_256(named).digest(64)
        drawn = hashlib.shake_256(LABEL + b"roots" + self.secret).digest(16 * count)
        size = 16 * count + (2 * count + 7) // 8
        hash_corrections = self.trees_shared[depth * size :]
        found, hashes = [], b""
        for bucket in range(count):
            root = drawn[16 * bucket : 16 * bucket + 16]
            nodes = [bytes([root[0] & 0xFE | self.role]) + root[1:]]
            for level in range(depth):
                part = self.trees_shared[level * size : (level + 1) * size]
                correction = part[16 * bucket : 16 * bucket + 16]
                bits = int.from_bytes(part[16 * count :], "little") >> (2 * bucket)
                below = []
                for node in nodes:
                    for side in range(2):
                        o = mixed(without_control(node))
                        child = xor(aes(keys[16 * side : 16 * side + 16], o), o)
                        if node[0] & 1:
                            child = xor(child, correction)
                            child = bytes([child[0] ^ (bits >> side & 1)]) + child[1:]
                        below.append(child)
                nodes = below
            found.append(nodes[:leaves])
            for place, leaf in enumerate(nodes[:leaves]):
                position = struct.pack(">I", bucket * leaves + place)
                one = hashlib.sha256(keys[32:] + position + leaf).digest()
                if leaf[0] & 1:
                    one = xor(one, hash_corrections[32 * bucket : 32 * bucket + 32])
                hashes += one
        self.proof = hashlib.sha256(b"privirec/point-function/proof\0" + hashes).hexdigest()
        return found

    def sparse(self) -> list[int]:
        held, found = self.buckets(), self.leaves()
        entries, length = self.task["row_entries"], self.task["length"]
        packed_bytes = (len(held) * entries * self.task["width"] + 7) // 8
        corrections = self.unpacked(self.shared[-packed_bytes:], len(held) * entries)
        named = b"privirec/point-function/payloads/1\0" + LABEL + self.digest + self.client
        key = hashlib.shake_256(named).digest(16)
        total = [0] * length
        for bucket, rows in enumerate(held):
            for row, leaf in zip(rows, found[bucket], strict=False):
                o = mixed(without_control(leaf))
                blocks = b"".join(
                    xor(aes(key, xor(o, bytes(8) + struct.pack("<Q", block))), o)
                    for block in range(-(-2 * entries // 16))
                )
                payload = struct.unpack(f"<{entries}H", blocks[: 2 * entries])
                for entry in range(entries):
                    value = payload[entry]
                    if leaf[0] & 1:
                        value += corrections[bucket * entries + entry]
                    total[row * entries + entry] += -value if self.role == HELPER else value
        return total


@pytest.mark.parametrize("name", GOOD)
def test_second_server_opens_the_recorded_vector(name: str) -> None:
    recorded = GOOD[name]
    begun = GOOD["sparse"] if name == "continued" else recorded
    servers = [SecondServer(role, recorded, begun) for role in (0, HELPER)]
    modulus = 1 << SHAPE.width
    shares = [server.values() for server in servers]
    total = [(one + other) % modulus for one, other in zip(*shares, strict=True)]
    assert total == [value % modulus for value in VECTORS["vector"]]
    if name == "sparse":
        assert [server.proof for server in servers] == recorded["proofs"]
