"""Recommenders that are trained in rounds of gradients, federated: what the paper's table of costs
compares with. No noise, and exact sums, as there.

For comparisons in a simulation (`privirec frontier`). One file a method, a line in `TRAINED`.
"""

from __future__ import annotations

from privirec.peers.trained.base import Training
from privirec.peers.trained.light_gcn import LightGCN
from privirec.peers.trained.matrix_factorization import MatrixFactorization

TRAINED: dict[str, type[Training]] = {kind.name: kind for kind in (MatrixFactorization, LightGCN)}

__all__ = ["TRAINED", "Training"]
