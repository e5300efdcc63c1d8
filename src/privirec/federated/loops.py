"""Loops used by contributions: compiled, or in NumPy for one person's history."""

from __future__ import annotations

from privirec.compiled import Loops

kernels = Loops("privirec.federated.kernels", in_numpy="privirec.federated.kernels_in_numpy")

# Number of columns processed at a time. A block of a Gowalla-sized matrix then fits into the
# last-level cache.
COLUMNS = 64
