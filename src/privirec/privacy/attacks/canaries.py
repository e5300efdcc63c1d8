"""A lower bound on epsilon, from people made up to be found.

A canary is a person with one item: the longest vector that a person may send, in a place of its own.
Some are put into a run and some are not, by the toss of a coin each, and an attacker who knows
everything else says which. Its true and false positives bound epsilon from below, whatever the noise
really is: a release that is (epsilon, delta)-private has

    TPR <= e^epsilon FPR + delta

for every test (Kairouz, Oh and Viswanath 2015), with exact (Clopper and Pearson 1934) confidence
limits for both. Where many draws are affordable the bound is still at most log(draws); the second
bound supposes in addition that the trade-off is a Gaussian's, which needs far fewer (Nasr et al.
2023). The test is fixed on one half of the canaries and judged on the other.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.stats import beta, norm

from privirec.data.interactions import Interactions
from privirec.dp.gaussian import epsilon_of
from privirec.errors import UsageError
from privirec.federated.contributions import ItemDegrees, NoisyHeadGram
from privirec.federated.contributions.noisy import NormedSum
from privirec.privacy.attacks.base import Attack, Found, Progress, Test
from privirec.privacy.attacks.informed import rest_of
from privirec.privacy.attacks.views import popularity_view
from privirec.privacy.releases import Release

CANARIES = 1_000
"""Canaries in a run, at most; one an item."""
RUNS = 200
"""Draws of noise."""
CONFIDENCE = 0.95
USUAL_DELTA = 1e-6
"""Where nothing was promised."""
_RUN = 300_001


class Canaries(Attack):
    """An empirical epsilon beside the promised one."""

    name: ClassVar[str] = "canaries"
    needs: ClassVar[str] = "people among whom others can be put"

    def __init__(self, runs: int = RUNS) -> None:
        self._runs = runs

    def applies_to(self, release: Release) -> bool:
        return release.federation is not None and popularity_view(release) is not None

    def run(self, release: Release, progress: Progress | None = None) -> Found:
        federation, popularity = release.federation, popularity_view(release)
        if federation is None or popularity is None:
            raise UsageError(f"{self.name} needs {self.needs}")
        count = min(CANARIES, len(popularity.votes))
        items = _canary_items(release, popularity.votes, count)
        asks = [one.ask for one in release.sums if isinstance(one.ask, ItemDegrees | NormedSum)]
        nobody = Interactions.from_matrix(sp.csr_array((0, len(popularity.votes)), dtype=float))
        rng = np.random.Generator(np.random.Philox(4))
        scores, there = [], []
        for number in range(self._runs):
            if progress is not None:
                progress(number, self._runs)
            coins = rng.random(count) < 0.5
            # What people add is known and taken off again, so they need not be there: only the
            # noise, the canaries, and the very asks of this release.
            seen = federation.ask(asks, _RUN + number, canaries(items[coins], nobody.n_items))
            rest = rest_of(seen, federation, nobody)
            scores.append(
                np.array([rest.log_ratio(items[n : n + 1], False) for n in range(count)])
            )
            there.append(coins)
        test = Test(np.concatenate(scores), np.concatenate(there))
        promise = federation.promise
        delta = promise[1] if promise else USUAL_DELTA
        facts: dict[str, Any] = {"canaries": len(test.scores), "bound_delta": delta}
        facts |= empirical_epsilon(test, delta)
        facts["promised_epsilon"] = promise[0] if promise else None
        return Found.nothing(tests={"canaries": test}, claims_histories=False, facts=facts)


def canaries(items: NDArray[np.int32], n_items: int) -> Interactions:
    """One person for each of these items, who has just that one."""
    ones = np.ones(len(items), np.float32)
    shape = (len(items), n_items)
    return Interactions.from_matrix(
        sp.csr_array((ones, items, np.arange(len(items) + 1)), shape=shape)
    )


def _canary_items(
    release: Release, votes: NDArray[np.float64], count: int
) -> NDArray[np.int32]:
    """Of the head, if there is one: there a canary is in every sum."""
    for one in release.sums_of(NoisyHeadGram):
        assert isinstance(one.ask, NoisyHeadGram)
        return np.asarray(one.ask.items[:count], np.int32)
    return np.sort(np.argsort(-votes, kind="stable")[:count]).astype(np.int32)


def empirical_epsilon(test: Test, delta: float, confidence: float = CONFIDENCE) -> dict[str, float]:
    """Two lower bounds on epsilon, each with this confidence."""
    half = np.arange(len(test.scores)) % 2 == 0
    chosen, judged = (Test(test.scores[part], test.took_part[part]) for part in (half, ~half))
    thresholds = np.unique(np.quantile(chosen.scores, np.linspace(0.001, 0.999, 999)))
    middles = np.concatenate([thresholds, (thresholds[1:] + thresholds[:-1]) / 2])
    bounds = {}
    for name, bound in (("empirical_epsilon", _plain), ("empirical_epsilon_gaussian", _gaussian)):
        best = max(middles, key=lambda level: bound(*_limits(chosen, level, confidence), delta))
        bounds[name] = bound(*_limits(judged, best, confidence), delta)
    return bounds


def _limits(test: Test, threshold: float, confidence: float) -> tuple[float, float, float, float]:
    """Least TPR, most FPR, and the same of the opposite claim (least TNR, most FNR)."""
    says_in = test.scores > threshold
    inside, outside = int(test.took_part.sum()), int((~test.took_part).sum())
    hits = int((says_in & test.took_part).sum())
    alarms = int((says_in & ~test.took_part).sum())
    wrong = (1 - confidence) / 2  # two limits have to hold at once
    return (
        _at_least(hits, inside, wrong),
        1 - _at_least(outside - alarms, outside, wrong),
        _at_least(outside - alarms, outside, wrong),
        1 - _at_least(hits, inside, wrong),
    )


def _at_least(successes: int, trials: int, wrong: float) -> float:
    """Clopper and Pearson's lower limit of a probability."""
    return float(beta.ppf(wrong, successes, trials - successes + 1)) if successes else 0.0


def _plain(tpr: float, fpr: float, tnr: float, fnr: float, delta: float) -> float:
    ratios = [(tpr - delta) / max(fpr, 1e-300), (tnr - delta) / max(fnr, 1e-300)]
    return max(0.0, *(math.log(ratio) for ratio in ratios if ratio > 0), 0.0)


def _gaussian(tpr: float, fpr: float, tnr: float, fnr: float, delta: float) -> float:
    mu = float(norm.ppf(tpr) - norm.ppf(fpr))
    return epsilon_of(mu, delta) if math.isfinite(mu) and mu > 0 else 0.0
