"""Orthogonal matching pursuit, one row at a time: a vector explained by few known ones."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass
class ExplainedRow:
    """A row while it is being explained: atoms taken, and what they leave."""

    left: NDArray[np.float64]
    taken: list[int] = field(default_factory=list)
    basis: list[NDArray[np.float64]] = field(default_factory=list)
    """Orthonormal, spanning the atoms taken."""
    triangle: list[NDArray[np.float64]] = field(default_factory=list)
    along: list[float] = field(default_factory=list)

    def take(self, item: int, atom: NDArray[np.float64]) -> bool:
        """Explain a part of the row by this atom; False if those taken before say all of it."""
        inside = np.array([direction @ atom for direction in self.basis])
        rest = atom - sum((c * d for c, d in zip(inside, self.basis, strict=True)), np.zeros(1))
        length = float(np.linalg.norm(rest))
        if length <= 1e-6 * float(np.linalg.norm(atom)):
            return False
        direction = rest / length
        share = float(direction @ self.left)
        self.taken.append(item)
        self.basis.append(direction)
        self.triangle.append(np.append(inside, length))
        self.along.append(share)
        self.left = self.left - share * direction
        return True

    def coefficients(self) -> NDArray[np.float64]:
        """Of the atoms taken, in the order in which they were."""
        size = len(self.taken)
        upper = np.zeros((size, size))
        for column, entries in enumerate(self.triangle):
            upper[: column + 1, column] = entries
        return np.linalg.solve(upper, np.array(self.along)) if size else np.zeros(0)
