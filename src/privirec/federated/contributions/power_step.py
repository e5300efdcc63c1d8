"""Steps of the power method: the product of the item-item matrix and a public block."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privirec.compiled import Later
from privirec.errors import FederationError
from privirec.federated.contributions.base import (
    Aim,
    ClientContext,
    Histories,
    Integers,
    PlannedSum,
    SumShape,
)
from privirec.federated.contributions.outer import (
    BROADCAST_BITS,
    BROADCAST_ENTRY,
    COLUMNS,
    BroadcastBlock,
    OuterProducts,
    kernels,
    quantize,
)
from privirec.federated.fixed_point import FixedPoint
from privirec.filters.normalize import degree_power

sl = Later("scipy.linalg")

SEED_BYTES = 32
ORTHONORMAL = 1e-6
"""Tolerance on the orthonormality of an honest block before it is rounded to whole units."""
_ROWS = 4096


@dataclass(frozen=True)
class PowerStep(BroadcastBlock):
    """P' W for a broadcast block W = V^-1/2 X: q_u = (1/d_u) r_u W.

    The smaller of two bounds on an entry of row i applies. First, each q_u is a mean of entries of
    W, so V_i max|W| bounds the sum. Second, |(P' W)_ic| = sqrt(V_i) |(P~ X)_ic| <= sqrt(V_i) |X_c|,
    since the spectral norm of P~ is at most one, for any part of the cohort.
    """

    name: ClassVar[str] = "power-step"
    gives_away: ClassVar[str] = (
        "the item-item matrix times public vectors: rows of items with few users can be solved for "
        "when there are many vectors"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.block) != self.n_items:
            raise FederationError(f"a block of {len(self.block)} rows for {self.n_items} items")

    @classmethod
    def planned(cls, n_items: int, columns: int, width: int) -> PlannedSum:
        shape = cls.shape_of(n_items, columns, width, BROADCAST_ENTRY * n_items * columns)
        return PlannedSum(cls, shape, {"width": width})

    @classmethod
    def of(cls, x: NDArray[np.float64], item_degrees: Integers, width: int) -> PowerStep:  # type: ignore[override]
        """Return the step that multiplies X by P~."""
        block, bits = quantize(degree_power(item_degrees, -0.5)[:, None] * x)
        return cls(item_degrees, block, bits, width)

    def check(self, context: ClientContext) -> None:
        """Refuse X unless its columns are orthonormal or zero, as the server's QR leaves them.

        A policy judges the concentration of the columns on single items (`aim`).
        """
        super().check(context)
        self._check_in_use()
        if 0 < self.top < 1 << (BROADCAST_BITS - 1):
            raise FederationError("a block in coarser units than necessary")
        gram, _, _ = self._squares
        unit = float(np.ldexp(0.5, -self.block_bits))
        error = unit * float(np.sqrt(self.item_degrees.sum(dtype=np.float64)))
        allowed = ORTHONORMAL + 4 * error + error**2
        expected = np.diag(self.block.any(axis=0).astype(np.float64))
        if not (np.abs(gram - expected) <= allowed).all():
            raise FederationError("a block whose columns are not orthonormal")

    def check_coarse(self, skew: float) -> None:
        """Refuse a block with few bits per entry if it is further from orthonormal than `skew`.

        Honest rounding leaves the columns within that distance (`is_nearly_orthonormal`). The aim
        of such a block is measured on the span of its columns (`aim_of_span`).
        """
        self._check_in_use()
        if not self.is_nearly_orthonormal(skew):
            raise FederationError("a block whose columns are not orthonormal")

    def is_nearly_orthonormal(self, skew: float) -> bool:
        """Return True if all eigenvalues of X^T X, zero columns aside, are within `skew` of one."""
        gram = self._gram_of_columns
        if not np.isfinite(gram).all():  # the units are too large
            return False
        values = np.linalg.eigvalsh(gram)
        return bool((np.abs(values - 1) <= skew).all())

    def aim_of_span(self) -> Aim:
        """Return the aim of the block, with the leverage of orthonormal columns of the same span.

        No linear combination of the columns concentrates more on one item. If the columns are
        linearly dependent, return the largest possible aim.
        """
        try:
            factor = np.linalg.cholesky(self._gram_of_columns)
        except np.linalg.LinAlgError:
            return Aim(self.n_items, self.columns, 1.0, 1.0)
        some = self.block.any(axis=0)
        lengths = np.diagonal(self._squares[0])[some]
        share = leverage = 0.0
        for rows in self._rows():
            x = rows[:, some]
            share = max(share, float((x**2 / lengths).max(initial=0.0)))
            straight = sl.solve_triangular(factor, x.T, lower=True, check_finite=False)
            leverage = max(leverage, float((straight**2).sum(axis=0).max(initial=0.0)))
        return Aim(self.n_items, self.columns, share, leverage)

    def _check_in_use(self) -> None:
        if self.block[self.item_degrees == 0].any():
            raise FederationError("a block that lies on items which nobody has")

    @property
    def _gram_of_columns(self) -> NDArray[np.float64]:
        """X^T X without zero columns."""
        some = self.block.any(axis=0)
        return self._squares[0][np.ix_(some, some)]

    @cached_property
    def top(self) -> int:
        """Largest absolute value of an entry."""
        return int(max(self.block.max(initial=0), -int(self.block.min(initial=0))))

    @property
    def aim(self) -> Aim:
        _, share, leverage = self._squares
        return Aim(self.n_items, self.columns, share, leverage)

    @cached_property
    def _squares(self) -> tuple[NDArray[np.float64], float, float]:
        """X^T X, the largest square in X, and the largest squared norm of a row of X."""
        gram, share, leverage = np.zeros((self.columns, self.columns)), 0.0, 0.0
        for x in self._rows():
            gram += x.T @ x
            np.square(x, out=x)
            share = max(share, float(x.max(initial=0.0)))
            leverage = max(leverage, float(x.sum(axis=1).max(initial=0.0)))
        return gram, share, leverage

    def x(self) -> NDArray[np.float64]:
        """Return X, the block without V^-1/2."""
        return np.concatenate([np.zeros((0, self.columns)), *self._rows()])

    def _rows(self) -> Iterator[NDArray[np.float64]]:
        """Yield X, some rows at a time."""
        roots = degree_power(self.item_degrees, 0.5)[:, None]
        for first in range(0, self.n_items, _ROWS):
            part = self.block[first : first + _ROWS].astype(np.float64)
            yield np.ldexp(part, -self.block_bits) * roots[first : first + _ROWS]

    @cached_property
    def encoding(self) -> FixedPoint:
        largest = self.largest_degree
        by_mean = largest * float(np.ldexp(float(self.top), -self.block_bits))
        bound = min(by_mean, self.bound_by_norm(self.item_degrees))
        return FixedPoint.for_sum(self.width, bound, largest, signed=self.shape.signed)

    def rows_per_user(self, histories: Histories) -> Integers:
        shift = self.encoding.fraction_bits - self.block_bits
        return self.means(histories, math.ldexp(1.0, shift))

    def means(self, histories: Histories, scale: float = 1.0) -> Integers:
        """Return the rounded means of the block over each history, of shape (users, columns).

        They are in units of the block, multiplied by `scale`, a power of two.
        """
        sent = np.empty((histories.n_users, self.columns), np.int64)
        for first in range(0, self.columns, COLUMNS):
            part = np.ascontiguousarray(self.block[:, first : first + COLUMNS])
            sums = np.empty((histories.n_users, part.shape[1]), np.int64)
            matrix = histories.matrix
            kernels.mean_rows(matrix.indptr, matrix.indices, part, scale, sums)
            sent[:, first : first + COLUMNS] = sums
        return sent


@dataclass(frozen=True)
class SeededBlock(OuterProducts):
    """A first step from a start block that every party derives from 32 public bytes.

    X_0 has entries +1 and -1, derived with SHAKE-256, so a seed replaces a broadcast matrix.
    """

    gives_away: ClassVar[str] = PowerStep.gives_away
    item_degrees: Integers
    seed: bytes
    columns: int
    width: int = 32

    @classmethod
    def planned(cls, n_items: int, columns: int, width: int, seed: bytes) -> PlannedSum:
        """Return the planned sum, with `seed` fixed by the plan.

        Otherwise the server could choose a start block that serves an attack.
        """
        shape = cls.shape_of(n_items, columns, width, SEED_BYTES)
        return PlannedSum(cls, shape, {"columns": columns, "width": width, "seed": seed})

    @property
    def shape(self) -> SumShape:
        return self.shape_of(self.n_items, self.columns, self.width, len(self.seed))

    def start(self) -> NDArray[np.float64]:
        """Return X_0."""
        return start_signs(self.seed, len(self.item_degrees), self.columns).astype(np.float64)


@dataclass(frozen=True)
class SeededStep(SeededBlock):
    """The first power step, with one scale for all rows."""

    name: ClassVar[str] = "seeded-step"

    @cached_property
    def step(self) -> PowerStep:
        """Equivalent step with an explicit block."""
        return PowerStep.of(self.start(), self.item_degrees, self.width)

    @property
    def encoding(self) -> FixedPoint:
        return self.step.encoding

    def rows_per_user(self, histories: Histories) -> Integers:
        return self.step.rows_per_user(histories)


def start_signs(seed: bytes, n_items: int, columns: int) -> NDArray[np.int8]:
    """Return +1 and -1 of shape (items, columns).

    Column c is SHAKE-256 of the seed and c, with bit i for item i.
    """
    signs = np.empty((n_items, columns), np.int8)
    for column in range(columns):
        stream = hashlib.shake_256(b"privirec/start/1\0" + seed + column.to_bytes(4, "little"))
        bits = np.unpackbits(
            np.frombuffer(stream.digest(-(-n_items // 8)), np.uint8), bitorder="little"
        )
        signs[:, column] = 1 - 2 * bits[:n_items].astype(np.int8)
    return signs
