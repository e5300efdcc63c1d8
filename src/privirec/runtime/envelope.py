"""A signed message.

    frame "PRE" with kind, run, client, fields and sizes of the parts | parts | signature (64)

Both sides sign, so the carrier need not be trusted. The signature covers the direction, so a
message cannot be reflected to its sender. It is the only one that a vector gets on its way: the
HTTPS carrier authenticates an upload by it (`https.signing`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from privirec.codec import Frame, Malformed
from privirec.errors import FederationError
from privirec.runtime.messages import FromClient, FromServer, Message
from privirec.secagg.errors import BadSignature
from privirec.secagg.keys import SIGNATURE_BYTES, Identity, verify

MOST_PARTS = 1 << 12
FRAME = Frame(b"PRE", 4, largest_header=1 << 17)
"""Frame whose header has room for the sizes of MOST_PARTS parts.

The limit matters because headers are parsed before the sender is authenticated.
"""
EVERYBODY = (1 << 32) - 1
LARGEST = (1 << 31) - (1 << 20)
"""Maximum bytes of a message to a client, and of a reply where the carrier sets no limit."""

Direction = Literal["to-client", "to-server"]
Sealed = bytes | memoryview
"""A signed message, in memory or mapped from a file."""
_KINDS = {"to-client": FromServer.kinds, "to-server": FromClient.kinds}


class BadEnvelope(FederationError):
    """Bytes that are not a valid message of the expected sender; dropped without effect."""


@dataclass(frozen=True)
class Envelope:
    """A message of a run, from or to a client."""

    run: str
    client: int
    message: Message
    parts: tuple[bytes | memoryview, ...] = ()

    def seal(self, identity: Identity, direction: Direction) -> bytes:
        """Return the signed bytes to send."""
        sizes = [len(part) for part in self.parts]
        return b"".join(self.sealed(identity, direction, sizes, self.parts))

    def sealed(
        self,
        identity: Identity,
        direction: Direction,
        sizes: Sequence[int],
        content: Iterable[Sealed],
    ) -> Iterator[Sealed]:
        """Yield the signed bytes piece by piece.

        `content` are parts of these sizes, in pieces; long ones are never in memory as a whole.
        """
        head = FRAME.head(
            {
                "kind": self.message.kind,
                "run": self.run,
                "client": self.client,
                "fields": self.message.model_dump(mode="json"),
                "parts": [*sizes],
            }
        )
        digest = hashlib.sha256(head)
        yield head
        for piece in content:
            digest.update(piece)
            yield piece
        yield identity.sign(statement(direction, digest.digest()))


def peek(message: Sealed, direction: Direction) -> Envelope:
    """Parse a message whose signature must still be checked with `check`."""
    if direction == "to-client" and len(message) > LARGEST:
        raise BadEnvelope(f"a message of {len(message)} bytes; {LARGEST} are the most")
    try:
        header, position = FRAME.read(message)
        sizes, client, run = header["parts"], header["client"], header["run"]
        if type(sizes) is not list or len(sizes) > MOST_PARTS:
            raise Malformed("of too many parts")
        if not all(type(size) is int and size >= 0 for size in sizes):
            raise Malformed("with impossible parts")
        if sum(sizes) != len(message) - SIGNATURE_BYTES - position:
            raise Malformed("whose parts do not add up")
        if type(client) is not int or type(run) is not str or len(header) != 5:
            raise Malformed("with a header that cannot be read")
        content = _KINDS[direction][header["kind"]].model_validate(header["fields"])
    except Malformed as error:
        raise BadEnvelope(f"a message {error}") from None
    except (KeyError, TypeError, ValidationError):
        raise BadEnvelope("a message whose header cannot be read") from None
    parts = []
    view = memoryview(message)
    for size in sizes:
        parts.append(view[position : position + size])
        position += size
    return Envelope(run, client, content, tuple(parts))


def check(message: Sealed, public: bytes, direction: Direction) -> None:
    """Raise BadEnvelope unless the owner of the key sealed this message in this direction."""
    digest, signature = seal_of(message)
    try:
        verify(public, signature, statement(direction, digest), 0)
    except BadSignature:
        raise BadEnvelope("a message whose signature does not fit its sender's key") from None


def seal_of(message: Sealed) -> tuple[bytes, bytes]:
    """Return the digest of a message, and the signature at its end."""
    view = memoryview(message)
    signed, signature = view[:-SIGNATURE_BYTES], view[-SIGNATURE_BYTES:]
    return hashlib.sha256(signed).digest(), bytes(signature)


def statement(direction: Direction, digest: bytes) -> bytes:
    """Return the bytes that the sender of a message with this digest signs."""
    return b"privirec-envelope-" + bytes([FRAME.version]) + direction.encode() + digest
