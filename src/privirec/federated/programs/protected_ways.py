"""The two ways of the protected program: from noisy popularity to a noisy picture of the head.

`Gram` sums which items are touched together, a number for each pair: best where there are many
people for each item. `Power` finds a few directions of taste in steps, so that each later sum has
less to say and says it more clearly: best where there are few people for each item.

How large a picture to ask for depends on how much of it noise will leave: on `Promise.signal`, a
public number. The constants were chosen on a fifth of the train splits of Gowalla, Yelp2018 and
Globo, held out, for epsilon 0.5 to 16.
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
"""From so many people for each item of the catalogue on, `Gram` is the better way."""
GRAM_HEAD, LARGEST_GRAM_HEAD = 3.2, 1500
"""Items for the square root of the signal, and the most: a client sends about 5 MB for these."""
POWER_HEAD, LARGEST_POWER_HEAD = 16.0, 5000
POWER_COLUMNS, LARGEST_POWER_COLUMNS = 1 / 550, 128
"""Columns for the signal itself."""
STEP_PARTS = (0.2, 0.3, 0.5)
"""Of what popularity leaves of the budget: later steps ask better questions."""
OWN_ROW = 1.5
"""How little an item's own row counts in a step; see `Power.steps`."""
ITEM_WEIGHT = -0.2
"""Less popular items, of which there are fewer people to tell, get more of each person's length: by
popularity to this power."""
WEIGHT_UNITS = 1 << 12
LARGEST_BOOST = 10.0
"""Of a weak direction over the strongest."""

Votes = NDArray[np.float64]
WaySteps = Generator[Contribution, Any, Components]


def whole_weights(popularity: Votes, power: float) -> NDArray[np.int64]:
    """Popularity to a power, the usual one at WEIGHT_UNITS."""
    relative = (popularity / popularity.mean()) ** power
    return np.maximum(1, np.rint(WEIGHT_UNITS * relative)).astype(np.int64)


@dataclass(frozen=True)
class Way(ABC):
    """What follows on noisy popularity."""

    name: ClassVar[str]
    parts: ClassVar[tuple[float, ...]]
    """Of the budget that popularity leaves, for each sum."""
    popularity_share: ClassVar[float]
    n_items: int
    n_users: int
    head: int
    """m: how many of the most popular items."""

    @property
    @abstractmethod
    def lengths(self) -> list[int]:
        """Of each sum."""

    @property
    @abstractmethod
    def filter_entries(self) -> int:
        """Numbers in the filters that go back to the clients."""

    @abstractmethod
    def sums(self, shares: tuple[NoiseShare, ...]) -> list[PlannedSum]: ...

    @abstractmethod
    def steps(
        self, sums: list[PlannedSum], items: NDArray[np.int64], popularity: Votes, seed: bytes
    ) -> WaySteps:
        """Components without popularity; `popularity` is that of the head, `items`."""

    def describe(self) -> dict[str, Any]:
        return {"way": self.name, "head": self.head}


@dataclass(frozen=True)
class Gram(Way):
    """One sum of pairs."""

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
        # A person with d items adds about sqrt(d / (d - 1)) to the trace, so about one: in all n.
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
        """Of the filter: popularity is one direction more."""
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
        """A step multiplies the block with the item-item matrix without its diagonal. What the
        diagonal would add is an item's own row times its popularity, and to put that back costs
        nothing: it holds on to what earlier steps found where the sum is mostly noise.

        Directions are sent out in inverse proportion to their strength, so that the strong ones
        do not take all of a person's length, and are scaled back afterwards. The strongest one of
        all is popularity, which is known: it is left out of the steps, and put back in the end.
        """
        scale = popularity[:, None] ** -0.5
        weights = whole_weights(popularity, ITEM_WEIGHT)
        known = np.sqrt(popularity / popularity.sum())[:, None]

        def unknown(block: Votes) -> Votes:
            return block - known @ (known.T @ block)

        basis = orthonormalize(unknown(start_signs(seed, self.head, self.columns) / scale))[0]
        boost = np.ones(self.columns)
        # A person's part has length one where with rows of usual length it would have this one.
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
