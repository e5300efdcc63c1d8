"""The two ways of the protected program: from noisy popularity to a noisy model of the head.

`Gram` sums co-occurrences, one number per pair of items. It is best with many people per item.
`Power` finds a few directions of taste in steps, so that each later sum has less to convey and
conveys it more precisely. It is best with few people per item.

The best size of the model depends on how much of it remains usable under the noise, and so on
`Promise.signal`, a public number. The constants were chosen on a held-out fifth of the train splits
of Gowalla, Yelp2018 and Globo, for epsilon 0.5 to 16.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.federated.contributions import (
    Contribution,
    NoiseShare,
    NoisyHeadGram,
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

PEOPLE_PER_ITEM = 1
"""Least number of people per item of the catalogue at which `Gram` is the better way."""
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
ITEM_WEIGHT = -0.2
"""Exponent of popularity in the item weights.

Fewer people report on less popular items, so these items get a larger share of each person's vector
length.
"""
WEIGHT_UNITS = 1 << 12
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
    """A few power steps from a public start."""

    name: ClassVar[str] = "power"
    parts: ClassVar[tuple[float, ...]] = STEP_PARTS
    popularity_share: ClassVar[float] = 0.2
    columns: int

    @staticmethod
    def head_for(signal: float) -> int:
        return min(LARGEST_POWER_HEAD, round(POWER_HEAD * math.sqrt(signal)))

    @staticmethod
    def columns_for(signal: float) -> int:
        return min(LARGEST_POWER_COLUMNS, round(POWER_COLUMNS * signal))

    @property
    def rank(self) -> int:
        """Rank of the filter; popularity is one direction more than the columns."""
        return self.columns + 1

    @property
    def lengths(self) -> list[int]:
        return [self.head * self.columns] * len(self.parts)

    @property
    def filter_entries(self) -> int:
        return self.n_items + 2 * self.head * self.rank

    def sums(self, shares: tuple[NoiseShare, ...]) -> list[PlannedSum]:
        sizes = self.head, self.columns
        return [
            NoisyPowerStep.planned(self.n_items, self.n_users, share, *sizes) for share in shares
        ]

    def steps(
        self, sums: list[PlannedSum], items: NDArray[np.int64], popularity: Votes, seed: bytes
    ) -> WaySteps:
        """Yield noisy power steps and return the components.

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
        known = np.sqrt(popularity / popularity.sum())[:, None]

        def unknown(block: Votes) -> Votes:
            return block - known @ (known.T @ block)

        basis = orthonormalize(unknown(start_signs(seed, self.head, self.columns) / scale))[0]
        boost = np.ones(self.columns)
        # Each person's part is scaled to length one. With rows of typical length, it would have had
        # this length.
        usual = OWN_ROW * math.sqrt(self.columns / popularity.sum())
        for planned in sums:
            rows = scale * basis
            block = quantize(rows * boost)[0]
            ask: Any = planned.ask(items=items, block=block, weights=weights)
            image = ask.encoding.decode((yield ask)) / (weights[:, None] / WEIGHT_UNITS * boost)
            own = popularity[:, None] * rows / usual
            basis, strength, _ = np.linalg.svd(unknown(scale * (image + own)), full_matrices=False)
            boost = np.full(self.columns, LARGEST_BOOST)
            np.divide(
                strength[0], strength, out=boost, where=strength * LARGEST_BOOST > strength[0]
            )
            boost /= math.sqrt(np.square(boost).mean())
        everywhere = np.zeros((self.n_items, self.rank), np.float32)
        everywhere[items] = np.hstack([known, basis])
        return Components(
            np.zeros(self.n_items, np.int64),
            NotKept(self.n_items),
            basis=everywhere,
            normalisation=PROTECTED_PAIRS,
        )

    def describe(self) -> dict[str, Any]:
        steps = len(self.parts)
        return super().describe() | {
            "rank": self.rank,
            "rounds": steps,
            "multiplications": steps,
            "solver": "noisy power method",
        }
