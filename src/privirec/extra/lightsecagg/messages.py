"""Messages of LightSecAgg, kinds 16 to 22. docs/reference/lightsecagg.md is the specification."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Self

from privirec.secagg.errors import MalformedMessage
from privirec.secagg.keys import KEY_BYTES, NONCE_BYTES, SIGNATURE_BYTES
from privirec.secagg.messages import (
    DIGEST_BYTES,
    Announce,
    Header,
    Reader,
    SetupMessage,
    SumMessage,
    SurvivorsMessage,
    check_empty,
    decoder,
)

VERSION = 5
"""Version of the protocol, in its messages and derived keys."""


@dataclass(frozen=True, slots=True)
class SignedKey:
    """A client's public key for sealed pieces, signed by its identity."""

    sealing_key: bytes
    signature: bytes

    @classmethod
    def read(cls, reader: Reader) -> Self:
        return cls(reader.take(KEY_BYTES), reader.take(SIGNATURE_BYTES))


@dataclass(frozen=True, slots=True)
class LightAdvertise(SetupMessage):
    """Client to server: its key for the pieces of this run."""

    kind: ClassVar[int] = 16
    version = VERSION
    key: SignedKey

    def write_fields(self) -> Iterable[bytes]:
        return self.key.sealing_key, self.key.signature

    @classmethod
    def read_fields(cls, header: Header, reader: Reader) -> Self:
        return cls(header.run, header.client, SignedKey.read(reader))


@dataclass(frozen=True, slots=True)
class Deal(SumMessage):
    """Server to client: request to draw a mask for this sum and to deal its pieces."""

    kind: ClassVar[int] = 17
    version = VERSION
    private: int
    needed: int
    asked: bytes
    """Digest of what the clients will be asked for in this sum."""
    length: int
    """Entries of this sum's vectors."""
    receivers: bytes
    """Bit map of the clients that hold pieces, including the receiver of this message."""
    keys: tuple[SignedKey, ...]
    """Keys of all holders in the same order in the first sum; empty in later sums."""

    def write_fields(self) -> Iterable[bytes]:
        sizes = len(self.receivers), len(self.keys)
        yield struct.pack(">IIQII", self.private, self.needed, self.length, *sizes)
        yield self.asked
        yield self.receivers
        for key in self.keys:
            yield from (key.sealing_key, key.signature)

    @classmethod
    def read_fields(cls, header: Header, reader: Reader) -> Self:
        private, needed, length, size, count = reader.integers("IIQII")
        asked, receivers = reader.take(DIGEST_BYTES), reader.take(size)
        reader.expect(count * (KEY_BYTES + SIGNATURE_BYTES))
        keys = tuple(SignedKey.read(reader) for _ in range(count))
        return cls(*header, private, needed, asked, length, receivers, keys)


@dataclass(frozen=True, slots=True)
class Pieces(SumMessage):
    """Client to server: sealed pieces of its mask for all others, ascending by receiver."""

    kind: ClassVar[int] = 18
    version = VERSION
    nonce: bytes
    count: int
    sealed: bytes = field(repr=False)
    """Concatenated ciphertexts of equal length."""

    def write_fields(self) -> Iterable[bytes]:
        size = len(self.sealed) // self.count if self.count else 0
        return struct.pack(">II", self.count, size), self.nonce, self.sealed

    @classmethod
    def read_fields(cls, header: Header, reader: Reader) -> Self:
        count, size = reader.integers("II")
        check_empty(count, size)
        nonce = reader.take(NONCE_BYTES)
        return cls(*header, nonce, count, reader.take(count * size))


@dataclass(frozen=True, slots=True)
class LightSurvivors(SurvivorsMessage):
    """Server to client: the clients whose vectors are in the sum."""

    kind: ClassVar[int] = 19
    version = VERSION


@dataclass(frozen=True, slots=True)
class LightConfirm(SumMessage):
    """Client to server: its signature on the first sum's survivors; empty in later sums."""

    kind: ClassVar[int] = 20
    version = VERSION
    signature: bytes

    def write_fields(self) -> Iterable[bytes]:
        return (self.signature,)

    @classmethod
    def read_fields(cls, header: Header, reader: Reader) -> Self:
        first = header.sum_number == 1
        return cls(*header, reader.take(SIGNATURE_BYTES if first else 0))


@dataclass(frozen=True, slots=True)
class Open(SumMessage):
    """Server to client: signatures on the survivors, and the survivors' pieces for this client."""

    kind: ClassVar[int] = 21
    version = VERSION
    signers: bytes
    """Bit map of the clients whose signatures follow; empty after the first sum."""
    signatures: tuple[bytes, ...]
    count: int
    pieces: bytes = field(repr=False)
    """Nonce and sealed piece of each survivor except the receiver, ascending, equally long."""

    def write_fields(self) -> Iterable[bytes]:
        size = len(self.pieces) // self.count if self.count else 0
        yield struct.pack(">II", len(self.signers), len(self.signatures))
        yield self.signers
        yield from self.signatures
        yield struct.pack(">II", self.count, size)
        yield self.pieces

    @classmethod
    def read_fields(cls, header: Header, reader: Reader) -> Self:
        size, count = reader.integers("II")
        signers = reader.take(size)
        if not signers and count:
            raise MalformedMessage("signatures of nobody")
        signatures = reader.strings(count, SIGNATURE_BYTES)
        count, size = reader.integers("II")
        check_empty(count, size)
        return cls(*header, signers, signatures, count, reader.take(count * size))


@dataclass(frozen=True, slots=True)
class LightAnswer(SumMessage):
    """Client to server: the sum of the survivors' pieces that it holds, packed."""

    kind: ClassVar[int] = 22
    version = VERSION
    packed: bytes = field(repr=False)

    def write_fields(self) -> Iterable[bytes]:
        return (self.packed,)

    @classmethod
    def read_fields(cls, header: Header, reader: Reader) -> Self:
        return cls(*header, reader.rest())


decode = decoder(
    *(VERSION, Announce, LightAdvertise, Deal, Pieces),
    *(LightSurvivors, LightConfirm, Open, LightAnswer),
)
