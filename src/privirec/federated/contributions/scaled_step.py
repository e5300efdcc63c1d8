"""Power steps in narrow rings: coarse blocks, and a scale of its own for each row of the sum.

A row of P' W is the sum of what the item's people send, and people who like an item mostly send
small numbers: bounds that follow from degrees alone are hundreds of times too large, and a ring
that holds them wastes eight bits an entry. So a bound is measured. `RowReach` sums, for each item,
the largest number that each of its people will send. That costs one number an item, proves how far
every entry of the row can reach, whatever the signs, and `ScaledStep` fits each row to its ring.

The block is coarse: a few bits an entry and a unit for each row. This costs no exactness, since the
server goes on with the block that it has sent, and not with the one that it had in mind.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privirec.errors import FederationError
from privirec.federated.contributions.base import (
    Aim,
    ClientContext,
    Histories,
    Integers,
    PlannedSum,
    SumShape,
)
from privirec.federated.contributions.outer import BROADCAST_BITS, OuterProducts, PerItem
from privirec.federated.contributions.power_step import PowerStep, SeededBlock
from privirec.federated.fixed_point import FixedPoint
from privirec.federated.loops import kernels
from privirec.federated.packing import bits_of, packed_bytes
from privirec.federated.randomness import NO_RANDOMNESS, ClientStream, RandomStream
from privirec.filters.normalize import degree_power

REACH_BITS = 32
"""Width of the ring in which reaches are summed."""
SCALE_BITS = 38
"""Row scales are in units of 2^-SCALE_BITS."""
MOST_SCALE = 2**31 - 1
"""The finest: what is sent has 23 bits below the largest entry of the block, whatever the ring."""
ROW_BYTES = 4
"""Of the unit, and of the scale, of a row."""
SKEW = 0.25
"""How far the eigenvalues of X^T X may be from one, where rounding has made X coarse."""


@dataclass(frozen=True)
class CoarseBlock:
    """A block W = V^-1/2 X as small integers times a unit for each row."""

    coarse: NDArray[np.int16]
    row_units: Integers
    block_bits: int

    @classmethod
    def of(cls, x: NDArray, item_degrees: Integers, bits: int) -> CoarseBlock:
        """X with so many bits an entry, or more where a small catalogue needs them to keep the
        columns apart."""
        for width in sorted({bits, max(bits, 8), 16}):
            made = cls._rounded(np.asarray(x, np.float64), item_degrees, width)
            if made.written_out(item_degrees).is_nearly_orthonormal(SKEW / 2):
                break
        return made

    @classmethod
    def _rounded(cls, x: NDArray[np.float64], item_degrees: Integers, bits: int) -> CoarseBlock:
        levels = 2 ** (bits - 1) - 1
        w = degree_power(item_degrees, -0.5)[:, None] * x
        tops = np.abs(w).max(axis=1, initial=0.0)
        largest = float(tops.max(initial=0.0))
        exponent = BROADCAST_BITS - (int(np.frexp(largest)[1]) if largest > 0 else 0)
        units = np.floor(np.ldexp(tops, exponent) / levels).astype(np.int64)
        safe = np.maximum(units, 1).astype(np.float64)[:, None]
        coarse = np.rint(np.ldexp(w, exponent) / safe)
        coarse = np.clip(coarse, -levels, levels) * (units > 0)[:, None]
        return cls(coarse.astype(np.int16), units, exponent)

    def written_out(self, item_degrees: Integers) -> PowerStep:
        """The same block in 32-bit integers, as a power step in a wide ring has it."""
        block = self.coarse.astype(np.int64) * self.row_units[:, None]
        return PowerStep(item_degrees, block.astype(np.int32), self.block_bits, 64)


class RowScaled(OuterProducts):
    """What steps in narrow rings share: q_u in units of the block, and a scale for each row."""

    @property
    @abstractmethod
    def step(self) -> PowerStep:
        """The step with its block written out."""

    @property
    @abstractmethod
    def scales(self) -> Integers:
        """By which each row is multiplied, in units of 2^-SCALE_BITS."""

    @property
    def encoding(self) -> FixedPoint:
        """Whole numbers: each row has a unit of its own, see `decode`."""
        return FixedPoint(self.width, 0, signed=True)

    def rows_per_user(self, histories: Histories) -> Integers:
        return self.step.means(histories)

    def _summed(self, histories: Histories, sent: Integers, first: int, last: int) -> Integers:
        out = np.empty((last - first, sent.shape[1]), np.int64)
        by_item = histories.by_item
        kernels.sum_scaled_rows(
            by_item.indptr[first : last + 1],
            by_item.indices,
            sent,
            self.scales[first:last],
            SCALE_BITS,
            out,
        )
        return out

    def decode(self, total: Integers) -> NDArray[np.float64]:
        """P~ X from the sum; rows that were scaled to nothing are zero."""
        scales = self.scales.astype(np.float64)
        units = np.divide(2.0**SCALE_BITS, scales, out=np.zeros(len(scales)), where=scales > 0)
        units *= degree_power(self.item_degrees, -0.5) * 2.0**-self.step.block_bits
        return np.asarray(total, np.float64) * units[:, None]


@dataclass(frozen=True)
class ScaledStep(RowScaled):
    """P' W for a coarse block, each row fitted to the ring by its measured reach.

    What a person sends for item i is x = s_i q_uc, rounded. The sum of all |q_uc| is at most the
    reach A_i of the row. Rounding adds at most one half for each of the V_i people, and at most |x|
    itself, since less than one half becomes nothing. So the sum stays within
    min(s_i A_i + V_i / 2, 2 s_i A_i), and s_i is the largest with which that fits the ring: no sum
    of an honest cohort can leave it, nor one of any part of the cohort.
    """

    name: ClassVar[str] = "scaled-step"
    gives_away: ClassVar[str] = PowerStep.gives_away
    item_degrees: Integers
    coarse: NDArray[np.int16]
    """X in rows of small integers; see `CoarseBlock`."""
    row_units: Integers
    block_bits: int
    row_scales: Integers
    width: int = 12

    def __post_init__(self) -> None:
        _check_arrays(self.coarse, self.item_degrees, self.row_units, self.row_scales)
        lowest, highest = self.row_scales.min(initial=0), self.row_scales.max(initial=0)
        if lowest < 0 or highest > MOST_SCALE:
            raise FederationError("row scales that cannot be")

    @classmethod
    def planned(cls, n_items: int, columns: int, width: int, bits: int) -> PlannedSum:
        told = packed_bytes(n_items * columns, bits) + 2 * ROW_BYTES * n_items
        return PlannedSum(cls, cls.shape_of(n_items, columns, width, told), {"width": width})

    @classmethod
    def of(  # type: ignore[override]
        cls, block: CoarseBlock, item_degrees: Integers, reaches: Integers, width: int
    ) -> ScaledStep:
        """`reaches` in units of the block, as `RowReach.decode` gives them."""
        scales = row_scales(reaches, item_degrees, width)
        return cls(item_degrees, block.coarse, block.row_units, block.block_bits, scales, width)

    @property
    def columns(self) -> int:  # type: ignore[override]
        return int(self.coarse.shape[1])

    @property
    def shape(self) -> SumShape:
        told = block_bytes(self.coarse) + 2 * ROW_BYTES * self.n_items
        return self.shape_of(self.n_items, self.columns, self.width, told)

    @cached_property
    def step(self) -> PowerStep:
        block = CoarseBlock(self.coarse, self.row_units, self.block_bits)
        return block.written_out(self.item_degrees)

    @property
    def scales(self) -> Integers:
        return self.row_scales

    @property
    def aim(self) -> Aim:
        return self.step.aim_of_span()

    def check(self, context: ClientContext) -> None:
        super().check(context)
        self.step.check_coarse(SKEW)


@dataclass(frozen=True)
class SeededScaledStep(SeededBlock, RowScaled):
    """The first step, from random signs.

    Nothing is broadcast, so rows are scaled by a bound that everybody knows: each q_uc is a mean of
    entries of W, so that the reach of row i is at most V_i max|W|.
    """

    name: ClassVar[str] = "seeded-scaled-step"

    @cached_property
    def step(self) -> PowerStep:
        return PowerStep.of(self.start(), self.item_degrees, 64)

    @cached_property
    def scales(self) -> Integers:
        return row_scales(self.item_degrees * self.step.top, self.item_degrees, self.width)


@dataclass(frozen=True)
class RowReach(PerItem):
    """For each item, the sum over its people of max_c |q_uc|: how far its row of P' W can reach."""

    name: ClassVar[str] = "row-reach"
    gives_away: ClassVar[str] = (
        "how large the numbers are that the people of an item send in the step that follows"
    )
    item_degrees: Integers
    coarse: NDArray[np.int16]
    row_units: Integers
    block_bits: int

    def __post_init__(self) -> None:
        _check_arrays(self.coarse, self.item_degrees, self.row_units)

    @classmethod
    def planned(cls, n_items: int, columns: int, bits: int) -> PlannedSum:
        told = packed_bytes(n_items * columns, bits) + ROW_BYTES * n_items
        return PlannedSum(cls, SumShape(n_items, REACH_BITS, signed=False, broadcast_bytes=told))

    @classmethod
    def of(cls, block: CoarseBlock, item_degrees: Integers) -> RowReach:  # type: ignore[override]
        return cls(item_degrees, block.coarse, block.row_units, block.block_bits)

    @property
    def shape(self) -> SumShape:
        told = block_bytes(self.coarse) + ROW_BYTES * self.n_items
        return SumShape(self.n_items, REACH_BITS, signed=False, broadcast_bytes=told)

    @cached_property
    def step(self) -> PowerStep:
        block = CoarseBlock(self.coarse, self.row_units, self.block_bits)
        return block.written_out(self.item_degrees)

    @property
    def aim(self) -> Aim:
        return self.step.aim_of_span()

    def check(self, context: ClientContext) -> None:
        context.check_item_degrees(self.item_degrees)
        self.step.check_coarse(SKEW)

    @cached_property
    def _shift(self) -> int:
        """Reaches are told in units of 2^shift units of the block, the least with which V_max of
        the largest fit the ring."""
        most, shift = self.step.largest_degree, 0
        while most * -(-self.step.top >> shift) >= 1 << REACH_BITS:
            shift += 1
        return shift

    @property
    def encoding(self) -> FixedPoint:
        return FixedPoint(REACH_BITS, 0, signed=False)

    def decode(self, total: Integers) -> Integers:
        """In units of the block; never less than the truth, since every part is rounded up."""
        return total << self._shift

    def blocks(
        self, histories: Histories, randomness: RandomStream = NO_RANDOMNESS
    ) -> Iterator[Integers]:
        total, start = self.total(histories), 0
        for length in self.block_lengths():
            yield total[start : start + length]
            start += length

    def total(
        self, histories: Histories, randomness: Iterable[ClientStream] = NO_RANDOMNESS
    ) -> Integers:
        largest = np.abs(self.step.means(histories)).max(axis=1, initial=0)
        told = -(-largest >> self._shift)
        matrix = histories.matrix
        out = np.zeros(self.n_items, np.int64)
        np.add.at(out, matrix.indices, np.repeat(told, np.diff(matrix.indptr)))
        return out


def row_scales(reaches: Integers, item_degrees: Integers, width: int) -> Integers:
    """The largest scale of each row with which its sum fits the ring; see `ScaledStep`."""
    most = 2 ** (width - 1) - 1
    room = np.maximum(most - (item_degrees + 1) // 2, most // 2)
    scales = np.full(len(reaches), MOST_SCALE, np.int64)
    for row in np.flatnonzero(reaches):  # whole numbers of any size, rounded down
        finest = (int(room[row]) << SCALE_BITS) // int(reaches[row])
        scales[row] = min(finest, MOST_SCALE)
    return scales


def block_bytes(coarse: NDArray[np.int16]) -> int:
    """Of a coarse block, as it is sent."""
    return packed_bytes(coarse.size, bits_of(coarse))


def _check_arrays(coarse: NDArray[np.int16], item_degrees: Integers, *rows: Integers) -> None:
    """Compiled loops do not check where they read."""
    if coarse.ndim != 2 or coarse.dtype != np.int16 or not coarse.shape[1]:
        raise FederationError("a coarse block must be a matrix of 16-bit integers")
    if any(part.shape != (len(coarse),) for part in (item_degrees, *rows)):
        raise FederationError(f"a block of {len(coarse)} rows for {len(item_degrees)} items")
    units = rows[0]
    largest = np.abs(coarse.astype(np.int64)).max(axis=1, initial=0)
    if units.min(initial=0) < 0 or (largest * units).max(initial=0) > 1 << BROADCAST_BITS:
        raise FederationError("row units that cannot be")
