"""Membership inference, graded against people of the same data who did not take part.

There are two attackers. One holds the release and a whole candidate history, and nothing else. The
other also knows what everybody else sent (`informed`), the most that an attacker can know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import eigsh

from privirec.data.interactions import Interactions
from privirec.errors import UsageError
from privirec.federated.contributions import NoisyPowerStep, PowerStep, SeededStep
from privirec.federated.noise import NO_NOISE
from privirec.privacy.attacks.base import Attack, Found, Progress, Test
from privirec.privacy.attacks.cliques import beyond_popularity
from privirec.privacy.attacks.informed import has_noise, rest_of, vector_of
from privirec.privacy.attacks.views import MatrixView, item_item_view, popularity_view
from privirec.privacy.releases import Federation, Release

Floats = NDArray[np.float64]
Items = NDArray[np.int32]
Statistic = Callable[[Items], float]

MOST_OUTSIDERS = 2_000
CROWD = 30
"""Number of eigenvectors that describe common behaviour; chosen by experiment on Gowalla and
Globo."""
_RUN = 212_001


@dataclass(frozen=True)
class Candidates:
    """People to test: some took part in a run and some did not."""

    release: Release
    federation: Federation
    participants: Interactions
    histories: list[Items]
    took_part: NDArray[np.bool_]

    @classmethod
    def of(cls, federation: Federation, sums: int | None = None) -> Candidates:
        """Leave a tenth of the people out of a run, and choose equally many participants."""
        people = federation.people
        rng = np.random.Generator(np.random.Philox(12))
        order = rng.permutation(np.flatnonzero(people.user_degrees > 1))
        count = max(1, min(MOST_OUTSIDERS, len(order) // 10))
        outside, inside = order[:count], order[count : 2 * count]
        keep = np.ones(people.n_users, np.bool_)
        keep[outside] = False
        participants = Interactions.from_matrix(
            people.matrix[keep], people.user_ids[keep], people.item_ids
        )
        chosen = people.matrix[np.concatenate([inside, outside])]
        histories = [
            np.sort(one).astype(np.int32) for one in np.split(chosen.indices, chosen.indptr[1:-1])
        ]
        took_part = np.arange(2 * count) < count
        release = federation.run(participants, _RUN, sums)
        return cls(release, federation, participants, histories, took_part)


class Membership(Attack):
    """Membership test from the release and the candidate's history alone; the best statistic
    counts."""

    name: ClassVar[str] = "membership"
    needs: ClassVar[str] = "people who can be left out of a run"

    def applies_to(self, release: Release) -> bool:
        return release.federation is not None and bool(_statistics(release))

    def run(self, release: Release, progress: Progress | None = None) -> Found:
        if release.federation is None:
            raise UsageError(f"{self.name} needs {self.needs}")
        candidates = Candidates.of(release.federation)
        tests = {}
        for name, statistic in _statistics(candidates.release).items():
            scores = np.empty(len(candidates.histories))
            for number, history in enumerate(candidates.histories):
                if progress is not None and number % 64 == 0:
                    progress(number, len(scores))
                scores[number] = statistic(history)
            tests[name] = Test(scores, candidates.took_part)
        return Found.nothing(tests=tests, claims_histories=False)


class InformedMembership(Attack):
    """Membership test by the likelihood ratio, knowing what everybody else sent."""

    name: ClassVar[str] = "membership-knowing-others"
    needs: ClassVar[str] = "people who can be left out of a run"

    def applies_to(self, release: Release) -> bool:
        return release.federation is not None and popularity_view(release) is not None

    def run(self, release: Release, progress: Progress | None = None) -> Found:
        if release.federation is None:
            raise UsageError(f"{self.name} needs {self.needs}")
        candidates = Candidates.of(release.federation, None if has_noise(release) else 1)
        rest = rest_of(candidates.release, release.federation, candidates.participants)
        scores = np.array(
            [
                rest.log_ratio(history, bool(took_part))
                for history, took_part in zip(
                    candidates.histories, candidates.took_part, strict=True
                )
            ]
        )
        tests = {"likelihood-ratio": Test(scores, candidates.took_part)}
        return Found.nothing(tests=tests, claims_histories=False)


def _statistics(release: Release) -> dict[str, Statistic]:
    """Return all statistics that the release allows for a candidate, by name."""
    found: dict[str, Statistic] = {}
    popularity, view = popularity_view(release), item_item_view(release)
    if popularity is not None:
        votes = popularity.votes
        found["popularity"] = lambda history: float(votes[history].mean())
    if view is not None:
        found |= _pair_statistics(view)
    for number, (ask, total) in enumerate(release.opened(NoisyPowerStep)):
        found[f"step-{number + 1}"] = _along(ask, total)
    steps = [one for one in release.sums_of(PowerStep, SeededStep) if one.noise == NO_NOISE]
    if steps:
        blocks, images = [], []
        for one in steps:
            step: Any = one.ask.step if isinstance(one.ask, SeededStep) else one.ask
            blocks.append(np.ldexp(step.block.astype(np.float32), -step.block_bits))
            images.append(step.encoding.decode(one.total).astype(np.float32))
        found["sketch"] = _sketch(np.concatenate(blocks, axis=1), np.concatenate(images, axis=1))
    return found


def _pair_statistics(view: MatrixView) -> dict[str, Statistic]:
    n_items = view.matrix.shape[0] if view.items is None else int(view.items.max(initial=0)) + 1
    place = np.full(n_items, -1, np.int64)
    items = np.arange(n_items) if view.items is None else view.items
    place[items] = np.arange(len(items))

    def rows_of(history: Items) -> NDArray[np.int64]:
        rows = place[history[history < n_items]]
        return rows[rows >= 0]

    if view.noisy:
        raw = view.matrix.toarray()
        left = beyond_popularity(raw)
        size = np.sqrt(np.maximum(raw.diagonal(), view.errors))

        def among(matrix: Floats) -> Statistic:
            def statistic(history: Items) -> float:
                rows = rows_of(history)
                if not len(rows):
                    return 0.0
                return float(matrix[np.ix_(rows, rows)].sum()) / len(rows)

            return statistic

        relative = left / np.outer(size, size)
        unlikely = beyond_the_crowd(raw, float(view.errors[0]))

        def by_pairs(history: Items) -> float:
            rows = rows_of(history)
            pairs = len(rows) * (len(rows) - 1)
            return float(unlikely[np.ix_(rows, rows)].sum()) / pairs if pairs else 0.0

        return {
            "beyond-the-crowd": by_pairs,
            "likelihood": among(left),
            "likelihood-by-popularity": among(relative),
            "pairs": among(raw),
        }

    matrix = view.matrix

    def least_pair(history: Items) -> float:
        """Return the smallest pair relative to w(d).

        In an exact matrix every pair of a participant's history is at least w(d).
        """
        rows = rows_of(history)
        if not len(rows):
            return 0.0
        block = sp.csr_array(matrix[rows])[:, rows].toarray()
        return float(block.min()) * len(history) ** view.exponent

    return {"least-pair": least_pair}


def beyond_the_crowd(gram: Floats, deviation: float) -> Floats:
    """Return the excess of each pair over what common behaviour explains, in units of its variance.

    Common behaviour is described by the leading eigenvectors of the matrix, with each item scaled
    by its users. The diagonal, on which every person counts alone, is filled in from them. The rest
    of a pair comes from a few people and noise. Its variance is that of the noise plus that of the
    number of people.
    """
    size = np.sqrt(np.maximum(gram.sum(axis=1), 1.0))
    scaled = gram / np.outer(size, size)
    kept = min(CROWD, max(1, len(gram) // 4))
    explained = scaled
    for _ in range(4):
        values, vectors = eigsh(scaled, kept, v0=np.ones(len(gram)))
        explained = (vectors * values) @ vectors.T
        np.fill_diagonal(scaled, explained.diagonal())
    explained = explained * np.outer(size, size)
    left: Floats = (gram - explained) / (deviation**2 + np.maximum(explained, 0.05))
    np.fill_diagonal(left, 0.0)
    return left


def _along(ask: NoisyPowerStep, total: NDArray[np.int64]) -> Statistic:
    """Return a statistic: the part of a noisy step in the direction of the candidate's own
    vector."""
    noise = ask.share.protecting_deviation * np.sqrt(ask.columns)
    directions = total / (np.linalg.norm(total, axis=1)[:, None] + noise)

    def statistic(history: Items) -> float:
        return float((directions * vector_of(ask, history)).sum())

    return statistic


def _sketch(blocks: NDArray[np.float32], images: NDArray[np.float32]) -> Statistic:
    """Return a statistic on exact steps.

    A participant's mean row of W is a part of the image of each of its items, and most of it for
    rare items.
    """
    norms = np.linalg.norm(images, axis=1)

    def statistic(history: Items) -> float:
        own = blocks[history].mean(axis=0)
        size = norms[history] * np.linalg.norm(own)
        products = images[history] @ own
        return float(np.divide(products, size, out=np.zeros_like(size), where=size > 0).max())

    return statistic
