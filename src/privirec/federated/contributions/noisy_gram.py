"""Co-occurrence of the items in the head, with differential privacy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from privirec.federated.contributions.base import Histories, Integers, PlannedSum
from privirec.federated.contributions.item_item import ItemItem
from privirec.federated.contributions.noisy import NoiseShare, WeightedHeadSum
from privirec.federated.contributions.outer import kernels


@dataclass(frozen=True)
class NoisyHeadGram(WeightedHeadSum):
    """sum_u x_u^T x_u off the diagonal, with noise.

    x_u holds the weights of a person's items in the head. Each person's part is scaled to length
    one.

    The diagonal is left out: it would take up a part of that length and tell little beyond
    popularity.

    Before scaling, the squared length of a part is a sum of n products of non-negative whole
    numbers. It is added up in doubles, with a relative error of at most (n + 4) / 2^53. The part is
    scaled to 1 - (n + 16) / 2^52 and then rounded towards zero. In whole units it is therefore
    never longer than one, including that error and those of the root, the quotient and the
    products.
    """

    name: ClassVar[str] = "noisy-head-gram"
    gives_away: ClassVar[str] = (
        "about how often any two of the most popular items were touched by the same people; "
        "protected by noise"
    )
    is_item_item: ClassVar[bool] = True
    squared_distance: ClassVar[int] = 2  # weights are positive, and so are their products

    @classmethod
    def planned(
        cls, n_items: int, n_users: int, share: NoiseShare, head: int, ring_bits: int = 0
    ) -> PlannedSum:
        fixed = {"n_items": n_items, "n_users": n_users, **asdict(share), "ring_bits": ring_bits}
        items = np.arange(head)
        return PlannedSum(cls, cls(**fixed, items=items, weights=items).shape, fixed)

    @property
    def _length(self) -> int:
        head = len(self.items)
        return head * (head + 1) // 2

    @cached_property
    def _triangle(self) -> ItemItem:
        """Layout of the triangle. It includes the diagonal, which stays empty."""
        return ItemItem(len(self.items), 1)

    def block_lengths(self) -> Iterator[int]:
        return self._triangle.block_lengths()

    def exact_blocks(self, histories: Histories) -> Iterator[Integers]:
        head = self.on_head(histories)
        matrix, by_item = head.matrix, head.by_item
        scales = kernels.unit_pair_scales(
            matrix.indptr, matrix.indices, self.weights, float(self._unit)
        )
        triangle = self._triangle
        for (first, last), length in zip(
            triangle.row_ranges(), triangle.block_lengths(), strict=True
        ):
            block = np.zeros(length, np.int64)
            kernels.add_pair_rows(
                first,
                last,
                by_item.indptr,
                by_item.indices,
                matrix.indptr,
                matrix.indices,
                self.weights,
                scales,
                block,
            )
            yield block


def pair_length(weights: NDArray[Any], chances: NDArray[np.float64] | float = 1.0) -> float:
    """Return the length of the vector of all products of two weights, each pair counted twice.

    With `chances`, each item is present only with that probability, and the result is the square
    root of the expected squared length.
    """
    squares = chances * np.square(np.asarray(weights, np.float64))
    return math.sqrt(max(float(squares.sum() ** 2 - np.square(squares).sum()), 0.0))


def gram_of(
    triangle: NDArray[Any], head: int, fraction_bits: int, diagonal: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the symmetric matrix from the summed triangle.

    Each pair occurs twice in the matrix. Its entries are divided by sqrt(2), so that it has the
    same length as the triangle.
    """
    gram = np.zeros((head, head))
    rows, columns = np.triu_indices(head)
    gram[rows, columns] = np.ldexp(triangle.astype(np.float64), -fraction_bits) / math.sqrt(2)
    gram += np.triu(gram, 1).T
    gram[np.diag_indices(head)] = diagonal
    return gram
