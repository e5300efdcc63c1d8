"""Interface of noise mechanisms: everything that depends on the distribution of the noise.

Each client adds independent noise, in whole units of a sum, to every entry of its vector. To add a
mechanism, write a subclass of `Mechanism` in a module of its own, and register it in
`federated/dp/__init__.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, ClassVar, Protocol

from numpy.typing import NDArray

from privirec.federated.dp.loss import Loss
from privirec.registry import Registry


class NoiseSampler(Protocol):
    """Source of noise that is the same for the same seed, and can start at any entry."""

    def add(self, block: NDArray[Any], offset: int, seeds: Iterable[bytes]) -> None:
        """Add entries offset ... offset + len(block) of each seed's noise to `block`."""


class Mechanism(ABC):
    """Distribution of the noise, with its sampler, its privacy loss and its calibration."""

    name: ClassVar[str]
    """Name in requests, settings and ledgers."""

    @abstractmethod
    def sampler(self, deviation: int, clients: int = 1) -> NoiseSampler:
        """Return a sampler of the noise of one client, or of the sum over several."""

    @abstractmethod
    def loss(self, deviation: int, contributors: int, fraction_bits: int, entries: int) -> Loss:
        """Return the loss of a person who changes a sum by at most 2^fraction_bits in length.

        Only the noise of `contributors` clients, each of the given deviation, protects. Losses of
        all mechanisms compose, so a mechanism needs a proof of what `Loss` states. The level is
        proportional to the length: `NoiseShare.protection` relies on it for replaced histories.
        """

    @abstractmethod
    def least_noise(
        self, square: Fraction, entries: int, contributors: int, largest_gap: float
    ) -> tuple[int, int]:
        """Return (deviation, fraction_bits) of the least noise for a sum of level mu.

        `square` is mu^2, and `largest_gap` the largest permitted `Loss.gap`. The units are chosen
        so small that restricting the noise to whole numbers costs almost nothing.
        """

    @abstractmethod
    def reach(self, entries: int, tail_bits: int) -> float:
        """Return a bound on the noise in all entries, in standard deviations of the sum.

        It holds except with probability 2^-tail_bits.
        """


MECHANISMS: Registry[Mechanism] = Registry("mechanisms", "mechanism")
"""All mechanisms by name; the package registers its own."""
