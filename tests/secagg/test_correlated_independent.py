"""Independent implementation of docs/reference/correlated-noise.md, without the package: uploads
and sums of the recorded run, rebuilt from the clients' randomness and messages."""

from __future__ import annotations

import hashlib
import json
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from math import isqrt
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from breadth import first

FOLDER = Path(__file__).parent.parent / "vectors" / "secagg"
RUN = json.loads((FOLDER / "run-correlated-noise.json").read_text())
PRIMITIVES = json.loads((FOLDER / "primitives-correlated-noise.json").read_text())
LABEL = b"privirec-secagg-"


@cache
def probabilities(variance: Fraction) -> list[int]:
    """Return P[x], x = -V ... V, in units of 2^-160, by decimals."""
    largest = isqrt(225 * variance.numerator // variance.denominator) + 1
    with localcontext() as context:
        context.prec = 120
        two_v = 2 * Decimal(variance.numerator) / Decimal(variance.denominator)
        weights = [(-Decimal(x * x) / two_v).exp() for x in range(largest + 1)]
        total = 2 * sum(weights) - weights[0]
        upper = [int(Decimal(2**160) * weight / total) for weight in weights]
    upper[0] = 2**160 - 2 * sum(upper[1:])
    return upper[:0:-1] + upper


@cache
def table(variance: Fraction) -> tuple[list[int], list[int], int]:
    """Return thresholds, aliases and V."""
    found = probabilities(variance)
    bits = len(found).bit_length()
    full, size = 2 ** (160 - bits), 2**bits
    left = found + [0] * (size - len(found))
    threshold, alias = [0] * size, list(range(size))
    small = [i for i in range(size) if left[i] < full]
    large = [i for i in range(size) if left[i] > full]
    while small:
        i, g = small.pop(), large[-1]
        threshold[i], alias[i] = left[i], g
        left[g] -= full - left[i]
        if left[g] <= full:
            large.pop()
            if left[g] < full:
                small.append(g)
    return threshold, alias, len(found) // 2


def shifts_of(deviation: int) -> list[int]:
    shifts = [0]
    while deviation**2 > 2184**2 * sum(4**shift for shift in shifts):
        if shifts[-1] == 7 * (len(shifts) - 1):
            shifts.append(shifts[-1] + 1)
        else:
            shifts[-1] += 1
    return shifts


def block(seed: bytes, counter: int) -> bytes:
    cipher = Cipher(algorithms.AES256(seed), modes.CTR(counter.to_bytes(16, "big")))
    return cipher.encryptor().update(bytes(16))


def noise(seed: bytes, deviation: int, entry: int) -> int:
    shifts = shifts_of(deviation)
    variance = Fraction(deviation**2, sum(4**shift for shift in shifts))
    threshold, alias, largest = table(variance)
    below = 160 - (len(threshold).bit_length() - 1)
    total = 0
    for level, shift in enumerate(shifts):
        at = 4 * entry
        word = block(seed, level * 2**64 + at // 16)[at % 16 : at % 16 + 4]
        fine = block(seed, 2**127 + level * 2**64 + entry)
        u = int.from_bytes(word, "little") << 128 | int.from_bytes(fine, "big")
        cell = u >> below
        number = cell if u & (2**below - 1) < threshold[cell] else alias[cell]
        total += (number - largest) << shift
    return total


def derived(secret: bytes, run: bytes, number: int, pair: list[int], asked: bytes) -> bytes:
    numbers = b"".join(value.to_bytes(4, "big") for value in (number, *pair))
    for info in (b"pair" + run + numbers, b"asks" + run + numbers + asked):
        secret = HKDF(hashes.SHA256(), 32, LABEL + b"\x05\x04", info).derive(secret)
    return secret


def announced() -> dict[str, Any]:
    """Return the fields of the announcement by position."""
    raw = bytes.fromhex(RUN["clients"][0]["steps"][0]["receive"])
    assert raw[:2] == bytes([4, 32])
    sums = int.from_bytes(raw[26 + 22 : 26 + 24], "big")
    shapes_at = 26 + 28 + 32
    noise_at = shapes_at + 18 * sums
    shapes, levels = [], []
    for number in range(sums):
        shape = raw[shapes_at + 18 * number :][:18]
        shapes.append(
            {
                "length": int.from_bytes(shape[:8], "big"),
                "signed": shape[9] & 1,
                "bound": int.from_bytes(shape[10:], "big"),
            }
        )
        unit, own, pair = raw[noise_at + 4 + 3 * number :][:3]
        levels.append((unit - 256 if unit > 127 else unit, own, pair))
    return {
        "raw": raw,
        "run": raw[2:18],
        "clients": int.from_bytes(raw[28:32], "big"),
        "dropped": int.from_bytes(raw[36:40], "big"),
        "block": int.from_bytes(raw[50:54], "big"),
        "neighbours": int.from_bytes(raw[noise_at : noise_at + 4], "big"),
        "shapes": shapes,
        "levels": levels,
    }


def width_of(terms: dict[str, Any], number: int) -> int:
    shape, (unit, own, pair) = terms["shapes"][number - 1], terms["levels"][number - 1]
    n = terms["clients"]
    d = n * terms["dropped"] // 1_000_000
    v = n * (4**own + 1) + d * terms["neighbours"] * 4**pair
    b = 41 + shape["length"].bit_length()
    x = isqrt(14 * v * b // 10) + 1
    largest = n * shape["bound"]
    exact = -(-largest // 2**unit) if unit >= 0 else largest * 2**-unit
    return int((exact + x).bit_length() + 1)


def upload(recorded: dict[str, Any], number: int) -> list[int]:
    """Return one client's vector as it must be on the wire."""
    terms = announced()
    unit, own_bits, pair_bits = terms["levels"][number - 1]
    private, own_seeds = (bytes.fromhex(drawn) for drawn in recorded["random"])
    own_seed = own_seeds[32 * (number - 1) : 32 * number]
    told = bytes.fromhex(recorded["steps"][1]["receive"])
    assert told[:2] == bytes([4, 34])
    size, entries = (int.from_bytes(told[at : at + 4], "big") for at in (26, 30))
    client = recorded["client"]
    (step,) = [step for step in recorded["steps"] if step.get("contribute") == number]
    values, asked = step["values"], bytes.fromhex(step["asked"])
    seeds = []
    for place in range(entries):
        at = 34 + size + 100 * place
        peer = int.from_bytes(told[at : at + 4], "big")
        public = X25519PublicKey.from_public_bytes(told[at + 4 : at + 36])
        secret = X25519PrivateKey.from_private_bytes(private).exchange(public)
        seed = derived(secret, terms["run"], number, sorted((client, peer)), asked)
        seeds.append((1 if client < peer else -1, seed))
    sent = []
    for entry, value in enumerate(values):
        if unit > 0:
            blurred = value + noise(own_seed, 2 ** (own_bits + unit), entry)
            total = (blurred + 2 ** (unit - 1)) // 2**unit
        else:
            total = value * 2**-unit + noise(own_seed, 2**own_bits, entry)
        for sign, seed in seeds:
            total += sign * noise(seed, 2**pair_bits, entry)
        sent.append(total % 2 ** width_of(terms, number))
    return sent


def packed(entries: list[int], width: int) -> bytes:
    stream = sum(entry << width * place for place, entry in enumerate(entries))
    return stream.to_bytes((len(entries) * width + 7) // 8, "little")


@pytest.mark.parametrize("place", first(1, [4, 0, 7]))
@pytest.mark.parametrize("number", [1, 2])
def test_uploads_byte_for_byte(place: int, number: int) -> None:
    recorded, terms = RUN["clients"][place], announced()
    sent, width = upload(recorded, number), width_of(terms, number)
    (step,) = [step for step in recorded["steps"] if step.get("contribute") == number]
    assert step["vector"] == packed(sent, width).hex()


def test_sums_and_signatures() -> None:
    terms = announced()
    digest = hashlib.sha256(terms["raw"]).digest()
    for number in (1, 2):
        unit = terms["levels"][number - 1][0]
        width = width_of(terms, number)
        inside = [one for one in RUN["clients"] if len(one["steps"]) == 4]
        totals = [
            sum(column) % 2**width
            for column in zip(*(upload(one, number) for one in inside), strict=True)
        ]
        signed = [total - 2**width if total >> (width - 1) else total for total in totals]
        if unit >= 0:
            opened = [total * 2**unit for total in signed]
        else:
            opened = [(total + 2 ** (-unit - 1)) // 2**-unit for total in signed]
        assert opened == RUN["sums"][number - 1]
    reply = bytes.fromhex(RUN["clients"][0]["steps"][0]["reply"])
    assert reply[:2] == bytes([4, 33])
    identity = Ed25519PrivateKey.from_private_bytes(
        bytes.fromhex(RUN["clients"][0]["identity_seed"])
    )
    client = RUN["clients"][0]["client"].to_bytes(4, "big")
    text = LABEL + b"advertise" + digest + client + reply[26:58]
    identity.public_key().verify(reply[58:], text)


@pytest.mark.check
def test_tables_and_streams() -> None:
    for case in PRIMITIVES["tables"]:
        if case["deviation"] > 600 and case["deviation"] != 1 << 14:
            continue  # these are slow in decimals
        assert shifts_of(case["deviation"]) == case["shifts"]
        threshold, alias, largest = table(Fraction(case["variance"]))
        assert largest == case["largest"]
        found = hashlib.sha256()
        for low, other in zip(threshold, alias, strict=True):
            found.update(((low >> 128) << case["cell_bits"] | other).to_bytes(4, "big"))
            found.update((low % 2**128).to_bytes(16, "big"))
        assert found.hexdigest() == case["sha256"]
    for case in PRIMITIVES["streams"]:
        if case["deviation"] == 16:
            seed = bytes.fromhex(case["seed"])
            values = [noise(seed, 16, case["offset"] + place) for place in range(8)]
            assert values == case["values"]
