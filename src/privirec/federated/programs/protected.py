"""Protected: popularity and the head's item-item matrix, with differential privacy for people."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
from pydantic import Field, model_validator

from privirec.dp.discrete import (
    LEAST_DEVIATION,
    distance,
    epsilon_with,
    gaussian_deviation,
)
from privirec.dp.gaussian import composed, mu_of
from privirec.federated.contributions import NoiseShare, NoisyHeadGram, NoisyPopularity
from privirec.federated.contributions.noisy import gram_of
from privirec.federated.programs.base import Broadcast, Planned, Program, ProgramSettings, Steps
from privirec.federated.programs.head_gram import among_all
from privirec.federated.programs.power import FILTER_ENTRY
from privirec.filters.components import Components
from privirec.filters.normalize import Normalisation, most_popular
from privirec.filters.operators import SparseOperator

DEFAULT_EPSILON = 8.0
DEFAULT_DELTA = 1e-6
DEFAULT_HEAD = 1000
LEAST_FRACTION_BITS = 12
FINE_ENOUGH = 4 * LEAST_DEVIATION
"""A client's deviation is a whole number; at so many units rounding it up costs 1.5 % at most."""


class ProtectedSettings(ProgramSettings):
    """How private, over how many items."""

    method: Literal["protected"] = "protected"
    epsilon: float = Field(DEFAULT_EPSILON, gt=0, le=50)
    """What is promised to every person: how much taking part can change what anybody sees."""
    delta: float = Field(DEFAULT_DELTA, gt=0, lt=1)
    """The chance with which the promise may fail."""
    head: int = Field(DEFAULT_HEAD, ge=2)
    """m: how many of the most popular items, at most all."""
    popularity_share: float = Field(0.1, gt=0, lt=1)
    """Part of the budget (of mu^2) that goes into popularity."""
    clients: int = Field(1, ge=1)
    """Most clients that add noise."""
    contributors: int = Field(1, ge=1)
    """Fewest clients whose noise stays secret: without those that drop out or are corrupt."""

    @model_validator(mode="after")
    def _check(self) -> ProtectedSettings:
        if self.contributors > self.clients:
            raise ValueError("more contributors of noise than clients")
        return self


@dataclass(frozen=True)
class Calibration:
    """Noise for the two sums, and what it really promises."""

    popularity: NoiseShare
    gram: NoiseShare
    epsilon: float

    @classmethod
    def of(cls, settings: ProtectedSettings, n_items: int) -> Calibration:
        """The least noise in whole units that keeps the promise."""
        head = min(settings.head, n_items)
        # What the discreteness of noise costs comes out of delta; a hundredth is more than enough.
        mu = mu_of(settings.epsilon, 0.99 * settings.delta)
        parts = (settings.popularity_share, 1 - settings.popularity_share)
        lengths = (n_items, head * (head + 1) // 2)
        shares = [
            _share(mu * math.sqrt(part), length, settings)
            for part, length in zip(parts, lengths, strict=True)
        ]
        levels = [
            2.0**share.fraction_bits / gaussian_deviation(share.protecting_deviation)
            for share in shares
        ]
        gap = sum(
            distance(share.protecting_deviation, length)
            for share, length in zip(shares, lengths, strict=True)
        )
        epsilon = epsilon_with(composed(levels), settings.delta, gap)
        return cls(shares[0], shares[1], epsilon)


def _share(mu: float, entries: int, settings: ProtectedSettings) -> NoiseShare:
    """A client's noise for a sum of vectors of length one that is to be mu-private: in units so
    small that whole numbers of them cost next to nothing."""
    affordable = 0.005 * settings.delta / (1 + math.exp(settings.epsilon))
    bits = LEAST_FRACTION_BITS
    while True:
        needed = (2.0**bits / mu) ** 2 + 1 / 12
        deviation = math.ceil(math.sqrt(needed / settings.contributors))
        share = NoiseShare(deviation, settings.clients, settings.contributors, bits)
        if deviation >= FINE_ENOUGH and distance(share.protecting_deviation, entries) <= affordable:
            return share
        bits += 1


class Protected(Program[ProtectedSettings]):
    """Noisy popularity, and then the noisy item-item matrix of the items that come out on top."""

    name: ClassVar[str] = "protected"
    title: ClassVar[str] = "Protected"
    gives_away: ClassVar[str] = (
        "little about anybody: noise hides whether a person took part, as far as epsilon says"
    )
    settings_type = ProtectedSettings
    usual_model: ClassVar[str | None] = "noisy-ease"
    protects: ClassVar[bool] = True

    @cached_property
    def calibration(self) -> Calibration:
        return Calibration.of(self.settings, self.n_items)

    @property
    def head(self) -> int:
        return min(self.settings.head, self.n_items)

    def describe(self) -> dict[str, Any]:
        settings = self.settings
        promised = {"epsilon": self.calibration.epsilon, "delta": settings.delta}
        return super().describe() | {"head": self.head} | promised

    def plan(self, item_item_entries: int | None = None) -> list[Planned]:
        noise = self.calibration
        return [
            NoisyPopularity.planned(self.n_items, self.n_users, noise.popularity),
            NoisyHeadGram.planned(self.n_items, self.n_users, noise.gram, self.head),
            Broadcast("filters", FILTER_ENTRY * (self.n_items + self.head**2)),
        ]

    def _steps(self, plan: list[Any]) -> Steps:
        popularity_sum, gram_sum, filters = plan
        votes = yield popularity_sum.ask()
        popularity = np.maximum(votes, 0)
        items = most_popular(popularity, self.head)
        triangle = yield gram_sum.ask(items=items)
        share = self.calibration.gram
        gram = gram_of(triangle, self.head, share.fraction_bits).astype(np.float32)
        matrix = among_all(sp.csr_array(gram), items, self.n_items)
        yield filters
        return Components(
            popularity,
            SparseOperator(matrix),
            normalisation=Normalisation(user=1.0, left=0.0, right=0.0),
            # Of a symmetric random matrix: 2 sqrt(m) times the deviation of its entries.
            noise_edge=math.sqrt(2 * self.head) * share.opened_deviation,
        )
