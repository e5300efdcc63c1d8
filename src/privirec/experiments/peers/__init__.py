"""Published methods by other authors, run over the same sums as ours, for comparisons.

`PEERS` are private methods, with the same noise and budget as ours (`privirec paper
privacy-table`). `TRAINED` are recommenders trained by gradient steps on exact sums, which the
paper's cost table compares with (`privirec paper frontier`). Each method has one file and one entry
here.
"""

from __future__ import annotations

from privirec.experiments.peers.als import AdaptivePrivateAls, PrivateAls
from privirec.experiments.peers.base import NoisyPopularityAlone, Peer
from privirec.experiments.peers.light_gcn import LightGCN
from privirec.experiments.peers.matrix_factorization import MatrixFactorization
from privirec.experiments.peers.power import PrivatePower
from privirec.experiments.peers.training import Training

PEERS: dict[str, type[Peer]] = {
    kind.name: kind for kind in (NoisyPopularityAlone, PrivatePower, PrivateAls, AdaptivePrivateAls)
}
TRAINED: dict[str, type[Training]] = {kind.name: kind for kind in (MatrixFactorization, LightGCN)}
