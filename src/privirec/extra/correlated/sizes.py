"""Predicted bytes of a run with correlated noise.

See docs/reference/correlated-noise.md, *Messages*.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from privirec.extra.correlated.levels import graph_degree, upload_shape
from privirec.extra.correlated.messages import Advertise, Neighbours, NoisyAnnounce
from privirec.extra.correlated.shared import CorrelatedExchange
from privirec.secagg.keys import KEY_BYTES, SIGNATURE_BYTES
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
    exchange: CorrelatedExchange,
    statement: Statement,
    shapes: Sequence[VectorShape],
    block_entries: int,
) -> list[SumBytes]:
    """Return the bytes per client in each sum."""
    degree = graph_degree(statement)
    noise = tuple(exchange.rule.levels(shape, statement) for shape in shapes)
    sent = [
        upload_shape(shape, statement, degree, levels)
        for shape, levels in zip(shapes, noise, strict=True)
    ]
    key = Advertise(RUN, CLIENT, bytes(KEY_BYTES), bytes(SIGNATURE_BYTES))
    terms = announced(exchange.code, statement, shapes, block_entries)
    first_down = length(NoisyAnnounce.adding(terms, degree, noise)) + length_of_list(
        lambda count: Neighbours(RUN, CLIENT, b"", (key,) * count), degree
    )
    first_down += map_bytes(statement)
    each = [SumBytes(Fraction(upload_bytes(shape, block_entries)), Fraction(0)) for shape in sent]
    each[0] = SumBytes(each[0].up + length(key), each[0].down + first_down)
    return each
