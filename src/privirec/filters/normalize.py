"""Degrees, their powers, and the normalisation of an item-item matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privirec.filters import exact


@dataclass(frozen=True)
class Normalisation:
    """P = V^-left (sum_u d_u^-user r_u^T r_u) V^-right, multiplied by a history from the left.

    `left` therefore weights the items of a history, and `right` the items that are scored.
    """

    user: float
    left: float
    right: float

    @classmethod
    def symmetric(cls, alpha: float = 0.5) -> Self:
        """Return the normalisation P~ = R~^T R~ with R~ = U^-alpha R V^(alpha-1)."""
        return cls(2 * alpha, 1 - alpha, 1 - alpha)

    @property
    def is_symmetric(self) -> bool:
        return self.left == self.right

    @property
    def alpha(self) -> float | None:
        """The alpha for which this is the symmetric normalisation, or None."""
        alpha = self.user / 2
        return alpha if self == Normalisation.symmetric(alpha) else None

    def __str__(self) -> str:
        if self.alpha is not None:
            return f"alpha = {self.alpha:g}"
        return f"exponents {self.user:g} (users), {self.left:g} and {self.right:g} (items)"


SYMMETRIC = Normalisation.symmetric()
PROTECTED_PAIRS = Normalisation(user=1.0, left=-0.2, right=-0.2)
"""Normalisation for noisy pairs. It gives popular items a larger share of the norm of each person's
contribution. In rare pairs noise leaves little to learn, and a person stands out there to an
attacker who knows only a candidate's history."""


def degree_power(degrees: ArrayLike, exponent: float) -> NDArray[np.float64]:
    """Return degrees ** exponent, with zero for a degree of zero: an empty history has no weight.

    Powers of whole numbers are the same on every machine, because clients compute what they send
    from them. Sums of weights and noisy votes are not whole numbers; they have too many distinct
    values for exact powers.
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
    """Return V^-left and V^-right, as the same array if they are equal."""
    left = degree_power(item_degrees, -normalisation.left)
    if normalisation.is_symmetric:
        return left, left
    return left, degree_power(item_degrees, -normalisation.right)


def most_popular(item_degrees: NDArray[Any], count: int | None) -> NDArray[np.int64]:
    """Return the `count` items of highest degree, in ascending order; ties by lower number."""
    order = np.argsort(-item_degrees, kind="stable")[:count]
    return np.sort(order).astype(np.int64)


_TIE = 1e-9
"""Weight of popularity beside a filter's scores: it only orders items of equal score."""


def relative_popularity(popularity: NDArray[Any]) -> NDArray[np.float32]:
    """Return popularity between 0 and 1, the score of items about which nothing else is known."""
    counted = np.maximum(popularity.astype(np.float64), 0)
    return (counted / max(1.0, float(counted.max(initial=0)))).astype(np.float32)


def head_before_tail(
    on_head: NDArray[np.float32], items: NDArray[np.int64], relative: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return scores of all items: those of the head, then all others by popularity.

    The head's scores may have any sign, so the others are placed below the smallest of them. Items
    of the head that a history says nothing about are in the order of their popularity too.
    """
    below = on_head.min(axis=1, initial=0.0) - np.float32(2)
    scores = below[:, None] + relative[None]
    scores[:, items] = on_head + np.float32(_TIE) * relative[items]
    return scores
