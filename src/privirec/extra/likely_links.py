"""Likely links: the unseen user-item pairs with the best scores over all users, and sums over them.

Scores are d_u^-alpha x_u P in single precision. The bit patterns of positive floating-point numbers
have the same order as the numbers. Two histograms of bits (the upper half, then the lower half of
the numbers that share the right upper half) therefore give the score of the n-th best pair exactly,
without a list of pairs. Histograms and counts are sums over users, so a federation can compute
them as well.

A stage is an item-item matrix with the item degrees by which it is divided. A client uses it to
score its own unseen items. Once the server has found a threshold, pairs that reach it are links.
Links count towards the degrees of their user and item, from which the next stage is computed. A
client derives its users' degrees at one stage from all earlier stages. These are all public inputs,
so the client need not keep any state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.compiled import Later
from privirec.errors import FederationError
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
from privirec.filters import exact
from privirec.filters.operators import Float32, ItemOperator, SparseOperator

kernels = Later("privirec.filters.kernels")

INFINITY = 0x7F800000
"""Bits of float32 infinity, the least value that no score reaches."""

UPPER_HALVES = -1
"""Value of `upper` that requests a histogram of the upper halves of scores."""

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


@dataclass(frozen=True)
class _OfLinks(Contribution):
    """The stages, and the scores and degrees that follow from them for a user.

    All stages have their entries at the same positions as the first.
    """

    n_items: int
    n_users: int
    alpha: float
    """Exponent of the degree of the user for whom items are scored."""
    left: float
    """Exponent of the degrees of the items in a history."""
    right: float
    """Exponent of the degrees of the scored items."""
    user_exponent: float
    """Exponent of the degrees of the users that an item-item matrix sums over."""
    width: int
    """Width of the ring of the item-item matrices."""
    item_degrees: Integers
    """Item degrees of each stage, concatenated."""
    indptr: Integers
    indices: Integers
    entries: Integers
    """Entries of the item-item matrix of each stage, in whole units, concatenated."""
    thresholds: Integers
    """Bits of the least score that makes a link, for each stage whose threshold has been found."""

    undecided: ClassVar[int]
    """Number of final stages that have no threshold yet."""

    def __post_init__(self) -> None:
        # Compiled loops do not check array bounds.
        stages, entries = self.stages, len(self.indices)
        if (
            stages < 1
            or len(self.item_degrees) != stages * self.n_items
            or len(self.entries) != stages * entries
            or len(self.indptr) != self.n_items + 1
            or len(self.thresholds) != stages - self.undecided
        ):
            raise FederationError("stages of another size than the catalogue")
        if self.indptr[0] != 0 or self.indptr[-1] != entries or (np.diff(self.indptr) < 0).any():
            raise FederationError("rows of an item-item matrix out of order")
        for numbers, most in (
            (self.indices, self.n_items - 1),
            (self.item_degrees, self.n_users),
            (self.entries, 2**63 - 1),
            (self.thresholds, INFINITY),
        ):
            if int(numbers.min(initial=0)) < 0 or int(numbers.max(initial=0)) > most:
                raise FederationError("stages with numbers that cannot be")

    @staticmethod
    def public_bytes(n_items: int, entries: int, stages: int) -> int:
        """Return the size of the stages.

        Rows and columns of the entries are sent once, values and degrees for each stage.
        """
        return 4 * (n_items + 1 + entries) + stages * 4 * (entries + n_items)

    @property
    def stages(self) -> int:
        return len(self.item_degrees) // max(self.n_items, 1)

    @property
    def _public_bytes(self) -> int:
        return self.public_bytes(self.n_items, len(self.indices), self.stages)

    @property
    def items_in_use(self) -> int:
        return int(np.count_nonzero(self.item_degrees[: self.n_items]))

    @property
    def item_item(self) -> ItemItem:
        """The sum that produced the first matrix and, with other weights, the later ones."""
        largest = int(self.item_degrees[: self.n_items].max(initial=0))
        return ItemItem(self.n_items, largest, self.user_exponent / 2, self.width)

    def check(self, context: ClientContext) -> None:
        degrees = self.item_degrees.reshape(self.stages, self.n_items)
        entries = self.entries.reshape(self.stages, len(self.indices))
        context.check_item_degrees(degrees[0])
        if (degrees < degrees[0]).any():
            raise FederationError("item degrees that likely links have made smaller")
        context.pin("places of entries", np.concatenate((self.indptr, self.indices)))
        for stage in range(self.stages):
            context.pin(f"item degrees of stage {stage}", degrees[stage])
            context.pin(f"item-item matrix of stage {stage}", entries[stage])
        for stage in range(len(self.thresholds)):
            context.pin(f"threshold of stage {stage}", self.thresholds[stage : stage + 1])

    @cached_property
    def operators(self) -> list[SparseOperator]:
        """Item-item matrix of each stage, bit for bit the same for every party."""
        unit = self.item_item.encoding
        made = []
        for degrees, entries in zip(
            self.item_degrees.reshape(self.stages, self.n_items),
            self.entries.reshape(self.stages, len(self.indices)),
            strict=True,
        ):
            data = unit.decode(entries)
            left, right = (exact.powers(degrees, -each) for each in (self.left, self.right))
            kernels.scale_sparse(self.indptr, self.indices, data, left, right)
            shape = (self.n_items, self.n_items)
            matrix = sp.csr_array((data.astype(np.float32), self.indices, self.indptr), shape=shape)
            made.append(SparseOperator(matrix))
        return made

    def _scores(self, histories: Histories, stage: int, degrees: Integers) -> LinkScores:
        """Return the scores at one stage, for users with these degrees."""
        weights = exact.powers(degrees, -self.alpha).astype(np.float32)
        return LinkScores(histories.matrix, self.operators[stage], weights)

    def _degrees_before(self, histories: Histories, stage: int) -> Integers:
        """Return users' degrees at the start of a stage: own items and links of the stage
        before."""
        degrees = histories.degrees
        for earlier in range(stage):
            scores = self._scores(histories, earlier, degrees)
            links, _ = scores.links(int(self.thresholds[earlier]))
            degrees = histories.degrees + links
        return degrees

    def _last_scores(self, histories: Histories) -> LinkScores:
        last = self.stages - 1
        return self._scores(histories, last, self._degrees_before(histories, last))


class _Counts(_OfLinks):
    """Sums that are short vectors of whole numbers."""

    def blocks(
        self, histories: Histories, randomness: RandomStream = NO_RANDOMNESS
    ) -> Iterator[Integers]:
        return self.pieces(self.total(histories))


@dataclass(frozen=True)
class ScoreHistogram(_Counts):
    """Number of unseen pairs whose score lies in each range, at the last stage."""

    name: ClassVar[str] = "score-histogram"
    gives_away: ClassVar[str] = "how many scores, of all users together, lie in each range"
    undecided: ClassVar[int] = 1
    upper: int
    """UPPER_HALVES, or the upper half of the scores whose lower halves are counted."""

    @classmethod
    def planned(cls, stages: int, entries: int, **fixed: Any) -> PlannedSum:
        public = cls.public_bytes(fixed["n_items"], entries, stages)
        unit = FixedPoint.counting(fixed["n_users"] * fixed["n_items"])
        return PlannedSum(cls, SumShape(HALF, unit.width, unit.signed, public + 8), fixed)

    @property
    def shape(self) -> SumShape:
        unit = self.encoding
        return SumShape(HALF, unit.width, unit.signed, self._public_bytes + 8)

    @property
    def encoding(self) -> FixedPoint:
        return FixedPoint.counting(self.n_users * self.n_items)

    def check(self, context: ClientContext) -> None:
        super().check(context)
        if not UPPER_HALVES <= self.upper < INFINITY >> 16:
            raise FederationError("an upper half that no score has")

    def total(
        self, histories: Histories, randomness: Iterable[ClientStream] = NO_RANDOMNESS
    ) -> Integers:
        scores = self._last_scores(histories)
        if self.upper == UPPER_HALVES:
            return scores.upper_histogram()
        return scores.lower_histogram(self.upper)


@dataclass(frozen=True)
class LinkDegrees(_Counts):
    """Number of users for whom each item is a likely link, at the last stage."""

    name: ClassVar[str] = "link-degrees"
    gives_away: ClassVar[str] = "for how many people each item is a likely link"
    per_item: ClassVar[bool] = True
    undecided: ClassVar[int] = 0

    @classmethod
    def planned(cls, stages: int, entries: int, **fixed: Any) -> PlannedSum:
        public = cls.public_bytes(fixed["n_items"], entries, stages)
        unit = FixedPoint.counting(fixed["n_users"])
        shape = SumShape(fixed["n_items"], unit.width, unit.signed, public)
        return PlannedSum(cls, shape, fixed)

    @property
    def shape(self) -> SumShape:
        unit = self.encoding
        return SumShape(self.n_items, unit.width, unit.signed, self._public_bytes)

    @property
    def encoding(self) -> FixedPoint:
        return FixedPoint.counting(self.n_users)

    def total(
        self, histories: Histories, randomness: Iterable[ClientStream] = NO_RANDOMNESS
    ) -> Integers:
        _, items = self._last_scores(histories).links(int(self.thresholds[-1]))
        return items


@dataclass(frozen=True)
class LinkItemItem(_OfLinks):
    """The next item-item matrix: users are weighted by degrees that include their likely links.

    Links never make a degree smaller, so the bound of `ItemItem` holds.
    """

    name: ClassVar[str] = "link-item-item"
    gives_away: ClassVar[str] = ItemItem.gives_away
    is_item_item: ClassVar[bool] = True
    undecided: ClassVar[int] = 0

    @classmethod
    def planned(cls, stages: int, entries: int, **fixed: Any) -> PlannedSum:
        public = cls.public_bytes(fixed["n_items"], entries, stages)
        inside = ItemItem.shape_of(fixed["n_items"], fixed["width"])
        shape = SumShape(inside.length, inside.ring_bits, inside.signed, public)
        return PlannedSum(cls, shape, fixed)

    @property
    def shape(self) -> SumShape:
        inside = self.item_item.shape
        return SumShape(inside.length, inside.ring_bits, inside.signed, self._public_bytes)

    @property
    def encoding(self) -> FixedPoint:
        return self.item_item.encoding

    def _weights(self, histories: Histories) -> Integers:
        return self.item_item.weights(self._degrees_before(histories, self.stages))

    def blocks(
        self, histories: Histories, randomness: RandomStream = NO_RANDOMNESS
    ) -> Iterator[Integers]:
        return self.item_item.weighted_blocks(histories, self._weights(histories))

    def total(
        self, histories: Histories, randomness: Iterable[ClientStream] = NO_RANDOMNESS
    ) -> sp.csr_array:
        return self.item_item.weighted_total(histories, self._weights(histories))

    def collect(self, blocks: Iterable[Integers]) -> sp.csr_array:
        return self.item_item.collect(blocks)

    def block_lengths(self) -> Iterator[int]:
        return self.item_item.block_lengths()
