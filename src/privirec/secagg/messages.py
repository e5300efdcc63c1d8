"""What the messages of all protocols share: header, limits, strict reading, two of the messages.

A message is a header (version, kind, run, round, client) and fields of fixed order. Integers are
big-endian; packed ring entries are not (see `ring`). Every type writes and reads its own fields,
and a protocol makes its `decoder` from the types it knows. Reading is strict: what a decoder
accepts, `encode` gives back byte for byte, and anything else is a MalformedMessage.

Kinds are unique over all protocols: 1 to 15 belong to `bell2020`, 16 to 31 to LightSecAgg, 32 to 47
to correlated noise. `Masked` (6) serves all of them, `Announce` (1) all that add nothing to it.
docs/secagg-wire.md is the specification.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Self

from privirec.secagg.errors import (
    MalformedMessage,
    OversizedMessage,
    TruncatedMessage,
    WrongVersion,
)
from privirec.secagg.keys import VERSION
from privirec.secagg.parameters import PPM, ServerModel, Statement
from privirec.secagg.ring import BLOCK_ALIGNMENT, VectorShape

RUN_BYTES = 16
DIGEST_BYTES = 32
MAX_MESSAGE_BYTES = 1 << 26
MAX_SUMS = 1 << 12
MAX_BLOCK_ENTRIES = 1 << 22
EVERYBODY = (1 << 32) - 1
"""The header's client in a message that goes to all."""

_HEADER = struct.Struct(">BB16sII")
_SHAPE = struct.Struct(">QBBQ")
_ANNOUNCE = struct.Struct(">BBIIIIHHHI")
_SERVER_MODELS = (ServerModel.SEMI_HONEST, ServerModel.ACTIVE)
"""By their numbers in announcements."""


class Header(NamedTuple):
    """What every message begins with, after version and kind."""

    run: bytes
    round_number: int
    """The sum it belongs to, from 1; 0 in the set-up."""
    client: int
    """Sender or receiver, whichever is not the server."""


class Message(ABC):
    """Base of all messages, which are frozen dataclasses with the header's values as fields."""

    __slots__ = ()

    kind: ClassVar[int]
    of_sum: ClassVar[bool] = False
    """Whether it belongs to one sum; others have round 0."""
    to_all: ClassVar[bool] = False
    """Whether it goes to everybody in the same words."""

    run: bytes
    round_number: int
    client: int

    @abstractmethod
    def write_fields(self) -> Iterable[bytes]:
        """The bytes after the header, in pieces."""

    @classmethod
    @abstractmethod
    def read_fields(cls, header: Header, reader: Reader) -> Self:
        """Inverse of `write_fields`. Raises MalformedMessage for what it would not write."""


class Reader:
    """Takes fields off the front of a message."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def expect(self, size: int) -> None:
        """Raise TruncatedMessage unless so many bytes are left: call it before reading a list."""
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
        """Unsigned integers by their letters in `struct`, such as "IIH"."""
        layout = ">" + layout
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def strings(self, count: int, size: int) -> tuple[bytes, ...]:
        """So many strings of one length."""
        self.expect(count * size)
        return tuple(self.take(size) for _ in range(count))

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._position)

    def finish(self) -> None:
        """Raise OversizedMessage if anything is left."""
        spare = len(self._data) - self._position
        if spare:
            raise OversizedMessage(f"{spare} bytes after the last field")


def encode(message: Message) -> bytes:
    """The bytes of a message."""
    header = _HEADER.pack(VERSION, message.kind, message.run, message.round_number, message.client)
    return b"".join((header, *message.write_fields()))


def addressed(message: bytes, client: int) -> bytes:
    """The same message to another client: its header ends with the client."""
    return message[: _HEADER.size - 4] + struct.pack(">I", client) + message[_HEADER.size :]


def decoder(*types: type[Message]) -> Callable[[bytes], Message]:
    """A function that reads messages of these types, and raises MalformedMessage for all else."""
    by_kind = {one.kind: one for one in types}

    def decode(data: bytes) -> Message:
        """The message in these bytes, or MalformedMessage."""
        if len(data) > MAX_MESSAGE_BYTES:
            raise OversizedMessage(
                f"a message has at most {MAX_MESSAGE_BYTES} bytes, not {len(data)}"
            )
        if data and data[0] != VERSION:
            raise WrongVersion(f"protocol version {data[0]}, expected {VERSION}")
        reader = Reader(data)
        _, kind, *values = reader.unpack(_HEADER)
        header = Header(*values)
        if kind not in by_kind:
            raise MalformedMessage(f"unknown kind of message {kind}")
        found = by_kind[kind]
        number = header.round_number
        if not (0 < number <= MAX_SUMS if found.of_sum else number == 0):
            raise MalformedMessage(f"round {number} in a message of kind {kind}")
        if found.to_all != (header.client == EVERYBODY):
            raise MalformedMessage(f"client {header.client} in a message of kind {kind}")
        message = found.read_fields(header, reader)
        reader.finish()
        return message

    return decode


@dataclass(frozen=True, slots=True)
class Announce(Message):
    """Server to all: what will be summed, under which assumptions."""

    kind: ClassVar[int] = 1
    to_all: ClassVar[bool] = True
    run: bytes
    protocol: int
    statement: Statement
    min_cohort: int
    block_entries: int
    roster: bytes
    """Digest of the roster."""
    shapes: tuple[VectorShape, ...]
    round_number: int = field(default=0, init=False)
    client: int = field(default=EVERYBODY, init=False)

    def write_fields(self) -> Iterable[bytes]:
        statement = self.statement
        yield _ANNOUNCE.pack(
            self.protocol,
            _SERVER_MODELS.index(statement.server),
            statement.clients,
            statement.corrupt_ppm,
            statement.dropped_ppm,
            self.min_cohort,
            statement.security_bits,
            statement.correctness_bits,
            statement.rounds,
            self.block_entries,
        )
        yield self.roster
        for shape in self.shapes:
            flags = shape.signed | shape.bounds_sum << 1
            yield _SHAPE.pack(shape.length, shape.width, flags, shape.bound)

    @classmethod
    def read_fields(cls, header: Header, reader: Reader) -> Self:
        (
            protocol,
            server,
            clients,
            corrupt,
            dropped,
            min_cohort,
            security,
            correctness,
            sums,
            block_entries,
        ) = reader.unpack(_ANNOUNCE)
        check_sums(sums)
        if server >= len(_SERVER_MODELS):
            raise MalformedMessage(f"unknown kind of server {server}")
        if max(corrupt, dropped) > PPM:
            raise MalformedMessage("a share of clients above one")
        if not 0 < block_entries <= MAX_BLOCK_ENTRIES or block_entries % BLOCK_ALIGNMENT:
            raise MalformedMessage(f"blocks of {block_entries} entries")
        roster = reader.take(DIGEST_BYTES)
        reader.expect(sums * _SHAPE.size)
        shapes = tuple(_read_shape(reader) for _ in range(sums))
        statement = Statement(
            *(clients, corrupt, dropped, security, correctness, sums),
            server=_SERVER_MODELS[server],
        )
        return cls(header.run, protocol, statement, min_cohort, block_entries, roster, shapes)


@dataclass(frozen=True, slots=True)
class Masked(Message):
    """Client to server: one block of its vector, packed; masked by every protocol but `none`."""

    kind: ClassVar[int] = 6
    of_sum: ClassVar[bool] = True
    run: bytes
    round_number: int
    client: int
    offset: int
    packed: bytes = field(repr=False)

    def write_fields(self) -> Iterable[bytes]:
        return struct.pack(">Q", self.offset), self.packed

    @classmethod
    def read_fields(cls, header: Header, reader: Reader) -> Self:
        (offset,) = reader.integers("Q")
        return cls(*header, offset, reader.rest())


def _read_shape(reader: Reader) -> VectorShape:
    length, width, flags, bound = reader.unpack(_SHAPE)
    if flags > 3:
        raise MalformedMessage(f"flags {flags} of a round")
    try:
        return VectorShape(length, width, bound, bool(flags & 1), bool(flags & 2))
    except ValueError as error:
        raise MalformedMessage(str(error)) from None


def check_sums(sums: int) -> int:
    """The number of sums in a run, or MalformedMessage."""
    if not 0 < sums <= MAX_SUMS:
        raise MalformedMessage(f"{sums} rounds")
    return sums


def check_ascending(clients: Sequence[int]) -> None:
    """Raise MalformedMessage unless a list of clients is in ascending order."""
    if any(one >= other for one, other in pairwise(clients)):
        raise MalformedMessage("a list of clients is not in ascending order")


def check_empty(count: int, size: int) -> None:
    """One encoding for an empty list, and no list of empty strings."""
    if (count == 0) != (size == 0):
        raise MalformedMessage("a list of empty strings")
