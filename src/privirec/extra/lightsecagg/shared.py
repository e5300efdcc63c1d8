"""Definitions common to the client and the server of this protocol."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from fractions import Fraction

from privirec.extra.lightsecagg.code import MaskCode
from privirec.extra.lightsecagg.field import ElementShape
from privirec.extra.lightsecagg.messages import (
    VERSION,
    Deal,
    LightAdvertise,
    LightAnswer,
    LightConfirm,
    LightSurvivors,
    Open,
    Pieces,
    SignedKey,
    decode,
)
from privirec.extra.lightsecagg.thresholds import Thresholds, thresholds
from privirec.secagg.errors import ParametersInfeasible
from privirec.secagg.keys import KEY_BYTES, LABEL, NONCE_BYTES, SIGNATURE_BYTES, TAG_BYTES
from privirec.secagg.messages import DIGEST_BYTES, MAX_MESSAGE_BYTES, Announce
from privirec.secagg.parameters import Statement
from privirec.secagg.protocol import MessageOrder, Schedule
from privirec.secagg.ring import VectorShape
from privirec.secagg.sizes import (
    CLIENT,
    RUN,
    SumBytes,
    announced,
    length,
    length_of_list,
    map_bytes,
)

EXCHANGE = MessageOrder(
    "lightsecagg",
    4,
    VERSION,
    Schedule(setup=("advertise",), preparation=("share",), recovery=("confirm", "recover")),
    decode,
    told=(Announce, Deal, LightSurvivors, Open),
    answers={
        LightAdvertise: "advertise",
        Pieces: "share",
        LightConfirm: "confirm",
        LightAnswer: "recover",
    },
)


def code_of(shape: VectorShape, roster: int, thresholds: Thresholds) -> MaskCode:
    """Return the code for the masks of a vector, for a roster of this size."""
    elements = ElementShape(shape)
    return MaskCode(elements.field, roster, thresholds, elements.length)


def check_sizes(shapes: Sequence[VectorShape], roster: int, thresholds: Thresholds) -> None:
    """Raise ParametersInfeasible for vectors whose pieces do not fit into one message.

    The longest message carries all pieces that others dealt to a client.
    """
    for shape in shapes:
        piece = code_of(shape, roster, thresholds).piece_bytes
        pieces = (thresholds.clients - 1) * (NONCE_BYTES + piece + TAG_BYTES)
        more = 42 + (roster + 7) // 8 + thresholds.quorum * SIGNATURE_BYTES
        if pieces + more > MAX_MESSAGE_BYTES:
            raise ParametersInfeasible(
                f"pieces of {shape.length} entries of {shape.width} bits for "
                f"{thresholds.clients} clients: {pieces + more} bytes in one message, which has "
                f"at most {MAX_MESSAGE_BYTES}; cut the vector into several sums"
            )


def pieces_context(announcement: bytes, sum_number: int, asked: bytes, receivers: bytes) -> bytes:
    """Return the digest to which sealed pieces are bound.

    It covers the announced run, the sum, what is asked for in it and the holders of pieces. Clients
    that were told different things cannot open each other's pieces.
    """
    number = struct.pack(">I", sum_number)
    return hashlib.sha256(LABEL + b"pieces" + announcement + number + asked + receivers).digest()


def survivors_statement(announcement: bytes, participants: bytes, survivors: bytes) -> bytes:
    """Return the bytes that a client signs to confirm the survivors of the first sum."""
    return LABEL + b"survivors" + announcement + participants + survivors


def sum_bytes(
    statement: Statement, shapes: Sequence[VectorShape], block_entries: int
) -> list[SumBytes]:
    """Return the bytes per client in each sum."""
    found = thresholds(statement)
    check_sizes(shapes, statement.clients, found)
    in_map, others = map_bytes(statement), statement.clients - 1
    key = SignedKey(bytes(KEY_BYTES), bytes(SIGNATURE_BYTES))
    signature = bytes(SIGNATURE_BYTES)
    each = []
    for number, shape in enumerate(shapes, 1):
        first = number == 1
        piece = code_of(shape, statement.clients, found).piece_bytes
        sealed = bytes(piece + TAG_BYTES)
        with_nonce = bytes(NONCE_BYTES) + sealed

        def pieces(count: int, number: int = number, sealed: bytes = sealed) -> Pieces:
            return Pieces(RUN, number, CLIENT, bytes(NONCE_BYTES), count, count * sealed)

        def deal(count: int, number: int = number) -> Deal:
            needed = (found.private, found.needed)
            asked = bytes(DIGEST_BYTES)
            return Deal(RUN, number, CLIENT, *needed, asked, 1, b"", (key,) * count)

        def opened(count: int, number: int = number, sealed: bytes = with_nonce) -> Open:
            return Open(RUN, number, CLIENT, b"", (), count, count * sealed)

        up = (
            length_of_list(pieces, others)
            + ElementShape(shape).carried.packed_bytes
            + length(LightConfirm(RUN, number, CLIENT, signature if first else b""))
            + length(LightAnswer(RUN, number, CLIENT, bytes(piece)))
        )
        down = (
            length_of_list(deal, statement.clients if first else 0)
            + in_map
            + length(LightSurvivors(RUN, number, CLIENT, b""))
            + in_map
            + length_of_list(opened, others)
        )
        if first:
            up += length(LightAdvertise(RUN, CLIENT, key))
            down += length(announced(statement, shapes, block_entries))
            down += in_map + found.quorum * SIGNATURE_BYTES
        each.append(SumBytes(Fraction(up), Fraction(down)))
    return each
