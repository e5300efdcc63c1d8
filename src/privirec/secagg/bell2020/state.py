"""What a client remembers, and how it is stored."""

from __future__ import annotations

import hashlib
import struct
from array import array
from dataclasses import dataclass, field, fields

from privirec.secagg import keys
from privirec.secagg.errors import BadDump
from privirec.secagg.keys import Secret

# The last byte counts changes of what is stored.
_DUMP_MARK = b"privirec-secagg-client" + bytes([keys.VERSION, 2])


@dataclass(slots=True)
class ClientState:
    """All that a client remembers, in fields that can be written down."""

    client: int
    stage: int = 0
    """Index of the message it waits for, see the client."""
    round_number: int = 1
    input_begun: int = 0
    input_sent: int = 0
    participants: int = 0
    nobody_may_drop: int = 0
    """The participants are those of the last run, and must all be in the sum."""
    degree: int = 0
    """Neighbours in the graph, whether they sent shares or not."""
    threshold: int = 0
    cohort: int = 0
    """Number of clients in the round that was answered last."""
    announcement: bytes = b""
    """The message itself."""
    peers: array[int] = field(default_factory=lambda: array("I"))
    """Neighbours, ascending; once shares are delivered, those who sent them."""
    active: array[int] = field(default_factory=lambda: array("I"))
    """Peers with masks in this round: those who sent shares, then those who survived."""
    peer_mask_keys: bytes = b""
    """All rounds' public keys of the first peer, of the second ..."""
    answered: bytes = b""
    """Digests of the survivor messages answered so far."""
    sealing_private: Secret = field(default_factory=lambda: Secret(b""))
    mask_privates: Secret = field(default_factory=lambda: Secret(b""))
    seeds: Secret = field(default_factory=lambda: Secret(b""))
    opening_keys: Secret = field(default_factory=lambda: Secret(b""))
    """Keys for the shares that each peer will send."""
    held_shares: Secret = field(default_factory=lambda: Secret(b""))
    """Round by round, peer by peer."""

    def wipe(self) -> None:
        for name in ("sealing_private", "mask_privates", "seeds", "opening_keys", "held_shares"):
            getattr(self, name).wipe()

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
    def load(cls, dumped: bytes, code: int) -> ClientState:
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
