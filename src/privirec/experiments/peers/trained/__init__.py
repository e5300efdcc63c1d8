"""Federated recommenders trained by gradient steps, which the paper's cost table compares with.

As in the paper, sums are exact and without noise. The methods serve comparisons in a simulation
(`privirec paper frontier`). Each method has one file and one entry in `TRAINED`.
"""

from __future__ import annotations

from privirec.experiments.peers.trained.base import Training
from privirec.experiments.peers.trained.light_gcn import LightGCN
from privirec.experiments.peers.trained.matrix_factorization import MatrixFactorization

TRAINED: dict[str, type[Training]] = {kind.name: kind for kind in (MatrixFactorization, LightGCN)}

__all__ = ["TRAINED", "Training"]
