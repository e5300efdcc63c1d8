"""Polynomial responses of `spectral`, parametrised by their heights, for hill climbing.

The heights at four points determine a polynomial of degree three. A change of one height mainly
changes the shape near that point, whereas a change of one coefficient changes it everywhere.
Rankings do not depend on a common factor of the heights, so one height is fixed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.polynomial import polynomial

from privirec.models.spectral import SpectralConfig

NODES = (0.0, 1 / 3, 2 / 3, 1.0)
"""Eigenvalues at which heights are given; all eigenvalues are between 0 and 1."""
FIXED = 1
"""Index of the node whose height is fixed; most eigenvalues are near this node."""
STEPS = (0.2, 0.1)
"""Step sizes of the heights, the coarse one first; the fixed height is about one."""
DIGITS = 4
_SEEN = np.linspace(0.05, 1.0, 39)


def as_polynomial(config: SpectralConfig) -> SpectralConfig:
    """Return the filter with the closest polynomial, scaled to height one at the fixed node."""
    fitted = polynomial.polyfit(_SEEN, config.responses(_SEEN), len(NODES) - 1)
    heights = polynomial.polyval(np.array(NODES), fitted)
    return _with_heights(config, heights / heights[FIXED])


def near_polynomials(config: SpectralConfig, step: float) -> Iterator[SpectralConfig]:
    """Yield the polynomials that differ from this one in one height."""
    heights = polynomial.polyval(np.array(NODES), np.array(config.coefficients))
    for node in range(len(NODES)):
        if node == FIXED:
            continue
        for change in (step, -step):
            moved = heights.copy()
            moved[node] += change
            yield _with_heights(config, moved)


def _with_heights(config: SpectralConfig, heights: np.ndarray) -> SpectralConfig:
    fitted = polynomial.polyfit(np.array(NODES), heights, len(NODES) - 1)
    rounded = tuple(float(each) for each in np.round(fitted, DIGITS))
    return config.model_copy(update={"response": "polynomial", "coefficients": rounded})
