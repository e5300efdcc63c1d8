"""Protected: popularity and a model of the head, with differential privacy for each person."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from privirec.federated.contributions import NoisyPopularity
from privirec.federated.contributions.power_step import SEED_BYTES
from privirec.federated.dp import DEFAULT_MECHANISM
from privirec.federated.dp.gaussian import LEAST_EPSILON, delta_for
from privirec.federated.dp.mechanism import MECHANISMS
from privirec.federated.programs.base import Broadcast, Planned, Program, Steps
from privirec.federated.programs.calibration import Calibration, Promise
from privirec.federated.programs.power import FILTER_ENTRY
from privirec.federated.programs.protected_ways import PEOPLE_PER_ITEM, Gram, Power, Way
from privirec.federated.settings import Option, ProgramSettings
from privirec.filters.normalize import most_popular

DEFAULT_EPSILON = 2.0
"""A run of this epsilon a month costs epsilon 8.2 in a year; docs/explanation/budget.md argues."""
MOST_CLIENTS = 1 << 32

OUTLOOK = (
    (10.0, "nearly what an exact run gives"),
    (2.0, "about four fifths of what an exact run gives"),
    (0.7, "about two thirds of what an exact run gives"),
    (0.2, "about half of what an exact run gives"),
    (0.0, "little more than popularity: noise needs more people, or a larger epsilon"),
)
"""Pairs of (least signal per item, accuracy to expect), as measured on Gowalla, Yelp2018, Globo and
synthetic data; see docs/results/protected.md."""


NOISE = "Noise (method protected)"
"""Heading of its options in the help."""


class ProtectedSettings(ProgramSettings):
    """Settings of the protected program: privacy guarantee, way and sizes."""

    method: Literal["protected"] = "protected"
    epsilon: Annotated[float, Option("X", NOISE)] = Field(DEFAULT_EPSILON, ge=LEAST_EPSILON, le=50)
    """Epsilon promised to every person.

    It bounds how much all of a history, against none of it, can change what anyone observes. Who
    takes part is public.
    """
    delta: Annotated[float | None, Option("X", NOISE, "1e-6, or 1 / (10 people) if less")] = Field(
        None, ge=1e-30, le=0.01
    )
    """Probability that the promise fails.

    None: at most 1e-6 and at most 1 / (10 n) for n people (`dp.gaussian.delta_for`).
    """
    way: Annotated[Literal["auto", "gram", "power"], Option("WAY", NOISE)] = "auto"
    """Model of the head by pairs (gram), power, or auto.

    `auto` chooses by the number of people per item of the catalogue.
    """
    head: Annotated[int | None, Option("N", default="the model's")] = Field(None, ge=1)
    """Number of most popular items, at most the whole catalogue.

    None: as many as remain useful under the noise.
    """
    columns: int | None = Field(None, ge=1)
    """Number of columns of the way `power`, at most the size of the head; None: chosen as for
    `head`."""
    popularity_share: float | None = Field(None, ge=1e-6, le=1 - 1e-6)
    """Share of the budget (of mu^2) that goes into popularity; None: the default of the way."""
    pairs_share: float | None = Field(None, ge=0, le=0.9)
    """Share of the budget after popularity for candidate pairs of the way `power`; 0: no such sum;
    None: more with more signal."""
    clients: int = Field(1, ge=1, le=MOST_CLIENTS)
    """Largest number of clients that add noise."""
    contributors: int = Field(1, ge=1, le=MOST_CLIENTS)
    """Smallest number of clients whose noise stays secret: drop-outs and corrupt clients do not
    count."""
    mechanism: str = DEFAULT_MECHANISM
    """Distribution of the noise."""

    @model_serializer(mode="wrap")
    def _without_default(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the usual mechanism, so that its settings keep their bytes."""
        written: dict[str, Any] = write(self)
        if self.mechanism == DEFAULT_MECHANISM:
            written.pop("mechanism", None)
        return written

    @model_validator(mode="after")
    def _check(self) -> ProtectedSettings:
        if self.contributors > self.clients:
            raise ValueError("more contributors of noise than clients")
        if self.mechanism not in MECHANISMS:
            raise ValueError(f"no mechanism of this name; there are {', '.join(MECHANISMS)}")
        return self

    def promise(self, n_users: int) -> Promise:
        """Return the guarantee to each of this many people."""
        noise = (self.clients, self.contributors, self.mechanism)
        return Promise(self.epsilon, self.delta or delta_for(n_users), *noise)


class Protected(Program[ProtectedSettings]):
    """Noisy popularity, followed by a noisy model of the most popular items."""

    name: ClassVar[str] = "protected"
    title: ClassVar[str] = "Protected"
    in_short: ClassVar[str] = "noise of the clients promises epsilon to every person"
    gives_away: ClassVar[str] = (
        "what noise leaves: it hides each person's history, as far as epsilon says"
    )
    settings_type = ProtectedSettings
    usual_model: ClassVar[str | None] = "denoised"
    protects: ClassVar[bool] = True

    @cached_property
    def promise(self) -> Promise:
        return self.settings.promise(self.n_users)

    @property
    def delta(self) -> float:
        return self.promise.delta

    @property
    def level(self) -> float:
        return self.promise.mu

    @cached_property
    def way(self) -> Way:
        """Way and sizes, chosen from public numbers only."""
        settings = self.settings
        signal = self.promise.signal(self.n_users)
        sizes = self.n_items, self.n_users
        chosen = settings.way
        if chosen == "auto":
            chosen = "gram" if self.n_users >= PEOPLE_PER_ITEM * self.n_items else "power"
        if chosen == "gram":
            head = settings.head or max(2, Gram.head_for(signal))
            return Gram(*sizes, min(head, self.n_items))
        share = settings.pairs_share
        share = Power.pairs_share_for(signal) if share is None else share
        with_pairs = share > 0
        head = settings.head or max(2, Power.head_for(signal, with_pairs))
        columns = settings.columns or max(1, Power.columns_for(signal, with_pairs))
        head = min(head, self.n_items)
        return Power(*sizes, head, min(columns, head), share)

    @property
    def expected(self) -> str:
        """Accuracy to expect, in words."""
        left = self.promise.signal(self.n_users) / self.n_items
        return next(words for least, words in OUTLOOK if left >= least)

    def outlook(self) -> str:
        """Return the accuracy to expect, from the signal that noise leaves per item."""
        left = self.promise.signal(self.n_users) / self.n_items
        return (
            f"{self.n_users:,} people and {self.n_items:,} items at epsilon "
            f"{self.settings.epsilon:g}: noise leaves as much as {left:.2g} people for each item; "
            f"expect {self.expected}."
        )

    @cached_property
    def calibration(self) -> Calibration:
        first = self.settings.popularity_share or self.way.popularity_share
        parts = [first, *((1 - first) * part for part in self.way.parts)]
        return Calibration.of(self.promise, parts, [self.n_items, *self.way.lengths])

    def describe(self) -> dict[str, Any]:
        replacing = self.loss.epsilon_replacing(self.delta)
        promised = {
            "epsilon": self.calibration.epsilon,
            "epsilon_replacing": replacing if math.isfinite(replacing) else None,
            "delta": self.delta,
        }
        return super().describe() | self.way.describe() | promised

    def outline(self, item_item_entries: int | None = None) -> list[Planned]:
        first, *others = self.calibration.shares
        return [
            NoisyPopularity.planned(self.n_items, self.n_users, first),
            *self.way.sums(tuple(others)),
            Broadcast("filters", FILTER_ENTRY * self.way.filter_entries),
        ]

    def _steps(self, outline: list[Any]) -> Steps:
        popularity_sum, *sums, filters = outline
        ask = popularity_sum.ask()
        votes = yield ask
        popularity = np.maximum(votes, 0)
        items = most_popular(popularity, self.way.head)
        # A single person with a single item adds one, so anything below one is noise.
        popularity[items] = np.maximum(popularity[items], 1 << ask.fraction_bits)
        on_head = ask.encoding.decode(popularity[items])
        seed = np.random.Generator(np.random.Philox(self.settings.seed)).bytes(SEED_BYTES)
        components = yield from self.way.steps(sums, items, on_head, seed)
        yield filters
        return replace(components, item_degrees=popularity, head=self.way.head)
