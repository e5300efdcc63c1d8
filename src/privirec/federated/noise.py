"""Noise in a sum, as the ledger and the encoding describe it.

The family is closed: a sum is exact, or it carries noise of a named distribution and scale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from privirec.errors import UsageError

TAIL_BITS = 64
"""Sums that can leave their ring by chance do so with probability at most 2^-TAIL_BITS, for all
entries together."""


@dataclass(frozen=True)
class NoNoise:
    """Absence of noise: the sum is exact."""

    @property
    def largest(self) -> float:
        return 0.0

    @property
    def tail(self) -> float:
        return 0.0

    def as_row(self) -> str:
        return "none"


@dataclass(frozen=True)
class AddedNoise:
    """Noise that the clients add before they send.

    All numbers describe the sum, in the units of the quantity that it represents, not in units of
    its ring.
    """

    distribution: str
    scale: float
    """Standard deviation of the noise in an entry."""
    calibrated_to: str
    """Property of the contributions that the scale was calibrated to."""
    largest: float
    """Bound on the absolute value of the noise in every entry."""
    tail: float = 0.0
    """Probability that any entry exceeds `largest` (0: never)."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise UsageError(f"noise of scale {self.scale}")
        if not (math.isfinite(self.largest) and self.largest > 0 and 0 <= self.tail < 1):
            raise UsageError(f"noise of at most {self.largest} except with probability {self.tail}")

    def as_row(self) -> dict[str, Any]:
        return asdict(self)


Noise = NoNoise | AddedNoise
NO_NOISE = NoNoise()


def noise_of(row: str | Mapping[str, Any]) -> Noise:
    """Return the noise that a ledger row describes."""
    if row == "none":
        return NO_NOISE
    try:
        return AddedNoise(**row)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(f"not a description of noise: {str(row)[:80]!r}") from None
