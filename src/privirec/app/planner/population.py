"""The population of a plan: numbers of people and items, and the distribution of popularity."""

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
"""Default number of items per person; Globo has 13, Gowalla 27, Yelp2018 39.

Only estimates of CPU seconds depend on it, and only slightly.
"""
MOST_USERS, MOST_ITEMS = (1 << 32) - 2, 1 << 24
"""Number of available client numbers, and most items whose pairs one sum can hold."""
STEEPEST = 4.0
"""Largest exponent of popularity by rank that is considered."""
EXACT_RANKS = 1000
"""Number of top ranks whose popularity is summed exactly."""


@dataclass(frozen=True)
class Population:
    """Numbers that a plan is based on; unknown ones are None."""

    users: int
    items: int
    interactions: int | None = None
    largest_degree: int | None = None
    """Number of people who have the most popular item."""
    top_fifth: float | None = None
    """Share of all interactions with the most popular fifth of the items."""
    item_item_entries: int | None = None
    """Number of non-zeros of P~, if the data is available."""
    name: str | None = None
    """Name of the data set, if there is one."""
    degrees: NDArray[np.int64] | None = field(default=None, repr=False, compare=False)
    """Degrees of all items, largest first, if the data is available."""

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
            raise UsageError(f"an item with {largest:,} users; it must have 1 to {self.users:,}")
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
        """Return the population of a data set's train split, with all numbers known."""
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
        """Average number of items per person."""
        if self.interactions is None:
            return min(USUAL_HISTORY, self.items)
        return max(1, round(self.interactions / self.users))

    @property
    def widest_degree(self) -> int:
        """Largest degree that rings must hold; if unknown, that of an item that all people have."""
        return self.users if self.largest_degree is None else self.largest_degree

    def coverage(self, head: int) -> float:
        """Return the share of all interactions with the `head` most popular items.

        Without the data, popularity is assumed to fall with a power of the rank. The exponent is
        fitted to the share of the top fifth or, if that is unknown, to the most popular item, which
        underestimates real data (0.52 where 2,300 items of Globo have 0.91). If neither is known,
        all items are assumed to be equally popular.
        """
        head = min(head, self.items)
        if self.degrees is not None:
            return float(self.degrees[:head].sum() / max(1, self.degrees.sum()))
        return _power_sum(head, self._steepness) / _power_sum(self.items, self._steepness)

    @property
    def knows_popularity(self) -> bool:
        """True if `coverage` is based on known popularity."""
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
    """Return the sum of r^-exponent over ranks 1 to `ranks`.

    Beyond the first `EXACT_RANKS`, it is approximated by the integral.
    """
    exact = min(ranks, EXACT_RANKS)
    found = float((np.arange(1, exact + 1, dtype=np.float64) ** -exponent).sum())
    if ranks > exact:
        low, high = exact + 0.5, ranks + 0.5
        if abs(exponent - 1) < 1e-9:
            return found + float(np.log(high / low))
        found += (high ** (1 - exponent) - low ** (1 - exponent)) / (1 - exponent)
    return found
