"""A signed message.

    frame "PRE" with kind, run, client, fields and sizes of the parts | parts | signature (64)

Both sides sign, so the carrier need not be trusted. The signature covers the direction, so a
message cannot be reflected to its sender.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from privirec.codec import Frame, Malformed
from privirec.errors import FederationError
from privirec.runtime.messages import FROM_CLIENT, FROM_SERVER, Message
from privirec.secagg.errors import BadSignature
from privirec.secagg.keys import SIGNATURE_BYTES, Identity, verify

MOST_PARTS = 1 << 12
FRAME = Frame(b"PRE", 3, largest_header=1 << 17)
"""Frame whose header has room for the sizes of MOST_PARTS parts.

The limit matters because headers are parsed before the sender is authenticated.
"""
EVERYBODY = (1 << 32) - 1
LARGEST = (1 << 31) - (1 << 20)
"""Maximum bytes of a message; carriers accept less than 2 GiB."""

Direction = Literal["to-client", "to-server"]
_KINDS = {"to-client": FROM_SERVER, "to-server": FROM_CLIENT}


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
        head = FRAME.head(
            {
                "kind": self.message.kind,
                "run": self.run,
                "client": self.client,
                "fields": self.message.model_dump(mode="json"),
                "parts": [len(part) for part in self.parts],
            }
        )
        digest = hashlib.sha256(head)
        for part in self.parts:
            digest.update(part)
        signature = identity.sign(_signed(direction, digest.digest()))
        return b"".join([head, *self.parts, signature])


def peek(message: bytes, direction: Direction) -> Envelope:
    """Parse a message whose signature must still be checked with `check`."""
    if not 0 < len(message) <= LARGEST:
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


def check(message: bytes, public: bytes, direction: Direction) -> None:
    """Raise BadEnvelope unless the owner of the key sealed this message in this direction."""
    view = memoryview(message)
    digest = hashlib.sha256(view[:-SIGNATURE_BYTES]).digest()
    try:
        verify(public, bytes(view[-SIGNATURE_BYTES:]), _signed(direction, digest), 0)
    except BadSignature:
        raise BadEnvelope("a message whose signature does not fit its sender's key") from None


def _signed(direction: Direction, digest: bytes) -> bytes:
    return b"privirec-envelope-" + bytes([FRAME.version]) + direction.encode() + digest
