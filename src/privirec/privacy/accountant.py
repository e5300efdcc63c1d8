"""Privacy account of a client: what all of its sums together can tell, for all servers.

Sums with noise compose to one epsilon at one delta (`dp.loss`). An exact sum has no privacy
guarantee, so an account that contains one has no epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from privirec.federated.dp.loss import Loss


@dataclass(frozen=True)
class Spent:
    """A sum that a client was in, or may have been in."""

    at: datetime
    run: str
    sum_number: int
    computation: str
    server: str
    """Public key of the requesting server, in hexadecimal."""
    loss: Loss | None
    """Privacy loss; None if the sum is exact and nothing bounds what it tells."""


@dataclass(frozen=True)
class Account:
    """Sums in the order in which they were answered."""

    sums: tuple[Spent, ...] = ()

    @classmethod
    def of(cls, sums: Iterable[Spent]) -> Account:
        return cls(tuple(sums))

    @property
    def exact(self) -> int:
        """Number of exact sums."""
        return sum(one.loss is None for one in self.sums)

    @property
    def noisy(self) -> Loss:
        """Privacy loss of all noisy sums together."""
        return Loss.together(one.loss for one in self.sums if one.loss is not None)

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of all sums; infinite if one is exact."""
        return math.inf if self.exact else self.noisy.epsilon(delta)

    def since(self, moment: datetime) -> Account:
        """Return the account of the sums answered at or after a moment."""
        return Account.of(one for one in self.sums if one.at >= moment)

    @property
    def latest(self) -> datetime | None:
        """Time of the last answer."""
        return max((one.at for one in self.sums), default=None)
