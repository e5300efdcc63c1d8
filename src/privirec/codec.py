"""The frame of every message and file: a mark, a readable header and a body.

    mark (3 bytes) and version (1) | header length (u32, big-endian) | header (JSON) | body

The header is canonical JSON, so that equal contents have equal encodings. The user of the frame
defines the body, and whether a signature or a checksum follows it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PREFIX_BYTES = 8


class Malformed(ValueError):
    """Bytes that are not a frame of the expected kind; the message gives the reason."""


@dataclass(frozen=True)
class Frame:
    """A kind of frame: its mark, version and maximum header length in bytes."""

    mark: bytes
    version: int
    largest_header: int = 1 << 24

    def head(self, header: Mapping[str, Any]) -> bytes:
        """Return the bytes that precede the body."""
        text = canonical(header)
        return self.mark + bytes([self.version]) + struct.pack(">I", len(text)) + text

    def read(self, data: bytes | memoryview) -> tuple[dict[str, Any], int]:
        """Return the header and the offset of the body, or raise Malformed."""
        if len(data) < PREFIX_BYTES or bytes(data[:3]) != self.mark:
            raise Malformed("in an unknown format")
        if data[3] != self.version:
            raise Malformed(f"of version {data[3]}; this program speaks version {self.version}")
        (size,) = struct.unpack_from(">I", data, 4)
        end = PREFIX_BYTES + size
        if size > self.largest_header or end > len(data):
            raise Malformed("cut off, or with a header that is too long")
        try:
            header = json.loads(bytes(data[PREFIX_BYTES:end]))
        except (ValueError, RecursionError):
            raise Malformed("with a header that cannot be read") from None
        if type(header) is not dict:
            raise Malformed("with a header that cannot be read")
        return header, end


def canonical(content: Any) -> bytes:
    """Return the canonical JSON of `content`: sorted keys, no spaces, finite numbers only."""
    return _CANONICAL.encode(content).encode()


_CANONICAL = json.JSONEncoder(separators=(",", ":"), sort_keys=True, allow_nan=False)
