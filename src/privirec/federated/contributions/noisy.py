"""Sums with differential privacy: each person's vector has length at most one, and clients add
noise.

A person's vector has Euclidean length at most one for any history, so nothing is clipped and no
clipping bound has to be chosen. Entries are rounded towards zero, which never makes a vector
longer. In units of 2^-fraction_bits, one person therefore changes a sum by a vector of length at
most 2^fraction_bits, exactly.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from fractions import Fraction
from functools import cached_property
from math import isqrt
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from privirec.data.few_rows import FewRows
from privirec.errors import FederationError, OverflowRefused, UsageError
from privirec.federated.contributions.base import (
    ClientContext,
    Contribution,
    Histories,
    Integers,
    PlannedSum,
    SumShape,
)
from privirec.federated.contributions.outer import BROADCAST_ENTRY
from privirec.federated.dp import DEFAULT_MECHANISM
from privirec.federated.dp.gaussian import root_upward
from privirec.federated.dp.loss import Protection
from privirec.federated.dp.mechanism import MECHANISMS, Mechanism, NoiseSampler
from privirec.federated.fixed_point import MOST_FRACTION_BITS, FixedPoint
from privirec.federated.noise import TAIL_BITS, AddedNoise, Noise
from privirec.federated.randomness import NO_RANDOMNESS, ClientStream, RandomStream

LARGEST_HEAD = 1 << 20
"""Largest size of a head.

Sums of this many 32-bit integers, and their differences, are exact in a double.
"""
LARGEST_WEIGHT = 1 << 20
MOST_CLIENTS = 1 << 32
LARGEST_DEVIATION = 1 << 52
"""Largest standard deviation of a client's noise, in units."""


@dataclass(frozen=True)
class NoiseShare:
    """Noise that each client adds to every entry, in units of the sum."""

    deviation: int
    clients: int
    """Largest number of clients that add noise. The ring must hold the noise of all of them."""
    contributors: int
    """Smallest number of clients that add noise and keep it secret. Only this noise protects."""
    fraction_bits: int
    mechanism: str = DEFAULT_MECHANISM
    """Name of the distribution."""

    def __post_init__(self) -> None:
        # A server may send any numbers, and large ones would take a client's time and memory.
        if not (
            1 <= self.contributors <= self.clients <= MOST_CLIENTS
            and 1 <= self.deviation <= LARGEST_DEVIATION
            and 0 <= self.fraction_bits <= MOST_FRACTION_BITS
        ):
            raise FederationError("noise of an impossible deviation, unit or number of clients")

    @property
    def _mechanism(self) -> Mechanism:
        return MECHANISMS.named(self.mechanism)

    @property
    def protecting_deviation(self) -> float:
        """Standard deviation, in units, of the secret noise in the sum, which nobody can
        subtract."""
        return self.deviation * math.sqrt(self.contributors)

    def protection(self, entries: int, squared_distance: int = 4) -> Protection:
        """Return the guarantee for a sum of this many entries.

        A history changes the sum by a vector of length at most one. `squared_distance` bounds the
        square of the distance between the vectors of two histories.
        """
        loss = self._mechanism.loss(self.deviation, self.contributors, self.fraction_bits, entries)
        replacing = root_upward(squared_distance * Fraction(loss.mu) ** 2)
        return Protection(replace(loss, replacing=replacing), self.contributors)

    @property
    def opened_deviation(self) -> float:
        """Standard deviation of the total noise if all clients add theirs, in the values of the
        sum."""
        return math.ldexp(self.deviation * math.sqrt(self.clients), -self.fraction_bits)

    def added(self, entries: int) -> AddedNoise:
        """Return the noise as the ledger and the encoding describe it."""
        if entries < 1:
            raise FederationError("a sum with noise, without entries")
        reach = self._mechanism.reach(entries, TAIL_BITS)
        return AddedNoise(
            self.mechanism,
            math.ldexp(self.protecting_deviation, -self.fraction_bits),
            "contributions of length one",
            reach * self.opened_deviation,
            math.ldexp(1.0, -TAIL_BITS),
        )


@dataclass(frozen=True)
class NormedSum(Contribution):
    """A sum of vectors of length at most one, with noise."""

    squared_distance: ClassVar[int] = 4
    """Bound on the squared distance between the vectors of two histories.

    Two vectors of length one are at most 2 apart. If neither has a negative entry, their inner
    product is not negative either, so that the squared distance is at most 1 + 1 = 2.
    """

    n_items: int
    n_users: int
    deviation: int
    clients: int
    contributors: int
    fraction_bits: int
    mechanism: str = field(default=DEFAULT_MECHANISM, kw_only=True)
    ring_bits: int = field(default=0, kw_only=True)
    """Width of the ring; 0: the narrowest that holds the sum."""

    @cached_property
    def share(self) -> NoiseShare:
        if self.mechanism not in MECHANISMS:
            raise FederationError(f"noise of an unknown mechanism {self.mechanism[:40]!r}")
        return NoiseShare(**{one.name: getattr(self, one.name) for one in fields(NoiseShare)})

    @classmethod
    def protection(cls, shape: SumShape, fixed: Mapping[str, Any]) -> Protection:
        share = NoiseShare(**{one.name: fixed[one.name] for one in fields(NoiseShare)})
        try:
            return share.protection(shape.length, cls.squared_distance)
        except UsageError as error:  # a server may ask for noise that is too coarse to count
            raise FederationError(str(error)) from None

    @property
    @abstractmethod
    def _length(self) -> int: ...

    @abstractmethod
    def exact_blocks(self, histories: Histories) -> Iterator[Integers]:
        """Yield the sum over these users without noise."""

    @property
    def shape(self) -> SumShape:
        return SumShape(self._length, self.encoding.width, True, self._broadcast_bytes)

    @property
    def _broadcast_bytes(self) -> int:
        return 0

    @property
    def noise(self) -> Noise:
        return self.share.added(self._length)

    @cached_property
    def encoding(self) -> FixedPoint:
        """Encoding in the agreed ring, or in the narrowest one.

        An entry is a sum of at most n_users numbers from 0 to 1.
        """
        noise = self.share.added(self._length)
        in_units = replace(
            noise, scale=self.share.protecting_deviation, largest=noise.largest * self._unit
        )
        units = FixedPoint.counting(self.n_users << self.fraction_bits, in_units)
        if 0 < self.ring_bits < units.width:
            raise OverflowRefused(
                f"a {self.ring_bits}-bit ring is too narrow for {self.name}, which takes "
                f"{units.width} bits"
            )
        return FixedPoint(self.ring_bits or units.width, self.fraction_bits, signed=True)

    @property
    def _unit(self) -> int:
        return 1 << self.fraction_bits

    def _sampler(self, clients: int = 1) -> NoiseSampler:
        return MECHANISMS.named(self.mechanism).sampler(self.deviation, clients)

    def blocks(
        self, histories: Histories, randomness: RandomStream = NO_RANDOMNESS
    ) -> Iterator[Integers]:
        sampler, start = self._sampler(), 0
        for block in self.exact_blocks(histories):
            randomness.add_noise(sampler, block, start)
            start += len(block)
            yield block

    def total(
        self, histories: Histories, randomness: Iterable[ClientStream] = NO_RANDOMNESS
    ) -> Any:
        clients = [(client.stream, self._sampler(client.clients)) for client in randomness]
        start, summed = 0, []
        for block in self.exact_blocks(histories):
            for stream, sampler in clients:
                stream.add_noise(sampler, block, start)
            start += len(block)
            summed.append(block)
        return self.collect(summed)


@dataclass(frozen=True)
class NoisyPopularity(NormedSum):
    """sum_u r_u / |r_u| with noise: the popularity of each item.

    A person's vector has length one, whatever the number of items.
    """

    name: ClassVar[str] = "noisy-popularity"
    gives_away: ClassVar[str] = "about how popular each item is; protected by noise"
    squared_distance: ClassVar[int] = 2

    @classmethod
    def planned(cls, n_items: int, n_users: int, share: NoiseShare) -> PlannedSum:
        fixed = {"n_items": n_items, "n_users": n_users, **asdict(share)}
        return PlannedSum(cls, cls(**fixed).shape, fixed)

    @property
    def _length(self) -> int:
        return self.n_items

    def rows_of(self, histories: Histories) -> Integers:
        return np.unique(histories.matrix.indices).astype(np.int64)

    def check(self, context: ClientContext) -> None:
        """Accept the request: the plan fixes every field."""

    def exact_blocks(self, histories: Histories) -> Iterator[Integers]:
        unit = 4**self.fraction_bits
        weights = by_degree(histories.distinct().degrees, lambda degree: isqrt(unit // degree))
        matrix = histories.matrix
        total = np.zeros(self.n_items, np.int64)
        np.add.at(total, matrix.indices, np.repeat(weights, histories.degrees))
        return self.pieces(total)


@dataclass(frozen=True)
class HeadSum(NormedSum):
    """A sum over the part of each history that lies in the head, the most popular items."""

    items: Integers
    """Head, in ascending order.

    A server may choose any items, because the noise protects every choice.
    """

    @property
    def _broadcast_bytes(self) -> int:
        return 4 * len(self.items)

    def check(self, context: ClientContext) -> None:
        items = self.items
        # Check the range of all items, not only of the first and last: if differences overflow,
        # np.diff does not prove the order.
        if len(items) and not (items.min() >= 0 and items.max() < self.n_items):
            raise FederationError("a head of items that are not in the catalogue")
        if (np.diff(items) <= 0).any():
            raise FederationError("a head that is not in ascending order, or names an item twice")

    def on_head(self, histories: Histories) -> Histories:
        chosen = histories.distinct().matrix[:, self.items]
        matrix = chosen if isinstance(chosen, FewRows) else sp.csr_array(chosen)
        return Histories(matrix, histories.first_user)


@dataclass(frozen=True)
class WeightedHeadSum(HeadSum):
    """A sum over the head with a weight per item."""

    weights: Integers
    """Weight of each item in the head, in arbitrary units.

    It sets the share of a person's vector length that the item gets.
    """

    def __post_init__(self) -> None:
        # Compiled loops do not check array bounds.
        if len(self.weights) != len(self.items):
            raise FederationError(f"{len(self.weights)} weights for {len(self.items)} items")

    @property
    def _broadcast_bytes(self) -> int:
        return super()._broadcast_bytes + BROADCAST_ENTRY * len(self.weights)

    def check(self, context: ClientContext) -> None:
        super().check(context)
        if len(self.items) > LARGEST_HEAD:
            raise FederationError(f"a head of {len(self.items)} items; {LARGEST_HEAD} are the most")
        if len(self.weights) and not 0 < self.weights.min() <= self.weights.max() < LARGEST_WEIGHT:
            raise FederationError(f"weights that are not between 0 and {LARGEST_WEIGHT}")


def by_degree(degrees: Integers, weight: Callable[[int], int]) -> Integers:
    """Return an exact whole number per user, computed from the number of items; 0 for no items."""
    known, where = np.unique(degrees, return_inverse=True)
    return np.array([weight(degree) if degree else 0 for degree in known.tolist()], np.int64)[where]
