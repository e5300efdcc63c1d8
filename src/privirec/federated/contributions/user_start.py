"""The paper's first sum of the power method: one public row per user."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privirec.errors import FederationError, OverflowRefused
from privirec.federated.contributions.base import ClientContext, Histories, Integers, PlannedSum
from privirec.federated.contributions.outer import BROADCAST_ENTRY, BroadcastBlock, quantize
from privirec.federated.fixed_point import FixedPoint


@dataclass(frozen=True)
class UserStart(BroadcastBlock):
    """The paper's start: sum_u A_u^T X_0[u, :] with one broadcast row per user.

    q_u = d_u^-1/2 X_0[u, :]. By the Cauchy-Schwarz inequality, an entry of row i is at most
    sqrt(V_i) |X_c|.
    """

    name: ClassVar[str] = "user-start"
    gives_away: ClassVar[str] = (
        "who touched what: the row of an item is a combination of as many known vectors as it has "
        "users, and each vector stands for one person"
    )

    @classmethod
    def planned(cls, n_items: int, n_users: int, columns: int, width: int) -> PlannedSum:
        shape = cls.shape_of(n_items, columns, width, BROADCAST_ENTRY * n_users * columns)
        return PlannedSum(cls, shape, {"width": width})

    @classmethod
    def of(cls, x: NDArray[np.float64], item_degrees: Integers, width: int) -> UserStart:  # type: ignore[override]
        """Return the start from a block X_0 of shape (users, columns)."""
        block, bits = quantize(x)
        return cls(item_degrees, block, bits, width)

    @cached_property
    def encoding(self) -> FixedPoint:
        bound = self.bound_by_norm()
        signed = self.shape.signed
        return FixedPoint.for_sum(self.width, bound, self.largest_degree, signed=signed)

    def check(self, context: ClientContext) -> None:
        super().check(context)
        if len(self.block) != context.n_users:
            raise FederationError("a start block for another number of users than planned")

    def rows_per_user(self, histories: Histories) -> Integers:
        last = histories.first_user + histories.n_users
        if last > len(self.block):
            raise OverflowRefused(f"user {last - 1} has no row in a start block of this cohort")
        roots = np.sqrt(np.maximum(histories.degrees, 1).astype(np.float64))[:, None]
        scale = math.ldexp(1.0, self.encoding.fraction_bits - self.block_bits)
        rows = self.block[histories.first_user : last]
        return np.rint(rows / roots * scale).astype(np.int64)
