"""The messages and their bytes. docs/secagg-wire.md is the specification.

A message is a header (version, kind, run, round, client) and fields of fixed order. Integers are
big-endian; packed ring entries are not (see `ring`). Reading is strict: what `decode` accepts,
`encode` gives back byte for byte, and anything else is a MalformedMessage.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

from privirec.secagg.errors import (
    MalformedMessage,
    OversizedMessage,
    TruncatedMessage,
    WrongVersion,
)
from privirec.secagg.keys import KEY_BYTES, NONCE_BYTES, SIGNATURE_BYTES, VERSION
from privirec.secagg.parameters import PPM, Statement
from privirec.secagg.ring import BLOCK_ALIGNMENT, VectorShape
from privirec.secagg.shamir import SHARE_BYTES

RUN_BYTES = 16
DIGEST_BYTES = 32
MAX_MESSAGE_BYTES = 1 << 26
MAX_ROUNDS = 1 << 12
MAX_BLOCK_ENTRIES = 1 << 22
EVERYBODY = (1 << 32) - 1
"""The header's client in a message that goes to all."""

_HEADER = struct.Struct(">BB16sII")
_SHAPE = struct.Struct(">QBBQ")
_ANNOUNCE = struct.Struct(">BIIIIHHHI")


@dataclass(frozen=True, slots=True)
class Announce:
    """Server to all: what will be summed, under which assumptions."""

    kind: ClassVar[int] = 1
    run: bytes
    protocol: int
    statement: Statement
    min_cohort: int
    block_entries: int
    roster: bytes
    """Digest of the roster."""
    shapes: tuple[VectorShape, ...]
    round_number: ClassVar[int] = 0
    client: ClassVar[int] = EVERYBODY


@dataclass(frozen=True, slots=True)
class Advertise:
    """Client to server: one public key for shares and one a round for masks, signed."""

    kind: ClassVar[int] = 2
    run: bytes
    client: int
    sealing_key: bytes
    mask_keys: bytes
    """One key after the other, 32 bytes a round."""
    signature: bytes
    round_number: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Server to client: who takes part, the graph's parameters, the neighbours' keys."""

    kind: ClassVar[int] = 3
    run: bytes
    client: int
    neighbours: int
    threshold: int
    participants: bytes
    """Bit p of byte p // 8 (lowest first) says whether the roster's p-th client takes part."""
    keys: tuple[Advertise, ...]
    """Ascending by client."""
    round_number: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class Shares:
    """Client to server: sealed shares for each neighbour, ascending by neighbour."""

    kind: ClassVar[int] = 4
    run: bytes
    client: int
    nonce: bytes
    sealed: tuple[bytes, ...]
    """All of one length."""
    round_number: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class SealedShares:
    """What one neighbour sealed for the receiver."""

    sender: int
    nonce: bytes
    sealed: bytes


@dataclass(frozen=True, slots=True)
class Deliver:
    """Server to client: the shares sealed for it, ascending by sender."""

    kind: ClassVar[int] = 5
    run: bytes
    client: int
    shares: tuple[SealedShares, ...]
    round_number: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class Masked:
    """Client to server: one block of masked entries, packed."""

    kind: ClassVar[int] = 6
    run: bytes
    round_number: int
    client: int
    offset: int
    packed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Survivors:
    """Server to client: which of its neighbours' inputs are in the sum and which are not."""

    kind: ClassVar[int] = 7
    run: bytes
    round_number: int
    client: int
    cohort: int
    """How many clients' inputs are in the sum."""
    survivors: tuple[int, ...]
    dropped: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unmask:
    """Client to server: seed shares of the survivors, key shares of the dropped, in that order."""

    kind: ClassVar[int] = 8
    run: bytes
    round_number: int
    client: int
    seed_shares: tuple[bytes, ...] = field(repr=False)
    key_shares: tuple[bytes, ...] = field(repr=False)


Message = Announce | Advertise | Neighbours | Shares | Deliver | Masked | Survivors | Unmask
KINDS = {
    kind.kind: kind
    for kind in (Announce, Advertise, Neighbours, Shares, Deliver, Masked, Survivors, Unmask)
}


def encode(message: Message) -> bytes:
    """The bytes of a message."""
    header = _HEADER.pack(VERSION, message.kind, message.run, message.round_number, message.client)
    match message:
        case Announce():
            return header + _encode_announce(message)
        case Advertise():
            rounds = len(message.mask_keys) // KEY_BYTES
            return b"".join(
                (
                    header,
                    struct.pack(">H", rounds),
                    message.sealing_key,
                    message.mask_keys,
                    message.signature,
                )
            )
        case Neighbours():
            rounds = len(message.keys[0].mask_keys) // KEY_BYTES if message.keys else 0
            parts = [
                header,
                struct.pack(
                    ">IIIIH",
                    message.neighbours,
                    message.threshold,
                    len(message.participants),
                    len(message.keys),
                    rounds,
                ),
                message.participants,
            ]
            for keys in message.keys:
                parts.append(struct.pack(">I", keys.client))
                parts += (keys.sealing_key, keys.mask_keys, keys.signature)
            return b"".join(parts)
        case Shares():
            size = len(message.sealed[0]) if message.sealed else 0
            counts = struct.pack(">II", len(message.sealed), size)
            return b"".join((header, counts, message.nonce, *message.sealed))
        case Deliver():
            size = len(message.shares[0].sealed) if message.shares else 0
            parts = [header, struct.pack(">II", len(message.shares), size)]
            for share in message.shares:
                parts += (struct.pack(">I", share.sender), share.nonce, share.sealed)
            return b"".join(parts)
        case Masked():
            return header + struct.pack(">Q", message.offset) + message.packed
        case Survivors():
            count, lost = len(message.survivors), len(message.dropped)
            return header + struct.pack(
                f">III{count + lost}I",
                message.cohort,
                count,
                lost,
                *message.survivors,
                *message.dropped,
            )
        case Unmask():
            counts = struct.pack(">II", len(message.seed_shares), len(message.key_shares))
            return b"".join((header, counts, *message.seed_shares, *message.key_shares))


def decode(data: bytes) -> Message:
    """The message in these bytes, or MalformedMessage."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise OversizedMessage(f"a message has at most {MAX_MESSAGE_BYTES} bytes, not {len(data)}")
    if data and data[0] != VERSION:
        raise WrongVersion(f"protocol version {data[0]}, expected {VERSION}")
    reader = _Reader(data)
    _, kind, run, round_number, client = reader.unpack(_HEADER)
    if kind not in KINDS:
        raise MalformedMessage(f"unknown kind of message {kind}")
    in_round = kind in (Masked.kind, Survivors.kind, Unmask.kind)
    if in_round != (0 < round_number <= MAX_ROUNDS) or (not in_round and round_number):
        raise MalformedMessage(f"round {round_number} in a message of kind {kind}")
    if (kind == Announce.kind) != (client == EVERYBODY):
        raise MalformedMessage(f"client {client} in a message of kind {kind}")
    message: Message
    if kind == Announce.kind:
        message = _decode_announce(reader, run)
    elif kind == Advertise.kind:
        (rounds,) = reader.integers("H")
        message = _decode_keys(reader, run, client, _checked_rounds(rounds))
    elif kind == Neighbours.kind:
        message = _decode_neighbours(reader, run, client)
    elif kind == Shares.kind:
        count, size = reader.integers("II")
        _check_empty(count, size)
        nonce = reader.take(NONCE_BYTES)
        reader.expect(count * size)
        message = Shares(run, client, nonce, tuple(reader.take(size) for _ in range(count)))
    elif kind == Deliver.kind:
        count, size = reader.integers("II")
        _check_empty(count, size)
        reader.expect(count * (4 + NONCE_BYTES + size))
        shares = tuple(
            SealedShares(reader.integers("I")[0], reader.take(NONCE_BYTES), reader.take(size))
            for _ in range(count)
        )
        _check_ascending([share.sender for share in shares])
        message = Deliver(run, client, shares)
    elif kind == Masked.kind:
        (offset,) = reader.integers("Q")
        message = Masked(run, round_number, client, offset, reader.rest())
    elif kind == Survivors.kind:
        cohort, count, lost = reader.integers("III")
        reader.expect(4 * (count + lost))
        survivors = reader.integers(f"{count}I")
        dropped = reader.integers(f"{lost}I")
        _check_ascending(survivors)
        _check_ascending(dropped)
        message = Survivors(run, round_number, client, cohort, survivors, dropped)
    else:
        count, lost = reader.integers("II")
        reader.expect(SHARE_BYTES * (count + lost))
        seed_shares = tuple(reader.take(SHARE_BYTES) for _ in range(count))
        key_shares = tuple(reader.take(SHARE_BYTES) for _ in range(lost))
        message = Unmask(run, round_number, client, seed_shares, key_shares)
    reader.finish()
    return message


class _Reader:
    """Takes fields off the front of a message."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def expect(self, size: int) -> None:
        """Raise TruncatedMessage unless so many bytes are left."""
        if len(self._data) - self._position < size:
            raise TruncatedMessage("the message ends before its fields do")

    def take(self, size: int) -> bytes:
        self.expect(size)
        start = self._position
        self._position = start + size
        return self._data[start : self._position]

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        return layout.unpack(self.take(layout.size))

    def integers(self, layout: str) -> tuple[int, ...]:
        layout = ">" + layout
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._position)

    def finish(self) -> None:
        spare = len(self._data) - self._position
        if spare:
            raise OversizedMessage(f"{spare} bytes after the last field")


def _encode_announce(message: Announce) -> bytes:
    statement = message.statement
    return b"".join(
        (
            _ANNOUNCE.pack(
                message.protocol,
                statement.clients,
                statement.corrupt_ppm,
                statement.dropped_ppm,
                message.min_cohort,
                statement.security_bits,
                statement.correctness_bits,
                statement.rounds,
                message.block_entries,
            ),
            message.roster,
            *(
                _SHAPE.pack(
                    shape.length, shape.width, shape.signed | shape.bounds_sum << 1, shape.bound
                )
                for shape in message.shapes
            ),
        )
    )


def _decode_announce(reader: _Reader, run: bytes) -> Announce:
    (
        protocol,
        clients,
        corrupt,
        dropped,
        min_cohort,
        security,
        correctness,
        rounds,
        block_entries,
    ) = reader.unpack(_ANNOUNCE)
    _checked_rounds(rounds)
    if max(corrupt, dropped) > PPM:
        raise MalformedMessage("a share of clients above one")
    if not 0 < block_entries <= MAX_BLOCK_ENTRIES or block_entries % BLOCK_ALIGNMENT:
        raise MalformedMessage(f"blocks of {block_entries} entries")
    roster = reader.take(DIGEST_BYTES)
    reader.expect(rounds * _SHAPE.size)
    shapes = []
    for _ in range(rounds):
        length, width, flags, bound = reader.unpack(_SHAPE)
        if flags > 3:
            raise MalformedMessage(f"flags {flags} of a round")
        try:
            shapes.append(VectorShape(length, width, bound, bool(flags & 1), bool(flags & 2)))
        except ValueError as error:
            raise MalformedMessage(str(error)) from None
    statement = Statement(clients, corrupt, dropped, security, correctness, rounds)
    return Announce(run, protocol, statement, min_cohort, block_entries, roster, tuple(shapes))


def _decode_keys(reader: _Reader, run: bytes, client: int, rounds: int) -> Advertise:
    return Advertise(
        run,
        client,
        reader.take(KEY_BYTES),
        reader.take(rounds * KEY_BYTES),
        reader.take(SIGNATURE_BYTES),
    )


def _decode_neighbours(reader: _Reader, run: bytes, client: int) -> Neighbours:
    degree, threshold, size, count, rounds = reader.integers("IIIIH")
    participants = reader.take(size)
    if count == 0 and rounds != 0:
        raise MalformedMessage("rounds without keys")
    if count:
        _checked_rounds(rounds)
    reader.expect(count * (4 + KEY_BYTES * (1 + rounds) + SIGNATURE_BYTES))
    keys = tuple(_decode_keys(reader, run, reader.integers("I")[0], rounds) for _ in range(count))
    _check_ascending([key.client for key in keys])
    return Neighbours(run, client, degree, threshold, participants, keys)


def _checked_rounds(rounds: int) -> int:
    if not 0 < rounds <= MAX_ROUNDS:
        raise MalformedMessage(f"{rounds} rounds")
    return rounds


def _check_ascending(clients: tuple[int, ...] | list[int]) -> None:
    if any(one >= other for one, other in pairwise(clients)):
        raise MalformedMessage("a list of clients is not in ascending order")


def _check_empty(count: int, size: int) -> None:
    """One encoding for an empty list, and no list of empty strings."""
    if (count == 0) != (size == 0):
        raise MalformedMessage("a list of empty strings")
