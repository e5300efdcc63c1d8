"""Build the vectors of averaging with correlated noise; `make_vectors` writes them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, replace
from fractions import Fraction
from typing import Any

import numpy as np

from privirec.extra.correlated.levels import NoiseRule, graph_degree, noisy_shape, upload_shape
from privirec.extra.correlated.messages import (
    VERSION,
    NoisyAdvertise,
    NoisyAnnounce,
    NoisyNeighbours,
    decode,
)
from privirec.federated.dp.sampler import GaussianNoise, NoiseGenerator
from privirec.federated.dp.tables import gaussian_probabilities, gaussian_table
from privirec.secagg import keys
from privirec.secagg.keys import Identity
from privirec.secagg.messages import Announce, ProtocolMessage, encode
from privirec.secagg.parameters import Statement
from privirec.secagg.protocol import Agreement
from privirec.secagg.ring import VectorShape
from secagg.testing import InsecureSeededBytes

LABEL = keys.LABEL + bytes([5, VERSION])
"""Label of keys of `correlated-noise`."""
SHAPES = (VectorShape(11, 13, 300, signed=True), VectorShape(6, 40, 1 << 34))
"""Shapes whose uploads are in finer and in coarser units than announced."""
DEVIATIONS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 1 << 14, 1 << 20, 1 << 40)
STATEMENTS = (
    Statement.of(8, 0.1, 0.125),
    Statement.of(60, 0.05, 0.1),
    Statement.of(1000, 0.05, 0.05),
    Statement.of(1000, 0.05, 0.0),
    Statement.of(30_000, 0.2, 0.2),
)


def primitives() -> dict[str, Any]:
    """Return vectors of each construction."""
    source = InsecureSeededBytes("correlated noise")
    seed, agreed, run = source(32), source(32), source(16)
    tables = []
    for deviation in DEVIATIONS:
        noise = GaussianNoise(deviation)
        tables.append(
            {
                "deviation": deviation,
                "shifts": list(noise.shifts),
                "variance": str(noise.table.variance),
                "cell_bits": noise.table.cell_bits,
                "largest": noise.table.largest,
                "sha256": noise.table.digest(),
            }
        )
    streams = []
    for deviation, offset in ((16, 0), (16, 1001), (2048, 3), (4096, 0), (1 << 20, 123_456_789)):
        block = np.zeros(8, np.int64)
        NoiseGenerator(GaussianNoise(deviation)).add(block, offset, [seed])
        streams.append(
            {"deviation": deviation, "seed": seed.hex(), "offset": offset, "values": block.tolist()}
        )
    secret, asked = keys.derive(LABEL, agreed, b"pair", run, 2, (5, 9)), bytes(range(32))
    return {
        "version": VERSION,
        "protocol": 5,
        "probabilities": {
            "variance": "4",
            "of_0_1_2": [hex(value) for value in gaussian_probabilities(Fraction(4))[31:34]],
            "table_sha256": gaussian_table(Fraction(4)).digest(),
        },
        "tables": tables,
        "streams": streams,
        "derivation": {
            "agreed": agreed.hex(),
            "run": run.hex(),
            "pair": [5, 9],
            "sum": 2,
            "asked": asked.hex(),
            "secret": secret.hex(),
            "seed": keys.derive(LABEL, secret, b"asks", run, 2, (5, 9), asked).hex(),
        },
        "levels": [
            {
                "statement": asdict(statement),
                "shape": asdict(shape),
                "neighbours": graph_degree(statement),
                "levels": asdict(levels := NoiseRule().levels(shape, statement)),
                "upload_width": upload_shape(
                    shape, statement, graph_degree(statement), levels
                ).width,
                "opened": asdict(noisy_shape(shape, statement, graph_degree(statement), levels)),
            }
            for statement in STATEMENTS
            for shape in (
                VectorShape(1000, 16, 1, bounds_sum=False),
                VectorShape(100_000, 32, (1 << 31) - 1, signed=True, bounds_sum=True),
            )
        ],
    }


def bad_messages(run: dict[str, Any], victim: int) -> dict[str, Any]:
    """Return bad messages; each replaces the next message to the victim after a number of good
    steps."""
    recorded = next(one for one in run["clients"] if one["client"] == victim)
    raw = [bytes.fromhex(step["receive"]) for step in recorded["steps"] if "receive" in step]
    announce, told = (decode(message) for message in raw)
    assert isinstance(announce, NoisyAnnounce)
    assert isinstance(told, NoisyNeighbours)
    identity = {
        one["client"]: Identity(bytes.fromhex(one["identity_seed"])) for one in run["clients"]
    }
    own_key = decode(bytes.fromhex(recorded["steps"][0]["reply"]))
    assert isinstance(own_key, NoisyAdvertise)
    digest = hashlib.sha256(raw[0]).digest()
    cases: list[dict[str, Any]] = []

    def case(
        name: str, error: str, after: int, message: bytes | ProtocolMessage, **policy: object
    ) -> None:
        cases.append(
            {
                "name": name,
                "error": error,
                "after": after,
                "message": (message if isinstance(message, bytes) else encode(message)).hex(),
                "policy": {**run["policy"], **policy},
            }
        )

    def noise(**changes: int) -> NoisyAnnounce:
        """Return the announcement with other levels for the first sum."""
        levels = announce.noise[0]
        changed = replace(
            levels, **{name: getattr(levels, name) + by for name, by in changes.items()}
        )
        return replace(announce, noise=(changed, announce.noise[1]))

    def with_key(change: Callable[[NoisyAdvertise], NoisyAdvertise]) -> NoisyNeighbours:
        return replace(told, keys=(change(told.keys[0]), *told.keys[1:]))

    def signed(key: NoisyAdvertise, by: int) -> NoisyAdvertise:
        text = keys.advertised_bytes(digest, key.client, key.noise_key, b"")
        return replace(key, signature=identity[by].sign(text))

    # The announcement: checks of every protocol's clients.
    case("cohort below the policy", "CohortTooSmall", 0, raw[0], min_cohort=9)
    few = replace(announce, statement=announce.statement.with_clients(2))
    case("fewer clients announced than the roster has", "RosterMismatch", 0, few)
    case("another roster", "RosterMismatch", 0, replace(announce, roster=bytes(32)))
    case("another protocol", "WrongProtocol", 0, replace(announce, protocol=1))
    case("more may drop than the policy allows", "WeakParameters", 0, raw[0], max_dropped_share=0.1)
    narrow = replace(announce, shapes=(replace(SHAPES[0], bound=600), SHAPES[1]))
    case("ring too narrow", "RingTooNarrow", 0, narrow)
    unproven = replace(announce, shapes=(replace(SHAPES[0], bounds_sum=True), SHAPES[1]))
    case("a bound on the sum without proof", "RingTooNarrow", 0, unproven)
    promised = Agreement(announce.run, announce.statement, announce.shapes, announce.block_entries)
    for what, other in (
        ("run", replace(promised, run=bytes(16))),
        ("statement", replace(promised, statement=Statement.of(8, 0.2, 0.125, rounds=2))),
        ("shapes", replace(promised, shapes=SHAPES[::-1])),
        ("blocks", replace(promised, block_entries=16)),
    ):
        agreement = asdict(other) | {"run": other.run.hex()}
        case(f"another {what} than agreed", "AgreementMismatch", 0, raw[0], agreement=agreement)
    # The announcement: noise.
    case("own noise below the policy", "WeakParameters", 0, raw[0], own_noise=0.01)
    case("own noise below the default policy", "WeakParameters", 0, noise(unit=-2, pair_bits=2))
    case("noise of pairs below the policy", "WeakParameters", 0, raw[0], pair_noise=1e6)
    case("noise of pairs below own noise", "WeakParameters", 0, noise(pair_bits=-8))
    case("integers too coarse", "WeakParameters", 0, noise(unit=1, own_bits=-1))
    case("too few neighbours", "WeakParameters", 0, replace(announce, neighbours=2))
    case("an odd number of neighbours", "WeakParameters", 0, replace(announce, neighbours=5))
    coarse = replace(announce, neighbours=60)
    case("integers too coarse for so many neighbours", "WeakParameters", 0, coarse)
    case("nobody to hide behind", "ParametersInfeasible", 0, raw[0], corrupt_share=0.9)
    case(
        "noise that fits into no ring",
        "RingTooNarrow",
        0,
        noise(unit=-46, own_bits=46, pair_bits=45),
    )
    limits = bytearray(raw[0])
    limits[-6] = 0x7F
    case("a unit of 2^127", "MalformedMessage", 0, bytes(limits))
    # The announcement: bytes.
    plain = Announce(
        announce.run,
        announce.protocol,
        announce.version,
        announce.statement,
        announce.min_cohort,
        announce.block_entries,
        announce.roster,
        announce.shapes,
    )
    case("an announcement that says nothing of noise", "MalformedMessage", 0, plain)
    case("empty message", "TruncatedMessage", 0, b"")
    case("truncated announcement", "TruncatedMessage", 0, raw[0][:-1])
    case("bytes after the end", "OversizedMessage", 0, raw[0] + b"\0")
    case("another version", "WrongVersion", 0, bytes([raw[0][0] + 1]) + raw[0][1:])
    case("unknown kind", "MalformedMessage", 0, bytes([VERSION, 0x63]) + raw[0][2:])
    case("neighbours before the announcement", "OutOfOrder", 0, raw[1])
    # Participants.
    case("announcement replayed", "ReplayedMessage", 1, raw[0])
    case("another run", "WrongRun", 1, replace(told, run=bytes(16)))
    case("message of another client", "WrongRun", 1, replace(told, client=10))
    case("a client's message", "OutOfOrder", 1, own_key)
    case("truncated neighbours", "TruncatedMessage", 1, raw[1][:-40])
    present = told.participants[0]
    missing = replace(told, participants=bytes([present & ~1]))
    case("client missing from the graph", "NotInGraph", 1, missing)
    case("too few take part", "CohortTooSmall", 1, replace(told, participants=b"\3"))
    picked = replace(told, participants=bytes([0b111111]))
    case("six of eight take part where one may drop", "CohortTooSmall", 1, picked)
    case(
        "map of participants too long",
        "MalformedMessage",
        1,
        replace(told, participants=b"\xff\xff"),
    )
    case("a neighbour left out", "GraphNotRegular", 1, replace(told, keys=told.keys[:-1]))
    fewer = replace(told, participants=bytes([present & 0x7F]))
    case("a neighbour who takes no part", "GraphNotRegular", 1, fewer)
    itself = tuple(sorted([*told.keys[1:], own_key], key=lambda key: key.client))
    case("a client as its own neighbour", "GraphNotSymmetric", 1, replace(told, keys=itself))
    backwards = replace(told, keys=told.keys[::-1])
    case("keys in another order", "MalformedMessage", 1, backwards)
    foreign = keys.public_key(b"m" * 32)
    replaced = with_key(lambda key: replace(key, noise_key=foreign))
    case("key replaced", "BadSignature", 1, replaced)
    case("signed by another identity", "BadSignature", 1, with_key(lambda key: signed(key, victim)))
    small = with_key(lambda key: signed(replace(key, noise_key=bytes(32)), key.client))
    case("key of small order", "BadKey", 1, small)
    # After the first vector.
    case("neighbours again after a vector", "ReplayedMessage", 3, raw[1])
    case("announcement again after a vector", "ReplayedMessage", 3, raw[0])
    return {"version": VERSION, "client": victim, "cases": cases}
