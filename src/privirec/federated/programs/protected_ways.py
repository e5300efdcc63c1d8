"""The two ways of the protected program: from noisy popularity to a noisy model of the head.

`Gram` sums co-occurrences, one number per pair of items. It is best with many people per item.
`Power` finds a few directions of taste in steps, so that each later sum has less to convey and
conveys it more precisely. With enough signal, a last sum counts pairs of items that look similar in
these directions. It is best with few people per item, or with a flat curve of popularity.

`choose` decides the way and all sizes after popularity has been released, so it may look at the
curve of popularity. The best size depends on how much of the model remains usable under the noise,
and so on `Promise.signal`, a public number. The constants were chosen on a held-out fifth of the
train splits of Gowalla, Yelp2018 and Globo, for epsilon 0.5 to 16.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.federated.contributions import (
    Contribution,
    NoiseShare,
    NoisyHeadGram,
    NoisyPairs,
    NoisyPowerStep,
    PlannedSum,
    start_signs,
)
from privirec.federated.contributions.noisy import NormedSum
from privirec.federated.contributions.noisy_gram import gram_of
from privirec.federated.contributions.outer import quantize
from privirec.federated.programs.calibration import Promise
from privirec.federated.programs.head_gram import among_all
from privirec.filters.components import Components
from privirec.filters.earlier import UNKNOWN, Earlier, Estimate, Image, combined_image, places_of
from privirec.filters.eigen import orthonormalize
from privirec.filters.normalize import PROTECTED_PAIRS
from privirec.filters.operators import NotKept, SparseOperator

GRAM_FROM = 0.15
"""Least `concentration` at which `auto` chooses `Gram`; docs/results/protected.md has the
measurements."""
CLEARLY = 3.0
"""Deviations above which something is hardly noise."""
GRAM_HEAD = 3.2
"""Items in the head per square root of the signal."""
POWER_HEAD = 16.0
POWER_COLUMNS, LARGEST_POWER_COLUMNS = 1 / 550, 128
"""Columns per unit of the signal, and the most columns."""
LEAST_POWER_COLUMNS = 32
"""Number of columns below which the limit of bytes makes the head smaller instead."""
LEAST_POPULARITY = 2.0
"""Least noisy popularity of an item of the head, in deviations of the noise: nothing can be learnt
about items that may as well have no people."""
POPULARITY_SHARE = 0.1
LEAST_POPULARITY_SHARE, LARGEST_POPULARITY_SHARE = 0.05, 0.25
"""Share of the budget for popularity where the signal is as large as the catalogue, and its
bounds."""
STEP_PARTS = (0.2, 0.3, 0.5)
"""Shares of the budget of the power steps. Later steps get more because they ask better
questions."""
LATER_STEP_PARTS = (1.0,)
"""The same for a later run: it begins with a good block, and its image is added to earlier ones."""
USUAL_HISTORY, USUAL_FLAT = 20, 30
SMALLEST_PART = 0.01
"""Least share of the budget after popularity that a sum may have."""
OWN_ROW = 1.5
"""Divisor for the weight of an item's own row in a step; see `Power.steps`."""
BLOCK_WEIGHT = 0.25
"""Exponent of relative popularity in the rows of the block and of its start: rows of popular items
are known best."""
PAIRS_PER_ITEM = 12
"""Candidate pairs per item of the head."""
NEAREST_BY_POPULARITY = 0.3
"""Exponent of popularity by which an item's similarity counts in the choice of candidates."""
PAIRS_FROM, PAIRS_PER_SIGNAL, LARGEST_PAIRS_SHARE = 6500, 1 / 8000, 0.3
"""The share of the budget for pairs grows with the signal above the first number, at the second
rate, to the third. Shares below SMALLEST_PAIRS_SHARE do not pay."""
SMALLEST_PAIRS_SHARE = 0.05
HEAD_WITH_PAIRS, COLUMNS_WITH_PAIRS = 1.25, 0.8
"""Factors of the sizes where pairs are summed: pairs describe rarer items, so that fewer directions
have to."""
ITEM_WEIGHT = -0.2
"""Exponent of popularity in the item weights.

Fewer people report on less popular items, so these items get a larger share of each person's vector
length.
"""
WEIGHT_UNITS = 1 << 12
_ROWS_AT_ONCE = 1000
LARGEST_BOOST = 10.0
"""Largest boost of a weak direction relative to the strongest."""

Votes = NDArray[np.float64]
WaySteps = Generator[Contribution, Any, Components]


def whole_weights(popularity: Votes, power: float) -> NDArray[np.int64]:
    """Return relative popularity to a power in whole units; WEIGHT_UNITS stands for the mean
    popularity."""
    relative = (popularity / popularity.mean()) ** power
    return np.maximum(1, np.rint(WEIGHT_UNITS * relative)).astype(np.int64)


# --- the choice of way and sizes ------------------------------------------------------------------


@dataclass(frozen=True)
class Wishes:
    """Sizes that somebody set; None leaves them to `choose`."""

    way: str = "auto"
    head: int | None = None
    columns: int | None = None
    pairs_share: float | None = None


@dataclass(frozen=True)
class Released:
    """All that is known when the sums after popularity are chosen: public and released values."""

    popularity: Votes
    """Noisy popularity of each item, in ascending order of items.

    Each person adds 1 / sqrt(length of the history) to each of its items. With noise, entries may
    be negative.
    """
    deviation: float
    """Standard deviation of the noise in an entry."""
    n_users: int
    promise: Promise
    """Guarantee of the whole run, with the clients of the cohort whose noise provides it."""
    level: float
    """Level (mu) that is left for the sums to choose, all together."""
    upload_bytes: int
    """Most bytes that a client sends in the sums to choose, all together."""
    ring_bits: int
    """Bits per entry of these sums."""
    power_before: float = 0.0
    """Signal of earlier runs of the way `power`, to which this one adds."""

    @property
    def n_items(self) -> int:
        return len(self.popularity)

    @property
    def signal(self) -> float:
        return self.promise.signal(self.n_users)

    @property
    def known_items(self) -> int:
        """Number of items whose popularity stands out from the noise."""
        least = LEAST_POPULARITY * self.deviation
        return int(np.count_nonzero(self.popularity >= least))

    def fits(self, way: Way) -> bool:
        """Return True if the sums of a way keep the limit of bytes."""
        return way.upload_bytes(self.ring_bits) <= self.upload_bytes


def choose(released: Released, wishes: Wishes) -> Way:
    """Return the way, its head, columns and pairs, and the share of the budget of each sum.

    This is the one place that decides sizes. Any choice keeps the promise: a person changes each
    sum by at most one, and the shares divide what is left of the budget. `released` is public, and
    so is the result. Sizes that somebody wished for stay as they are; others are made smaller where
    the sums would not keep the limit of bytes.
    """
    chosen = wishes.way
    if chosen == "auto":
        chosen = "gram" if concentration(released) >= GRAM_FROM else "power"
    sized: Callable[[Released, Wishes], Way] = {"gram": _gram, "power": _power}[chosen]
    found = sized(released, wishes)
    if wishes.way == "auto" and not released.fits(found):  # a head that somebody wished for
        others = [_power(released, wishes), _gram(released, wishes)]
        return next((way for way in others if released.fits(way)), found)
    return found


def concentration(released: Released) -> float:
    """Return how many people draw the same two items by chance, in deviations of the noise.

    Let every person draw two items by popularity. The mean number of people with a given result,
    averaged over the results, is n (sum q_i^2)^2 for shares q_i of all votes. Noise of deviation
    one stands for 1 / mu people, so the signal takes the place of n. The square of the noise, and
    CLEARLY deviations of it, are taken off that of popularity.

    Where this is large, most of what people have in common lies in pairs of popular items that
    rise above the noise one by one, as `Gram` needs. A small value does not rule out such pairs,
    but they have to be found first, as `Power` does.
    """
    votes = released.popularity
    total = math.fsum(votes)
    noise = released.n_items + CLEARLY * math.sqrt(2 * released.n_items)
    squares = math.fsum(np.square(votes)) - noise * released.deviation * released.deviation
    if total <= 0 or squares <= 0:
        return 0.0
    alike = squares / (total * total)
    return released.signal * alike * alike


def popularity_share(signal: float, n_items: int) -> float:
    """Return the share of the budget for popularity: more where there is less signal per item."""
    share = POPULARITY_SHARE * math.sqrt(n_items / signal)
    return min(max(share, LEAST_POPULARITY_SHARE), LARGEST_POPULARITY_SHARE)


def usual_popularity(n_users: int, n_items: int) -> Votes:
    """Return a curve of popularity for a forecast, before anybody has sent anything.

    Histories have `USUAL_HISTORY` items, and the k-th item's popularity falls as the inverse of
    `USUAL_FLAT` + k.
    """
    curve = 1 / (USUAL_FLAT + np.arange(n_items))
    return curve * (n_users * math.sqrt(min(USUAL_HISTORY, n_items)) / math.fsum(curve))


def _gram(released: Released, wishes: Wishes) -> Way:
    wanted = wishes.head or min(round(GRAM_HEAD * math.sqrt(released.signal)), released.known_items)
    return _fitting(released, wishes, wanted, lambda head: Gram(*_sizes(released), head))


def _power(released: Released, wishes: Wishes) -> Way:
    signal, share = released.signal, wishes.pairs_share
    if share is None:
        share = min(LARGEST_PAIRS_SHARE, (signal - PAIRS_FROM) * PAIRS_PER_SIGNAL)
        share = share if share >= SMALLEST_PAIRS_SHARE else 0.0
    per_root, per_unit = POWER_HEAD, POWER_COLUMNS
    if share:
        per_root, per_unit = per_root * HEAD_WITH_PAIRS, per_unit * COLUMNS_WITH_PAIRS
    steps: tuple[float, ...] = STEP_PARTS
    if released.power_before:
        steps = LATER_STEP_PARTS
        together = math.sqrt(1 + (released.power_before / signal) ** 2)
        per_root *= math.sqrt(together)
        per_unit *= math.cbrt(together) ** 2
    wanted = wishes.head or min(round(per_root * math.sqrt(signal)), released.known_items)
    columns = wishes.columns or max(1, min(LARGEST_POWER_COLUMNS, round(per_unit * signal)))

    def of(head: int, columns: int = columns) -> Way:
        pairs = min(PAIRS_PER_ITEM * head, head * (head - 1) // 2) if share else 0
        parts = tuple((1 - share) * part for part in steps)
        parts = (*parts, share) if pairs else steps
        return Power(*_sizes(released), head, parts, min(columns, head), pairs)

    if wishes.columns is None:  # a larger head is worth more than further columns
        head = min(max(2, wanted), released.n_items)
        while columns > LEAST_POWER_COLUMNS and not released.fits(of(head, columns)):
            columns -= 1
    return _fitting(released, wishes, wanted, lambda head: of(head, columns))


def _sizes(released: Released) -> tuple[int, int]:
    return released.n_items, released.n_users


def _fitting(released: Released, wishes: Wishes, wanted: int, way: Callable[[int], Way]) -> Way:
    """Return a way with the wanted head, or with the largest one that keeps the limit of bytes."""
    wanted = min(max(2, wanted), released.n_items)
    if wishes.head is not None or released.fits(way(wanted)):
        return way(min(wishes.head or wanted, released.n_items))
    heads = range(2, wanted)
    return way(max(2, bisect_left(heads, True, key=lambda head: not released.fits(way(head))) + 1))


# --- the ways -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way(ABC):
    """The part of the protected program that follows noisy popularity."""

    name: ClassVar[str]
    kinds: ClassVar[tuple[tuple[type[NormedSum], ...], ...]]
    """Kinds of sums that a client admits at each place after popularity."""
    n_items: int
    n_users: int
    head: int
    """m: number of most popular items."""

    @property
    @abstractmethod
    def shares(self) -> tuple[float, ...]:
        """Share of each sum in the budget that remains after popularity."""

    @property
    @abstractmethod
    def lengths(self) -> list[int]:
        """Length of each sum."""

    @property
    @abstractmethod
    def filter_entries(self) -> int:
        """Number of entries in the filters that go back to the clients."""

    @abstractmethod
    def sums(self, noise: tuple[NoiseShare, ...], ring_bits: int) -> list[PlannedSum]: ...

    def upload_bytes(self, ring_bits: int) -> int:
        """Return the bytes of a client's vectors in these sums."""
        return sum(-(-length * ring_bits // 8) for length in self.lengths)

    @abstractmethod
    def steps(
        self,
        sums: list[PlannedSum],
        items: NDArray[np.int64],
        popularity: Votes,
        seed: bytes,
        earlier: Earlier,
    ) -> WaySteps:
        """Yield the sums and return components without popularity.

        `items` is the head, and `popularity` is the popularity of its items. The sums are added to
        the earlier ones, and the components keep both.
        """

    def describe(self) -> dict[str, Any]:
        return {"way": self.name, "head": self.head}


@dataclass(frozen=True)
class Gram(Way):
    """A single sum over pairs of items."""

    name: ClassVar[str] = "gram"
    kinds = ((NoisyHeadGram,),)

    @property
    def shares(self) -> tuple[float, ...]:
        return (1.0,)

    @property
    def lengths(self) -> list[int]:
        return [self.head * (self.head + 1) // 2]

    @property
    def filter_entries(self) -> int:
        return self.n_items + self.head**2

    def sums(self, noise: tuple[NoiseShare, ...], ring_bits: int) -> list[PlannedSum]:
        sizes = self.n_items, self.n_users
        return [NoisyHeadGram.planned(*sizes, noise[0], self.head, ring_bits=ring_bits)]

    def steps(
        self,
        sums: list[PlannedSum],
        items: NDArray[np.int64],
        popularity: Votes,
        seed: bytes,
        earlier: Earlier,
    ) -> WaySteps:
        weights = whole_weights(popularity, -PROTECTED_PAIRS.left)
        ask: Any = sums[0].ask(items=items, weights=weights)
        triangle = yield ask
        relative = weights / WEIGHT_UNITS
        factors = np.outer(relative, relative)[np.triu_indices(self.head)]
        told = Estimate.of(ask.encoding.decode(triangle), ask.share.opened_deviation)
        earlier = earlier.with_gram(items, told.times(1 / factors))
        known = earlier.gram_over(items).times(factors)
        # Scale the diagonal so that its sum is n_users: a person with d items would add about
        # sqrt(d / (d - 1)), so about one, to the trace.
        diagonal = popularity * np.square(relative)
        diagonal *= self.n_users / diagonal.sum()
        gram = gram_of(known.values, self.head, 0, diagonal).astype(np.float32)
        return Components(
            np.zeros(self.n_items, np.int64),
            SparseOperator(among_all(sp.csr_array(gram), items, self.n_items)),
            normalisation=PROTECTED_PAIRS,
            noise_deviation=known.deviation / math.sqrt(2),
            released=earlier,
        )


@dataclass(frozen=True)
class Power(Way):
    """A few power steps from a public start, then pairs that look similar in their result."""

    name: ClassVar[str] = "power"
    kinds = ((NoisyPowerStep,), *[(NoisyPowerStep, NoisyPairs)] * len(STEP_PARTS))
    parts: tuple[float, ...]
    """Share of each sum: the steps, then the pairs if there are any."""
    columns: int
    pairs: int = 0
    """Number of candidate pairs; 0: no such sum."""

    @property
    def shares(self) -> tuple[float, ...]:
        return self.parts

    @property
    def _steps(self) -> int:
        return len(self.parts) - (self.pairs > 0)

    @property
    def rank(self) -> int:
        """Rank of the filter; popularity is one direction more than the columns."""
        return self.columns + 1

    @property
    def lengths(self) -> list[int]:
        steps = [self.head * self.columns] * self._steps
        return [*steps, self.pairs] if self.pairs else steps

    @property
    def filter_entries(self) -> int:
        return self.n_items + 2 * self.head * self.rank + 4 * self.pairs

    def sums(self, noise: tuple[NoiseShare, ...], ring_bits: int) -> list[PlannedSum]:
        sizes = self.n_items, self.n_users
        ring = {"ring_bits": ring_bits}
        steps = [
            NoisyPowerStep.planned(*sizes, share, self.head, self.columns, **ring)
            for share in noise[: self._steps]
        ]
        if not self.pairs:
            return steps
        return [*steps, NoisyPairs.planned(*sizes, noise[-1], self.head, self.pairs, **ring)]

    def steps(
        self,
        sums: list[PlannedSum],
        items: NDArray[np.int64],
        popularity: Votes,
        seed: bytes,
        earlier: Earlier,
    ) -> WaySteps:
        """Yield noisy power steps, then candidate pairs, and return the components.

        A step multiplies the block by the item-item matrix without its diagonal. The diagonal would
        add each item's own row times its popularity. Both are known, so adding that term back costs
        no budget. It preserves what earlier steps found where the sum is mostly noise.

        Directions are sent in inverse proportion to their strength, so that the strong ones do not
        take up all of a person's vector length, and are scaled back afterwards. The strongest
        direction is popularity, which is known. The steps leave it out, and it is added back at the
        end.
        """
        scale = popularity[:, None] ** -0.5
        weights = whole_weights(popularity, ITEM_WEIGHT)
        block_weights = (popularity[:, None] / popularity.mean()) ** BLOCK_WEIGHT
        known = np.sqrt(popularity / popularity.sum())[:, None]

        def unknown(block: Votes) -> Votes:
            return block - known @ (known.T @ block)

        start = start_signs(seed, self.head, self.columns) / scale * block_weights
        before, strength = earlier.start(items, self.columns)
        start[:, : before.shape[1]] = before
        basis, boost = orthonormalize(unknown(start))[0], boosts(strength, self.columns)
        # Each person's part is scaled to length one. With rows of typical length, it would have had
        # this length.
        usual = OWN_ROW * math.sqrt(self.columns / popularity.sum())
        images = list(earlier.images)
        for planned in sums[: self._steps]:
            rows = scale * basis
            block = quantize(rows * block_weights * boost)[0]
            ask: Any = planned.ask(items=items, block=block, weights=weights)
            image = ask.encoding.decode((yield ask)) / (weights[:, None] / WEIGHT_UNITS * boost)
            precisions = np.square(boost / (usual * ask.share.opened_deviation))
            images.append(Image(items, basis, usual * image, precisions))
            if earlier.images:
                image = combined_image(items, basis, images) / usual
            own = popularity[:, None] * rows / usual
            basis, strength, _ = np.linalg.svd(unknown(scale * (image + own)), full_matrices=False)
            boost = boosts(strength, self.columns)
        # The image of a random block tells too little about the directions of later ones.
        kept = images if earlier.images else images[1:]
        earlier = earlier.with_images(kept, items, basis, strength)
        found = np.hstack([known, basis])
        everywhere = np.zeros((self.n_items, self.rank), np.float32)
        everywhere[items] = found
        components = Components(
            np.zeros(self.n_items, np.int64),
            NotKept(self.n_items),
            basis=everywhere,
            normalisation=PROTECTED_PAIRS,
            released=earlier,
        )
        if not self.pairs:
            return components
        first, second = similar_pairs(found, popularity, self.pairs)
        ask = sums[-1].ask(items=items, first=first, second=second)
        counts = Estimate.of(ask.encoding.decode((yield ask)), ask.share.opened_deviation)
        earlier = earlier.with_pairs(items[first], items[second], counts)
        return self._with_pairs(components, items, earlier)

    def _with_pairs(
        self, components: Components, items: NDArray[np.int64], earlier: Earlier
    ) -> Components:
        """Return the components with all similar pairs of the head that any run has summed.

        The model reduces each count by the mean deviation of noise, so counts with more noise are
        reduced by the rest here.
        """
        first, second = places_of(earlier.pair_first, items), places_of(earlier.pair_second, items)
        on_head = np.flatnonzero((first != UNKNOWN) & (second != UNKNOWN))
        counts = earlier.pairs.take(on_head)
        more = np.maximum(np.sqrt(counts.variances) - counts.deviation, 0)
        values = (counts.values - more).astype(np.float32)
        shape = self.head, self.head
        above = sp.coo_array((values, (first[on_head], second[on_head])), shape=shape)
        return replace(
            components,
            item_item=SparseOperator(among_all(sp.csr_array(above + above.T), items, self.n_items)),
            noise_deviation=counts.deviation,
            released=earlier,
        )

    def describe(self) -> dict[str, Any]:
        return super().describe() | {
            "rank": self.rank,
            "rounds": self._steps,
            "multiplications": self._steps,
            "solver": "noisy power method",
        }


def boosts(strength: Votes, columns: int) -> Votes:
    """Return the factors that send weak directions out larger, with a mean square of one.

    Columns without a strength count as the weakest one.
    """
    if not len(strength):
        return np.ones(columns)
    strength = np.pad(strength[:columns], (0, max(0, columns - len(strength))), "edge")
    boost = np.full(columns, LARGEST_BOOST)
    np.divide(strength[0], strength, out=boost, where=strength * LARGEST_BOOST > strength[0])
    return np.asarray(boost / math.sqrt(np.square(boost).mean()))


def similar_pairs(
    basis: Votes, popularity: Votes, pairs: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the most similar pairs of items by their rows in the basis, in ascending order.

    Every item proposes its nearest items, of which popular ones count more. The first choices of
    all items come before the second ones, and so on.
    """
    head = len(basis)
    nearest = min(2 * PAIRS_PER_ITEM, head - 1)
    rows = basis / np.maximum(np.linalg.norm(basis, axis=1, keepdims=True), np.finfo(float).tiny)
    proposed = []
    for begun in range(0, head, _ROWS_AT_ONCE):
        likeness = rows[begun : begun + _ROWS_AT_ONCE] @ rows.T
        likeness *= popularity[None] ** NEAREST_BY_POPULARITY
        own = np.arange(begun, begun + len(likeness))
        likeness[own - begun, own] = -np.inf
        others = np.argpartition(-likeness, nearest - 1, axis=1)[:, :nearest]
        order = np.argsort(-np.take_along_axis(likeness, others, axis=1), axis=1, kind="stable")
        others = np.take_along_axis(others, order, axis=1)
        proposed.append(np.minimum(own[:, None], others) * head + np.maximum(own[:, None], others))
    in_order = np.concatenate(proposed).T.reshape(-1)
    pairs_named, at = np.unique(in_order, return_index=True)
    chosen = np.sort(pairs_named[np.argsort(at)[:pairs]])
    return chosen // head, chosen % head
