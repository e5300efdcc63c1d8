"""State of a client that can be stored and loaded again."""

from __future__ import annotations

import hashlib
import struct
from array import array
from dataclasses import dataclass, fields
from typing import Self

from privirec.secagg.errors import BadDump
from privirec.secagg.keys import Secret

_MARK = b"client" + bytes([5])
"""Mark of the stored format and its version."""


@dataclass(slots=True)
class StoredState:
    """State common to the clients of all protocols; a protocol adds fields that have defaults.

    Fields are int, bytes, array("I") or Secret.
    """

    client: int
    stage: int = 0
    """Index of the expected message in `MessageOrder.told`."""
    sum_number: int = 1
    """Number of the sum in which the client takes part next."""
    input_begun: int = 0
    input_sent: int = 0
    announcement: bytes = b""
    """The encoded announcement."""
    participants: bytes = b""
    """Bit map of the participants, once the client has accepted it."""
    answered: bytes = b""
    """For each opened sum, the digest of the message that this client answered to open it."""

    def wipe(self) -> None:
        """Wipe all secrets."""
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, Secret):
                value.wipe()

    def dump(self, label: bytes) -> bytes:
        """Return all fields as bytes, between the protocol's label with a mark and a digest."""
        parts = [label, _MARK]
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, int):
                raw = struct.pack(">Q", value)
            elif isinstance(value, array):
                raw = struct.pack(f">{len(value)}I", *value)
            elif isinstance(value, Secret):
                raw = struct.pack(">Q", value.wiped) + value.stored()
            else:
                raw = value
            parts += (struct.pack(">Q", len(raw)), raw)
        data = b"".join(parts)
        return data + hashlib.sha256(data).digest()

    @classmethod
    def load(cls, dumped: bytes, label: bytes) -> Self:
        """Return the state from the output of `dump`; raise BadDump for anything else."""
        data, digest = dumped[:-32], dumped[-32:]
        mark = label + _MARK
        if hashlib.sha256(data).digest() != digest or not data.startswith(mark):
            raise BadDump("stored state is damaged, or of another version or protocol")
        state = cls(0)
        position = len(mark)
        for entry in fields(cls):
            size = int.from_bytes(data[position : position + 8], "big")
            raw = data[position + 8 : position + 8 + size]
            position += 8 + size
            value = getattr(state, entry.name)
            if isinstance(value, int):
                setattr(state, entry.name, int.from_bytes(raw, "big"))
            elif isinstance(value, array):
                setattr(state, entry.name, array("I", struct.unpack(f">{size // 4}I", raw)))
            elif isinstance(value, Secret):
                setattr(state, entry.name, Secret(raw[8:], int.from_bytes(raw[:8], "big")))
            else:
                setattr(state, entry.name, raw)
        return state
