"""A lower bound on epsilon, from artificial people that are made to be found.

A canary has items that no other canary has, and sends the longest vector that a person may send.
All canaries are in one run of real clients, with their sampler, their rings and their masks. Some
clients drop out, and some tell the attacker their noise. The server is hostile where it can be: it
chooses the head, and blocks and weights that put a person's whole length on one item. Where few
canaries fit into a run, others are in further runs; each is in one.

Who takes part is public, so each canary takes part. A coin decides whether with its history or with
an empty one, and the attacker guesses the coin from the likelihood ratio, the best test there is
(`one_run` bounds epsilon by its guesses). In a second run the coin decides between two histories,
which gives a bound on epsilon for replacing a history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.data.interactions import Interactions
from privirec.errors import UsageError
from privirec.federated.contributions import (
    Histories,
    NoisyHeadGram,
    NoisyPairs,
    NoisyPopularity,
    NoisyPowerStep,
)
from privirec.federated.contributions.noisy import LARGEST_WEIGHT, HeadSum, NormedSum
from privirec.privacy.attacks.base import Attack, Found, Progress, Test
from privirec.privacy.attacks.informed import has_noise
from privirec.privacy.attacks.one_run import empirical_epsilon
from privirec.privacy.releases import Federation, HeardSum, Release

Floats = NDArray[np.float64]
Items = NDArray[np.int32]

LENGTHS = (2, 2, 2, 2, 1, 2, 2, 2, 2, 5)
"""Lengths of histories, in turn, after an empty one and one with a tenth of the items."""
LARGEST_ENTRY = 1 << 30
CANARIES, RUNS = 10_000, 10
"""Number of canaries after which there is no further run, and the most runs."""
USUAL_DELTA = 1e-6
"""Delta to use if nothing is promised."""
_RUN = 300_001


@dataclass(frozen=True)
class Choice:
    """Two histories of each canary. A coin decides which one it has."""

    first: Sequence[Items]
    second: Sequence[Items]

    @classmethod
    def all_or_nothing(cls, items: Items) -> Choice:
        """Return histories without a common item against empty ones.

        The first ones are empty too, or hold a tenth of the items. Then come many short ones.
        """
        found, place = [items[:0]], 0
        for length in chain([max(2, len(items) // 10)], cycle(LENGTHS)):
            if place + length > len(items):
                break
            found.append(items[place : place + length])
            place += length
        return cls(found, [items[:0]] * len(found))

    @classmethod
    def one_or_another(cls, items: Items) -> Choice:
        """Return pairs that have their first item in common."""
        triples = items[: len(items) // 3 * 3].reshape(-1, 3)
        return cls(list(triples[:, [0, 1]]), list(triples[:, [0, 2]]))

    def of_at_most(self, people: int) -> Choice:
        return Choice(self.first[:people], self.second[:people])

    def by(self, coins: NDArray[np.bool_]) -> list[Items]:
        """Return the histories that the coins choose."""
        both = zip(self.first, self.second, coins, strict=True)
        return [one if coin else other for one, other, coin in both]


class Canaries(Attack):
    """Empirical epsilon, for comparison with the promised one."""

    name: ClassVar[str] = "canaries"
    needs: ClassVar[str] = "noise, and people to whom artificial people can be added"

    def __init__(self, runs: int = RUNS) -> None:
        self._runs = runs

    def applies_to(self, release: Release) -> bool:
        return release.federation is not None and has_noise(release)

    def run(self, release: Release, progress: Progress | None = None) -> Found:
        federation = release.federation
        if federation is None or not has_noise(release):
            raise UsageError(f"{self.name} needs {self.needs}")
        epsilon, delta, replacing = federation.promise or (None, USUAL_DELTA, None)
        asks = [one.ask for one in release.sums if isinstance(one.ask, NormedSum)]
        items = _own_items(asks)
        choices = Choice.all_or_nothing(items), Choice.one_or_another(items)
        tests = []
        for number, choice in enumerate(choices):
            if progress is not None:
                progress(number, len(choices))
            few = choice.of_at_most(asks[0].n_users)
            tests.append(guessed(federation, asks, few, self._runs, (1 + number) * _RUN))
        found, replaced = (empirical_epsilon(test, delta) for test in tests)
        facts: dict[str, Any] = {"canaries": len(tests[0].scores), "bound_delta": delta}
        facts |= found | {"promised_epsilon": epsilon}
        facts["empirical_epsilon_replacing"] = replaced["empirical_epsilon"]
        facts["promised_epsilon_replacing"] = replacing
        return Found.nothing(tests={"canaries": tests[0]}, claims_histories=False, facts=facts)


def guessed(
    federation: Federation, asks: Sequence[NormedSum], choice: Choice, runs: int, number: int
) -> Test:
    """Return an attacker's scores of canaries, and their coins.

    `number` is the number of the first run.
    """
    asked, scores, coins = [hostile(ask, choice) for ask in asks], [], []
    enough = -(-CANARIES // max(1, len(choice.first)))
    for run in range(number, number + min(runs, enough)):
        coins.append(np.random.Generator(np.random.Philox(run)).random(len(choice.first)) < 0.5)
        people = people_with(choice.by(coins[-1]), asks[0].n_items)
        scores.append(log_ratios(federation.through_clients(asked, people, run), choice))
    return Test(np.concatenate(scores), np.concatenate(coins))


def _own_items(asks: Sequence[NormedSum]) -> Items:
    """Return the items of canaries: those of the smallest head, where a canary is in every sum."""
    heads = [ask.items for ask in asks if isinstance(ask, HeadSum)]
    smallest = min(heads, key=len, default=np.arange(asks[0].n_items))
    return np.asarray(smallest, np.int32)


def hostile(ask: NormedSum, choice: Choice) -> NormedSum:
    """Return the request with its public inputs, if it has any, changed to single out canaries.

    The weights put a person's length on the first item of a canary. The block has opposite rows for
    the second items of its two histories, so that these two send opposite vectors.
    """
    if not isinstance(ask, NoisyPowerStep):
        return ask
    block, weights = np.zeros_like(ask.block), np.ones_like(ask.weights)
    for number, both in enumerate(zip(choice.first, choice.second, strict=True)):
        first, second = (np.searchsorted(ask.items, history) for history in both)
        weights[first[:1]] = LARGEST_WEIGHT - 1
        block[first[1:], number % ask.columns] = LARGEST_ENTRY
        block[second[1:], number % ask.columns] = -LARGEST_ENTRY
    return replace(ask, block=block, weights=weights)


def people_with(histories: Sequence[Items], n_items: int) -> Interactions:
    """Return one person for each history."""
    starts = np.concatenate([[0], np.cumsum([len(one) for one in histories])])
    entries = np.concatenate([np.zeros(0, np.int32), *histories])
    shape, ones = (len(histories), n_items), np.ones(len(entries), np.float32)
    return Interactions.from_matrix(sp.csr_array((ones, entries, starts), shape=shape))


def log_ratios(heard: Sequence[HeardSum], choice: Choice) -> Floats:
    """Return each canary's log-likelihood ratio of its first history against its second.

    No two canaries touch the same entries, so each sum is evaluated for all of them at once. A sum
    of a kind that is not known here is left out: an attacker may know less.
    """
    n_items, count = heard[0].ask.n_items, len(choice.first)
    owner = np.full(n_items, count)
    for number, both in enumerate(zip(choice.first, choice.second, strict=True)):
        owner[np.concatenate(both)] = number
    histories = [
        Histories(people_with(each, n_items).matrix) for each in (choice.first, choice.second)
    ]
    ratios = np.zeros(count + 1)
    for one in heard:
        items = _item_of_each_entry(one.ask)
        if items is None:
            continue
        a, b = (one.ask.total(each, []).reshape(-1).astype(np.float64) for each in histories)
        left = one.left.reshape(-1)
        terms = (a * (left - a / 2) - b * (left - b / 2)) / one.deviation**2
        ratios += np.bincount(owner[items], terms, minlength=len(ratios))
    return ratios[:-1]


def _item_of_each_entry(ask: NormedSum) -> NDArray[np.int64] | None:
    """Return an item of the people that an entry of a sum is about, or None for other sums."""
    if isinstance(ask, NoisyPopularity):
        return np.arange(ask.n_items)
    if isinstance(ask, NoisyPowerStep):
        return np.repeat(ask.items, ask.columns)
    if isinstance(ask, NoisyHeadGram):
        return np.asarray(ask.items[np.triu_indices(len(ask.items))[0]])
    if isinstance(ask, NoisyPairs):
        return np.asarray(ask.items[ask.first])
    return None
