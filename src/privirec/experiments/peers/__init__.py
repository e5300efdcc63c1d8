"""Published private methods by other authors, run over the same sums, noise and budget as ours.

They serve comparisons in a simulation (`privirec paper privacy-table`). Each method has one file
and one entry in `PEERS`.
"""

from __future__ import annotations

from privirec.experiments.peers.als import AdaptivePrivateAls, PrivateAls
from privirec.experiments.peers.base import NoisyPopularityAlone, Peer
from privirec.experiments.peers.power import PrivatePower

PEERS: dict[str, type[Peer]] = {
    kind.name: kind for kind in (NoisyPopularityAlone, PrivatePower, PrivateAls, AdaptivePrivateAls)
}

__all__ = ["PEERS", "Peer"]
