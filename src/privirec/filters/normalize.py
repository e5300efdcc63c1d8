"""Degrees, their powers, and which powers an item-item matrix is divided by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privirec.filters import exact


@dataclass(frozen=True)
class Normalisation:
    """P = V^-left (sum_u d_u^-user r_u^T r_u) V^-right, which a history multiplies from the left.

    So `left` weighs the items of a history, and `right` the items that are scored.
    """

    user: float
    left: float
    right: float

    @classmethod
    def symmetric(cls, alpha: float = 0.5) -> Self:
        """P~ = R~^T R~ with R~ = U^-alpha R V^(alpha-1)."""
        return cls(2 * alpha, 1 - alpha, 1 - alpha)

    @property
    def is_symmetric(self) -> bool:
        return self.left == self.right

    @property
    def alpha(self) -> float | None:
        """The alpha of which this is the symmetric normalisation, if there is one."""
        alpha = self.user / 2
        return alpha if self == Normalisation.symmetric(alpha) else None

    def __str__(self) -> str:
        if self.alpha is not None:
            return f"alpha = {self.alpha:g}"
        return f"exponents {self.user:g} (users), {self.left:g} and {self.right:g} (items)"


SYMMETRIC = Normalisation.symmetric()
PROTECTED_PAIRS = Normalisation(user=1.0, left=-0.2, right=-0.2)
"""Of noisy pairs. Popular items get more of everybody's length: of rare pairs noise leaves little
to learn, and there a person stands out to somebody who knows nothing but a candidate's history."""


def degree_power(degrees: ArrayLike, exponent: float) -> NDArray[np.float64]:
    """degrees ** exponent, with zero for a degree of zero: who has no history has no weight.

    Powers of whole numbers are the same on every machine: clients make what they send of them.
    Sums of weights and noisy votes are no whole numbers; too many of them differ to be exact.
    """
    given = np.asarray(degrees)
    values = given.astype(np.float64)
    powers = np.zeros_like(values)
    some = values > 0
    if exponent == 0.5:
        # Square roots and divisions are exact to the last bit on every machine; powers are not.
        np.sqrt(values, out=powers, where=some)
    elif exponent == -0.5:
        np.divide(1.0, np.sqrt(values), out=powers, where=some)
    elif exponent == -1.0:
        np.divide(1.0, values, out=powers, where=some)
    elif given.dtype.kind in "iu":
        powers = exact.powers(given, exponent)
    else:
        np.power(values, exponent, out=powers, where=some)
    return powers


def item_scales(
    item_degrees: ArrayLike, normalisation: Normalisation
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """V^-left and V^-right; the same array twice where they are equal."""
    left = degree_power(item_degrees, -normalisation.left)
    if normalisation.is_symmetric:
        return left, left
    return left, degree_power(item_degrees, -normalisation.right)


def most_popular(item_degrees: NDArray[Any], count: int | None) -> NDArray[np.int64]:
    """So many items of the highest degrees, in ascending order; equal degrees by lower number."""
    order = np.argsort(-item_degrees, kind="stable")[:count]
    return np.sort(order).astype(np.int64)


def behind_all_else(popularity: NDArray[Any]) -> NDArray[np.float32]:
    """Scores by popularity, so small that they only decide between items of which nothing else is
    known."""
    largest = max(1.0, float(popularity.max(initial=0)))
    return (popularity.astype(np.float64) / largest * 1e-6).astype(np.float32)
