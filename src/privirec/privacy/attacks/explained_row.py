"""Orthogonal matching pursuit, one row at a time: a vector explained by a few known vectors."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass
class ExplainedRow:
    """A row during its explanation: the atoms chosen so far, and the residual."""

    left: NDArray[np.float64]
    taken: list[int] = field(default_factory=list)
    basis: list[NDArray[np.float64]] = field(default_factory=list)
    """Orthonormal vectors that span the chosen atoms."""
    triangle: list[NDArray[np.float64]] = field(default_factory=list)
    along: list[float] = field(default_factory=list)

    def take(self, item: int, atom: NDArray[np.float64]) -> bool:
        """Add an atom to the explanation.

        Return False if the atom lies in the span of those chosen before.
        """
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
        """Return the coefficients of the chosen atoms, in the order of choice."""
        size = len(self.taken)
        upper = np.zeros((size, size))
        for column, entries in enumerate(self.triangle):
            upper[: column + 1, column] = entries
        return np.linalg.solve(upper, np.array(self.along)) if size else np.zeros(0)
