"""Predicted bytes of a run of LightSecAgg; see docs/reference/lightsecagg.md, *Costs*."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from privirec.extra.lightsecagg.field import ElementShape
from privirec.extra.lightsecagg.messages import (
    Advertise,
    Answer,
    Confirm,
    Deal,
    Open,
    Pieces,
    SignedKey,
    Survivors,
)
from privirec.extra.lightsecagg.shared import EXCHANGE, check_sizes, code_of
from privirec.extra.lightsecagg.thresholds import thresholds
from privirec.secagg.keys import KEY_BYTES, NONCE_BYTES, SIGNATURE_BYTES, TAG_BYTES
from privirec.secagg.messages import DIGEST_BYTES
from privirec.secagg.parameters import Statement
from privirec.secagg.ring import VectorShape
from privirec.secagg.sizes import (
    CLIENT,
    RUN,
    SumBytes,
    announced,
    length,
    length_of_list,
    map_bytes,
    upload_bytes,
)


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
            return Deal(RUN, number, CLIENT, *needed, asked, b"", (key,) * count)

        def opened(count: int, number: int = number, sealed: bytes = with_nonce) -> Open:
            return Open(RUN, number, CLIENT, b"", (), count, count * sealed)

        up = (
            length_of_list(pieces, others)
            + upload_bytes(ElementShape(shape).carried, block_entries)
            + length(Confirm(RUN, number, CLIENT, signature if first else b""))
            + length(Answer(RUN, number, CLIENT, bytes(piece)))
        )
        down = (
            length_of_list(deal, statement.clients if first else 0)
            + in_map
            + length(Survivors(RUN, number, CLIENT, b""))
            + in_map
            + length_of_list(opened, others)
        )
        if first:
            up += length(Advertise(RUN, CLIENT, key))
            down += length(announced(EXCHANGE.code, statement, shapes, block_entries))
            down += in_map + found.quorum * SIGNATURE_BYTES
        each.append(SumBytes(Fraction(up), Fraction(down)))
    return each
