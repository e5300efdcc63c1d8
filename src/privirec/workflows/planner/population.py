"""Whom a run is planned for: how many people and items, and how popularity is spread over items."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from privirec.data.interactions import Dataset
from privirec.data.shards import ShardedDataset
from privirec.errors import UsageError
from privirec.filters import factored

USUAL_HISTORY = 25
"""Items of a person, where nobody says: Globo has 13, Gowalla 27, Yelp2018 39. Only CPU seconds
depend on it, and little."""
MOST_USERS, MOST_ITEMS = (1 << 32) - 2, 1 << 24
"""Numbers that there are for clients, and as many items as have pairs that one sum can hold."""
STEEPEST = 4.0
"""Largest exponent of popularity by rank that is looked for."""
EXACT_RANKS = 1000
"""Items at the top whose popularity is added up one by one."""


@dataclass(frozen=True)
class Population:
    """Numbers that a plan starts from. What is not known is None."""

    users: int
    items: int
    interactions: int | None = None
    largest_degree: int | None = None
    """People of the most popular item."""
    top_fifth: float | None = None
    """Share of all interactions that the most popular fifth of the items has."""
    item_item_entries: int | None = None
    """Non-zeros of P~, where the data is at hand."""
    name: str | None = None
    """Of the data set, if it is one."""
    degrees: NDArray[np.int64] | None = field(default=None, repr=False, compare=False)
    """Of all items, largest first, where the data is at hand."""

    def __post_init__(self) -> None:
        if self.users < 2:
            raise UsageError("a plan needs at least 2 users: a sum over one is its history")
        if self.items < 2:
            raise UsageError("a plan needs at least 2 items")
        if self.users > MOST_USERS or self.items > MOST_ITEMS:
            raise UsageError(
                f"{self.users:,} users and {self.items:,} items: plans are for at most "
                f"{MOST_USERS:,} and {MOST_ITEMS:,}"
            )
        most = self.interactions
        if most is not None and not self.users <= most <= self.users * self.items:
            raise UsageError(
                f"{most:,} interactions of {self.users:,} users with {self.items:,} items: there "
                f"are {self.users:,} to {self.users * self.items:,}"
            )
        largest = self.largest_degree
        if largest is not None and not 1 <= largest <= self.users:
            raise UsageError(f"an item with {largest:,} users, of {self.users:,} there are")
        if largest is not None and most is not None and not largest <= most <= largest * self.items:
            raise UsageError(
                f"{most:,} interactions do not fit {self.items:,} items with at most {largest:,} "
                "users each"
            )
        if self.top_fifth is not None and not 0.2 <= self.top_fifth <= 1:
            raise UsageError(
                f"the most popular fifth of the items has 0.2 to 1 of all interactions, not "
                f"{self.top_fifth:g}"
            )

    @classmethod
    def of(cls, data: Dataset) -> Population:
        """All numbers of the train split."""
        train = data.train
        entries = factored(train).written_out().matrix.nnz
        return cls._with_degrees(data.name, train.n_users, train.item_degrees, entries)

    @classmethod
    def of_shards(cls, data: ShardedDataset) -> Population:
        degrees = sum((train.item_degrees for train in data.trains()), np.zeros(data.n_items, int))
        return cls._with_degrees(data.name, data.n_users, degrees, None)

    @classmethod
    def _with_degrees(
        cls, name: str, users: int, degrees: NDArray[np.int64], entries: int | None
    ) -> Population:
        ordered = np.sort(degrees)[::-1]
        total = int(ordered.sum())
        fifth = int(ordered[: max(1, len(ordered) // 5)].sum()) / max(1, total)
        return cls(
            *(users, len(ordered), total, int(ordered[0])),
            top_fifth=max(0.2, fifth),
            item_item_entries=entries,
            name=name,
            degrees=ordered,
        )

    @property
    def history(self) -> int:
        """Items of a person, on average."""
        if self.interactions is None:
            return min(USUAL_HISTORY, self.items)
        return max(1, round(self.interactions / self.users))

    @property
    def widest_degree(self) -> int:
        """The largest degree that rings must hold: an item that everybody has, if nobody knows."""
        return self.users if self.largest_degree is None else self.largest_degree

    def coverage(self, head: int) -> float:
        """Share of all interactions that lie on the `head` most popular items.

        Without the data popularity is taken to fall by a power of the rank, the one that gives the
        top fifth its share; or the first item, which on real data says too little (0.52 where 2,300
        items of Globo have 0.91). If neither is known, all items are taken to be equally popular.
        """
        head = min(head, self.items)
        if self.degrees is not None:
            return float(self.degrees[:head].sum() / max(1, self.degrees.sum()))
        return _power_sum(head, self._steepness) / _power_sum(self.items, self._steepness)

    @property
    def knows_popularity(self) -> bool:
        """Whether `coverage` is more than a guess."""
        return self.degrees is not None or self.top_fifth is not None or self._knows_first

    @property
    def _knows_first(self) -> bool:
        return self.interactions is not None and self.largest_degree is not None

    @cached_property
    def _steepness(self) -> float:
        if self.top_fifth is not None:
            top, share = max(1, self.items // 5), self.top_fifth
        elif self.interactions is not None and self.largest_degree is not None:
            top, share = 1, self.largest_degree / self.interactions
        else:
            return 0.0
        low, high = 0.0, STEEPEST
        for _ in range(50):
            middle = (low + high) / 2
            enough = _power_sum(top, middle) / _power_sum(self.items, middle) >= share
            low, high = (low, middle) if enough else (middle, high)
        return high


def _power_sum(ranks: int, exponent: float) -> float:
    """The sum of r^-exponent over so many ranks; beyond the first thousand by its integral."""
    exact = min(ranks, EXACT_RANKS)
    found = float((np.arange(1, exact + 1, dtype=np.float64) ** -exponent).sum())
    if ranks > exact:
        low, high = exact + 0.5, ranks + 0.5
        if abs(exponent - 1) < 1e-9:
            return found + float(np.log(high / low))
        found += (high ** (1 - exponent) - low ** (1 - exponent)) / (1 - exponent)
    return found
