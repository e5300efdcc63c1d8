"""Build the vectors of LightSecAgg; `make_vectors` writes them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from privirec.extra.lightsecagg.code import Decoder, MaskCode
from privirec.extra.lightsecagg.field import ElementShape, Field
from privirec.extra.lightsecagg.messages import Deal, LightSurvivors, Open, SignedKey, decode
from privirec.extra.lightsecagg.shared import EXCHANGE, pieces_context, survivors_statement
from privirec.extra.lightsecagg.thresholds import Thresholds, thresholds
from privirec.secagg import keys
from privirec.secagg.keys import Identity
from privirec.secagg.messages import Announce, encode
from privirec.secagg.parameters import Statement
from privirec.secagg.ring import VectorShape
from secagg.testing import InsecureSeededBytes

SHAPES = (VectorShape(99, 13, 300, signed=True), VectorShape(9, 32, 1000))
"""Shapes: 25 elements of four entries in five columns; nine elements of one entry in two."""
STATEMENTS = (
    Statement.of(8, 0.1, 0.125),
    Statement.of(100, 0.05, 0.05),
    Statement.of(100, 0.0, 0.3),
    Statement.of(1000, 0.1, 0.1).with_clients(900),
)


def primitives() -> dict[str, Any]:
    """Return vectors of each construction."""
    seed = InsecureSeededBytes("lightsecagg")(32)
    fields = []
    for bits in (31, 32, 52, 60, 61):
        field = Field(bits)
        fields.append(
            {
                "bits": bits,
                "prime": str(field.prime),
                "root_of_order_16": str(field.root(16)),
                "seed": seed.hex(),
                "start": 5,
                "period": 1000,
                "elements": [str(one) for one in field.uniform(seed, 5, 12, 1000).tolist()],
            }
        )
    carried = []
    for width, signed, values in (
        (13, True, [-300, 4095, -4095, 0, 1]),
        (13, False, [300, 8191, 0, 0, 1]),
        (32, True, [-1, 2**31 - 1, -(2**31) + 1]),
        (61, False, [2**61 - 1, 0]),
        (1, False, [1, 0, 1, 1]),
    ):
        shape = ElementShape(VectorShape(len(values), width, 2 ** (width - signed) - 1, signed))
        words = shape.entries.ring.encode(np.array(values, np.int64), shape.entries.bound, signed)
        elements = shape.join(words)
        carried.append(
            {
                "width": width,
                "signed": signed,
                "entries": [str(value) for value in values],
                "elements": [str(element) for element in elements.tolist()],
                "packed": shape.field.pack(elements).hex(),
            }
        )
    code = MaskCode(Field(32), 11, Thresholds(9, 2, 6), 7)
    pieces = code.encode(seed, range(11))
    answering = [0, 2, 3, 5, 8, 10]
    opened = Decoder(code, answering).decode(pieces[answering])
    return {
        "version": EXCHANGE.version,
        "protocol": EXCHANGE.code,
        "fields": fields,
        "carried": carried,
        "code": {
            "bits": 32,
            "roster": 11,
            "private": 2,
            "needed": 6,
            "elements": 7,
            "seed": seed.hex(),
            "mask": [str(element) for element in code.mask(seed, 0, 7).tolist()],
            "pieces": [[str(element) for element in piece] for piece in pieces.tolist()],
            "answering": answering,
            "opened": [str(element) for element in opened.tolist()],
        },
        "thresholds": [
            {
                "statement": asdict(statement),
                "private": thresholds(statement).private,
                "needed": thresholds(statement).needed,
                "quorum": thresholds(statement).quorum,
            }
            for statement in STATEMENTS
        ],
    }


def bad_messages(run: dict[str, Any], victim: int) -> dict[str, Any]:
    """Return bad messages; each replaces the next message to the victim after a number of good
    steps."""
    recorded = next(one for one in run["clients"] if one["client"] == victim)
    steps = recorded["steps"]
    raw = [bytes.fromhex(step["receive"]) if "receive" in step else b"" for step in steps]
    # Sum 1: announcement, deal, vector, survivors, opening; sum 2: the same without the first.
    announce, deal, survivors, opening = (decode(raw[place]) for place in (0, 1, 3, 4))
    deal2, survivors2, opening2 = (decode(raw[place]) for place in (5, 7, 8))
    assert isinstance(announce, Announce)
    assert isinstance(deal, Deal)
    assert isinstance(deal2, Deal)
    assert isinstance(survivors, LightSurvivors)
    assert isinstance(survivors2, LightSurvivors)
    assert isinstance(opening, Open)
    assert isinstance(opening2, Open)
    cases: list[dict[str, Any]] = []

    def case(name: str, error: str, after: int, message: bytes, **policy: object) -> None:
        changed = {**run["policy"], **policy}
        cases.append(
            {
                "name": name,
                "error": error,
                "after": after,
                "message": message.hex(),
                "policy": changed,
            }
        )

    identity = {
        one["client"]: Identity(bytes.fromhex(one["identity_seed"])) for one in run["clients"]
    }
    clients = sorted(identity)
    digest = hashlib.sha256(raw[0]).digest()

    def signed(public: bytes, client: int, signer: int) -> SignedKey:
        statement = keys.advertised_bytes(digest, client, public, b"")
        return SignedKey(public, identity[signer].sign(statement))

    def with_key(place: int, change: Callable[[SignedKey], SignedKey]) -> bytes:
        listed = list(deal.keys)
        listed[place] = change(listed[place])
        return encode(replace(deal, keys=tuple(listed)))

    # Announce.
    case("another protocol", "WrongProtocol", 0, encode(replace(announce, protocol=1)))
    case("another roster", "RosterMismatch", 0, encode(replace(announce, roster=bytes(32))))
    case("cohort below the policy", "CohortTooSmall", 0, raw[0], min_cohort=9)
    case("more may drop than the policy allows", "WeakParameters", 0, raw[0], max_dropped_share=0.1)
    wide = replace(announce, shapes=(VectorShape(9, 62, 5), SHAPES[1]))
    case("entries wider than an element", "ParametersInfeasible", 0, encode(wide))
    narrow = replace(announce, shapes=(replace(SHAPES[0], bound=600), SHAPES[1]))
    case("ring too narrow", "RingTooNarrow", 0, encode(narrow))
    hopeless = replace(announce, statement=replace(announce.statement, corrupt_ppm=800_000))
    case("more corrupt than can be withstood", "ParametersInfeasible", 0, encode(hopeless))
    case("bytes after the end", "OversizedMessage", 0, raw[0] + b"\0")
    case("another version", "WrongVersion", 0, bytes([raw[0][0] + 1]) + raw[0][1:])
    case(
        "a message of another protocol",
        "MalformedMessage",
        0,
        bytes([EXCHANGE.version, 3]) + raw[0][2:],
    )
    case("pieces before the announcement", "OutOfOrder", 0, raw[1])
    # Deal, first sum.
    case("announcement replayed", "ReplayedMessage", 1, raw[0])
    case("another run", "WrongRun", 1, encode(replace(deal, run=bytes(16))))
    case("message of another client", "WrongRun", 1, encode(replace(deal, client=10)))
    case("the second sum first", "OutOfOrder", 1, encode(replace(deal, sum_number=2)))
    case("truncated keys", "TruncatedMessage", 1, raw[1][:-1])
    case("too few pieces say nothing", "WeakParameters", 1, encode(replace(deal, private=0)))
    case("fewer pieces open", "WeakParameters", 1, encode(replace(deal, needed=6)))
    case("weaker than the policy", "WeakParameters", 1, raw[1], corrupt_share=0.3)
    case("policy cannot be met", "ParametersInfeasible", 1, raw[1], corrupt_share=0.9)
    case("two take part", "CohortTooSmall", 1, encode(replace(deal, receivers=b"\3")))
    six = replace(deal, receivers=bytes([0b111111]))
    case("six of eight take part where one may drop", "CohortTooSmall", 1, encode(six))
    case("client missing", "NotInGraph", 1, encode(replace(deal, receivers=b"\xfe")))
    case("map too long", "MalformedMessage", 1, encode(replace(deal, receivers=b"\xff\0")))
    case("a key too few", "BadKey", 1, encode(replace(deal, keys=deal.keys[:-1])))
    own = keys.public_key(b"m" * 32)
    case("key replaced", "BadSignature", 1, with_key(4, lambda key: replace(key, sealing_key=own)))
    other = signed(own, clients[4], clients[5])
    case("signed by another identity", "BadSignature", 1, with_key(4, lambda _: other))
    small = signed(bytes(32), clients[4], clients[4])
    case("key of small order", "BadKey", 1, with_key(4, lambda _: small))
    mine = clients.index(victim)
    not_mine = signed(own, victim, victim)
    case("another key of the client itself", "BadKey", 1, with_key(mine, lambda _: not_mine))
    # LightSurvivors, first sum.
    case("survivors before the vector", "OutOfOrder", 2, raw[3])
    case("pieces asked for again", "ReplayedMessage", 3, raw[1])
    bits = survivors.survivors[0]
    case("client not in the sum", "NotInGraph", 3, encode(replace(survivors, survivors=b"\xde")))
    case("two more dropped", "TooManyDropped", 3, encode(replace(survivors, survivors=b"\x1f")))
    case("sum over one client", "CohortTooSmall", 3, encode(replace(survivors, survivors=b"\1")))
    case("map too short", "MalformedMessage", 3, encode(replace(survivors, survivors=b"")))
    case("opening before survivors", "OutOfOrder", 3, raw[4])
    case("survivors of a later sum", "OutOfOrder", 3, raw[7])
    # Opening, first sum.
    case("survivors again", "ReplayedMessage", 4, raw[3])
    everybody = encode(replace(survivors, survivors=b"\xff"))
    case("other survivors", "SecondSurvivorSet", 4, everybody)
    few = [client for client in clients if bits >> clients.index(client) & 1][:4]
    fewer = replace(
        opening,
        signers=bytes([sum(1 << clients.index(client) for client in few)]),
        signatures=opening.signatures[:4],
    )
    case("four confirm where five must", "BelowThreshold", 4, encode(fewer))
    missing = replace(opening, signatures=opening.signatures[:4])
    case("a signature too few", "MalformedMessage", 4, encode(missing))
    turned = (*opening.signatures[1:], opening.signatures[0])
    case("signatures of others", "BadSignature", 4, encode(replace(opening, signatures=turned)))
    lie = survivors_statement(digest, deal.receivers, b"\xff")
    for_others = tuple(identity[client].sign(lie) for client in clients[:5])
    case(
        "signatures of another set",
        "BadSignature",
        4,
        encode(replace(opening, signatures=for_others)),
    )
    outsider = bytes([opening.signers[0] & ~1 | (0xFF & ~bits)])
    case(
        "a signature of one who dropped",
        "Stranger",
        4,
        encode(replace(opening, signers=outsider)),
    )
    size = len(opening.pieces) // opening.count
    one_less = replace(opening, count=opening.count - 1, pieces=opening.pieces[size:])
    case("a piece too few", "BadShare", 4, encode(one_less))
    tampered = opening.pieces[:-1] + bytes([opening.pieces[-1] ^ 1])
    case("piece tampered with", "BadShare", 4, encode(replace(opening, pieces=tampered)))
    crossed = opening.pieces[size : 2 * size] + opening.pieces[:size] + opening.pieces[2 * size :]
    case("pieces of other senders", "BadShare", 4, encode(replace(opening, pieces=crossed)))
    short = b"".join(
        opening.pieces[start : start + 7] for start in range(0, len(opening.pieces), size)
    )
    case("pieces cut off", "BadShare", 4, encode(replace(opening, pieces=short)))
    # Sealed by an honest sender, but not below the prime.
    elements = ElementShape(SHAPES[0])
    piece = np.full(5, elements.field.ring.modulus - 1, np.uint64)
    sender = next(client for client in clients if client != victim)
    sealed = _sealed_to(run, recorded, sender, digest, deal, elements.field.ring.pack(piece))
    first = bytes(12) + sealed
    case(
        "a piece that is none",
        "BadShare",
        4,
        encode(replace(opening, pieces=first + opening.pieces[size:])),
    )
    # The second sum.
    case("opening again", "ReplayedMessage", 5, raw[4])
    case("first survivors again", "ReplayedMessage", 5, raw[3])
    case("other survivors of the first sum", "SecondSurvivorSet", 5, everybody)
    case("cohort changed", "CohortChanged", 5, encode(replace(deal2, receivers=b"\xff")))
    case("new keys", "BadKey", 5, encode(replace(deal2, keys=deal.keys)))
    case("other thresholds", "WeakParameters", 5, encode(replace(deal2, private=2)))
    gone = replace(survivors2, survivors=bytes([bits & ~2]))
    case("cohort changed after the vectors", "CohortChanged", 7, encode(gone))
    resigned = replace(opening2, signers=opening.signers, signatures=opening.signatures)
    case("signatures of the first sum", "MalformedMessage", 8, encode(resigned))
    size = len(opening2.pieces) // opening2.count
    again = b"".join(
        opening.pieces[len(opening.pieces) // opening.count * place :][:size]
        for place in range(opening2.count)
    )
    case("pieces of the first sum", "BadShare", 8, encode(replace(opening2, pieces=again)))
    return {"version": EXCHANGE.version, "client": victim, "cases": cases}


def _sealed_to(
    run: dict[str, Any],
    recorded: dict[str, Any],
    sender: int,
    digest: bytes,
    deal: Deal,
    plain: bytes,
) -> bytes:
    """Return a message that a corrupt sender could seal for the recorded client."""
    other = next(one for one in run["clients"] if one["client"] == sender)
    private = bytes.fromhex(other["random"][0])
    (agreed,) = keys.agree(private, [keys.public_key(bytes.fromhex(recorded["random"][0]))])
    receiver = recorded["client"]
    key = keys.sealing_key(EXCHANGE.label, agreed, deal.run, sender, receiver)
    context = pieces_context(digest, 1, deal.asked, deal.receivers)
    return keys.seal(key, bytes(12), plain, keys.shares_context(context, sender, receiver))
