"""What noise a sum carries, as a ledger and an encoding need to know it.

A closed family: a sum is exact, or it carries noise of a named distribution and scale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from privirec.errors import UsageError

TAIL_BITS = 64
"""Where chance can carry a sum out of its ring, it does so with probability at most 2^-64, all
entries together."""


@dataclass(frozen=True)
class NoNoise:
    """The sum is exact."""

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
    """Noise that the clients added before they sent. All numbers are those of the sum, in the units
    of what it stands for and not in units of its ring."""

    distribution: str
    scale: float
    """Standard deviation of the noise in an entry."""
    calibrated_to: str
    """What the scale was chosen for."""
    largest: float
    """No entry of the noise is larger than this, in either direction ..."""
    tail: float = 0.0
    """... except with this probability, for all entries together (0: never)."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise UsageError(f"noise of scale {self.scale}")
        if not (math.isfinite(self.largest) and self.largest > 0 and 0 <= self.tail < 1):
            raise UsageError(f"noise of at most {self.largest} but for a chance of {self.tail}")

    def as_row(self) -> dict[str, Any]:
        return asdict(self)


Noise = NoNoise | AddedNoise
NO_NOISE = NoNoise()


def noise_of(row: str | Mapping[str, Any]) -> Noise:
    """The noise that a row of a ledger tells of."""
    if row == "none":
        return NO_NOISE
    try:
        return AddedNoise(**row)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(f"not a description of noise: {str(row)[:80]!r}") from None
