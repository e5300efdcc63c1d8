"""What travels between server and clients: a header, parts, and a signature over all of it.

    "PRE" and the version byte | header length (u32) | header (JSON) | parts | signature (64)

The header names the kind, the run, the client, the step of the run and the sizes of the parts.
Both sides sign, so that it does not matter who carries the message, and each direction in its own
name, so that nothing can be turned back to its sender.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from privirec.errors import FederationError
from privirec.secagg.errors import BadSignature
from privirec.secagg.keys import SIGNATURE_BYTES, Identity, verify

VERSION = 1
EVERYBODY = (1 << 32) - 1
MAX_HEADER = 1 << 24
MAX_BYTES = (1 << 31) - (1 << 20)
"""Carriers take less than 2 GiB."""

Direction = Literal["to-client", "to-server"]
_MAGIC = b"PRE"


def one_line(text: str, most: int = 500) -> str:
    """What somebody else wrote, without line breaks or anything that a terminal would obey."""
    return "".join(sign if sign.isprintable() else " " for sign in text[:most])


class BadEnvelope(FederationError):
    """Bytes that are no message from whom they should be: dropped, and nothing has changed."""


@dataclass(frozen=True)
class Envelope:
    """One message."""

    kind: str
    run: str
    client: int
    step: int
    more: dict[str, Any] = field(default_factory=dict)
    """Further fields of the header."""
    parts: tuple[bytes | memoryview, ...] = ()

    @property
    def reason(self) -> str:
        """Why the sender refuses or ends something, fit for our log and our terminal."""
        return one_line(str(self.more.get("reason")))

    def seal(self, identity: Identity, direction: Direction) -> bytes:
        header = json.dumps(
            {
                "kind": self.kind,
                "run": self.run,
                "client": self.client,
                "step": self.step,
                "more": self.more,
                "parts": [len(part) for part in self.parts],
            },
            separators=(",", ":"),
            sort_keys=True,
        ).encode()
        pieces: Sequence[bytes | memoryview] = (
            _MAGIC + bytes([VERSION]) + struct.pack(">I", len(header)),
            header,
            *self.parts,
        )
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
        signature = identity.sign(_signed(direction, digest.digest()))
        return b"".join([*pieces, signature])


def peek(message: bytes) -> Envelope:
    """Read a message whose signature still has to be checked, with `check`."""
    if len(message) > MAX_BYTES:
        raise BadEnvelope(f"a message of {len(message)} bytes; {MAX_BYTES} are the most")
    if len(message) < 8 + SIGNATURE_BYTES or message[:3] != _MAGIC:
        raise BadEnvelope("not a message of this program")
    if message[3] != VERSION:
        raise BadEnvelope(
            f"a message of protocol version {message[3]}; this program speaks version {VERSION}"
        )
    (size,) = struct.unpack_from(">I", message, 4)
    position = 8 + size
    end = len(message) - SIGNATURE_BYTES
    if size > MAX_HEADER or position > end:
        raise BadEnvelope("a message that is cut off")
    try:
        header = json.loads(message[8:position])
        sizes = [int(length) for length in header["parts"]]
        kind, run, more = header["kind"], header["run"], header["more"]
        client, step = header["client"], header["step"]
        if not (type(kind) is type(run) is str and type(client) is type(step) is int):
            raise BadEnvelope("a message whose header cannot be read")
        if type(more) is not dict or min(sizes, default=0) < 0 or sum(sizes) != end - position:
            raise BadEnvelope("a message whose parts do not add up")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadEnvelope("a message whose header cannot be read") from None
    parts = []
    view = memoryview(message)
    for length in sizes:
        parts.append(view[position : position + length])
        position += length
    return Envelope(kind, run, client, step, more, tuple(parts))


def check(message: bytes, public: bytes, direction: Direction) -> None:
    """Raise BadEnvelope unless the owner of the key sealed this message in this direction."""
    view = memoryview(message)
    digest = hashlib.sha256(view[:-SIGNATURE_BYTES]).digest()
    try:
        verify(public, bytes(view[-SIGNATURE_BYTES:]), _signed(direction, digest), 0)
    except BadSignature:
        raise BadEnvelope("a message whose signature does not fit its sender's key") from None


def _signed(direction: Direction, digest: bytes) -> bytes:
    return b"privirec-envelope-" + bytes([VERSION]) + direction.encode() + digest
