"""Polynomial responses of `spectral` by their heights, for whoever climbs on a validation split.

A polynomial of degree three is told by its heights at four points, and a change of one height is a
change of its shape nearby; a change of one coefficient changes it everywhere. Lists do not depend
on the size of all heights together, so one of them stays.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.polynomial import polynomial

from privirec.models.spectral import SpectralConfig

NODES = (0.0, 1 / 3, 2 / 3, 1.0)
"""Eigenvalues are between 0 and 1."""
FIXED = 1
"""The node whose height stays: most eigenvalues are not far from it."""
STEPS = (0.2, 0.1)
"""Of heights, the coarse one first; the fixed one is about one."""
DIGITS = 4
_SEEN = np.linspace(0.05, 1.0, 39)


def as_polynomial(config: SpectralConfig) -> SpectralConfig:
    """The same filter with the nearest polynomial, its height at the fixed node being one."""
    fitted = polynomial.polyfit(_SEEN, config.responses(_SEEN), len(NODES) - 1)
    heights = polynomial.polyval(np.array(NODES), fitted)
    return _with_heights(config, heights / heights[FIXED])


def near_polynomials(config: SpectralConfig, step: float) -> Iterator[SpectralConfig]:
    """Of which one height is another."""
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
