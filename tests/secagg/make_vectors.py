"""Write the test vectors of secure aggregation; the output is reproducible.

    PYTHONPATH=tests python -m secagg.make_vectors

primitives.json  each building block on its own
run.json         a whole run: what every client draws, receives, answers and contributes;
                 run-secagg.json and run-none.json are the same under the other protocols
run-active.json  the same against an active server
bad.json         messages that the client of run.json must refuse, and with which error
bad-active.json  those that matter against an active server, for the client of run-active.json

Those of LightSecAgg (primitives-lightsecagg.json ...) come from lightsecagg_vectors.py, those of
averaging with correlated noise (primitives-correlated-noise.json ...) from correlated_vectors.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from privirec.secagg import keys
from privirec.secagg.bell2020.messages import (
    VERSION,
    Confirmed,
    Deliver,
    Neighbours,
    Survivors,
    decode,
)
from privirec.secagg.bell2020.shared import survivors_statement
from privirec.secagg.graph import RingGraph, graph_seed
from privirec.secagg.key_tree import KeyTree, key_leaf
from privirec.secagg.keys import Identity, Roster
from privirec.secagg.messages import Announce, encode
from privirec.secagg.parameters import (
    Parameters,
    ServerModel,
    Statement,
    complete_parameters,
    sparse_parameters,
)
from privirec.secagg.participants import read_participants, write_participants
from privirec.secagg.prg import MaskGenerator
from privirec.secagg.protocol import Agreement, ClientPolicy, Phase, ServerSettings
from privirec.secagg.registry import protocol
from privirec.secagg.ring import Ring, VectorShape
from privirec.secagg.shamir import split
from secagg.testing import InsecureSeededBytes

if __package__:
    from . import correlated_vectors, lightsecagg_vectors
else:  # run as a script
    import correlated_vectors
    import lightsecagg_vectors

LABEL = keys.LABEL + bytes([1, VERSION])
"""Label of keys of `secagg+`."""
FOLDER = Path(__file__).parent.parent / "vectors" / "secagg"
CLIENTS = 8
IDS = [3, 10, 11, 12, 200, 201, 70000, 4_000_000_000]
DROPPED = 201
SHAPES = [VectorShape(11, 13, 300, signed=True), VectorShape(6, 4, 1)]
VICTIM = 3
"""The client that receives the bad messages."""


class Recorded:
    """A source of randomness that records its output."""

    def __init__(self, seed: str) -> None:
        self._source = InsecureSeededBytes(seed)
        self.drawn: list[str] = []

    def __call__(self, size: int) -> bytes:
        self.drawn.append(self._source(size).hex())
        return bytes.fromhex(self.drawn[-1])


def primitives() -> dict[str, Any]:
    source = InsecureSeededBytes("primitives")
    private, other = source(32), source(32)
    (agreed,) = keys.agree(private, [keys.public_key(other)])
    run, digest = source(16), source(32)
    identity_seed = source(32)
    identity = Identity(identity_seed)
    nonce, seed = source(12), source(32)
    draws = Recorded("shamir")
    secrets = [source(32), source(32)]
    shares = split(secrets, 7, 4, draws)
    packed = []
    for width in (1, 3, 12, 16, 20, 33, 64):
        entries = [int.from_bytes(source(8), "big") % (1 << width) for _ in range(9)]
        ring = Ring(width)
        packed.append(
            {
                "width": width,
                "entries": [str(entry) for entry in entries],
                "packed": ring.pack(np.array(entries, ring.dtype)).hex(),
            }
        )
    masks = []
    for width, offset in ((8, 0), (12, 0), (12, 5), (16, 1001), (32, 3), (64, 123_456_789)):
        block = np.zeros(6, Ring(width).dtype)
        MaskGenerator().add(block, offset, [seed])
        words = [str(word) for word in block.tolist()]
        masks.append({"width": width, "seed": seed.hex(), "offset": offset, "words": words})
    sealing = keys.sealing_key(LABEL, agreed, run, 5, 9)
    context = keys.shares_context(digest, 5, 9)
    signed = keys.advertised_bytes(digest, 5, keys.public_key(private), keys.public_key(other))
    roster = {5: identity.public, 9: Identity(source(32)).public}
    root = source(32)
    leaves = [key_leaf(client, source(32), source(64)) for client in range(5)]
    return {
        "version": VERSION,
        "protocol": 1,
        "x25519": {
            "private": private.hex(),
            "public": keys.public_key(private).hex(),
            "peer": keys.public_key(other).hex(),
            "agreed": agreed.hex(),
        },
        "derivation": {
            "agreed": agreed.hex(),
            "run": run.hex(),
            "pair": [5, 9],
            "round": 2,
            "asked": asked_in(2).hex(),
            "mask_seed": keys.mask_seed(LABEL, agreed, run, 2, 5, 9, asked_in(2)).hex(),
            "sealing_key_5_to_9": sealing.hex(),
            "sealing_key_9_to_5": keys.sealing_key(LABEL, agreed, run, 9, 5).hex(),
        },
        "sealing": {
            "key": sealing.hex(),
            "nonce": nonce.hex(),
            "announcement_digest": digest.hex(),
            "sender": 5,
            "receiver": 9,
            "plain": seed.hex(),
            "sealed": keys.seal(sealing, nonce, seed, context).hex(),
        },
        "signature": {
            "identity_seed": identity_seed.hex(),
            "public": identity.public.hex(),
            "signed": signed.hex(),
            "signature": identity.sign(signed).hex(),
        },
        "roster": {
            "keys": {str(client): key.hex() for client, key in roster.items()},
            "digest": Roster(roster).digest.hex(),
        },
        "packing": packed,
        "masks": masks,
        "sharing": {
            "secrets": [secret.hex() for secret in secrets],
            "threshold": 4,
            "random": draws.drawn,
            "shares": [share.hex() for share in shares],
        },
        "graphs": [
            {
                "announcement_digest": digest.hex(),
                "participants": "ff0f",
                "root": root.hex(),
                "size": 12,
                "degree": degree,
                "seed": graph_seed(digest, b"\xff\x0f", root).hex(),
                "neighbours": RingGraph(12, degree, graph_seed(digest, b"\xff\x0f", root))
                .all_neighbours()
                .tolist(),
            }
            for degree in (4, 11)
        ],
        "key_trees": [
            {
                "leaves": [leaf.hex() for leaf in leaves[:size]],
                "root": KeyTree(leaves[:size]).root.hex(),
                "paths": [
                    [one.hex() for one in KeyTree(leaves[:size]).path(place)]
                    for place in range(size)
                ],
            }
            for size in (1, 2, 5)
        ],
        "parameters": [
            {
                **asdict(statement),
                "sparse": list(asdict(sparse_parameters(statement)).values()),
                "complete": list(asdict(complete_parameters(statement)).values()),
            }
            for statement in (
                Statement.of(8, 0.1, 0.125),
                Statement.of(100, 0.33, 0.05),
                Statement.of(1000, 0.1, 0.1),
                Statement.of(1000, 0.1, 0.1, rounds=7),
                Statement.of(1000, 0.1, 0.1).with_clients(900),
                Statement.of(30_000, 0.2, 0.2, security_bits=64),
                Statement.of(8, 0.1, 0.125, server=ServerModel.ACTIVE),
                Statement.of(100, 0.05, 0.05, server=ServerModel.ACTIVE),
                Statement.of(1000, 0.05, 0.2, rounds=7, server=ServerModel.ACTIVE),
                Statement.of(1000, 0.1, 0.1, server=ServerModel.ACTIVE).with_clients(900),
                Statement.of(30_000, 0.05, 0.05, server=ServerModel.ACTIVE),
            )
        ],
    }


def asked_in(number: int) -> bytes:
    """Return a stand-in for the digest of a sum's request."""
    return hashlib.sha256(f"sum {number}".encode()).digest()


def values_of(client: int, number: int, shape: VectorShape) -> list[int]:
    lowest = -shape.bound if shape.signed else 0
    random = np.random.default_rng([client, number])
    return random.integers(lowest, shape.bound, shape.length, endpoint=True).tolist()


def good_run(
    name: str,
    shapes: Sequence[VectorShape] = SHAPES,
    model: ServerModel = ServerModel.SEMI_HONEST,
) -> dict[str, Any]:
    identities = {client: Identity(InsecureSeededBytes(f"id {client}")(32)) for client in IDS}
    roster = Roster({client: identity.public for client, identity in identities.items()})
    scheme = protocol(name)
    statement = Statement.of(CLIENTS, 0.1, 0.125, rounds=len(shapes), server=model)
    policy = ClientPolicy(server=model)
    settings = ServerSettings(block_entries=8)
    server = scheme.server(roster, statement, shapes, settings, InsecureSeededBytes("server"))
    random = {client: Recorded(f"client {client}") for client in IDS}
    sessions = {
        client: scheme.client(client, identities[client], roster, policy, random[client])
        for client in IDS
    }
    steps: dict[int, list[dict[str, Any]]] = {client: [] for client in IDS}

    def exchange(outgoing: list[tuple[int, bytes]]) -> None:
        for client, message in outgoing:
            reply = sessions[client].receive(message)
            steps[client].append(
                {"receive": message.hex(), "reply": reply.hex() if reply else None}
            )
            if reply:
                server.receive(client, reply)

    def contribute(number: int) -> None:
        for client in sorted(server.waiting_for() - {DROPPED}):
            values = values_of(client, number, shapes[number - 1])
            vector, asked = [np.array(values)], asked_in(number)
            packed = b"".join(sessions[client].contribute(number, vector, asked))
            steps[client].append(
                {
                    "contribute": number,
                    "values": values,
                    "asked": asked.hex(),
                    "vector": packed.hex(),
                }
            )
            server.add_vector(client, number, packed)

    sums, survivors = [], []
    while (step := server.step) is not None:
        server.asked = asked_in(step.sum_number)
        exchange([(client, message) for client, message in server.outgoing() if message])
        if step.phase is Phase.INPUT:
            contribute(step.sum_number)
        if not step.opens_sum:
            server.advance()
            continue
        total = server.open_sum()
        survivors.append(list(server.survivors))
        shape = scheme.opened_shape(shapes[step.sum_number - 1], statement)
        sums.append(shape.ring.decode_signed(total) if shape.signed else total)
    return {
        "version": VERSION,
        "protocol": scheme.name,
        "policy": asdict(policy),
        "shapes": [asdict(shape) for shape in shapes],
        "roster": {str(client): key.hex() for client, key in roster.items()},
        "clients": [
            {
                "client": client,
                "identity_seed": InsecureSeededBytes(f"id {client}")(32).hex(),
                "random": random[client].drawn,
                "steps": steps[client],
            }
            for client in IDS
        ],
        "survivors": survivors,
        "sums": [total.tolist() for total in sums],
    }


class BadCases:
    """Messages for the victim of a run; each replaces the next one after a number of good steps."""

    def __init__(self, run: dict[str, Any]) -> None:
        self._policy = run["policy"]
        victim = next(one for one in run["clients"] if one["client"] == VICTIM)
        self.received = [bytes.fromhex(step.get("receive", "")) for step in victim["steps"]]
        self.cases: list[dict[str, Any]] = []
        self.identity = {
            one["client"]: Identity(bytes.fromhex(one["identity_seed"])) for one in run["clients"]
        }
        self.roster = Roster({client: one.public for client, one in self.identity.items()})

    def add(self, name: str, error: str, after: int, message: bytes, **policy: object) -> None:
        self.cases.append(
            {
                "name": name,
                "error": error,
                "after": after,
                "message": message.hex(),
                "policy": {**self._policy, **policy},
            }
        )

    def without(self, told: Survivors, *clients: int) -> bytes:
        """Return the message without these clients."""
        present = set(read_participants(told.survivors, self.roster).tolist())
        return self.only(told, present - set(clients))

    def only(self, told: Survivors, clients: set[int]) -> bytes:
        return encode(replace(told, survivors=write_participants(clients, self.roster)))

    def written(self) -> dict[str, Any]:
        return {"version": VERSION, "client": VICTIM, "cases": self.cases}


def bad_messages(run: dict[str, Any]) -> dict[str, Any]:
    bad = BadCases(run)
    raw, case, identity = bad.received, bad.add, bad.identity
    announce, neighbours, deliver = (decode(message) for message in raw[:3])
    first, second = decode(raw[4]), decode(raw[6])
    assert isinstance(announce, Announce)
    assert isinstance(neighbours, Neighbours)
    assert isinstance(deliver, Deliver)
    assert isinstance(first, Survivors)
    assert isinstance(second, Survivors)

    def with_key(change: Callable[[Any], Any]) -> bytes:
        changed = (change(neighbours.keys[0]), *neighbours.keys[1:])
        return encode(replace(neighbours, keys=changed))

    listed = {key.client for key in neighbours.keys}
    (outsider,) = set(IDS) - listed - {VICTIM}
    advertised = {
        one["client"]: decode(bytes.fromhex(one["steps"][0]["reply"])) for one in run["clients"]
    }
    swapped = sorted(
        [*neighbours.keys[1:], advertised[outsider]],  # type: ignore[list-item]
        key=lambda key: key.client,
    )
    present = bytearray(neighbours.participants)

    # Announce: the terms.
    case("cohort below the policy", "CohortTooSmall", 0, raw[0], min_cohort=9)
    few = replace(announce, statement=announce.statement.with_clients(2))
    case("fewer clients announced than the roster has", "RosterMismatch", 0, encode(few))
    case("more may drop than the policy allows", "WeakParameters", 0, raw[0], max_dropped_share=0.1)
    narrow = replace(announce, shapes=(replace(SHAPES[0], bound=600), SHAPES[1]))
    case("ring too narrow", "RingTooNarrow", 0, encode(narrow))
    unproven = replace(announce, shapes=(replace(SHAPES[0], bounds_sum=True), SHAPES[1]))
    case("a bound on the sum without proof", "RingTooNarrow", 0, encode(unproven))
    over = replace(SHAPES[0], bound=1 << 12, bounds_sum=True)
    wide = replace(announce, shapes=(over, SHAPES[1]))
    case("ring too narrow for the sum", "RingTooNarrow", 0, encode(wide), proven_sums=True)
    flags = bytearray(raw[0])
    flags[-9] = 4
    case("unknown flags of a round", "MalformedMessage", 0, bytes(flags))
    case("another protocol", "WrongProtocol", 0, encode(replace(announce, protocol=2)))
    other_roster = replace(announce, roster=bytes(32))
    case("another roster", "RosterMismatch", 0, encode(other_roster))
    # Announce: earlier promises to the client.
    promised = Agreement(announce.run, announce.statement, announce.shapes, announce.block_entries)
    for name, broken in (
        ("another run than agreed", replace(promised, run=bytes(16))),
        (
            "more corrupt clients than agreed",
            replace(promised, statement=replace(promised.statement, corrupt_ppm=50_000)),
        ),
        ("other vectors than agreed", replace(promised, shapes=promised.shapes[:1])),
        ("other blocks than agreed", replace(promised, block_entries=16)),
    ):
        agreed = {**asdict(broken), "run": broken.run.hex()}
        case(name, "AgreementMismatch", 0, raw[0], agreement=agreed)
    # Announce: bytes.
    case("empty message", "TruncatedMessage", 0, b"")
    case("truncated announcement", "TruncatedMessage", 0, raw[0][:-1])
    case("bytes after the end", "OversizedMessage", 0, raw[0] + b"\0")
    case("another version", "WrongVersion", 0, bytes([raw[0][0] + 1]) + raw[0][1:])
    case("unknown kind", "MalformedMessage", 0, bytes([VERSION, 0x63]) + raw[0][2:])
    case("unknown kind of server", "MalformedMessage", 0, raw[0][:27] + b"\2" + raw[0][28:])
    case("a server that is trusted more than allowed", "WeakParameters", 0, raw[0], server="active")
    case("neighbours before the announcement", "OutOfOrder", 0, raw[1])
    # Neighbours.
    case("announcement replayed", "ReplayedMessage", 1, raw[0])
    case("another run", "WrongRun", 1, encode(replace(neighbours, run=bytes(16))))
    case("message of another client", "WrongRun", 1, encode(replace(neighbours, client=10)))
    case("shares before neighbours", "OutOfOrder", 1, raw[2])
    case("truncated neighbours", "TruncatedMessage", 1, raw[1][:-40])
    lower = replace(neighbours, threshold=neighbours.threshold - 1)
    case("threshold too low", "WeakParameters", 1, encode(lower))
    fewer = replace(neighbours, neighbours=4, keys=neighbours.keys[:4])
    case("too few neighbours", "WeakParameters", 1, encode(fewer))
    case("weaker than the policy", "WeakParameters", 1, raw[1], corrupt_share=0.3)
    case("policy cannot be met", "ParametersInfeasible", 1, raw[1], corrupt_share=0.9)
    missing = replace(neighbours, participants=bytes([present[0] & ~1]))
    case("client missing from the graph", "NotInGraph", 1, encode(missing))
    cohort_of_two = replace(neighbours, participants=b"\3")
    case("too few take part", "CohortTooSmall", 1, encode(cohort_of_two))
    picked = replace(neighbours, participants=bytes([0b111111]))
    case("six of eight take part where one may drop", "CohortTooSmall", 1, encode(picked))
    wrong_map = replace(neighbours, participants=b"\xff\xff")
    case("map of participants too long", "MalformedMessage", 1, encode(wrong_map))
    irregular = replace(neighbours, keys=neighbours.keys[:-1])
    case("graph not regular", "GraphNotRegular", 1, encode(irregular))
    asymmetric = replace(neighbours, keys=tuple(swapped))
    case("graph not symmetric", "GraphNotSymmetric", 1, encode(asymmetric))
    case(
        "sealing key replaced",
        "BadSignature",
        1,
        with_key(lambda key: replace(key, sealing_key=keys.public_key(b"m" * 32))),
    )
    case(
        "mask key replaced",
        "BadSignature",
        1,
        with_key(
            lambda key: replace(key, mask_keys=key.mask_keys[:32] + keys.public_key(b"m" * 32))
        ),
    )

    def resigned(key: Any) -> Any:
        signed = keys.advertised_bytes(
            announcement_digest(raw[0]), key.client, key.sealing_key, key.mask_keys
        )
        return replace(key, signature=identity[VICTIM].sign(signed))

    def small_order(key: Any) -> Any:
        signed = keys.advertised_bytes(
            announcement_digest(raw[0]), key.client, bytes(32), key.mask_keys
        )
        return replace(key, sealing_key=bytes(32), signature=identity[key.client].sign(signed))

    def small_order_later(key: Any) -> Any:
        masks = key.mask_keys[:32] + bytes(32)
        signed = keys.advertised_bytes(
            announcement_digest(raw[0]), key.client, key.sealing_key, masks
        )
        return replace(key, mask_keys=masks, signature=identity[key.client].sign(signed))

    case("signed by another identity", "BadSignature", 1, with_key(resigned))
    case("mask key of small order in the second round", "BadKey", 1, with_key(small_order_later))
    case("key of small order", "BadKey", 1, with_key(small_order))
    one_round = tuple(replace(key, mask_keys=key.mask_keys[:32]) for key in neighbours.keys)
    case("keys for one round only", "BadKey", 1, encode(replace(neighbours, keys=one_round)))
    # Deliver.
    sealed = deliver.shares[0].sealed
    tampered = replace(deliver.shares[0], sealed=sealed[:-1] + bytes([sealed[-1] ^ 1]))
    shares = (tampered, *deliver.shares[1:])
    case("shares tampered with", "BadShare", 2, encode(replace(deliver, shares=shares)))
    crossed = replace(deliver.shares[0], sealed=deliver.shares[1].sealed)
    shares = (crossed, *deliver.shares[1:])
    case("shares of another sender", "BadShare", 2, encode(replace(deliver, shares=shares)))
    shares = tuple(
        sorted(
            [*deliver.shares[1:], replace(deliver.shares[0], sender=outsider)],
            key=lambda share: share.sender,
        )
    )
    case("shares of a stranger", "Stranger", 2, encode(replace(deliver, shares=shares)))
    case(
        "shares below the threshold",
        "BelowThreshold",
        2,
        encode(replace(deliver, shares=deliver.shares[:1])),
    )
    case(
        "more shares kept back than clients may drop",
        "TooManyDropped",
        2,
        encode(replace(deliver, shares=deliver.shares[2:])),
    )
    case("survivors before any input", "OutOfOrder", 3, raw[4])
    unasked = Confirmed(first.run, 1, VICTIM, ())
    case("confirmation that nobody asked for", "OutOfOrder", 4, encode(unasked))
    # Survivors, first round.
    peers = sorted(listed - {DROPPED})
    everybody = set(IDS)
    lost = bad.without
    case("client missing from the sum", "NotInGraph", 4, lost(first, VICTIM))
    case("sum over two clients", "CohortTooSmall", 4, bad.only(first, {VICTIM, peers[0]}))
    case("more dropped than allowed", "TooManyDropped", 4, lost(first, peers[0]))
    case("map of survivors too long", "MalformedMessage", 4, raw[4] + b"\0")
    case("map of survivors too short", "MalformedMessage", 4, raw[4][:-1])
    case("survivors of a later round", "OutOfOrder", 4, raw[6])
    case("shares delivered again", "ReplayedMessage", 4, raw[2])
    case("truncated survivors", "TruncatedMessage", 4, raw[4][:20])
    # After the first round was answered.
    case("second unmask", "SecondUnmask", 5, raw[4])
    case("second set of survivors", "SecondSurvivorSet", 5, bad.only(first, everybody))
    case("survivors before the second input", "OutOfOrder", 5, raw[6])
    case("cohort changed", "CohortChanged", 6, lost(second, peers[0]))
    case("cohort of another size", "CohortChanged", 6, bad.only(second, everybody))
    case("first survivors again", "SecondUnmask", 6, raw[4])
    return bad.written()


def bad_from_an_active_server(run: dict[str, Any]) -> dict[str, Any]:
    """Return messages that are refused if the server may lie. All of bad.json before the survivors
    is refused here too."""
    bad = BadCases(run)
    raw, case, identity = bad.received, bad.add, bad.identity
    announce, neighbours, deliver = (decode(message) for message in raw[:3])
    first, confirmed, second = decode(raw[4]), decode(raw[5]), decode(raw[7])
    assert isinstance(announce, Announce)
    assert isinstance(neighbours, Neighbours)
    assert isinstance(deliver, Deliver)
    assert isinstance(first, Survivors)
    assert isinstance(confirmed, Confirmed)
    assert isinstance(second, Survivors)
    listed = sorted(key.client for key in neighbours.keys)
    peers = [client for client in listed if client != DROPPED]
    digest = announcement_digest(raw[0])
    graph = graph_seed(digest, neighbours.participants, neighbours.root)
    numbers = Parameters(neighbours.neighbours, neighbours.threshold)

    def signed_by_all(
        survivors: bytes, announcement: bytes = digest, seed: bytes = graph
    ) -> tuple[bytes, ...]:
        statement = survivors_statement(announcement, seed, numbers, survivors)
        return tuple(identity[peer].sign(statement) for peer in peers)

    def with_signatures(signatures: Sequence[bytes]) -> bytes:
        return encode(replace(confirmed, signatures=tuple(signatures)))

    good = confirmed.signatures
    assert good == signed_by_all(first.survivors)
    # Announce.
    semi_honest = replace(announce.statement, server=ServerModel.SEMI_HONEST)
    trusting = encode(replace(announce, statement=semi_honest))
    case("a server that is trusted more than allowed", "WeakParameters", 0, trusting)
    agreed = Agreement(announce.run, semi_honest, announce.shapes, announce.block_entries)
    promised = {**asdict(agreed), "run": agreed.run.hex()}
    case("another server than agreed", "AgreementMismatch", 0, raw[0], agreement=promised)
    # Neighbours.
    lower = replace(neighbours, threshold=neighbours.threshold - 1)
    case("threshold too low", "WeakParameters", 1, encode(lower))
    higher = replace(neighbours, threshold=neighbours.threshold + 1)
    case("another threshold than computed", "WeakParameters", 1, encode(higher))
    case("policy cannot be met", "ParametersInfeasible", 1, raw[1], corrupt_share=0.7)
    other_root = replace(neighbours, root=bytes(32))
    case("a graph from other keys", "KeysNotInGraph", 1, encode(other_root))
    leaves = [bytes([place]) * 32 for place in range(CLIENTS)]
    chosen = KeyTree(leaves)
    place = IDS.index(VICTIM)
    foreign = replace(neighbours, root=chosen.root, path=chosen.path(place))
    case("a tree without the client's keys", "KeysNotInGraph", 1, encode(foreign))
    crossed = replace(neighbours, path=(neighbours.path[1], neighbours.path[0], neighbours.path[2]))
    case("a path in another order", "KeysNotInGraph", 1, encode(crossed))
    short = replace(neighbours, path=neighbours.path[:-1])
    case("a path that is too short", "KeysNotInGraph", 1, encode(short))
    long = replace(neighbours, path=(*neighbours.path, bytes(32)))
    case("a path that is too long", "KeysNotInGraph", 1, encode(long))
    # Survivors.
    case("survivors before any input", "OutOfOrder", 3, raw[4])
    case("client missing from the sum", "NotInGraph", 4, bad.without(first, VICTIM))
    case("more dropped than allowed", "TooManyDropped", 4, bad.without(first, peers[0]))
    case("confirmation before survivors", "OutOfOrder", 4, raw[5])
    # Confirmed.
    case("survivors again", "ReplayedMessage", 5, raw[4])
    case("other survivors after the first", "SecondSurvivorSet", 5, bad.only(first, set(IDS)))
    case("nobody has confirmed", "Unconfirmed", 5, with_signatures(()))
    case("one neighbour has not confirmed", "Unconfirmed", 5, with_signatures(good[1:]))
    case("one signature too many", "Unconfirmed", 5, with_signatures((*good, good[0])))
    altered = good[0][:-1] + bytes([good[0][-1] ^ 1])
    case("a signature that is none", "BadSignature", 5, with_signatures((altered, *good[1:])))
    order = (good[1], good[0], *good[2:])
    case("signatures in another order", "BadSignature", 5, with_signatures(order))
    twice = (good[0], good[0], *good[2:])
    case("one neighbour twice", "BadSignature", 5, with_signatures(twice))
    statement = survivors_statement(digest, graph, numbers, first.survivors)
    (outsider,) = set(IDS) - set(listed) - {VICTIM}
    for name, signer in (("a stranger", outsider), ("a neighbour that dropped", DROPPED)):
        case(
            f"the signature of {name}",
            "BadSignature",
            5,
            with_signatures((identity[signer].sign(statement), *good[1:])),
        )
    everybody = write_participants(IDS, bad.roster)
    for name, signatures in (
        ("neighbours that were told of other survivors", signed_by_all(everybody)),
        ("signatures of another run", signed_by_all(first.survivors, announcement=bytes(32))),
        ("signatures of another graph", signed_by_all(first.survivors, seed=bytes(32))),
    ):
        case(name, "BadSignature", 5, with_signatures(signatures))
    of_second = bytearray(raw[5])
    of_second[21] = 2
    case("confirmation of a later round", "MalformedMessage", 5, bytes(of_second))
    case("survivors of a later round", "OutOfOrder", 5, raw[7])
    # After the first round was answered.
    case("confirmation again", "ReplayedMessage", 6, raw[5])
    case("first survivors again", "ReplayedMessage", 6, raw[4])
    case("second set of survivors", "SecondSurvivorSet", 6, bad.only(first, set(IDS)))
    case("cohort changed", "CohortChanged", 7, bad.without(second, peers[0]))
    return bad.written()


def announcement_digest(announcement: bytes) -> bytes:
    return hashlib.sha256(announcement).digest()


def build() -> dict[str, Any]:
    """Return a map of file names to contents."""
    run = good_run("secagg+")
    active = good_run("secagg+", model=ServerModel.ACTIVE)
    light = good_run("lightsecagg", lightsecagg_vectors.SHAPES)
    noisy = good_run("correlated-noise", correlated_vectors.SHAPES)
    return {
        "primitives.json": primitives(),
        "run.json": run,
        "run-secagg.json": good_run("secagg"),
        "run-none.json": good_run("none"),
        "run-active.json": active,
        "bad.json": bad_messages(run),
        "bad-active.json": bad_from_an_active_server(active),
        "primitives-lightsecagg.json": lightsecagg_vectors.primitives(),
        "run-lightsecagg.json": light,
        "bad-lightsecagg.json": lightsecagg_vectors.bad_messages(light, VICTIM),
        "primitives-correlated-noise.json": correlated_vectors.primitives(),
        "run-correlated-noise.json": noisy,
        "bad-correlated-noise.json": correlated_vectors.bad_messages(noisy, VICTIM),
    }


def text(contents: Any) -> str:
    return json.dumps(contents, indent=1) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file, contents in build().items():
        (FOLDER / file).write_text(text(contents))
