"""Messages of averaging with correlated noise, kinds 32 to 34."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Self

from privirec.extra.correlated.levels import NoiseLevels
from privirec.secagg.errors import MalformedMessage
from privirec.secagg.keys import KEY_BYTES, SIGNATURE_BYTES
from privirec.secagg.messages import (
    Announce,
    Header,
    Reader,
    SetupMessage,
    check_ascending,
    decoder,
)

_LEVELS = struct.Struct(">bBB")

VERSION = 4
"""Version of the protocol, in its messages and derived keys."""


@dataclass(frozen=True, slots=True)
class NoisyAnnounce(Announce):
    """Server to all: vectors to be summed, assumptions of the run, and noise levels."""

    kind: ClassVar[int] = 32
    neighbours: int
    """Degree of the graph, unless fewer other clients take part."""
    noise: tuple[NoiseLevels, ...]
    """Noise levels of each sum."""

    @classmethod
    def adding(cls, terms: Announce, neighbours: int, noise: tuple[NoiseLevels, ...]) -> Self:
        """Return an announcement with the noise levels of each sum added."""
        return cls(
            terms.run,
            terms.protocol,
            terms.version,
            terms.statement,
            terms.min_cohort,
            terms.block_entries,
            terms.roster,
            terms.shapes,
            neighbours,
            noise,
        )

    def write_fields(self) -> Iterable[bytes]:
        yield from Announce.write_fields(self)
        yield struct.pack(">I", self.neighbours)
        for levels in self.noise:
            yield _LEVELS.pack(levels.unit, levels.own_bits, levels.pair_bits)

    @classmethod
    def read_fields(cls, header: Header, reader: Reader) -> Self:
        terms = Announce.read_fields(header, reader)
        (neighbours,) = reader.integers("I")
        reader.expect(len(terms.shapes) * _LEVELS.size)
        try:
            noise = tuple(NoiseLevels(*reader.unpack(_LEVELS)) for _ in terms.shapes)
        except ValueError as error:
            raise MalformedMessage(str(error)) from None
        return cls.adding(terms, neighbours, noise)


@dataclass(frozen=True, slots=True)
class NoisyAdvertise(SetupMessage):
    """Client to server: the public key from which common noise is derived, signed."""

    kind: ClassVar[int] = 33
    version = VERSION
    noise_key: bytes
    signature: bytes

    def write_fields(self) -> Iterable[bytes]:
        return self.noise_key, self.signature

    @classmethod
    def read_fields(cls, header: Header, reader: Reader) -> Self:
        return cls.read_key(header.run, header.client, reader)

    @classmethod
    def read_key(cls, run: bytes, client: int, reader: Reader) -> Self:
        return cls(run, client, reader.take(KEY_BYTES), reader.take(SIGNATURE_BYTES))


@dataclass(frozen=True, slots=True)
class NoisyNeighbours(SetupMessage):
    """Server to client: participants, and the keys of its neighbours."""

    kind: ClassVar[int] = 34
    version = VERSION
    participants: bytes
    """Bit map: bit p % 8 of byte p // 8 (lowest first) is set if roster client p takes part."""
    keys: tuple[NoisyAdvertise, ...]
    """Keys of the neighbours, ascending by client."""

    def write_fields(self) -> Iterable[bytes]:
        yield struct.pack(">II", len(self.participants), len(self.keys))
        yield self.participants
        for key in self.keys:
            yield from (struct.pack(">I", key.client), key.noise_key, key.signature)

    @classmethod
    def read_fields(cls, header: Header, reader: Reader) -> Self:
        size, count = reader.integers("II")
        participants = reader.take(size)
        reader.expect(count * (4 + KEY_BYTES + SIGNATURE_BYTES))
        keys = tuple(
            NoisyAdvertise.read_key(header.run, reader.integers("I")[0], reader)
            for _ in range(count)
        )
        check_ascending([key.client for key in keys])
        return cls(header.run, header.client, participants, keys)


decode = decoder(VERSION, NoisyAnnounce, NoisyAdvertise, NoisyNeighbours)
