"""One step of a power method on the head of the catalogue, with differential privacy."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privirec.errors import FederationError
from privirec.federated.contributions.base import Histories, Integers, PlannedSum
from privirec.federated.contributions.noisy import NoiseShare, WeightedHeadSum
from privirec.federated.contributions.outer import BROADCAST_ENTRY, kernels


@dataclass(frozen=True)
class NoisyPowerStep(WeightedHeadSum):
    """Noisy power step: for each item i of the head, its weight times sum_u (z_u - w_i).

    The sum is over the people of the item. z_u is the sum of the rows w_j of a public block over a
    person's items. A person's part is a matrix over that person's items and the columns of the
    block. It is scaled to length one.

    The item's own row w_i is subtracted because its sum would be popularity times that row, which
    is known. A person with one item in the head sends zeros.

    A person's part is rounded towards zero. Its length is computed with a relative error of at most
    (n + 4) / 2^53 for n squares, which are summed one after the other. The part is scaled to 1 - (n
    + 16) / 2^52. In whole units it is therefore never longer than one, including that error and
    those of the root, the quotient and the products.
    """

    name: ClassVar[str] = "noisy-power-step"
    gives_away: ClassVar[str] = (
        "about how the people of each of the most popular items combine public numbers of their "
        "items; protected by noise"
    )
    block: NDArray[np.int32]
    """One row for each item of the head, in arbitrary units."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block.ndim != 2 or self.block.dtype != np.int32:
            raise FederationError("a block must be a matrix of 32-bit integers")
        if len(self.block) != len(self.items):
            raise FederationError(f"a block of {len(self.block)} rows for {len(self.items)} items")

    @classmethod
    def planned(
        cls,
        n_items: int,
        n_users: int,
        share: NoiseShare,
        head: int,
        columns: int,
        ring_bits: int = 0,
    ) -> PlannedSum:
        fixed = {"n_items": n_items, "n_users": n_users, **asdict(share), "ring_bits": ring_bits}
        items, block = np.arange(head), np.zeros((head, columns), np.int32)
        return PlannedSum(cls, cls(**fixed, items=items, block=block, weights=items).shape, fixed)

    @property
    def columns(self) -> int:
        return int(self.block.shape[1])

    @property
    def row_entries(self) -> int:
        return max(1, self.columns)

    @property
    def _length(self) -> int:
        return self.block.size

    def rows_of(self, histories: Histories) -> Integers:
        return np.unique(self.on_head(histories).matrix.indices).astype(np.int64)

    @property
    def row_space(self) -> bytes:
        return hashlib.sha256(b"head" + self.items.astype("<i8").tobytes()).digest()

    @property
    def _broadcast_bytes(self) -> int:
        return super()._broadcast_bytes + BROADCAST_ENTRY * self.block.size

    def exact_blocks(self, histories: Histories) -> Iterator[Integers]:
        matrix = self.on_head(histories).matrix
        total = np.zeros(self.block.shape, np.int64)
        kernels.add_unit_rows(
            matrix.indptr, matrix.indices, self.block, self.weights, float(self._unit), total
        )
        return self.pieces(total)

    def collect(self, blocks: Iterable[Integers]) -> Integers:
        summed: Integers = super().collect(blocks)
        return summed.reshape(self.block.shape)
