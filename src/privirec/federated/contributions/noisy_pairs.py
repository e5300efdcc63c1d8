"""Co-occurrence of chosen pairs of items in the head, with differential privacy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import isqrt
from typing import ClassVar

import numpy as np

from privirec.errors import FederationError
from privirec.federated.contributions.base import ClientContext, Histories, Integers, PlannedSum
from privirec.federated.contributions.noisy import HeadSum, NoiseShare, by_degree
from privirec.federated.contributions.outer import BROADCAST_ENTRY

_LOOK_UPS = 1 << 22
"""Most pairs that are looked up at once, to bound the memory."""


@dataclass(frozen=True)
class NoisyPairs(HeadSum):
    """For each of the server's candidate pairs, the people who have both items, with noise.

    A person with c of the pairs adds 1 / sqrt(c) to each of them, rounded down, so that the vector
    has length at most one. Pairs that are not candidates take up none of that length.
    """

    name: ClassVar[str] = "noisy-pairs"
    gives_away: ClassVar[str] = (
        "about how often chosen pairs of the most popular items were touched by the same people; "
        "protected by noise"
    )
    squared_distance: ClassVar[int] = 2
    first: Integers
    """Position in the head of each pair's first item. Pairs are in ascending order."""
    second: Integers
    """Position in the head of each pair's second item, larger than that of the first."""

    def __post_init__(self) -> None:
        if len(self.first) != len(self.second):
            raise FederationError("pairs with a missing item")

    @classmethod
    def planned(
        cls,
        n_items: int,
        n_users: int,
        share: NoiseShare,
        head: int,
        pairs: int,
        ring_bits: int = 0,
    ) -> PlannedSum:
        fixed = {"n_items": n_items, "n_users": n_users, **asdict(share), "ring_bits": ring_bits}
        places = np.zeros(pairs, np.int64)
        ask = cls(**fixed, items=np.arange(head), first=places, second=places)
        return PlannedSum(cls, ask.shape, fixed)

    @property
    def _length(self) -> int:
        return len(self.first)

    @property
    def _broadcast_bytes(self) -> int:
        return super()._broadcast_bytes + 2 * BROADCAST_ENTRY * len(self.first)

    def check(self, context: ClientContext) -> None:
        super().check(context)
        first, second = self.first, self.second
        if len(first) and not (first.min() >= 0 and second.max() < len(self.items)):
            raise FederationError("pairs of items that are not in the head")
        if (first >= second).any():
            raise FederationError("a pair whose items are not in ascending order")
        if (np.diff(first * len(self.items) + second) <= 0).any():
            raise FederationError("pairs that are not in ascending order, or one named twice")

    def exact_blocks(self, histories: Histories) -> Iterator[Integers]:
        unit = 4**self.fraction_bits
        total = np.zeros(len(self.first), np.int64)
        for people, pairs in self._present(self.on_head(histories)):
            counts = np.bincount(people)
            weights = by_degree(counts, lambda count: isqrt(unit // count))
            np.add.at(total, pairs, weights[people])
        return self.pieces(total)

    def _present(self, head: Histories) -> Iterator[tuple[Integers, Integers]]:
        """Yield the people of a part of the cohort, numbered from 0, and the pairs they have."""
        matrix, size = head.matrix, len(self.items)
        starts = np.searchsorted(self.first, np.arange(size + 1))
        look_ups = np.concatenate(([0], np.cumsum(np.diff(starts)[matrix.indices])))
        ends = look_ups[matrix.indptr[1:]]
        begun = 0
        while begun < head.n_users:
            most = look_ups[matrix.indptr[begun]] + _LOOK_UPS
            stop = max(begun + 1, int(np.searchsorted(ends, most, side="right")))
            rows = slice(matrix.indptr[begun], matrix.indptr[stop])
            items = matrix.indices[rows].astype(np.int64)
            people = np.repeat(np.arange(stop - begun), np.diff(matrix.indptr[begun : stop + 1]))
            owned = people * size + items
            counts = np.diff(starts)[items]
            before = np.cumsum(counts) - counts
            pairs = np.arange(counts.sum()) + np.repeat(starts[items] - before, counts)
            people = np.repeat(people, counts)
            wanted = people * size + self.second[pairs]
            place = np.searchsorted(owned, wanted)
            place[place == len(owned)] = 0
            have = owned[place] == wanted if len(owned) else np.zeros(0, np.bool_)
            yield people[have], pairs[have]
            begun = stop
