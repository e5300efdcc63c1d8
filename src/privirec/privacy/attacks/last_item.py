"""Guess of the last item of a person whose other items are known.

A useful model predicts it for anybody, participant or not, since this is what recommending means.
Hits are therefore compared with those by popularity, and with those on people who did not take
part.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privirec.errors import UsageError
from privirec.federated.contributions.noisy_gram import pair_length
from privirec.privacy.attacks.base import Attack, Found, Guesses, Progress, there
from privirec.privacy.attacks.informed import Rest, has_noise, rest_of
from privirec.privacy.attacks.membership import Candidates
from privirec.privacy.attacks.views import MatrixView, item_item_view, popularity_view
from privirec.privacy.releases import Release

Floats = NDArray[np.float64]
Items = NDArray[np.int32]


class _LastItem(Attack):
    """Guess of the one item that is missing from a history."""

    needs: ClassVar[str] = "people who can be left out of a run"

    def run(self, release: Release, progress: Progress | None = None) -> Found:
        if release.federation is None or not self.applies_to(release):
            raise UsageError(f"{self.name} needs {self.needs}")
        candidates = Candidates.of(release.federation, self.sums(release))
        popularity = there(popularity_view(candidates.release))
        rng = np.random.Generator(np.random.Philox(3))
        self.look_at(candidates)
        hits = np.zeros(len(candidates.histories), np.bool_)
        truth, guessed, popular = [], [], []
        for number, history in enumerate(candidates.histories):
            if progress is not None and number % 64 == 0:
                progress(number, len(candidates.histories))
            missing = int(rng.integers(len(history)))
            known, last = np.delete(history, missing), history[missing : missing + 1]
            usual = popularity.votes.copy()
            usual[known] = -np.inf
            scores = self.scores(known, last, bool(candidates.took_part[number]))
            scores[known] = -np.inf
            found = np.array([int(scores.argmax())], np.int32)
            hits[number] = found[0] == last[0]
            if candidates.took_part[number]:
                truth.append(last)
                guessed.append(found)
                popular.append(np.array([int(usual.argmax())], np.int32))
        outside = ~candidates.took_part
        facts = {"precision_on_outsiders": float(hits[outside].mean())}
        guesses = Guesses(truth, guessed, popular, whole=False)
        return Found.nothing(guesses=guesses, claims_histories=False, facts=facts)

    def sums(self, release: Release) -> int | None:
        return None

    @abstractmethod
    def look_at(self, candidates: Candidates) -> None:
        """Prepare for one release."""

    @abstractmethod
    def scores(self, known: Items, last: Items, took_part: bool) -> Floats:
        """Return a score for each item, higher if it is more likely the missing one.

        The guess must not use `last` directly. It is given because it is part of what an attacker
        sees of a person who took part.
        """


class LastItem(_LastItem):
    """Guess from the release and the rest of the history alone."""

    name: ClassVar[str] = "last-item"

    def applies_to(self, release: Release) -> bool:
        return release.federation is not None and item_item_view(release) is not None

    def look_at(self, candidates: Candidates) -> None:
        view = there(item_item_view(candidates.release))
        popularity = there(popularity_view(candidates.release))
        self._view: MatrixView = view
        self._size = popularity.votes
        n_items = len(popularity.votes)
        items = np.arange(n_items) if view.items is None else view.items
        self._items = items
        self._place = np.full(n_items, -1, np.int64)
        self._place[items] = np.arange(len(items))
        self._dense = view.matrix.toarray() if view.noisy else None

    def scores(self, known: Items, last: Items, took_part: bool) -> Floats:
        rows = self._place[known]
        rows = rows[rows >= 0]
        scores = 1e-12 * self._size
        if not len(rows):
            return scores
        if self._dense is not None:
            scores[self._items] += self._dense[rows].sum(axis=0)
            return scores
        # In an exact matrix, the missing item has an entry of at least w(d) with every known item.
        block = self._view.matrix[rows].toarray()
        weight = float((len(known) + 1) ** -self._view.exponent)
        enough = (block >= weight * (1 - 1e-4)).all(axis=0)
        scores[self._items] += np.where(enough, 1e3, 0.0) + block.sum(axis=0)
        return scores


class InformedLastItem(_LastItem):
    """Guess by likelihood, knowing what everybody else sent, with popularity as the prior."""

    name: ClassVar[str] = "last-item-knowing-others"

    def applies_to(self, release: Release) -> bool:
        return release.federation is not None and popularity_view(release) is not None

    def sums(self, release: Release) -> int | None:
        return None if has_noise(release) else 1

    def look_at(self, candidates: Candidates) -> None:
        self._rest: Rest = rest_of(
            candidates.release, candidates.federation, candidates.participants
        )
        popularity = there(popularity_view(candidates.release))
        least = max(popularity.deviation, 1.0) / 10
        self._prior = np.log(np.maximum(popularity.votes, least))
        self._exact = not has_noise(candidates.release)

    def scores(self, known: Items, last: Items, took_part: bool) -> Floats:
        rest, scores = self._rest, self._prior.copy()
        history = np.concatenate([known, last])
        if rest.votes is not None:
            seen = rest.votes.copy()
            root = 1.0 if self._exact else np.sqrt(len(history))
            if took_part:
                seen[history] += 1 / root
            scores += seen / root / rest.votes_deviation**2 * (1e6 if self._exact else 1)
        if rest.gram is None:
            return scores
        own = rest.head(history) if took_part else np.zeros(0, np.int64)
        rows, squares = rest.head(known), np.square(rest.weights)
        towards = rest.gram[rows].sum(axis=0)
        if len(own) > 1:  # add every pair of the person's own items
            others = squares[rows].sum() - np.where(np.isin(own, rows), squares[own], 0.0)
            towards[own] += squares[own] * others / pair_length(rest.weights[own])
        inside = float(towards[rows].sum())
        alone = pair_length(rest.weights[rows])
        length = np.sqrt(np.maximum(alone**2 + 2 * squares[rows].sum() * squares, 1e-300))
        with_it = (inside + 2 * towards) / length
        without = inside / alone if len(rows) > 1 else 0.5
        head = np.flatnonzero(rest.place >= 0)
        scores += without / rest.gram_deviation**2
        scores[head] += (with_it[rest.place[head]] - without) / rest.gram_deviation**2
        return scores
