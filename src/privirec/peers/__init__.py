"""Other people's private methods over the same sums, the same noise and the same budget.

For comparisons in a simulation (`privirec privacy-table`). One file a method, a line in `PEERS`.
"""

from __future__ import annotations

from privirec.peers.als import AdaptivePrivateAls, PrivateAls
from privirec.peers.base import Peer
from privirec.peers.popularity import NoisyPopularityAlone
from privirec.peers.power import PrivatePower

PEERS: dict[str, type[Peer]] = {
    kind.name: kind for kind in (NoisyPopularityAlone, PrivatePower, PrivateAls, AdaptivePrivateAls)
}

__all__ = ["PEERS", "Peer", "Scorer"]
