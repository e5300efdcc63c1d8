"""Differencing: two runs that differ by one person, or by one interaction of a person.

Exact item degrees of two such runs differ by exactly that. Under noise, the difference is the
person's part plus the noise of two runs. An attacker that knows the length of the history then
weighs the observation against the popularity of items, which is the best that popularity and two
noisy sums allow.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privirec.data.interactions import Interactions
from privirec.errors import UsageError
from privirec.federated.contributions import ItemDegrees, NoisyHeadGram, NoisyPopularity
from privirec.federated.contributions.noisy_gram import gram_of, pair_length
from privirec.privacy.attacks.base import Attack, Found, Guesses, Progress, there
from privirec.privacy.attacks.views import most_likely, popularity_view
from privirec.privacy.releases import Federation, Release

TARGETS = 100
_SWEEPS = 4


class _Differencing(Attack):
    """Attack on several people, each by two runs over all people that differ in that person."""

    whole: ClassVar[bool]
    """True if the runs differ by a whole history."""
    needs: ClassVar[str] = "item degrees or popularity, and people who can be asked twice"

    def applies_to(self, release: Release) -> bool:
        asked_twice = release.federation is not None
        return asked_twice and bool(release.sums_of(ItemDegrees, NoisyPopularity))

    def run(self, release: Release, progress: Progress | None = None) -> Found:
        federation = release.federation
        if federation is None or not self.applies_to(release):
            raise UsageError(f"{self.name} needs {self.needs}")
        people = federation.people
        rng = np.random.Generator(np.random.Philox(1))
        with_items = np.flatnonzero(people.user_degrees > 1)
        targets = rng.permutation(with_items)[:TARGETS]
        truth, guessed, popular = [], [], []
        for number, target in enumerate(targets.tolist()):
            if progress is not None:
                progress(number, len(targets))
            before, changed = self.changed(people, target, rng)
            found, usual = _guess(federation, people, before, len(changed), 2 * number + 1)
            truth.append(changed)
            guessed.append(found)
            popular.append(usual)
        guesses = Guesses(truth, guessed, popular, self.whole)
        return Found.nothing(guesses=guesses, claims_histories=False)

    @abstractmethod
    def changed(
        self, people: Interactions, target: int, rng: np.random.Generator
    ) -> tuple[Interactions, NDArray[np.int32]]:
        """Return all people as in the other run, and the items by which the two runs differ."""


class TwoCohorts(_Differencing):
    """One run with a person and one without."""

    name: ClassVar[str] = "differencing-cohorts"
    whole: ClassVar[bool] = True

    def changed(
        self, people: Interactions, target: int, rng: np.random.Generator
    ) -> tuple[Interactions, NDArray[np.int32]]:
        matrix = people.matrix
        history = matrix.indices[matrix.indptr[target] : matrix.indptr[target + 1]]
        keep = np.arange(people.n_users) != target
        others = Interactions.from_matrix(matrix[keep], people.user_ids[keep], people.item_ids)
        return others, np.sort(history).astype(np.int32)


class TwoRuns(_Differencing):
    """One run before a person interacted with an item, and one after."""

    name: ClassVar[str] = "differencing-runs"
    whole: ClassVar[bool] = False

    def changed(
        self, people: Interactions, target: int, rng: np.random.Generator
    ) -> tuple[Interactions, NDArray[np.int32]]:
        matrix = people.matrix
        place = int(rng.integers(matrix.indptr[target], matrix.indptr[target + 1]))
        keep = np.ones(matrix.nnz, np.bool_)
        keep[place] = False
        return people.select(keep), matrix.indices[place : place + 1].astype(np.int32)


def _guess(
    federation: Federation, people: Interactions, before: Interactions, length: int, number: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return `length` items guessed from two runs, and as many guessed from popularity alone."""
    kinds = [planned.kind for planned in federation.planned()]
    exact = kinds[0] is ItemDegrees
    # Use popularity, and pairs if they are summed. Noisy power steps are not used.
    sums = 2 if NoisyHeadGram in kinds and not exact else 1
    first = federation.run(people, number, sums)
    second = federation.run(before, number + 1, sums)
    popularity = there(popularity_view(first))
    usual = most_likely(popularity.votes, length)
    if exact:
        one, other = there(first.item_degrees), there(second.item_degrees)
        return np.flatnonzero(one != other).astype(np.int32), usual
    seen = _difference(first, second)
    prior = np.maximum(popularity.votes, popularity.deviation / 10)
    return _most_probable(seen, prior, length), usual


@dataclass(frozen=True)
class _Difference:
    """Difference of two noisy runs: popularity, and the item-item matrix of the items in both
    heads."""

    votes: NDArray[np.float64]
    votes_variance: float
    gram: NDArray[np.float64]
    """Difference of the matrices; each entry is multiplied by the weights of its two items."""
    weights: NDArray[np.float64]
    gram_variance: float
    items: NDArray[np.int64]


def _difference(first: Release, second: Release) -> _Difference:
    votes, variance = [], 1.0
    for release in (first, second):
        ((asked, total),) = release.opened(NoisyPopularity)
        votes.append(np.ldexp(total.astype(np.float64), -asked.fraction_bits))
        variance = 2 * release.deviation(asked) ** 2
    grams, heads, weights, gram_variance = [], [], [], 1.0
    for release in (first, second):
        for ask, total in release.opened(NoisyHeadGram):
            heads.append(np.asarray(ask.items))
            weights.append(ask.weights / ask.weights.max())
            grams.append(
                gram_of(total, len(ask.items), ask.fraction_bits, np.zeros(len(ask.items)))
            )
            gram_variance = 2 * release.deviation(ask) ** 2
    seen = votes[0] - votes[1]
    if len(grams) < 2:
        nothing = np.zeros(0)
        return _Difference(seen, variance, np.zeros((0, 0)), nothing, 1.0, nothing.astype(np.int64))
    both = np.intersect1d(heads[0], heads[1])
    where = [np.searchsorted(head, both) for head in heads]
    first_gram, second_gram = (gram[np.ix_(w, w)] for gram, w in zip(grams, where, strict=True))
    mine, other = (weight[w] for weight, w in zip(weights, where, strict=True))
    gram = np.outer(mine, mine) * (first_gram - np.outer(mine / other, mine / other) * second_gram)
    return _Difference(seen, variance, gram, mine, gram_variance, both)


def _most_probable(seen: _Difference, prior: NDArray[np.float64], length: int) -> NDArray[np.int32]:
    """Return the items with the highest log-odds.

    The odds combine popularity and the evidence in the difference. The other items of the history
    are taken to be present with the probabilities of the previous sweep (mean field).
    """
    chance = np.clip(length * prior / prior.sum(), 1e-9, 0.5)
    odds = np.log(chance / (1 - chance))
    own = (seen.votes / np.sqrt(length) - 0.5 / length) / seen.votes_variance
    evidence = odds + own
    inside = seen.items
    for _ in range(_SWEEPS if len(inside) else 0):
        probable = 1 / (1 + np.exp(-np.clip(evidence[inside], -30, 30)))
        size = max(pair_length(seen.weights, probable), float(np.square(seen.weights).mean()))
        pairs = 2 * (seen.gram @ probable) / size / seen.gram_variance
        evidence = odds + own
        evidence[inside] += pairs
    return most_likely(evidence, length)
