"""One account for all sums of a client: what they can tell together, whoever asked for them.

Sums with noise add up to one epsilon at one delta (`dp.loss`). An exact sum promises nothing, so an
account with one in it has no epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from privirec.dp.loss import Loss


@dataclass(frozen=True)
class Spent:
    """A sum that a client was in, or may have been in."""

    at: datetime
    run: str
    sum_number: int
    computation: str
    server: str
    """The key of whoever asked, in hexadecimal."""
    loss: Loss | None
    """None: exact, and nothing bounds what it tells."""


@dataclass(frozen=True)
class Account:
    """Sums in the order in which they were answered."""

    sums: tuple[Spent, ...] = ()

    @classmethod
    def of(cls, sums: Iterable[Spent]) -> Account:
        return cls(tuple(sums))

    @property
    def exact(self) -> int:
        """How many of them are exact."""
        return sum(one.loss is None for one in self.sums)

    @property
    def noisy(self) -> Loss:
        """Of those with noise, all together."""
        return Loss.together(one.loss for one in self.sums if one.loss is not None)

    def epsilon(self, delta: float) -> float:
        """Of all of them; infinite if one is exact."""
        return math.inf if self.exact else self.noisy.epsilon(delta)

    def since(self, moment: datetime) -> Account:
        """Those from a moment on."""
        return Account.of(one for one in self.sums if one.at >= moment)

    @property
    def latest(self) -> datetime | None:
        """When the last one was answered."""
        return max((one.at for one in self.sums), default=None)
