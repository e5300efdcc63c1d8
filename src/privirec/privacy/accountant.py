"""Privacy account of a client, for all servers, and the limits of its budget.

Sums with noise compose to one epsilon at one delta (`dp.loss`). An exact sum has no privacy
guarantee, so an account that contains one has no epsilon. A limit is a cap that is fixed before the
first sum. It therefore holds even if a server chooses each run after seeing all earlier results.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Context
from fractions import Fraction
from functools import cached_property
from typing import Self

from privirec.federated.dp.gaussian import LEAST_EPSILON, epsilon_of
from privirec.federated.dp.loss import Loss, of_noise
from privirec.federated.programs.calibration import FOR_DISCRETENESS, Promise
from privirec.privacy.cohorts import PolicyRefusal, Rule


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


@dataclass(frozen=True)
class Limit:
    """Cap on what all noisy sums of a client can tell, over its life or in any window of time."""

    setting: str
    """Name in the policy."""
    epsilon: float
    delta: float
    window: timedelta | None = None
    """Length of the window; None for the life of the client."""

    @property
    def when(self) -> str:
        if self.window is None:
            return "in the life of this client"
        return f"within {self.window.days} days"

    @cached_property
    def cap(self) -> Loss:
        return Loss.allowed(self.epsilon, self.delta)

    def spent(self, account: Account, now: datetime) -> Loss:
        """Return the loss that counts against this limit."""
        return (account if self.window is None else account.since(now - self.window)).noisy

    def admits(self, account: Account, more: Loss, now: datetime) -> bool:
        """Return True if sums of this loss keep within the limit."""
        return Loss.together((self.spent(account, now), more)).fits(self.cap)

    def left(self, account: Account, now: datetime) -> float:
        """Return the level of one more run that keeps within the limit."""
        return self.spent(account, now).left(self.cap)

    def runs(self, level: float, spent: Loss | None = None) -> int:
        """Return how many runs of a level the limit admits after what was spent."""
        left = (spent or Loss()).left(self.cap)
        return int(Fraction(left) ** 2 / Fraction(level) ** 2)


@dataclass(frozen=True)
class Room:
    """Room that limits leave for one more run."""

    level: float
    """Largest level of a run that all limits admit."""
    until: datetime | None = None
    """Moment from which the limits admit the run in question; None if never."""

    @classmethod
    def of(cls, limits: Sequence[Limit], account: Account, more: Loss, now: datetime) -> Self:
        """Return the present room, and when there is room for sums of this loss.

        Room returns when an earlier sum leaves a window.
        """
        moments = {
            one.at + limit.window + timedelta(seconds=1)
            for limit in limits
            if limit.window is not None
            for one in account.sums
        }
        later = sorted({now} | {moment for moment in moments if moment > now})
        fitting = (
            moment for moment in later if all(each.admits(account, more, moment) for each in limits)
        )
        level = min(limit.left(account, now) for limit in limits)
        return cls(level, next(fitting, None))

    def epsilon(self, delta: float) -> float:
        """Return the largest epsilon of a run that fits, in three digits; 0 if there is none."""
        if self.level <= 0:
            return 0.0
        most = epsilon_of(self.level, (1 - FOR_DISCRETENESS) * of_noise(delta))
        for rounding in (ROUND_HALF_EVEN, ROUND_FLOOR):
            epsilon = float(Context(prec=3, rounding=rounding).create_decimal(most))
            if epsilon >= LEAST_EPSILON and Promise(epsilon, delta, 1, 1).mu <= self.level:
                return epsilon
        return 0.0

    def sentence(self, delta: float) -> str:
        """Return the room in words."""
        epsilon = self.epsilon(delta)
        now = f"it has room for epsilon {epsilon:g} now" if epsilon else "it has no room now"
        later = "never for this run" if self.until is None else f"for this run from {self.day} on"
        return f"{now}, and {later}"

    @property
    def day(self) -> str:
        """First whole day with room for the run in question; empty if there is none."""
        return "" if self.until is None else f"{self.until + timedelta(days=1):%Y-%m-%d}"


class OverBudget(PolicyRefusal):
    """Refusal of sums that cost more than the budget admits, with the room that is left."""

    def __init__(self, reason: str, room: Room | None = None) -> None:
        super().__init__(reason, Rule.BUDGET)
        self.room = room
