"""The two ways of the protected program: from noisy popularity to a noisy model of the head.

`Gram` sums co-occurrences, one number per pair of items. It is best with many people per item.
`Power` finds a few directions of taste in steps, so that each later sum has less to convey and
conveys it more precisely. With enough signal, a last sum counts pairs of items that look similar in
these directions. It is best with few people per item, or with a flat curve of popularity.

The best size of the model depends on how much of it remains usable under the noise, and so on
`Promise.signal`, a public number. The constants were chosen on a held-out fifth of the train splits
of Gowalla, Yelp2018 and Globo, for epsilon 0.5 to 16.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator
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
from privirec.federated.contributions.noisy_gram import gram_of
from privirec.federated.contributions.outer import quantize
from privirec.federated.programs.head_gram import among_all
from privirec.filters.components import Components
from privirec.filters.eigen import orthonormalize
from privirec.filters.normalize import PROTECTED_PAIRS
from privirec.filters.operators import NotKept, SparseOperator

PEOPLE_PER_ITEM = 8
"""Least number of people per item of the catalogue at which `auto` chooses `Gram`.

Which way is better also depends on the curve of popularity, which is not known before the run. With
fewer people, `Gram` loses much more where it is wrong than `Power` does; see
docs/results/protected.md.
"""
GRAM_HEAD, LARGEST_GRAM_HEAD = 3.2, 1500
"""Items in the head per square root of the signal, and the largest head, for which a client sends
about 5 MB."""
POWER_HEAD, LARGEST_POWER_HEAD = 16.0, 5000
POWER_COLUMNS, LARGEST_POWER_COLUMNS = 1 / 550, 128
"""Columns per unit of the signal, and the most columns."""
STEP_PARTS = (0.2, 0.3, 0.5)
"""Shares of the budget that remains after popularity. Later steps get more because they ask better
questions."""
OWN_ROW = 1.5
"""Divisor for the weight of an item's own row in a step; see `Power.steps`."""
BLOCK_WEIGHT = 0.25
"""Exponent of relative popularity in the rows of the block and of its start: rows of popular items
are known best."""
PAIRS_PER_ITEM = 12
"""Candidate pairs per item of the head."""
NEAREST_BY_POPULARITY = 0.3
"""Exponent of popularity by which an item's similarity counts in the choice of candidates."""
PAIRS_FROM, PAIRS_PER_SIGNAL, LARGEST_PAIRS_SHARE = 6000, 1 / 40_000, 0.3
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


@dataclass(frozen=True)
class Way(ABC):
    """The part of the protected program that follows noisy popularity."""

    name: ClassVar[str]
    parts: ClassVar[tuple[float, ...]]
    """Share of the budget that remains after popularity, for each sum."""
    popularity_share: ClassVar[float]
    n_items: int
    n_users: int
    head: int
    """m: number of most popular items."""

    @property
    @abstractmethod
    def lengths(self) -> list[int]:
        """Length of each sum."""

    @property
    @abstractmethod
    def filter_entries(self) -> int:
        """Number of entries in the filters that go back to the clients."""

    @abstractmethod
    def sums(self, shares: tuple[NoiseShare, ...]) -> list[PlannedSum]: ...

    @abstractmethod
    def steps(
        self, sums: list[PlannedSum], items: NDArray[np.int64], popularity: Votes, seed: bytes
    ) -> WaySteps:
        """Yield the sums and return components without popularity.

        `items` is the head, and `popularity` is the popularity of its items.
        """

    def describe(self) -> dict[str, Any]:
        return {"way": self.name, "head": self.head}


@dataclass(frozen=True)
class Gram(Way):
    """A single sum over pairs of items."""

    name: ClassVar[str] = "gram"
    parts: ClassVar[tuple[float, ...]] = (1.0,)
    popularity_share: ClassVar[float] = 0.1

    @staticmethod
    def head_for(signal: float) -> int:
        return min(LARGEST_GRAM_HEAD, round(GRAM_HEAD * math.sqrt(signal)))

    @property
    def lengths(self) -> list[int]:
        return [self.head * (self.head + 1) // 2]

    @property
    def filter_entries(self) -> int:
        return self.n_items + self.head**2

    def sums(self, shares: tuple[NoiseShare, ...]) -> list[PlannedSum]:
        return [NoisyHeadGram.planned(self.n_items, self.n_users, shares[0], self.head)]

    def steps(
        self, sums: list[PlannedSum], items: NDArray[np.int64], popularity: Votes, seed: bytes
    ) -> WaySteps:
        weights = whole_weights(popularity, -PROTECTED_PAIRS.left)
        ask: Any = sums[0].ask(items=items, weights=weights)
        triangle = yield ask
        # Scale the diagonal so that its sum is n_users: a person with d items would add about
        # sqrt(d / (d - 1)), so about one, to the trace.
        diagonal = popularity * np.square(weights / WEIGHT_UNITS)
        diagonal *= self.n_users / diagonal.sum()
        gram = gram_of(triangle, self.head, ask.fraction_bits, diagonal).astype(np.float32)
        return Components(
            np.zeros(self.n_items, np.int64),
            SparseOperator(among_all(sp.csr_array(gram), items, self.n_items)),
            normalisation=PROTECTED_PAIRS,
            noise_deviation=ask.share.opened_deviation / math.sqrt(2),
        )


@dataclass(frozen=True)
class Power(Way):
    """A few power steps from a public start, then pairs that look similar in their result."""

    name: ClassVar[str] = "power"
    popularity_share: ClassVar[float] = 0.2
    columns: int
    pairs_share: float = 0.0
    """Share of the budget after popularity for candidate pairs; 0: none are summed."""

    @staticmethod
    def head_for(signal: float, with_pairs: bool = False) -> int:
        factor = POWER_HEAD * HEAD_WITH_PAIRS if with_pairs else POWER_HEAD
        return min(LARGEST_POWER_HEAD, round(factor * math.sqrt(signal)))

    @staticmethod
    def columns_for(signal: float, with_pairs: bool = False) -> int:
        factor = POWER_COLUMNS * COLUMNS_WITH_PAIRS if with_pairs else POWER_COLUMNS
        return min(LARGEST_POWER_COLUMNS, round(factor * signal))

    @staticmethod
    def pairs_share_for(signal: float) -> float:
        """Return the share of the budget for pairs; with little signal they are mostly noise."""
        share = min(LARGEST_PAIRS_SHARE, (signal - PAIRS_FROM) * PAIRS_PER_SIGNAL)
        return share if share >= SMALLEST_PAIRS_SHARE else 0.0

    @property
    def parts(self) -> tuple[float, ...]:  # type: ignore[override]
        steps = tuple((1 - self.pairs_share) * part for part in STEP_PARTS)
        return (*steps, self.pairs_share) if self.pairs else steps

    @property
    def rank(self) -> int:
        """Rank of the filter; popularity is one direction more than the columns."""
        return self.columns + 1

    @property
    def pairs(self) -> int:
        """Number of candidate pairs."""
        if not self.pairs_share:
            return 0
        return min(PAIRS_PER_ITEM * self.head, self.head * (self.head - 1) // 2)

    @property
    def lengths(self) -> list[int]:
        steps = [self.head * self.columns] * len(STEP_PARTS)
        return [*steps, self.pairs] if self.pairs else steps

    @property
    def filter_entries(self) -> int:
        return self.n_items + 2 * self.head * self.rank + 4 * self.pairs

    def sums(self, shares: tuple[NoiseShare, ...]) -> list[PlannedSum]:
        sizes = self.n_items, self.n_users
        steps = [
            NoisyPowerStep.planned(*sizes, share, self.head, self.columns)
            for share in shares[: len(STEP_PARTS)]
        ]
        if not self.pairs:
            return steps
        return [*steps, NoisyPairs.planned(*sizes, shares[-1], self.head, self.pairs)]

    def steps(
        self, sums: list[PlannedSum], items: NDArray[np.int64], popularity: Votes, seed: bytes
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

        start = start_signs(seed, self.head, self.columns) / scale
        basis = orthonormalize(unknown(start * block_weights))[0]
        boost = np.ones(self.columns)
        # Each person's part is scaled to length one. With rows of typical length, it would have had
        # this length.
        usual = OWN_ROW * math.sqrt(self.columns / popularity.sum())
        for planned in sums[: len(STEP_PARTS)]:
            rows = scale * basis
            block = quantize(rows * block_weights * boost)[0]
            ask: Any = planned.ask(items=items, block=block, weights=weights)
            image = ask.encoding.decode((yield ask)) / (weights[:, None] / WEIGHT_UNITS * boost)
            own = popularity[:, None] * rows / usual
            basis, strength, _ = np.linalg.svd(unknown(scale * (image + own)), full_matrices=False)
            boost = np.full(self.columns, LARGEST_BOOST)
            np.divide(
                strength[0], strength, out=boost, where=strength * LARGEST_BOOST > strength[0]
            )
            boost /= math.sqrt(np.square(boost).mean())
        found = np.hstack([known, basis])
        everywhere = np.zeros((self.n_items, self.rank), np.float32)
        everywhere[items] = found
        components = Components(
            np.zeros(self.n_items, np.int64),
            NotKept(self.n_items),
            basis=everywhere,
            normalisation=PROTECTED_PAIRS,
        )
        if not self.pairs:
            return components
        first, second = similar_pairs(found, popularity, self.pairs)
        ask = sums[-1].ask(items=items, first=first, second=second)
        counts = ask.encoding.decode((yield ask)).astype(np.float32)
        above = sp.coo_array((counts, (first, second)), shape=(self.head, self.head))
        return replace(
            components,
            item_item=SparseOperator(among_all(sp.csr_array(above + above.T), items, self.n_items)),
            noise_deviation=ask.share.opened_deviation,
        )

    def describe(self) -> dict[str, Any]:
        steps = len(STEP_PARTS)
        return super().describe() | {
            "rank": self.rank,
            "rounds": steps,
            "multiplications": steps,
            "solver": "noisy power method",
        }


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
