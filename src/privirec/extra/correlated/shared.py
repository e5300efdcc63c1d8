"""Definitions common to the client and the server of this protocol."""

from __future__ import annotations

from dataclasses import dataclass

from privirec.extra.correlated.levels import NoiseRule
from privirec.extra.correlated.messages import Advertise, Neighbours, NoisyAnnounce, decode
from privirec.secagg import keys
from privirec.secagg.graph import RingGraph, graph_seed, ring_graph
from privirec.secagg.keys import Roster
from privirec.secagg.protocol import MessageOrder, Schedule


@dataclass(frozen=True, kw_only=True)
class CorrelatedExchange(MessageOrder):
    """The exchange, with the rule that determines its noise levels."""

    rule: NoiseRule

    @classmethod
    def of(cls, name: str, code: int, rule: NoiseRule) -> CorrelatedExchange:
        return cls(
            name,
            code,
            Schedule(setup=("advertise",)),
            decode,
            told=(NoisyAnnounce, Neighbours),
            answers={Advertise: "advertise"},
            rule=rule,
        )


def public_graph(announcement: bytes, participants: bytes, size: int, neighbours: int) -> RingGraph:
    """Return the graph over `size` participants; complete if `neighbours` is not below size - 1."""
    return ring_graph(size, min(neighbours, size - 1), graph_seed(announcement, participants))


def check_key(key: Advertise, announcement: bytes, roster: Roster) -> None:
    """Raise BadKey or BadSignature unless the client made this key for the announced run."""
    keys.check_publics(key.noise_key, key.client)
    signed = keys.advertised_bytes(announcement, key.client, key.noise_key, b"")
    keys.verify(roster[key.client], key.signature, signed, key.client)
