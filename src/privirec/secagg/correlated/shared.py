"""What client and server of this protocol have in common."""

from __future__ import annotations

from dataclasses import dataclass

from privirec.secagg import keys
from privirec.secagg.correlated.levels import NoiseRule
from privirec.secagg.correlated.messages import Advertise, Neighbours, NoisyAnnounce, decode
from privirec.secagg.exchange import Exchange
from privirec.secagg.graph import RingGraph, graph_seed, ring_graph
from privirec.secagg.keys import Roster
from privirec.secagg.protocol import Schedule


@dataclass(frozen=True, kw_only=True)
class CorrelatedExchange(Exchange):
    """The exchange, and the rule by which its server chooses how much noise there is."""

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
    """The graph over `size` participants; complete where the announced neighbours are as many."""
    return ring_graph(size, min(neighbours, size - 1), graph_seed(announcement, participants))


def check_key(key: Advertise, announcement: bytes, roster: Roster) -> None:
    """Raise BadKey or BadSignature unless a client made this key for the announced run."""
    keys.check_publics(key.noise_key, key.client)
    signed = keys.advertised_bytes(announcement, key.client, key.noise_key, b"")
    keys.verify(roster[key.client], key.signature, signed, key.client)
