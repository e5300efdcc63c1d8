"""Tests with a second client, written from docs/reference/secagg-wire.md alone.

It must answer as the vectors say. Nothing of privirec is imported here, and nothing is optimised.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FOLDER = Path(__file__).parent.parent / "vectors" / "secagg"
RUNS = [json.loads((FOLDER / name).read_text()) for name in ("run.json", "run-active.json")]
LABEL = b"privirec-secagg-"
PRIME = 2**257 - 93
ROUNDS = 2


def u32(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}I", *numbers)


def derive(
    label: bytes,
    secret: bytes,
    purpose: bytes,
    run: bytes,
    number: int,
    pair: tuple[int, int],
    asked: bytes = b"",
) -> bytes:
    key = hmac.new(label, secret, hashlib.sha256).digest()
    info = purpose + run + u32(number, *pair) + asked
    return hmac.new(key, info + b"\x01", hashlib.sha256).digest()


def key_stream(seed: bytes, size: int) -> bytes:
    return Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor().update(bytes(size))


class SecondClient:
    """A client that reads the recorded messages with struct and answers them."""

    def __init__(self, recorded: dict[str, Any], run: dict[str, Any]) -> None:
        self.client = recorded["client"]
        self.identity = Ed25519PrivateKey.from_private_bytes(
            bytes.fromhex(recorded["identity_seed"])
        )
        self.draws = [bytes.fromhex(draw) for draw in recorded["random"]]
        self.roster = {int(one): bytes.fromhex(key) for one, key in run["roster"].items()}
        self.widths = [shape["width"] for shape in run["shapes"]]

    def header(self, kind: int, number: int = 0) -> bytes:
        return bytes([4, kind]) + self.run + u32(number, self.client)

    def agree(self, private: bytes, public: bytes) -> bytes:
        key = X25519PrivateKey.from_private_bytes(private)
        return key.exchange(X25519PublicKey.from_public_bytes(public))

    def advertise(self, announcement: bytes) -> bytes:
        self.run = announcement[2:18]
        self.label = LABEL + announcement[26:27] + b"\x04"
        self.lying_server = announcement[27] == 1
        self.digest = hashlib.sha256(announcement).digest()
        secrets = self.draws.pop(0)
        parts = [secrets[start : start + 32] for start in range(0, len(secrets), 32)]
        self.sealing, self.masks, self.seeds = parts[0], parts[1 : 1 + ROUNDS], parts[1 + ROUNDS :]
        publics = [
            X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
            for private in (self.sealing, *self.masks)
        ]
        keys = b"".join(publics)
        self.leaf = hashlib.sha256(LABEL + b"leaf" + u32(self.client) + keys).digest()
        signature = self.identity.sign(LABEL + b"advertise" + self.digest + u32(self.client) + keys)
        return self.header(2) + struct.pack(">H", ROUNDS) + keys + signature

    def share(self, message: bytes) -> bytes:
        k, t, map_bytes, entries, rounds, hashes = struct.unpack(">IIIIHB", message[26:45])
        bitmap = message[45 : 45 + map_bytes]
        at = 45 + map_bytes + 32
        root, path = message[at - 32 : at], message[at : at + 32 * hashes]
        at += 32 * hashes
        ids = sorted(self.roster)
        present = [one for p, one in enumerate(ids) if bitmap[p // 8] >> p % 8 & 1]
        assert self.climb(present.index(self.client), len(present), path) == root
        seed = hashlib.sha256(LABEL + b"graph" + self.digest + bitmap + root).digest()
        self.graph = seed + u32(k, t)
        words = struct.unpack(f"<{len(present)}Q", key_stream(seed, 8 * len(present)))
        ring = sorted(range(len(present)), key=lambda place: (words[place], place))
        seat = ring.index(present.index(self.client))
        steps = [step for half in range(1, k // 2 + 1) for step in (half, -half)]
        neighbours = sorted(present[ring[(seat + step) % len(ring)]] for step in steps)
        size = 4 + 32 * (1 + rounds) + 64
        self.peer_masks = {}
        sealing = {}
        for index in range(entries):
            entry = message[at + size * index :][:size]
            (peer,) = struct.unpack(">I", entry[:4])
            Ed25519PublicKey.from_public_bytes(self.roster[peer]).verify(
                entry[-64:], LABEL + b"advertise" + self.digest + entry[:-64]
            )
            sealing[peer] = entry[4:36]
            self.peer_masks[peer] = [
                entry[start : start + 32] for start in range(36, size - 64, 32)
            ]
        assert sorted(sealing) == neighbours

        secrets = [s for pair in zip(self.seeds, self.masks, strict=True) for s in pair]
        coefficients = [[int.from_bytes(secret, "big")] for secret in secrets]
        for _ in range(t - 1):
            draw = self.draws.pop(0)
            for index, polynomial in enumerate(coefficients):
                number = int.from_bytes(draw[33 * index : 33 * index + 33], "big")
                polynomial.append(number % 2**257)
        nonce = self.draws.pop(0)
        sealed = b""
        self.opening = {}
        for place, peer in enumerate(neighbours, start=1):
            plain = b"".join(
                (sum(c * place**power for power, c in enumerate(polynomial)) % PRIME).to_bytes(
                    33, "big"
                )
                for polynomial in coefficients
            )
            agreed = self.agree(self.sealing, sealing[peer])
            key = derive(self.label, agreed, b"seal", self.run, 0, (self.client, peer))
            context = LABEL + b"shares" + self.digest + u32(self.client, peer)
            sealed += AESGCM(key).encrypt(nonce, plain, context)
            self.opening[peer] = derive(
                self.label, agreed, b"seal", self.run, 0, (peer, self.client)
            )
        return self.header(4) + u32(k, len(plain) + 16) + nonce + sealed

    def climb(self, place: int, size: int, path: bytes) -> bytes:
        """Compute the root from the client's own leaf and a path."""
        node = self.leaf
        while size > 1:
            if place % 2 or place + 1 < size:
                pair, path = (node, path[:32]), path[32:]
                left, right = pair[::-1] if place % 2 else pair
                node = hashlib.sha256(LABEL + b"node" + left + right).digest()
            place, size = place // 2, (size + 1) // 2
        assert not path
        return node

    def store(self, message: bytes) -> None:
        count, size = struct.unpack(">II", message[26:34])
        self.held = {}
        for index in range(count):
            entry = message[34 + index * (16 + size) :][: 16 + size]
            (peer,) = struct.unpack(">I", entry[:4])
            context = LABEL + b"shares" + self.digest + u32(peer, self.client)
            self.held[peer] = AESGCM(self.opening[peer]).decrypt(entry[4:16], entry[16:], context)
        self.active = sorted(self.held)

    def contribute(self, number: int, values: list[int], asked: bytes) -> bytes:
        width = self.widths[number - 1]
        word = 1 if width <= 8 else 2
        masks = [(1, self.seeds[number - 1])]
        for peer in self.active:
            agreed = self.agree(self.masks[number - 1], self.peer_masks[peer][number - 1])
            pair = (min(self.client, peer), max(self.client, peer))
            sign = 1 if self.client < peer else -1
            masks.append((sign, derive(self.label, agreed, b"mask", self.run, number, pair, asked)))
        masked = list(values)
        for sign, seed in masks:
            stream = key_stream(seed, word * len(values))
            for index in range(len(values)):
                entry = int.from_bytes(stream[word * index : word * (index + 1)], "little")
                masked[index] = (masked[index] + sign * entry) % 2**width
        bits = sum(entry << width * index for index, entry in enumerate(masked))
        return bits.to_bytes((len(masked) * width + 7) // 8, "little")

    def survivors(self, message: bytes) -> bytes:
        (number,) = struct.unpack(">I", message[18:22])
        self.cohort = message[26:]
        if not self.lying_server or number > 1:
            return self.unmask(number)
        return self.header(9, 1) + self.identity.sign(self.statement())

    def statement(self) -> bytes:
        return LABEL + b"survivors" + self.digest + self.graph + self.cohort

    def in_sum(self, client: int) -> bool:
        place = sorted(self.roster).index(client)
        return bool(self.cohort[place // 8] >> place % 8 & 1)

    def confirmed(self, message: bytes) -> bytes:
        near = [peer for peer in self.active if self.in_sum(peer)]
        assert message[26:30] == u32(len(near))
        for index, peer in enumerate(near):
            signature = message[30 + 64 * index :][:64]
            Ed25519PublicKey.from_public_bytes(self.roster[peer]).verify(
                signature, self.statement()
            )
        return self.unmask(1)

    def unmask(self, number: int) -> bytes:
        alive = [peer for peer in self.active if self.in_sum(peer)]
        lost = [peer for peer in self.active if not self.in_sum(peer)]
        start = 66 * (number - 1)
        shares = [self.held[peer][start : start + 33] for peer in alive]
        shares += [self.held[peer][start + 33 : start + 66] for peer in lost]
        self.active = alive
        return self.header(8, number) + u32(len(alive), len(lost)) + b"".join(shares)


@pytest.mark.parametrize(
    ("run", "place"),
    [(run, place) for run in RUNS for place in range(len(run["clients"]))],
    ids=lambda value: str(value) if isinstance(value, int) else value["policy"]["server"],
)
def test_a_client_written_from_the_document_answers_as_recorded(
    run: dict[str, Any], place: int
) -> None:
    recorded = run["clients"][place]
    client = SecondClient(recorded, run)
    answers = {
        1: client.advertise,
        3: client.share,
        5: client.store,
        7: client.survivors,
        10: client.confirmed,
    }
    for step in recorded["steps"]:
        if "contribute" in step:
            asked = bytes.fromhex(step["asked"])
            masked = client.contribute(step["contribute"], step["values"], asked)
            assert masked.hex() == step["vector"]
            continue
        message = bytes.fromhex(step["receive"])
        reply = answers[message[1]](message)
        assert (reply.hex() if reply else None) == step["reply"]
