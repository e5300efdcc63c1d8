"""Power steps in narrow rings: coarse blocks, and a separate scale for each row of the sum.

A row of P' W is the sum of the numbers that the item's people send. Most of these are small. Bounds
that follow from degrees alone are hundreds of times too large, and a ring that holds them wastes
eight bits per entry. The bound is therefore measured: `RowReach` sums, for each item, the largest
number that each of its people will send. This costs one number per item and bounds every entry of
the row, whatever the signs. `ScaledStep` then scales each row to fit its ring.

The block is coarse: a few bits per entry and a unit for each row. This does not make the result
inexact, since the server continues with the rounded block that it sent, not with the original.
"""

from __future__ import annotations

import hashlib
import math
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
from privirec.federated.contributions.outer import BROADCAST_BITS, OuterProducts, PerItem, kernels
from privirec.federated.contributions.power_step import SEED_BYTES, PowerStep, SeededBlock
from privirec.federated.fixed_point import FixedPoint, bits_of, packed_bytes
from privirec.federated.randomness import NO_RANDOMNESS, ClientStream, RandomStream
from privirec.federated.row_scales import (
    MOST_SCALE,
    SCALE_BITS,
    check_ring,
    rounding_reach,
    row_scales,
)
from privirec.filters.normalize import degree_power

REACH_BITS = 32
"""Width of the ring in which reaches are summed."""
ROW_BYTES = 4
"""Bytes of a row's unit, and of a row's scale."""
FINE_SHARE = 32
"""One in this many items, the most popular ones, sends its row in two parts."""
MOST_FINER = 1 << 16
SKEW = 0.25
"""Largest distance of the eigenvalues of X^T X from one, for an X that rounding has made coarse."""


@dataclass(frozen=True)
class CoarseBlock:
    """A block W = V^-1/2 X as small integers times a unit for each row."""

    coarse: NDArray[np.int16]
    row_units: Integers
    block_bits: int

    @classmethod
    def of(cls, x: NDArray, item_degrees: Integers, bits: int) -> CoarseBlock:
        """Return X with `bits` bits per entry.

        A small catalogue may need more bits to keep the columns nearly orthonormal.
        """
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
        """Return the block in 32-bit integers, as a power step in a wide ring."""
        block = self.coarse.astype(np.int64) * self.row_units[:, None]
        return PowerStep(item_degrees, block.astype(np.int32), self.block_bits, 64)


class RowScaled(OuterProducts):
    """Shared part of steps in narrow rings: q_u in units of the block, and a scale for each row.

    The rounding error of an item's row grows with the square root of the number of its people, in
    units that also grow with that number. Nearly all of the rounding error is therefore in the rows
    of a few popular items. These items have a second row, in which people send the rounding
    residuals in finer units.
    """

    fine_rows: int

    @property
    @abstractmethod
    def step(self) -> PowerStep:
        """Equivalent step with an explicit block."""

    @property
    @abstractmethod
    def scales(self) -> Integers:
        """Factor of each row, in units of 2^-SCALE_BITS."""

    @property
    def encoding(self) -> FixedPoint:
        """Encoding in whole numbers: each row has its own unit, see `decode`."""
        check_ring(self.item_degrees, self.width, self.length)
        return FixedPoint(self.width, 0, signed=True)

    def rows_per_user(self, histories: Histories) -> Integers:
        return self.step.means(histories)

    @property
    @abstractmethod
    def dither(self) -> bytes:
        """Public bytes that seed the rounding. They are fixed before anyone rounds."""

    @cached_property
    def _rounding_seed(self) -> np.uint64:
        digest = hashlib.sha256(b"privirec/rounding/1\0" + self.dither).digest()
        return np.uint64(int.from_bytes(digest[:8], "little"))

    @property
    def rows(self) -> int:
        return self.n_items + self.fine_rows

    @cached_property
    def _row_items(self) -> Integers:
        """Item of each row: all items in order, then those with the most people again."""
        by_people = np.argsort(-self.item_degrees, kind="stable")
        return np.concatenate((np.arange(self.n_items), by_people[: self.fine_rows]))

    def rows_of(self, histories: Histories) -> Integers:
        own = np.isin(self._row_items, histories.matrix.indices)
        return np.flatnonzero(own).astype(np.int64)

    def most_rows(self, items: int) -> int:
        """Return the rows to allow if up to half of the items of a history are popular."""
        return items + items // 2

    @cached_property
    def _finer(self) -> Integers:
        """Refinement factor of each row that holds rounding residuals; 0 for all other rows."""
        people = self.item_degrees[self._row_items[self.n_items :]]
        left_over = np.maximum(rounding_reach(people, self.width, self.length), 1)
        room = 2 ** (self.width - 1) - 1 - left_over
        finer = np.clip(room // left_over, 1, MOST_FINER)
        return np.concatenate((np.zeros(self.n_items, np.int64), finer))

    def _summed(
        self, histories: Histories, sent: Integers, first: int, last: int, first_column: int = 0
    ) -> Integers:
        out = np.empty((last - first, sent.shape[1]), np.int64)
        by_item = histories.by_item
        kernels.sum_scaled_rows(
            by_item.indptr,
            by_item.indices,
            self._row_items[first:last],
            self._finer[first:last],
            sent,
            self.scales,
            SCALE_BITS,
            self._rounding_seed,
            histories.first_user,
            first_column,
            out,
        )
        return out

    def decode(self, total: Integers) -> NDArray[np.float64]:
        """Return P~ X from the sum; rows with a scale of zero are zero."""
        scales = self.scales.astype(np.float64)
        one = math.ldexp(1.0, SCALE_BITS)
        units = np.divide(one, scales, out=np.zeros(len(scales)), where=scales > 0)
        units *= np.ldexp(degree_power(self.item_degrees, -0.5), -self.step.block_bits)
        image = np.asarray(total[: self.n_items], np.float64)
        left_over = total[self.n_items :] / self._finer[self.n_items :, None]
        image[self._row_items[self.n_items :]] += left_over
        return image * units[:, None]


@dataclass(frozen=True)
class ScaledStep(RowScaled):
    """P' W for a coarse block, with each row scaled to the ring by its measured reach.

    A person sends x = s_i q_uc for item i, rounded up or down by a public coin so that its mean is
    exact. Many small parts from the people of a popular item therefore still add up to the right
    sum on average, and a ring may have fewer numbers than the item has people. The sum of all |x|
    is at most s_i A_i, where A_i is the reach of the row, and `rounding_reach` bounds what rounding
    adds. s_i is the largest scale with which both fit the ring. No sum of an honest cohort, or of
    any part of it, leaves the ring, except with probability 2^-64 for all entries together.
    """

    name: ClassVar[str] = "scaled-step"
    gives_away: ClassVar[str] = PowerStep.gives_away
    item_degrees: Integers
    coarse: NDArray[np.int16]
    """W in rows of small integers; see `CoarseBlock`."""
    row_units: Integers
    block_bits: int
    row_scales: Integers
    width: int = 12
    fine_rows: int = 0
    """Number of items, the most popular ones, whose rows are sent in two parts."""

    def __post_init__(self) -> None:
        _check_arrays(self.coarse, self.item_degrees, self.row_units, self.row_scales)
        lowest, highest = self.row_scales.min(initial=0), self.row_scales.max(initial=0)
        if lowest < 0 or highest > MOST_SCALE:
            raise FederationError("row scales that cannot be")
        _check_fine_rows(self.fine_rows, self.n_items)

    @classmethod
    def planned(cls, n_items: int, columns: int, width: int, bits: int) -> PlannedSum:
        told = packed_bytes(n_items * columns, bits) + 2 * ROW_BYTES * n_items
        fine_rows = fine_rows_of(n_items)
        shape = cls.shape_of(n_items + fine_rows, columns, width, told)
        return PlannedSum(cls, shape, {"width": width, "fine_rows": fine_rows})

    @classmethod
    def of(  # type: ignore[override]
        cls,
        block: CoarseBlock,
        item_degrees: Integers,
        reaches: Integers,
        width: int,
        fine_rows: int,
    ) -> ScaledStep:
        """Return the step; `reaches` are in units of the block, as `RowReach.decode` returns
        them."""
        entries = block.coarse.shape[1] * (len(item_degrees) + fine_rows)
        scales = row_scales(reaches, item_degrees, width, entries)
        told = (block.coarse, block.row_units, block.block_bits)
        return cls(item_degrees, *told, scales, width, fine_rows)

    @property
    def columns(self) -> int:  # type: ignore[override]
        return int(self.coarse.shape[1])

    @property
    def shape(self) -> SumShape:
        told = block_bytes(self.coarse) + 2 * ROW_BYTES * self.n_items
        return self.shape_of(self.rows, self.columns, self.width, told)

    @cached_property
    def step(self) -> PowerStep:
        block = CoarseBlock(self.coarse, self.row_units, self.block_bits)
        return block.written_out(self.item_degrees)

    @property
    def scales(self) -> Integers:
        return self.row_scales

    @property
    def dither(self) -> bytes:
        return self.row_scales.astype("<i8").tobytes()

    @property
    def aim(self) -> Aim:
        return self.step.aim_of_span()

    def check(self, context: ClientContext) -> None:
        super().check(context)
        self.step.check_coarse(SKEW)


@dataclass(frozen=True)
class SeededScaledStep(SeededBlock, RowScaled):
    """The first step, from random signs.

    Nothing is broadcast, so rows are scaled by a bound that every party knows: each q_uc is a mean
    of entries of W, so the reach of row i is at most V_i max|W|.
    """

    name: ClassVar[str] = "seeded-scaled-step"
    fine_rows: int = 0

    def __post_init__(self) -> None:
        _check_fine_rows(self.fine_rows, self.n_items)

    @classmethod
    def planned(cls, n_items: int, columns: int, width: int, seed: bytes) -> PlannedSum:
        plain, fine_rows = super().planned(n_items, columns, width, seed), fine_rows_of(n_items)
        shape = cls.shape_of(n_items + fine_rows, columns, width, SEED_BYTES)
        return PlannedSum(cls, shape, {**plain.fixed, "fine_rows": fine_rows})

    @property
    def shape(self) -> SumShape:
        return self.shape_of(self.rows, self.columns, self.width, len(self.seed))

    @cached_property
    def step(self) -> PowerStep:
        return PowerStep.of(self.start(), self.item_degrees, 64)

    @cached_property
    def scales(self) -> Integers:
        reaches = self.item_degrees * self.step.top
        return row_scales(reaches, self.item_degrees, self.width, self.length)

    @property
    def dither(self) -> bytes:
        return self.seed


@dataclass(frozen=True)
class RowReach(PerItem):
    """Reach of each item's row of P' W: the sum of max_c |q_uc| over the item's people."""

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
        """Shift of the unit: reaches are sent in units of 2^shift units of the block.

        It is the smallest shift with which max(V) times the largest part of a person fits the ring.
        """
        most, shift = self.step.largest_degree, 0
        while most * -(-self.step.top >> shift) >= 1 << REACH_BITS:
            shift += 1
        return shift

    @property
    def encoding(self) -> FixedPoint:
        return FixedPoint(REACH_BITS, 0, signed=False)

    def decode(self, total: Integers) -> Integers:
        """Return reaches in units of the block.

        They are never below the true ones, since every part is rounded up.
        """
        return total << self._shift

    def blocks(
        self, histories: Histories, randomness: RandomStream = NO_RANDOMNESS
    ) -> Iterator[Integers]:
        return self.pieces(self.total(histories))

    def total(
        self, histories: Histories, randomness: Iterable[ClientStream] = NO_RANDOMNESS
    ) -> Integers:
        largest = np.abs(self.step.means(histories)).max(axis=1, initial=0)
        told = -(-largest >> self._shift)
        matrix = histories.matrix
        out = np.zeros(self.n_items, np.int64)
        np.add.at(out, matrix.indices, np.repeat(told, np.diff(matrix.indptr)))
        return out


def fine_rows_of(n_items: int) -> int:
    """Return the number of items that also send rounding residuals.

    They take about a thirtieth more bytes, and on data with a long tail they reduce the rounding
    error to less than half.
    """
    return -(-n_items // FINE_SHARE)


def _check_fine_rows(fine_rows: int, n_items: int) -> None:
    if not 0 <= fine_rows <= n_items:
        raise FederationError(f"{fine_rows} rows in two parts for {n_items} items")


def block_bytes(coarse: NDArray[np.int16]) -> int:
    """Return the size of a coarse block on the wire."""
    return packed_bytes(coarse.size, bits_of(coarse))


def _check_arrays(coarse: NDArray[np.int16], item_degrees: Integers, *rows: Integers) -> None:
    """Check shapes and ranges, since compiled loops do not check array bounds."""
    if coarse.ndim != 2 or coarse.dtype != np.int16 or not coarse.shape[1]:
        raise FederationError("a coarse block must be a matrix of 16-bit integers")
    if any(part.shape != (len(coarse),) for part in (item_degrees, *rows)):
        raise FederationError(f"a block of {len(coarse)} rows for {len(item_degrees)} items")
    units, most = rows[0], 1 << BROADCAST_BITS
    largest = np.abs(coarse.astype(np.int64)).max(axis=1, initial=0)
    possible = units.min(initial=0) >= 0 and units.max(initial=0) <= most  # no product overflows
    if not possible or (largest * units).max(initial=0) > most:
        raise FederationError("row units that cannot be")
