"""Header, limits and strict decoding common to the messages of all protocols; the announcement.

A message consists of a header (version, kind, run, sum, client) and fields in a fixed order.
Integers are big-endian; packed ring entries are not (see `ring`). Each type writes and reads its
own fields, and each protocol builds a `decoder` for its types. Decoding is strict: `encode`
reproduces every accepted message byte for byte, and all other input raises MalformedMessage.

Each protocol has a version of its own. Kinds are unique over all protocols: 1 to 15 belong to
`bell2020`, 16 to 31 to LightSecAgg, 32 to 47 to correlated noise. Protocols that add nothing to the
announcement use `Announce` (1). Vectors are no messages: they travel as packed entries alone, and
the carrier names run, sum and client. docs/reference/secagg-wire.md is the specification.
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
from privirec.secagg.parameters import PPM, ServerModel, Statement
from privirec.secagg.ring import BLOCK_ALIGNMENT, VectorShape

RUN_BYTES = 16
DIGEST_BYTES = 32
MAX_MESSAGE_BYTES = 1 << 26
MAX_SUMS = 1 << 12
MAX_BLOCK_ENTRIES = 1 << 22
EVERYBODY = (1 << 32) - 1
"""Client id in the header of a message to all clients."""

_HEADER = struct.Struct(">BB16sII")
_SHAPE = struct.Struct(">QBBQ")
_ANNOUNCE = struct.Struct(">BBIIIIHHHI")
_SERVER_MODELS = (ServerModel.SEMI_HONEST, ServerModel.ACTIVE)
"""Server models; the index is the number in announcements."""


class Header(NamedTuple):
    """Fields at the start of every message, without version and kind."""

    run: bytes
    sum_number: int
    """Number of the sum, from 1; 0 in the set-up."""
    client: int
    """The sender or the receiver, whichever is not the server."""


class ProtocolMessage(ABC):
    """Base class of all messages: frozen dataclasses that have the header's values as fields."""

    __slots__ = ()

    kind: ClassVar[int]
    version: int
    """Version of the protocol; a constant of the class in all messages but announcements."""
    of_sum: ClassVar[bool] = False
    """True if the message belongs to one sum; otherwise its sum is 0."""
    to_all: ClassVar[bool] = False
    """True if all clients receive the same message."""

    run: bytes
    sum_number: int
    client: int

    @abstractmethod
    def write_fields(self) -> Iterable[bytes]:
        """Return the bytes after the header, in pieces."""

    @classmethod
    @abstractmethod
    def read_fields(cls, header: Header, reader: Reader) -> Self:
        """Parse the fields; raise MalformedMessage for what `write_fields` would not produce."""


@dataclass(frozen=True, slots=True)
class SetupMessage(ProtocolMessage):
    """A message of the set-up, between the server and one client."""

    run: bytes
    client: int
    sum_number: int = field(default=0, init=False)


@dataclass(frozen=True, slots=True)
class SumMessage(ProtocolMessage):
    """A message of one sum, between the server and one client."""

    of_sum: ClassVar[bool] = True
    run: bytes
    sum_number: int
    client: int


class Reader:
    """Sequential reader of the fields of a message."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def expect(self, size: int) -> None:
        """Raise TruncatedMessage unless `size` bytes are left; call it before reading a list."""
        if len(self._data) - self._position < size:
            raise TruncatedMessage("the message ends before its fields do")

    @property
    def version(self) -> int:
        """Version in the header."""
        return self._data[0]

    def take(self, size: int) -> bytes:
        self.expect(size)
        start = self._position
        self._position = start + size
        return self._data[start : self._position]

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        return layout.unpack(self.take(layout.size))

    def integers(self, layout: str) -> tuple[int, ...]:
        """Read unsigned integers given by their `struct` letters, such as "IIH"."""
        layout = ">" + layout
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def strings(self, count: int, size: int) -> tuple[bytes, ...]:
        """Read `count` strings of `size` bytes each."""
        self.expect(count * size)
        return tuple(self.take(size) for _ in range(count))

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._position)

    def finish(self) -> None:
        """Raise OversizedMessage if any bytes are left."""
        spare = len(self._data) - self._position
        if spare:
            raise OversizedMessage(f"{spare} bytes after the last field")


@dataclass(frozen=True, slots=True)
class SurvivorsMessage(SumMessage):
    """Server to client: the clients whose vectors are in the sum."""

    survivors: bytes
    """Bit map of the survivors."""

    def write_fields(self) -> Iterable[bytes]:
        return (self.survivors,)

    @classmethod
    def read_fields(cls, header: Header, reader: Reader) -> Self:
        return cls(*header, reader.rest())


def encode(message: ProtocolMessage) -> bytes:
    """Return the message as bytes."""
    header = _HEADER.pack(
        *(message.version, message.kind, message.run, message.sum_number, message.client)
    )
    return b"".join((header, *message.write_fields()))


def addressed(message: bytes, client: int) -> bytes:
    """Return a copy of an encoded message with another client at the end of the header."""
    return message[: _HEADER.size - 4] + struct.pack(">I", client) + message[_HEADER.size :]


def decoder(version: int, *types: type[ProtocolMessage]) -> Callable[[bytes], ProtocolMessage]:
    """Return a parser for messages of these types; it raises MalformedMessage for all else.

    Messages have the version of their protocol.
    """
    by_kind = {one.kind: one for one in types}

    def decode(data: bytes) -> ProtocolMessage:
        """Return the parsed message; raise MalformedMessage for invalid bytes."""
        if len(data) > MAX_MESSAGE_BYTES:
            raise OversizedMessage(
                f"a message has at most {MAX_MESSAGE_BYTES} bytes, not {len(data)}"
            )
        if data and data[0] != version:
            raise WrongVersion(f"protocol version {data[0]}, expected {version}")
        reader = Reader(data)
        _, kind, *values = reader.unpack(_HEADER)
        header = Header(*values)
        if kind not in by_kind:
            raise MalformedMessage(f"unknown kind of message {kind}")
        found = by_kind[kind]
        number = header.sum_number
        if not (0 < number <= MAX_SUMS if found.of_sum else number == 0):
            raise MalformedMessage(f"sum {number} in a message of kind {kind}")
        if found.to_all != (header.client == EVERYBODY):
            raise MalformedMessage(f"client {header.client} in a message of kind {kind}")
        message = found.read_fields(header, reader)
        reader.finish()
        return message

    return decode


@dataclass(frozen=True, slots=True)
class Announce(ProtocolMessage):
    """Server to all: vectors to be summed and the assumptions of the run."""

    kind: ClassVar[int] = 1
    to_all: ClassVar[bool] = True
    run: bytes
    protocol: int
    version: int
    statement: Statement
    min_cohort: int
    block_entries: int
    roster: bytes
    """Digest of the roster."""
    shapes: tuple[VectorShape, ...]
    sum_number: int = field(default=0, init=False)
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
        return cls(
            *(header.run, protocol, reader.version, statement, min_cohort, block_entries),
            *(roster, shapes),
        )


def _read_shape(reader: Reader) -> VectorShape:
    length, width, flags, bound = reader.unpack(_SHAPE)
    if flags > 3:
        raise MalformedMessage(f"flags {flags} of a sum")
    try:
        return VectorShape(length, width, bound, bool(flags & 1), bool(flags & 2))
    except ValueError as error:
        raise MalformedMessage(str(error)) from None


def check_sums(sums: int) -> int:
    """Return the number of sums of a run; raise MalformedMessage if it is out of range."""
    if not 0 < sums <= MAX_SUMS:
        raise MalformedMessage(f"{sums} sums")
    return sums


def check_ascending(clients: Sequence[int]) -> None:
    """Raise MalformedMessage unless a list of clients is in ascending order."""
    if any(one >= other for one, other in pairwise(clients)):
        raise MalformedMessage("a list of clients is not in ascending order")


def check_empty(count: int, size: int) -> None:
    """Raise MalformedMessage for a list of empty strings or an empty list with a string size.

    An empty list thus has only one encoding.
    """
    if (count == 0) != (size == 0):
        raise MalformedMessage("a list of empty strings")
