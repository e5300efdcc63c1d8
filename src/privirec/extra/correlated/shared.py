"""Definitions common to the client and the server of this protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from privirec.extra.correlated.levels import NoiseRule, graph_degree, upload_shape
from privirec.extra.correlated.messages import (
    VERSION,
    NoisyAdvertise,
    NoisyAnnounce,
    NoisyNeighbours,
    decode,
)
from privirec.secagg import keys
from privirec.secagg.graph import RingGraph, graph_seed, ring_graph
from privirec.secagg.keys import KEY_BYTES, SIGNATURE_BYTES, Roster
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


@dataclass(frozen=True, kw_only=True)
class CorrelatedExchange(MessageOrder):
    """The exchange, with the rule that determines its noise levels."""

    rule: NoiseRule

    @classmethod
    def of(cls, name: str, code: int, rule: NoiseRule) -> CorrelatedExchange:
        return cls(
            name,
            code,
            VERSION,
            Schedule(setup=("advertise",)),
            decode,
            told=(NoisyAnnounce, NoisyNeighbours),
            answers={NoisyAdvertise: "advertise"},
            rule=rule,
        )


def public_graph(announcement: bytes, participants: bytes, size: int, neighbours: int) -> RingGraph:
    """Return the graph over `size` participants; complete if `neighbours` is not below size - 1."""
    return ring_graph(size, min(neighbours, size - 1), graph_seed(announcement, participants))


def check_key(key: NoisyAdvertise, announcement: bytes, roster: Roster) -> None:
    """Raise BadKey or BadSignature unless the client made this key for the announced run."""
    keys.check_publics(key.noise_key, key.client)
    signed = keys.advertised_bytes(announcement, key.client, key.noise_key, b"")
    keys.verify(roster[key.client], key.signature, signed, key.client)


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
    key = NoisyAdvertise(RUN, CLIENT, bytes(KEY_BYTES), bytes(SIGNATURE_BYTES))
    terms = announced(statement, shapes, block_entries)
    first_down = length(NoisyAnnounce.adding(terms, degree, noise)) + length_of_list(
        lambda count: NoisyNeighbours(RUN, CLIENT, b"", (key,) * count), degree
    )
    first_down += map_bytes(statement)
    each = [SumBytes(Fraction(shape.packed_bytes), Fraction(0)) for shape in sent]
    each[0] = SumBytes(each[0].up + length(key), each[0].down + first_down)
    return each
