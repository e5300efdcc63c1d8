"""A lower bound on epsilon, from artificial people that are made to be found.

A canary is a person with two items that no other canary has. It sends the longest vector that a
person may send, in entries that it shares with no other canary. Each canary is put into a run or
left out at random, and an attacker that knows everything else decides which. The true and false
positive rates bound epsilon from below, whatever the actual noise is. An (epsilon, delta)-private
release has

    TPR <= e^epsilon FPR + delta

for every test (Kairouz, Oh and Viswanath 2015). Both rates have exact confidence limits (Clopper
and Pearson 1934). Even with many draws, this bound is at most log(draws). A second bound also
assumes that the trade-off is that of a Gaussian, and needs far fewer draws (Nasr et al. 2023). The
test is chosen on one half of the canaries and judged on the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri

from privirec.data.interactions import Interactions
from privirec.errors import UsageError
from privirec.federated.contributions import Histories, ItemDegrees
from privirec.federated.contributions.noisy import HeadSum, NormedSum
from privirec.federated.dp.gaussian import epsilon_of
from privirec.privacy.attacks.base import Attack, Found, Progress, Test
from privirec.privacy.attacks.informed import Rest, rest_of
from privirec.privacy.attacks.views import popularity_view
from privirec.privacy.releases import Release

Floats = NDArray[np.float64]

CANARIES = 1_000
"""Largest number of canaries in a run."""
RUNS = 200
"""Number of draws of the noise."""
CONFIDENCE = 0.95
USUAL_DELTA = 1e-6
"""Delta to use if nothing is promised."""
_RUN = 300_001


class Canaries(Attack):
    """Empirical epsilon, for comparison with the promised one."""

    name: ClassVar[str] = "canaries"
    needs: ClassVar[str] = "people to whom artificial people can be added"

    def __init__(self, runs: int = RUNS) -> None:
        self._runs = runs

    def applies_to(self, release: Release) -> bool:
        return release.federation is not None and popularity_view(release) is not None

    def run(self, release: Release, progress: Progress | None = None) -> Found:
        federation, popularity = release.federation, popularity_view(release)
        if federation is None or popularity is None:
            raise UsageError(f"{self.name} needs {self.needs}")
        items = _canary_items(release, popularity.votes)
        count = len(items)
        asks = [one.ask for one in release.sums if isinstance(one.ask, ItemDegrees | NormedSum)]
        nobody = Interactions.from_matrix(sp.csr_array((0, len(popularity.votes)), dtype=float))
        rng = np.random.Generator(np.random.Philox(4))
        scores, there = [], []
        for number in range(self._runs):
            if progress is not None:
                progress(number, self._runs)
            coins = rng.random(count) < 0.5
            # The contributions of people are known and would be subtracted again, so people are
            # left out. Only the noise, the canaries and the exact requests of this release matter.
            seen = federation.ask(asks, _RUN + number, canaries(items[coins], nobody.n_items))
            rest = rest_of(seen, federation, nobody)
            scores.append(_log_ratios(rest, items, nobody.n_items))
            there.append(coins)
        test = Test(np.concatenate(scores), np.concatenate(there))
        promise = federation.promise
        delta = promise[1] if promise else USUAL_DELTA
        facts: dict[str, Any] = {"canaries": len(test.scores), "bound_delta": delta}
        facts |= empirical_epsilon(test, delta)
        facts["promised_epsilon"] = promise[0] if promise else None
        return Found.nothing(tests={"canaries": test}, claims_histories=False, facts=facts)


def _log_ratios(rest: Rest, pairs: NDArray[np.int32], n_items: int) -> Floats:
    """Return the log-likelihood ratio of every canary.

    Sums of other kinds are evaluated for all canaries at once, since no two touch the same entries.
    """
    known = replace(rest, others=())
    ratios = np.array([known.log_ratio(pair, False) for pair in pairs])
    everybody = Histories(canaries(pairs, n_items).matrix)
    for other in rest.others:
        vectors = other.ask.total(everybody, []).astype(np.float64)
        seen = (vectors * (other.left - vectors / 2)).sum(axis=1)
        unit = 4.0**-other.ask.fraction_bits
        rows = np.searchsorted(other.ask.items, pairs)  # type: ignore[attr-defined]
        ratios += seen[rows].sum(axis=1) * unit / other.deviation**2
    return ratios


def canaries(pairs: NDArray[np.int32], n_items: int) -> Interactions:
    """Return one person for each pair of items, who has exactly these two."""
    ones = np.ones(pairs.size, np.float32)
    starts = 2 * np.arange(len(pairs) + 1)
    shape = (len(pairs), n_items)
    return Interactions.from_matrix(sp.csr_array((ones, pairs.reshape(-1), starts), shape=shape))


def _canary_items(release: Release, votes: NDArray[np.float64]) -> NDArray[np.int32]:
    """Return pairs of items, from the head if there is one, where a canary is in every sum."""
    heads = release.opened(HeadSum)  # type: ignore[type-abstract]
    items = heads[0][0].items if heads else np.sort(np.argsort(-votes, kind="stable"))
    count = min(len(items) // 2, CANARIES)
    return np.asarray(items[: 2 * count], np.int32).reshape(count, 2)


def empirical_epsilon(test: Test, delta: float, confidence: float = CONFIDENCE) -> dict[str, float]:
    """Return two lower bounds on epsilon, each with this confidence."""
    half = np.arange(len(test.scores)) % 2 == 0
    chosen, judged = (Test(test.scores[part], test.took_part[part]) for part in (half, ~half))
    levels = np.unique(np.quantile(chosen.scores, np.linspace(0.001, 0.999, 999)))
    levels = np.concatenate([levels, (levels[1:] + levels[:-1]) / 2])
    tried, final = (_Limits.of(part, levels, confidence) for part in (chosen, judged))
    plain, gaussian = int(tried.log_ratio(delta).argmax()), int(tried.mu().argmax())
    mu = float(final.mu()[gaussian])
    return {
        "empirical_epsilon": max(0.0, float(final.log_ratio(delta)[plain])),
        "empirical_epsilon_gaussian": epsilon_of(mu, delta) if mu > 0 else 0.0,
    }


@dataclass(frozen=True)
class _Limits:
    """Confidence limits of a test at several thresholds."""

    least_true: Floats
    """Lower limit of the true positive rate."""
    least_quiet: Floats
    """Lower limit of one minus the false positive rate."""

    @classmethod
    def of(cls, test: Test, levels: Floats, confidence: float) -> _Limits:
        inside, outside = (np.sort(test.scores[part]) for part in (test.took_part, ~test.took_part))
        hits = len(inside) - np.searchsorted(inside, levels, side="right")
        quiet = np.searchsorted(outside, levels, side="right")
        wrong = (1 - confidence) / 2  # both limits must hold at once
        return cls(_at_least(hits, len(inside), wrong), _at_least(quiet, len(outside), wrong))

    def log_ratio(self, delta: float) -> Floats:
        """Return epsilon from TPR <= e^epsilon FPR + delta, for the test and for its complement."""
        claims = (self.least_true, 1 - self.least_quiet), (self.least_quiet, 1 - self.least_true)
        ratios = [(true - delta) / np.maximum(false, 1e-300) for true, false in claims]
        best: Floats = np.log(np.maximum(np.maximum(*ratios), 1e-300))
        return best

    def mu(self) -> Floats:
        """Return mu from Phi^-1(TPR) - Phi^-1(FPR) <= mu."""
        found: Floats = ndtri(self.least_true) + ndtri(self.least_quiet)
        return found


def _at_least(successes: NDArray[np.int64], trials: int, wrong: float) -> Floats:
    """Return the lower Clopper-Pearson limit of a probability."""
    some = np.maximum(successes, 1)
    limits: Floats = np.where(successes > 0, betaincinv(some, trials - some + 1, wrong), 0.0)
    return limits
