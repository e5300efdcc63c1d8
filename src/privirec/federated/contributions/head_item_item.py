"""P' between the most popular items only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import scipy.sparse as sp

from privirec.federated.contributions.base import (
    ClientContext,
    Contribution,
    Histories,
    Integers,
    PlannedSum,
    SumShape,
)
from privirec.federated.contributions.item_item import ItemItem
from privirec.federated.fixed_point import FixedPoint
from privirec.federated.randomness import NO_RANDOMNESS, ClientStream, RandomStream
from privirec.filters.normalize import most_popular


@dataclass(frozen=True)
class HeadItemItem(Contribution):
    """P' = sum_u d_u^(-2 alpha) x_u^T x_u, with x_u the history on the head and d_u its length.

    The head consists of the `head` items of the highest degrees. It follows from degrees that every
    client knows, but only as claimed by the server.
    """

    name: ClassVar[str] = "head-item-item"
    gives_away: ClassVar[str] = (
        "how many people touched any two of the most popular items, weighted by how few of these "
        "they touched; not proven safe"
    )
    is_item_item: ClassVar[bool] = True
    n_items: int
    item_degrees: Integers
    head: int
    alpha: float = 0.5
    width: int = 32

    @classmethod
    def planned(cls, n_items: int, head: int, alpha: float, width: int) -> PlannedSum:
        fixed = {"n_items": n_items, "head": head, "alpha": alpha, "width": width}
        return PlannedSum(cls, ItemItem.shape_of(head, width), fixed)

    @property
    def shape(self) -> SumShape:
        return self.inside.shape

    @property
    def encoding(self) -> FixedPoint:
        return self.inside.encoding

    @property
    def items_in_use(self) -> int:
        return int(np.count_nonzero(self.item_degrees))

    @cached_property
    def items(self) -> Integers:
        """Items of the head, in ascending order."""
        return most_popular(self.item_degrees, self.head)

    @cached_property
    def inside(self) -> ItemItem:
        """Equivalent sum over a catalogue that consists of the head alone."""
        largest = int(self.item_degrees.max(initial=0))
        return ItemItem(len(self.items), largest, self.alpha, self.width)

    def check(self, context: ClientContext) -> None:
        context.check_item_degrees(self.item_degrees)

    def _on_head(self, histories: Histories) -> Histories:
        """Return the part of the histories that lies in the head."""
        return Histories(sp.csr_array(histories.matrix[:, self.items]), histories.first_user)

    def blocks(
        self, histories: Histories, randomness: RandomStream = NO_RANDOMNESS
    ) -> Iterator[Integers]:
        return self.inside.blocks(self._on_head(histories), randomness)

    def total(
        self, histories: Histories, randomness: Iterable[ClientStream] = NO_RANDOMNESS
    ) -> sp.csr_array:
        return self.inside.total(self._on_head(histories), randomness)

    def collect(self, blocks: Iterable[Integers]) -> sp.csr_array:
        return self.inside.collect(blocks)

    def block_lengths(self) -> Iterator[int]:
        return self.inside.block_lengths()
