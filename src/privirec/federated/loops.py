"""The loops behind contributions: compiled, or in NumPy for one person's history."""

from __future__ import annotations

from privirec.compiled import Loops

kernels = Loops("privirec.federated.kernels", in_numpy="privirec.federated.kernels_in_numpy")

# Columns handled at a time: a block of a Gowalla-sized matrix then fits the last-level cache.
COLUMNS = 64
