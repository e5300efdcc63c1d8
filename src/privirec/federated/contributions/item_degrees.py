"""V: the number of users of each item."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privirec.federated.contributions.base import (
    ClientContext,
    Contribution,
    Histories,
    Integers,
    PlannedSum,
    SumShape,
)
from privirec.federated.fixed_point import FixedPoint
from privirec.federated.randomness import NO_RANDOMNESS, ClientStream, RandomStream


@dataclass(frozen=True)
class ItemDegrees(Contribution):
    """V: the number of users of each item, a whole number up to the number of users."""

    name: ClassVar[str] = "item-degrees"
    gives_away: ClassVar[str] = "how many people touched each item"
    per_item: ClassVar[bool] = True
    n_items: int
    n_users: int

    @classmethod
    def planned(cls, n_items: int, n_users: int) -> PlannedSum:
        fixed = {"n_items": n_items, "n_users": n_users}
        return PlannedSum(cls, cls(n_items, n_users).shape, fixed)

    @property
    def shape(self) -> SumShape:
        return SumShape(self.n_items, self.encoding.width, self.encoding.signed)

    @property
    def encoding(self) -> FixedPoint:
        return FixedPoint.counting(self.n_users)

    def check(self, context: ClientContext) -> None:
        """Accept the request: the plan fixes every field.

        The node checks that the plan counts this client's users.
        """

    def blocks(
        self, histories: Histories, randomness: RandomStream = NO_RANDOMNESS
    ) -> Iterator[Integers]:
        return self.pieces(self.total(histories))

    def rows_of(self, histories: Histories) -> Integers:
        return np.unique(histories.matrix.indices).astype(np.int64)

    def total(
        self, histories: Histories, randomness: Iterable[ClientStream] = NO_RANDOMNESS
    ) -> Integers:
        return histories.item_degrees

    def collect(self, blocks: Iterable[Integers]) -> Integers:
        """Return counts of users, clipped to the possible range in case the aggregation left
        noise."""
        return np.clip(super().collect(blocks), 0, self.n_users)
