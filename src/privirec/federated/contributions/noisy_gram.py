"""Which items of the head are touched together, with differential privacy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from math import isqrt
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privirec.federated.contributions.base import Histories, Integers, PlannedSum
from privirec.federated.contributions.item_item import ItemItem
from privirec.federated.contributions.noisy import HeadSum, NoiseShare, by_degree


@dataclass(frozen=True)
class NoisyHeadGram(HeadSum):
    """sum_u x_u^T x_u off the diagonal with noise, x_u the history on the head, each person's part
    at length one.

    The diagonal would take a part of that length and tell little: popularity tells nearly the
    same. A person with d items of the head has d (d - 1) / 2 pairs, all alike.
    """

    name: ClassVar[str] = "noisy-head-gram"
    gives_away: ClassVar[str] = (
        "about how often any two of the most popular items were touched by the same people; "
        "protected by noise"
    )
    is_item_item: ClassVar[bool] = True

    @classmethod
    def planned(cls, n_items: int, n_users: int, share: NoiseShare, head: int) -> PlannedSum:
        fixed = {"n_items": n_items, "n_users": n_users, **asdict(share)}
        return PlannedSum(cls, cls(**fixed, items=np.arange(head)).shape, fixed)

    @property
    def _length(self) -> int:
        head = len(self.items)
        return head * (head + 1) // 2

    @cached_property
    def _triangle(self) -> ItemItem:
        """Which entry of the triangle stands where. Its diagonal is there, and empty."""
        return ItemItem(len(self.items), 1)

    def block_lengths(self) -> Iterator[int]:
        return self._triangle.block_lengths()

    def exact_blocks(self, histories: Histories) -> Iterator[Integers]:
        head, unit = self.on_head(histories), 4**self.fraction_bits
        weights = by_degree(
            head.degrees,
            lambda degree: isqrt(2 * unit // (degree * (degree - 1))) if degree > 1 else 0,
        )
        row = 0
        for block in self._triangle.weighted_blocks(head, weights):
            place = 0
            while place < len(block):
                block[place] = 0
                place += len(self.items) - row
                row += 1
            yield block


def gram_of(
    triangle: Integers, head: int, fraction_bits: int, diagonal: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The symmetric matrix from the summed triangle: a pair stands in it twice, so it is as long
    as the triangle if its entries are smaller by sqrt(2)."""
    gram = np.zeros((head, head))
    rows, columns = np.triu_indices(head)
    gram[rows, columns] = np.ldexp(triangle.astype(np.float64), -fraction_bits) / math.sqrt(2)
    gram += np.triu(gram, 1).T
    gram[np.diag_indices(head)] = diagonal
    return gram
