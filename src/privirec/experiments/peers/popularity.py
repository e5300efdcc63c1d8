"""Noisy popularity alone: the baseline that any private recommender has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privirec.experiments.peers.base import ByPopularity, Floats, Peer, PeerSteps
from privirec.federated.contributions import PlannedSum


@dataclass(frozen=True)
class NoisyPopularityAlone(Peer):
    """Ranking by noisy popularity, which receives the whole budget."""

    name: ClassVar[str] = "popularity"
    title: ClassVar[str] = "noisy popularity"

    @property
    def parts(self) -> list[float]:
        return [1.0]

    @property
    def lengths(self) -> list[int]:
        return [self.n_items]

    def later_sums(self) -> list[PlannedSum]:
        return []

    def later_steps(self, sums: list[PlannedSum], popularity: Floats) -> PeerSteps:
        return ByPopularity(popularity)
        yield  # Unreachable; it makes this function a generator, without any sum.
