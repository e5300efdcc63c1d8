"""What a client remembers, in fields that can be written down and read again."""

from __future__ import annotations

import hashlib
import struct
from array import array
from dataclasses import dataclass, fields
from typing import Self

from privirec.secagg import keys
from privirec.secagg.errors import BadDump
from privirec.secagg.keys import Secret

# The last byte counts changes of what is stored.
_DUMP_MARK = b"privirec-secagg-client" + bytes([keys.VERSION, 4])


@dataclass(slots=True)
class StoredState:
    """What clients of all protocols remember; a protocol adds fields that have defaults.

    Fields are int, bytes, array("I") or Secret.
    """

    client: int
    stage: int = 0
    """Index of the message it waits for, in the order in which the protocol's clients are told."""
    sum_number: int = 1
    """The sum it takes part in next."""
    input_begun: int = 0
    input_sent: int = 0
    announcement: bytes = b""
    """The message itself."""
    participants: bytes = b""
    """Map of those who take part, once it was accepted."""
    answered: bytes = b""
    """Digest of the message that was answered to open each sum so far."""

    def wipe(self) -> None:
        """Wipe all secrets."""
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, Secret):
                value.wipe()

    def dump(self, code: int) -> bytes:
        """All fields, after a mark of what they are and before a digest against damage."""
        parts = [_DUMP_MARK, bytes([code])]
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
    def load(cls, dumped: bytes, code: int) -> Self:
        """Inverse of `dump`; BadDump for anything that it did not give."""
        data, digest = dumped[:-32], dumped[-32:]
        mark = _DUMP_MARK + bytes([code])
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
