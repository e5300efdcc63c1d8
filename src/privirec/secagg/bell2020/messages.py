"""Messages of Bell et al., kinds 1 to 10; `none` uses the first eight."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Self

from privirec.secagg.errors import MalformedMessage
from privirec.secagg.key_tree import HASH_BYTES
from privirec.secagg.keys import KEY_BYTES, NONCE_BYTES, SIGNATURE_BYTES
from privirec.secagg.messages import (
    Announce,
    Header,
    Reader,
    SetupMessage,
    SumMessage,
    SurvivorsMessage,
    check_ascending,
    check_empty,
    check_sums,
    decoder,
)
from privirec.secagg.shamir import SHARE_BYTES

VERSION = 4
"""Version of `secagg+`, `secagg` and `none`, in their messages and derived keys."""


@dataclass(frozen=True, slots=True)
class Advertise(SetupMessage):
    """Client to server: one public key for shares and one per sum for masks, signed."""

    kind: ClassVar[int] = 2
    version = VERSION
    sealing_key: bytes
    mask_keys: bytes
    """Concatenated keys, 32 bytes per sum."""
    signature: bytes

    def write_fields(self) -> Iterable[bytes]:
        sums = len(self.mask_keys) // KEY_BYTES
        return struct.pack(">H", sums), self.sealing_key, self.mask_keys, self.signature

    @classmethod
    def read_fields(cls, header: Header, reader: Reader) -> Self:
        (sums,) = reader.integers("H")
        return cls.read_keys(header.run, header.client, check_sums(sums), reader)

    @classmethod
    def read_keys(cls, run: bytes, client: int, sums: int, reader: Reader) -> Self:
        """Parse the keys if the number of sums is known."""
        return cls(
            run,
            client,
            reader.take(KEY_BYTES),
            reader.take(sums * KEY_BYTES),
            reader.take(SIGNATURE_BYTES),
        )


@dataclass(frozen=True, slots=True)
class Neighbours(SetupMessage):
    """Server to client: participants, parameters of the graph, keys of the neighbours."""

    kind: ClassVar[int] = 3
    version = VERSION
    neighbours: int
    threshold: int
    participants: bytes
    """Bit map: bit p % 8 of byte p // 8 (lowest first) is set if roster client p takes part."""
    root: bytes
    """Root of the tree over the keys of all participants; the graph is drawn from it."""
    path: tuple[bytes, ...]
    """Hashes on the path from the receiver's own keys to the root."""
    keys: tuple[Advertise, ...]
    """Keys of the neighbours, ascending by client."""

    def write_fields(self) -> Iterable[bytes]:
        sums = len(self.keys[0].mask_keys) // KEY_BYTES if self.keys else 0
        size, count = len(self.participants), len(self.keys)
        yield struct.pack(
            ">IIIIHB", self.neighbours, self.threshold, size, count, sums, len(self.path)
        )
        yield from (self.participants, self.root, *self.path)
        for keys in self.keys:
            yield struct.pack(">I", keys.client)
            yield from (keys.sealing_key, keys.mask_keys, keys.signature)

    @classmethod
    def read_fields(cls, header: Header, reader: Reader) -> Self:
        degree, threshold, size, count, sums, hashes = reader.integers("IIIIHB")
        participants = reader.take(size)
        root = reader.take(HASH_BYTES)
        path = reader.strings(hashes, HASH_BYTES)
        if count:
            check_sums(sums)
        elif sums:
            raise MalformedMessage("sums without keys")
        reader.expect(count * (4 + KEY_BYTES * (1 + sums) + SIGNATURE_BYTES))
        keys = tuple(
            Advertise.read_keys(header.run, reader.integers("I")[0], sums, reader)
            for _ in range(count)
        )
        check_ascending([key.client for key in keys])
        return cls(*(header.run, header.client, degree, threshold, participants), root, path, keys)


@dataclass(frozen=True, slots=True)
class Shares(SetupMessage):
    """Client to server: sealed shares for each neighbour, ascending by neighbour."""

    kind: ClassVar[int] = 4
    version = VERSION
    nonce: bytes
    sealed: tuple[bytes, ...]
    """Ciphertexts of equal length."""

    def write_fields(self) -> Iterable[bytes]:
        size = len(self.sealed[0]) if self.sealed else 0
        return struct.pack(">II", len(self.sealed), size), self.nonce, *self.sealed

    @classmethod
    def read_fields(cls, header: Header, reader: Reader) -> Self:
        count, size = reader.integers("II")
        check_empty(count, size)
        nonce = reader.take(NONCE_BYTES)
        return cls(header.run, header.client, nonce, reader.strings(count, size))


@dataclass(frozen=True, slots=True)
class SealedShares:
    """Shares that one neighbour sealed for the receiver."""

    sender: int
    nonce: bytes
    sealed: bytes


@dataclass(frozen=True, slots=True)
class Deliver(SetupMessage):
    """Server to client: the shares sealed for it, ascending by sender."""

    kind: ClassVar[int] = 5
    version = VERSION
    shares: tuple[SealedShares, ...]

    def write_fields(self) -> Iterable[bytes]:
        size = len(self.shares[0].sealed) if self.shares else 0
        yield struct.pack(">II", len(self.shares), size)
        for share in self.shares:
            yield from (struct.pack(">I", share.sender), share.nonce, share.sealed)

    @classmethod
    def read_fields(cls, header: Header, reader: Reader) -> Self:
        count, size = reader.integers("II")
        check_empty(count, size)
        reader.expect(count * (4 + NONCE_BYTES + size))
        shares = tuple(
            SealedShares(reader.integers("I")[0], reader.take(NONCE_BYTES), reader.take(size))
            for _ in range(count)
        )
        check_ascending([share.sender for share in shares])
        return cls(header.run, header.client, shares)


@dataclass(frozen=True, slots=True)
class Survivors(SurvivorsMessage):
    """Server to client: the clients whose vectors are in the sum."""

    kind: ClassVar[int] = 7
    version = VERSION


@dataclass(frozen=True, slots=True)
class Confirm(SumMessage):
    """Client to server: its signature on the first sum's survivors."""

    kind: ClassVar[int] = 9
    version = VERSION
    signature: bytes

    def write_fields(self) -> Iterable[bytes]:
        return (self.signature,)

    @classmethod
    def read_fields(cls, header: Header, reader: Reader) -> Self:
        _check_first(header)
        return cls(*header, reader.take(SIGNATURE_BYTES))


@dataclass(frozen=True, slots=True)
class Confirmed(SumMessage):
    """Server to client: signatures of all its neighbours in the sum, ascending by neighbour."""

    kind: ClassVar[int] = 10
    version = VERSION
    signatures: tuple[bytes, ...]

    def write_fields(self) -> Iterable[bytes]:
        return struct.pack(">I", len(self.signatures)), *self.signatures

    @classmethod
    def read_fields(cls, header: Header, reader: Reader) -> Self:
        _check_first(header)
        (count,) = reader.integers("I")
        return cls(*header, reader.strings(count, SIGNATURE_BYTES))


@dataclass(frozen=True, slots=True)
class Unmask(SumMessage):
    """Client to server: seed shares of the survivors, then key shares of the dropped clients."""

    kind: ClassVar[int] = 8
    version = VERSION
    seed_shares: tuple[bytes, ...] = field(repr=False)
    key_shares: tuple[bytes, ...] = field(repr=False)

    def write_fields(self) -> Iterable[bytes]:
        counts = struct.pack(">II", len(self.seed_shares), len(self.key_shares))
        return counts, *self.seed_shares, *self.key_shares

    @classmethod
    def read_fields(cls, header: Header, reader: Reader) -> Self:
        count, lost = reader.integers("II")
        reader.expect(SHARE_BYTES * (count + lost))
        seed_shares = reader.strings(count, SHARE_BYTES)
        return cls(*header, seed_shares, reader.strings(lost, SHARE_BYTES))


def _check_first(header: Header) -> None:
    if header.sum_number != 1:
        raise MalformedMessage("survivors are confirmed in the first sum alone")


decode = decoder(
    VERSION,
    *(Announce, Advertise, Neighbours, Shares, Deliver, Survivors, Unmask),
    *(Confirm, Confirmed),
)
