"""Likely links: the unseen user-item pairs with the best scores over all users.

Scores are d_u^-alpha x_u P in single precision. The bit patterns of positive floating-point numbers
have the same order as the numbers. Two histograms of bits (the upper half, then the lower half of
the numbers that share the right upper half) therefore give the score of the n-th best pair exactly,
without a list of pairs. Histograms and counts are sums over users, so a federation can compute
them as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.compiled import Later
from privirec.filters.operators import Float32, ItemOperator

kernels = Later("privirec.filters.kernels")

Integers = NDArray[np.int64]

HALF = 1 << 16
"""Number of values of half of a number's bits."""
USERS_AT_ONCE = 256


@dataclass(frozen=True)
class LinkScores:
    """Scores of all unseen pairs, recomputed block by block for each use."""

    histories: sp.csr_array
    operator: ItemOperator
    user_weights: Float32
    """d_u^-alpha."""

    def _blocks(self) -> Iterator[tuple[int, NDArray[np.int32]]]:
        """Yield first users and bits of scores; pairs already seen are negative."""
        for start in range(0, self.histories.shape[0], USERS_AT_ONCE):
            part = self.histories[start : start + USERS_AT_ONCE]
            scores = self.operator.rows(part)
            scores *= self.user_weights[start : start + USERS_AT_ONCE, None]
            kernels.mask_entries(part.indptr, part.indices, scores)
            yield start, scores.view(np.int32)

    def upper_histogram(self) -> Integers:
        """Return the number of scores with each upper half."""
        counts = np.zeros(HALF, np.int64)
        for _, bits in self._blocks():
            kernels.count_upper_halves(bits, counts)
        return counts

    def lower_histogram(self, upper: int) -> Integers:
        """Return the number of scores with this upper half and each lower half."""
        counts = np.zeros(HALF, np.int64)
        for _, bits in self._blocks():
            kernels.count_lower_halves(bits, upper, counts)
        return counts

    def links(self, threshold: int) -> tuple[Integers, Integers]:
        """Return the number of pairs per user, and per item, that reach the threshold bits."""
        users = np.zeros(self.histories.shape[0], np.int64)
        items = np.zeros(self.histories.shape[1], np.int64)
        for start, bits in self._blocks():
            kernels.count_links(bits, threshold, users[start : start + len(bits)], items)
        return users, items


def likely_links(interactions: int, share: float) -> int:
    """Return the number of likely links: `share` per interaction, and at least one."""
    return max(round(share * interactions), 1)


def nth_from_the_top(histogram: Integers, count: int) -> tuple[int, int]:
    """Return the bin of the `count`-th largest number, and its place in that bin from the top.

    Returns bin 0 if there are fewer numbers.
    """
    above = np.cumsum(histogram[::-1])
    steps = int(np.searchsorted(above, count))
    if steps >= len(histogram):
        return 0, count
    before = int(above[steps - 1]) if steps else 0
    return len(histogram) - 1 - steps, count - before


def threshold_bits(upper: int, lower: int) -> int:
    """Return the bits with these halves; at least those of the smallest positive number."""
    return max((upper << 16) | lower, 1)
