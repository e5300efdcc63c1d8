"""Protected: popularity and a model of the head, with differential privacy for each person."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from itertools import chain, zip_longest
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from privirec.errors import UsageError
from privirec.federated.contributions import LaterSum, NoiseShare, NoisyPopularity, PlannedSum
from privirec.federated.contributions.base import SumShape
from privirec.federated.contributions.noisy import MOST_CLIENTS, NormedSum
from privirec.federated.contributions.power_step import SEED_BYTES
from privirec.federated.dp import DEFAULT_MECHANISM
from privirec.federated.dp.gaussian import LEAST_EPSILON, composed, delta_for, root_upward
from privirec.federated.dp.loss import Loss, Protection
from privirec.federated.dp.mechanism import MECHANISMS
from privirec.federated.programs.base import (
    Bounds,
    Broadcast,
    CohortSize,
    Planned,
    Program,
    Steps,
)
from privirec.federated.programs.calibration import Promise
from privirec.federated.programs.power import FILTER_ENTRY
from privirec.federated.programs.protected_ways import (
    PAIRS_PER_ITEM,
    SMALLEST_PART,
    Gram,
    Power,
    Released,
    Way,
    Wishes,
    choose,
    popularity_share,
    usual_popularity,
)
from privirec.federated.settings import Option, ProgramSettings
from privirec.filters.earlier import Earlier, Estimate
from privirec.filters.normalize import most_popular

DEFAULT_EPSILON = 2.0
"""A run of this epsilon a month costs epsilon 8.2 in a year; docs/explanation/budget.md argues."""
DEFAULT_UPLOAD_LIMIT = 5_000_000
LEAST_RING_BITS = 14
"""A lower bound of the width of a ring, for the first bound on lengths."""

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
    """Chance that it fails.

    None: at most 1e-6 and at most 1 / (10 n) for n people (`dp.gaussian.delta_for`).
    """
    way: Annotated[Literal["auto", "gram", "power"], Option("WAY", NOISE)] = "auto"
    """Model of the head by pairs (gram), power, or auto.

    `auto` chooses when noisy popularity is known: pairs if few items have most of the votes.
    """
    head: Annotated[int | None, Option("N", default="the model's")] = Field(None, ge=1)
    """Number of most popular items, at most the whole catalogue.

    None: as many as remain useful under the noise, decided when popularity is known.
    """
    columns: int | None = Field(None, ge=1)
    """Number of columns of the way `power`, at most the size of the head; None: chosen as for
    `head`."""
    upload_limit: Annotated[int | None, Option("BYTES", NOISE, "5,000,000 or more")] = Field(
        None, ge=1
    )
    """Most bytes of a client's vectors.

    The head, where nobody chose it, is as large as is useful and fits. None: 5,000,000, or as many
    as sizes that somebody chose need.
    """
    popularity_share: float | None = Field(None, ge=1e-6, le=1 - 1e-6)
    """Share of the budget (of mu^2) that goes into popularity; None: more with less signal per
    item."""
    pairs_share: float | None = Field(None, ge=0, le=0.9)
    """Share of the budget after popularity for candidate pairs of the way `power`; 0: no such sum;
    None: more with more signal."""
    clients: int = Field(1, ge=1, le=MOST_CLIENTS)
    """Largest number of clients that add noise."""
    contributors: int = Field(1, ge=1, le=MOST_CLIENTS)
    """Smallest number of clients whose noise stays secret: drop-outs and corrupt clients do not
    count."""
    corrupt: int | None = Field(None, ge=0, le=MOST_CLIENTS)
    """Largest number of clients that may work for the server.

    The noise of sums after the first one covers these alone, since nobody drops out of them. None:
    all clients that are no contributors.
    """
    mechanism: str = DEFAULT_MECHANISM
    """Distribution of the noise."""
    after: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    """SHA-256 of the released sums that this run adds to; None: it stands alone."""

    @model_serializer(mode="wrap")
    def _without_default(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is as usual, so that usual settings keep their bytes."""
        written: dict[str, Any] = write(self)
        if self.mechanism == DEFAULT_MECHANISM:
            written.pop("mechanism", None)
        if self.after is None:
            written.pop("after", None)
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

    def confirmed(self, n_users: int, clients: int) -> Promise:
        """Return the guarantee for sums after the first, in which exactly these clients are."""
        corrupt = self.corrupt
        if corrupt is None:
            corrupt = self.clients - self.contributors
        return self.promise(n_users).confirmed(min(clients, self.clients), corrupt)

    @property
    def wishes(self) -> Wishes:
        return Wishes(self.way, self.head, self.columns, self.pairs_share)


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
    _earlier: Earlier | None = None
    """Sums of earlier runs, to which this run adds; see `go_on_from`."""
    _taken: Way | None = None
    """Way of a run, once it has ended."""
    _spent: Loss | None = None
    """Loss of a run, once it has ended."""

    @cached_property
    def promise(self) -> Promise:
        return self.settings.promise(self.n_users)

    @property
    def delta(self) -> float:
        return self.promise.delta

    @property
    def level(self) -> float:
        return self.promise.mu

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

    # --- bounds, before the run -------------------------------------------------------------------

    @property
    def _ways(self) -> tuple[type[Way], ...]:
        """Ways that a run may take."""
        return tuple(way for way in (Gram, Power) if self.settings.way in ("auto", way.name))

    @property
    def _most_sums(self) -> int:
        return 1 + max(len(way.kinds) for way in self._ways)

    @cached_property
    def _first(self) -> NoiseShare:
        """Noise of the first sum, whose clients may still drop out."""
        signal = self.promise.signal(self.n_users)
        share = self.settings.popularity_share or popularity_share(signal, self.n_items)
        parts, lengths = (share, 1 - share), (self.n_items, 1)
        return self.promise.divided(self.promise.cap, parts, lengths, self._most_sums)[0]

    @property
    def _left(self) -> Loss:
        """What the sums after the first may cost together."""
        spent = self._first.protection(self.n_items).loss
        return Bounds(self.promise.cap, 0).left(spent)

    @cached_property
    def bounds(self) -> Bounds:
        first = self._popularity.payload_bytes
        limit = self.settings.upload_limit
        needed = first + self._needed_entries * self._ring_bits // 8 + self._most_sums
        if limit is None:
            limit = max(DEFAULT_UPLOAD_LIMIT, needed)
        elif limit < needed:
            raise UsageError(
                f"an upload limit of {limit:,} bytes, where a client would send {needed:,}"
            )
        return Bounds(self.promise.cap, limit)

    @property
    def _needed_entries(self) -> int:
        """Entries after popularity of the smallest run with the sizes that somebody wished for."""
        wishes = self.settings.wishes
        head = min(wishes.head or 2, self.n_items)
        steps = head * min(wishes.columns or 1, head) * (len(Power.kinds) - 1)
        pairs = min(PAIRS_PER_ITEM * head, head * (head - 1) // 2)
        of_way = {Gram: head * (head + 1) // 2, Power: steps + pairs}
        return min(of_way[way] for way in self._ways)

    @property
    def _most_entries(self) -> int:
        """Entries of the longest possible sum after popularity, whatever it takes to send it."""
        wishes = self.settings.wishes
        head = min(wishes.head or self.n_items, self.n_items)
        columns = min(wishes.columns or head, head)
        of_way = {Gram: head * (head + 1) // 2, Power: head * max(columns, head // 2 + 1)}
        return max(of_way[way] for way in self._ways)

    @cached_property
    def _ring_bits(self) -> int:
        """Ring of all sums after the first: wide enough for any size and share of the budget.

        Finer units take more bits, and they are finest for a sum that has the whole rest of the
        budget, with the noise of the fewest clients that count. Noise takes most bits in a sum with
        the least share. Between the two, a deviation that is larger in units by less than three
        times is possible, because units are powers of two.
        """
        settings = self.settings
        limit = settings.upload_limit or DEFAULT_UPLOAD_LIMIT
        entries = max(8 * limit // LEAST_RING_BITS, self._needed_entries)
        entries = min(entries, self._most_entries)
        left, most = self._left, self._most_sums
        everybody = settings.confirmed(self.n_users, settings.clients)
        (finest,) = everybody.divided(left, (1.0,), (entries,), most)
        (widest,) = self.promise.divided(left, (SMALLEST_PART, 1.0), (entries, 1), most)[:1]
        noise = widest.added(entries).largest * (1 << widest.fraction_bits)
        largest = (self.n_users << finest.fraction_bits) + 3 * math.ceil(noise)
        return largest.bit_length() + 1

    @property
    def _longest(self) -> int:
        """Most entries of a sum after the first."""
        room = self.bounds.upload_bytes - self._popularity.payload_bytes
        return min(max(1, 8 * room // self._ring_bits), self._most_entries)

    @property
    def _popularity(self) -> PlannedSum:
        return NoisyPopularity.planned(self.n_items, self.n_users, self._first)

    def _later_sums(self) -> list[LaterSum]:
        fixed = {
            "n_items": self.n_items,
            "n_users": self.n_users,
            "mechanism": self.settings.mechanism,
            "ring_bits": self._ring_bits,
        }
        told = 8 * (self.n_items + self._longest)
        shape = SumShape(self._longest, self._ring_bits, signed=True, broadcast_bytes=told)
        most = Protection(replace(self._left, replacing=self._left_replacing), 1)
        return [
            LaterSum(kinds[0], shape, fixed, place > 0, kinds, most)
            for place, kinds in enumerate(self._kinds)
        ]

    @property
    def _kinds(self) -> list[tuple[type[NormedSum], ...]]:
        """Kinds of sums that a client admits at each place after popularity."""
        by_place = zip_longest(*(way.kinds for way in self._ways), fillvalue=())
        return [tuple(dict.fromkeys(chain.from_iterable(of_ways))) for of_ways in by_place]

    @property
    def _left_replacing(self) -> float:
        """Level, in the sums after the first, of replacing one history by another."""
        squared = max(kind.squared_distance for kinds in self._kinds for kind in kinds)
        return root_upward(squared * Fraction(self._left.mu) ** 2)

    @property
    def loss(self) -> Loss:
        """Loss of all sums together: at most the promise, and what it was once they are open."""
        if self._spent is not None:
            return self._spent
        first = self._first.protection(self.n_items, NoisyPopularity.squared_distance).loss
        replacing = composed((first.replacing, self._left_replacing))
        return replace(self.promise.cap, replacing=replacing)

    def outline(self, item_item_entries: int | None = None) -> list[Planned]:
        filters = self.n_items * 3 + 6 * self._longest
        return [
            self._popularity,
            *self._later_sums(),
            Broadcast("filters", FILTER_ENTRY * filters),
        ]

    # --- forecast, and the run --------------------------------------------------------------------

    def _released(self, popularity: NDArray[np.float64], clients: int) -> Released:
        first = self._first
        return Released(
            popularity,
            math.ldexp(first.deviation * math.sqrt(clients), -first.fraction_bits),
            self.n_users,
            self.settings.confirmed(self.n_users, clients),
            self._left.mu,
            self.bounds.upload_bytes - self._popularity.payload_bytes,
            self._ring_bits,
        )

    @cached_property
    def way(self) -> Way:
        """Way and sizes to expect, for popularity of a usual shape."""
        popularity = usual_popularity(self.n_users, self.n_items)
        return choose(self._released(popularity, self.settings.clients), self.settings.wishes)

    def _sums_of(self, way: Way, promise: Promise) -> list[PlannedSum]:
        if min(way.shares) < SMALLEST_PART:
            raise UsageError(f"a sum with less than {SMALLEST_PART:g} of the budget")
        noise = promise.divided(self._left, way.shares, way.lengths, self._most_sums)
        return way.sums(noise, self._ring_bits)

    def forecast(self, item_item_entries: int | None = None) -> list[Planned]:
        promise = self.settings.confirmed(self.n_users, self.settings.clients)
        return [
            self._popularity,
            *self._sums_of(self.way, promise),
            Broadcast("filters", FILTER_ENTRY * self.way.filter_entries),
        ]

    def describe(self) -> dict[str, Any]:
        """Return what to expect, and after a run what it was."""
        loss = self._spent or _together(self.expected_sums())
        replacing = loss.epsilon_replacing(self.delta)
        promised = {
            "epsilon": loss.epsilon(self.delta),
            "epsilon_replacing": replacing if math.isfinite(replacing) else None,
            "delta": self.delta,
        }
        return super().describe() | (self._taken or self.way).describe() | promised

    def found(self) -> dict[str, Any]:
        return {"sizes": self.describe()}

    def go_on_from(self, earlier: Earlier) -> None:
        """Add this run to the sums of earlier ones, which are over the same catalogue."""
        self._earlier = earlier

    def _steps(self, outline: list[Any]) -> Steps:
        if self.settings.after and self._earlier is None:
            raise UsageError("this run adds to an earlier one, whose released sums are not here")
        ask: Any = self._popularity.ask()
        earlier = self._earlier or Earlier.nothing(self.n_items)
        votes = ask.encoding.decode((yield ask))
        clients = yield CohortSize()
        released = self._released(votes, clients)
        known = earlier.popularity.added(Estimate.of(votes, released.deviation))
        released = replace(
            released,
            popularity=known.values,
            deviation=known.deviation,
            power_before=earlier.signal if earlier.images else 0.0,
        )
        way = choose(released, self.settings.wishes)
        sums = self._sums_of(way, released.promise)
        popularity = np.maximum(np.rint(np.ldexp(known.values, ask.fraction_bits)), 0)
        popularity = popularity.astype(np.int64)
        items = most_popular(popularity, way.head)
        # A single person with a single item adds one, so anything below one is noise.
        popularity[items] = np.maximum(popularity[items], 1 << ask.fraction_bits)
        on_head = ask.encoding.decode(popularity[items])
        seed = np.random.Generator(np.random.Philox(self.settings.seed)).bytes(SEED_BYTES)
        components = yield from way.steps(sums, items, on_head, seed, earlier)
        yield outline[-1].measured(FILTER_ENTRY * way.filter_entries)
        self._taken = way
        self._spent = _together([self._popularity, *sums])
        together = replace(
            components.released or earlier,
            popularity=known,
            signal=math.sqrt(earlier.signal * earlier.signal + released.signal * released.signal),
        )
        return replace(components, item_degrees=popularity, head=way.head, released=together)


def _together(sums: list[PlannedSum]) -> Loss:
    return Loss.together(one.protection.loss for one in sums if one.protection)
