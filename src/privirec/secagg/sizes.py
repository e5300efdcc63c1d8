"""Predicted message sizes of a run, from real encodings of dummy messages.

All clients take part and none drops out. The messages consist of zeros, and their lists have one
entry or none. The size for a list of any length follows, because all entries have equal length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from privirec.secagg.messages import (
    DIGEST_BYTES,
    RUN_BYTES,
    Announce,
    ProtocolMessage,
    encode,
)
from privirec.secagg.parameters import Statement
from privirec.secagg.ring import VectorShape

RUN = bytes(RUN_BYTES)
CLIENT = 0


@dataclass(frozen=True)
class SumBytes:
    """Mean bytes per client in one sum; the first sum includes the set-up."""

    up: Fraction
    down: Fraction


SumBytesOf = Callable[[Statement, Sequence[VectorShape], int], list[SumBytes]]
"""(statement, shapes of the sums, entries per message of an upload) -> bytes of each sum."""


def length(message: ProtocolMessage) -> int:
    """Return the size of an encoded message in bytes."""
    return len(encode(message))


def length_of_list(message_with: Callable[[int], ProtocolMessage], entries: int) -> int:
    """Return the size of a message with a list of `entries` entries of equal length."""
    empty = length(message_with(0))
    return empty + entries * (length(message_with(1)) - empty)


def map_bytes(statement: Statement) -> int:
    """Return the size of a bit map of the roster, which dummy messages omit as it can be large."""
    return -(-statement.clients // 8)


def announced(statement: Statement, shapes: Sequence[VectorShape], block_entries: int) -> Announce:
    """Return an announcement of the size that this run's has."""
    return Announce(RUN, 0, 0, statement, 0, block_entries, bytes(DIGEST_BYTES), tuple(shapes))
