"""Tests with a second LightSecAgg client, written from docs/reference/lightsecagg.md alone.

It must answer as the vectors say, and the vectors of its building blocks must match that page.
Nothing of privirec is imported here, and nothing is optimised.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FOLDER = Path(__file__).parent.parent / "vectors" / "secagg"
RUN = json.loads((FOLDER / "run-lightsecagg.json").read_text())
PRIMITIVES = json.loads((FOLDER / "primitives-lightsecagg.json").read_text())
LABEL = b"privirec-secagg-"


def u32(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}I", *numbers)


# --- numbers --------------------------------------------------------------------------------------


def is_prime(number: int) -> bool:
    return all(pow(base, number - 1, number) == 1 for base in (2, 3, 5, 7, 11, 13, 17, 19, 23))


def prime_above(bits: int) -> int:
    return next(p for p in count((1 << bits) + 1, 1 << 20) if is_prime(p))


def root_of_unity(prime: int, order: int) -> int:
    base = next(h for h in count(2) if pow(h, (prime - 1) // 2, prime) != 1)
    return pow(base, (prime - 1) // order, prime)


def elements_of(seed: bytes, prime: int, period: int, places: range) -> list[int]:
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    words = struct.unpack(f"<{4 * period}Q", stream.update(bytes(32 * period)))
    found = []
    for place in places:
        word = next(
            word for word in words[place::period] if word * prime % (1 << 64) >= (1 << 64) % prime
        )
        found.append(word * prime >> 64)
    return found


def pack(numbers: list[int], bits: int) -> bytes:
    joined = sum(number << (bits * place) for place, number in enumerate(numbers))
    return joined.to_bytes(-(-len(numbers) * bits // 8), "little")


def unpack(packed: bytes, bits: int, size: int) -> list[int]:
    joined = int.from_bytes(packed, "little")
    return [joined >> (bits * place) & ((1 << bits) - 1) for place in range(size)]


def join(entries: list[int], width: int, prime: int) -> list[int]:
    together = 61 // width
    return [
        sum(
            entry << (width * place)
            for place, entry in enumerate(entries[start : start + together])
        )
        % prime
        for start in range(0, len(entries), together)
    ]


def pieces_of(
    seed: bytes, prime: int, roster: int, private: int, needed: int, elements: int
) -> list[list[int]]:
    """Return the pieces: row q is that of the client at place q of the roster."""
    payload = needed - private
    columns = -(-elements // payload)
    drawn = elements_of(seed, prime, columns * needed, range(columns * needed))
    points = 1 << (roster - 1).bit_length()
    root = root_of_unity(prime, points)
    rows = []
    for place in range(roster):
        x = pow(root, place, prime)
        row = []
        for column in range(columns):
            mask = drawn[column * payload : (column + 1) * payload]
            noise_start = columns * payload + column * private
            coefficients = mask + drawn[noise_start : noise_start + private]
            row.append(sum(c * pow(x, j, prime) for j, c in enumerate(coefficients)) % prime)
        rows.append(row)
    return rows


@pytest.mark.parametrize("case", PRIMITIVES["fields"], ids=lambda case: f"{case['bits']} bits")
def test_fields(case: dict[str, Any]) -> None:
    prime = prime_above(case["bits"])
    assert str(prime) == case["prime"]
    assert str(root_of_unity(prime, 16)) == case["root_of_order_16"]
    start = case["start"]
    places = range(start, start + len(case["elements"]))
    drawn = elements_of(bytes.fromhex(case["seed"]), prime, case["period"], places)
    assert [str(element) for element in drawn] == case["elements"]


@pytest.mark.parametrize("case", PRIMITIVES["carried"], ids=lambda case: f"{case['width']} bits")
def test_entries_in_elements(case: dict[str, Any]) -> None:
    bits = 61 // case["width"] * case["width"]
    elements = join([int(entry) for entry in case["entries"]], case["width"], prime_above(bits))
    assert [str(element) for element in elements] == case["elements"]
    assert pack(elements, bits + 1).hex() == case["packed"]


def test_pieces_and_their_opening() -> None:
    case = PRIMITIVES["code"]
    prime = prime_above(case["bits"])
    rows = pieces_of(
        bytes.fromhex(case["seed"]),
        prime,
        *(case[key] for key in ("roster", "private", "needed", "elements")),
    )
    assert [[str(value) for value in row] for row in rows] == case["pieces"]
    root = root_of_unity(prime, 16)
    points = [pow(root, place, prime) for place in case["answering"]]
    payload = case["needed"] - case["private"]
    opened: list[int] = []
    for column in range(len(rows[0])):
        values = [rows[place][column] for place in case["answering"]]
        opened += interpolated(points, values, prime)[:payload]
    assert [str(value) for value in opened] == case["opened"]
    assert [str(value) for value in opened[: case["elements"]]] == case["mask"]


def interpolated(points: list[int], values: list[int], prime: int) -> list[int]:
    """Return coefficients by Lagrange's formula."""
    total = [0] * len(points)
    for own, (x, y) in enumerate(zip(points, values, strict=True)):
        basis, scale = [1], y
        for other, z in enumerate(points):
            if other != own:
                shifted, times = [0, *basis], [*(-z * b for b in basis), 0]
                basis = [(a + b) % prime for a, b in zip(shifted, times, strict=True)]
                scale = scale * pow(x - z, -1, prime) % prime
        total = [(a + scale * b) % prime for a, b in zip(total, basis, strict=True)]
    return total


@pytest.mark.parametrize("case", PRIMITIVES["thresholds"])
def test_thresholds(case: dict[str, Any]) -> None:
    said = case["statement"]
    m = said["clients"]
    private = max(1, -(-max(said["roster"], m) * said["corrupt_ppm"] // 10**6))
    assert case["private"] == private
    assert case["needed"] == m - m * said["dropped_ppm"] // 10**6
    assert case["quorum"] == (m + private) // 2 + 1


# --- the client -----------------------------------------------------------------------------------


class SecondClient:
    """A client that reads the recorded messages with struct and answers them."""

    def __init__(self, recorded: dict[str, Any]) -> None:
        self.client = recorded["client"]
        self.identity = Ed25519PrivateKey.from_private_bytes(
            bytes.fromhex(recorded["identity_seed"])
        )
        self.draws = [bytes.fromhex(draw) for draw in recorded["random"]]
        self.roster = sorted(int(client) for client in RUN["roster"])
        self.public = {int(client): bytes.fromhex(key) for client, key in RUN["roster"].items()}
        self.survivors = b""

    def header(self, kind: int, number: int) -> bytes:
        return bytes([5, kind]) + self.run + u32(number, self.client)

    def listed(self, bitmap: bytes) -> list[int]:
        return [
            client
            for place, client in enumerate(self.roster)
            if bitmap[place // 8] >> place % 8 & 1
        ]

    def advertise(self, announcement: bytes) -> bytes:
        self.run, self.digest = announcement[2:18], hashlib.sha256(announcement).digest()
        (self.block,) = struct.unpack(">I", announcement[26 + 24 : 26 + 28])
        self.key = X25519PrivateKey.from_private_bytes(self.draws.pop(0))
        public = self.key.public_key().public_bytes_raw()
        signed = LABEL + b"advertise" + self.digest + u32(self.client) + public
        return self.header(16, 0) + public + self.identity.sign(signed)

    def deal(self, message: bytes, number: int) -> bytes:
        head = struct.unpack(">IIQII", message[26:50])
        self.private, self.needed, _length, size, count_ = head
        self.asked, self.map = message[50:82], message[82 : 82 + size]
        receivers = self.listed(self.map)
        if count_:
            self.participants = self.map
            self.sealing = {
                client: message[82 + size + 96 * place :][:32]
                for place, client in enumerate(receivers)
            }
        self.shape = RUN["shapes"][number - 1]
        width = self.shape["width"]
        bits = 61 // width * width
        self.bits, self.prime = bits + 1, prime_above(bits)
        self.elements = -(-self.shape["length"] // (61 // width))
        drawn = self.draws.pop(0)
        self.seed, nonce = drawn[:32], drawn[32:]
        rows = pieces_of(
            self.seed, self.prime, len(self.roster), self.private, self.needed, self.elements
        )
        self.own = rows[self.roster.index(self.client)]
        sealed = []
        for receiver in receivers:
            if receiver != self.client:
                piece = pack(rows[self.roster.index(receiver)], self.bits)
                key = AESGCM(self.sealing_key(self.client, receiver))
                context = self.context(number, self.client, receiver)
                sealed.append(key.encrypt(nonce, piece, context))
        sizes = u32(len(sealed), len(sealed[0]))
        return self.header(18, number) + sizes + nonce + b"".join(sealed)

    def sealing_key(self, sender: int, receiver: int) -> bytes:
        other = receiver if sender == self.client else sender
        agreed = self.key.exchange(X25519PublicKey.from_public_bytes(self.sealing[other]))
        extracted = hmac.new(LABEL + b"\x04\x05", agreed, hashlib.sha256).digest()
        info = b"seal" + self.run + u32(0, sender, receiver)
        return hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()

    def context(self, number: int, sender: int, receiver: int) -> bytes:
        bound = LABEL + b"pieces" + self.digest + u32(number) + self.asked + self.map
        digest = hashlib.sha256(bound).digest()
        return LABEL + b"shares" + digest + u32(sender, receiver)

    def contribute(self, values: list[int]) -> bytes:
        columns = -(-self.elements // (self.needed - self.private))
        period = columns * self.needed
        mask = elements_of(self.seed, self.prime, period, range(self.elements))
        masked = [
            (value + hidden) % self.prime
            for value, hidden in zip(
                join(values, self.shape["width"], self.prime), mask, strict=True
            )
        ]
        return pack(masked, self.bits)

    def confirm(self, message: bytes, number: int) -> bytes:
        if number > 1:
            assert message[26:] == self.survivors
            return self.header(20, number)
        self.survivors = message[26:]
        self.statement = LABEL + b"survivors" + self.digest + self.participants + self.survivors
        return self.header(20, number) + self.identity.sign(self.statement)

    def open(self, message: bytes, number: int) -> bytes:
        size, signatures = struct.unpack(">II", message[26:34])
        signers = self.listed(message[34 : 34 + size]) if size else []
        assert len(signers) == signatures
        place = 34 + size
        for signer in signers:
            key = Ed25519PublicKey.from_public_bytes(self.public[signer])
            key.verify(message[place : place + 64], self.statement)
            place += 64
        m = len(self.listed(self.participants))
        assert number > 1 or signatures == (m + self.private) // 2 + 1
        count_, size = struct.unpack(">II", message[place : place + 8])
        place += 8
        total = self.own
        others = [client for client in self.listed(self.survivors) if client != self.client]
        assert count_ == len(others)
        for sender in others:
            nonce, sealed = message[place : place + 12], message[place + 12 : place + size]
            opened = AESGCM(self.sealing_key(sender, self.client)).decrypt(
                nonce, sealed, self.context(number, sender, self.client)
            )
            piece = unpack(opened, self.bits, len(total))
            total = [(a + b) % self.prime for a, b in zip(total, piece, strict=True)]
            place += size
        assert place == len(message)
        return self.header(22, number) + pack(total, self.bits)


@pytest.mark.parametrize("recorded", RUN["clients"], ids=lambda one: f"client {one['client']}")
def test_a_second_client_answers_as_recorded(recorded: dict[str, Any]) -> None:
    client = SecondClient(recorded)
    for step in recorded["steps"]:
        if "contribute" in step:
            assert step["asked"] == client.asked.hex()
            assert client.contribute(step["values"]).hex() == step["vector"]
            continue
        message = bytes.fromhex(step["receive"])
        kind, number = message[1], int.from_bytes(message[18:22], "big")
        if kind == 1:
            reply = client.advertise(message)
        elif kind == 17:
            reply = client.deal(message, number)
        elif kind == 19:
            reply = client.confirm(message, number)
        else:
            assert kind == 21
            reply = client.open(message, number)
        assert reply.hex() == step["reply"]
    assert not client.draws
