"""What a run will send, before it is run: the lengths of its messages, as they are encoded.

Everybody takes part and stays to the end. Messages are made of zeros, with lists of one entry or
none: a list of any length follows from these, since every entry is as long as the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from privirec.secagg.messages import DIGEST_BYTES, RUN_BYTES, Announce, Masked, Message, encode
from privirec.secagg.parameters import Statement
from privirec.secagg.ring import VectorShape

RUN = bytes(RUN_BYTES)
CLIENT = 0


@dataclass(frozen=True)
class SumBytes:
    """Bytes of a client in one sum, the mean of all clients; the set-up counts with the first."""

    up: Fraction
    down: Fraction


SumBytesOf = Callable[[Statement, Sequence[VectorShape], int], list[SumBytes]]
"""(statement, shapes of the sums, entries in one message of an upload) -> each sum."""


def length(message: Message) -> int:
    """Bytes of a message."""
    return len(encode(message))


def length_of_list(message_with: Callable[[int], Message], entries: int) -> int:
    """Bytes of a message with a list of so many entries of one length."""
    empty = length(message_with(0))
    return empty + entries * (length(message_with(1)) - empty)


def map_bytes(statement: Statement) -> int:
    """Of a map of the roster, which the messages here leave empty: it can be long."""
    return -(-statement.clients // 8)


def announced(
    code: int, statement: Statement, shapes: Sequence[VectorShape], block_entries: int
) -> Announce:
    """An announcement of this run."""
    return Announce(RUN, code, statement, 0, block_entries, bytes(DIGEST_BYTES), tuple(shapes))


def upload_bytes(shape: VectorShape, block_entries: int) -> int:
    """A vector of the shape that is on the wire, in messages of so many entries."""
    messages = -(-shape.length // block_entries)
    return messages * length(Masked(RUN, 1, CLIENT, 0, b"")) + shape.ring.packed_bytes(shape.length)
