"""Degrees and their powers: the normalisation R~ = U^-a R V^(a-1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def degree_power(degrees: ArrayLike, exponent: float) -> NDArray[np.float64]:
    """degrees ** exponent, with zero for a degree of zero: who has no history has no weight."""
    values = np.asarray(degrees, np.float64)
    powers = np.zeros_like(values)
    some = values > 0
    if exponent == 0.5:
        # Square roots and divisions are exact to the last bit on every machine; powers are not.
        np.sqrt(values, out=powers, where=some)
    elif exponent == -0.5:
        np.divide(1.0, np.sqrt(values), out=powers, where=some)
    else:
        np.power(values, exponent, out=powers, where=some)
    return powers
