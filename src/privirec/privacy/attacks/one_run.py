"""Lower bounds on epsilon from guesses about many canaries in one run.

Each of m canaries is in a run or not, by a fair coin of its own. An attacker guesses the coins of
at most r of them, r fixed beforehand, and v guesses are right. If the run is (epsilon,
delta)-private for each canary, then with W the number of heads among r coins that show heads with
probability e^epsilon / (1 + e^epsilon),

    P[at least v right] <= P[W >= v] + 2 m delta max_i P[v > W >= v - i] / i

(Steinke, Nasr and Jagielski 2023). This assumes nothing about the noise or about how canaries
interact. Every epsilon for which the right-hand side is at most the accepted risk is refuted.

A second bound assumes in addition that scores of canaries are independent and have the trade-off of
a Gaussian (Nasr et al. 2023). It needs far fewer canaries.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri

from privirec.federated.dp import normal
from privirec.federated.dp.gaussian import LARGEST_EPSILON, epsilon_of
from privirec.privacy.attacks.base import Test

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
SHARES = (1000, 300, 100, 30, 10, 3)
"""Canaries for each guess, in each number of guesses that is tried.

The numbers are fixed beforehand, and each takes an equal part of the risk.
"""
_SLACK = Decimal("1e-30")
"""Relative bound on the errors of a p-value, which is computed to fifty digits."""


def empirical_epsilon(test: Test, delta: float, confidence: float = CONFIDENCE) -> dict[str, Any]:
    """Return two lower bounds on epsilon, each with this confidence, and the guesses of the first.

    A positive score guesses that the canary took part. The surest guesses are taken.
    """
    count = len(test.scores)
    if not count:
        test, count = Test(np.zeros(1), np.ones(1, bool)), 1  # nobody to guess about
    order = np.argsort(-np.abs(test.scores), kind="stable")
    right = np.cumsum((test.scores > 0)[order] == test.took_part[order])
    tried = sorted({max(1, count // share) for share in SHARES})
    risk = (1 - confidence) / len(tried)
    bounds = [least_epsilon(count, n, int(right[n - 1]), delta, risk) for n in tried]
    best = int(np.argmax(bounds))
    return {
        "empirical_epsilon": bounds[best],
        "empirical_epsilon_gaussian": _if_gaussian(test, delta, 1 - confidence),
        "guesses": tried[best],
        "guesses_right": int(right[tried[best] - 1]),
        "confidence": confidence,
    }


def least_epsilon(canaries: int, guesses: int, right: int, delta: float, risk: float) -> float:
    """Return the largest epsilon that this many right guesses refute; 0 if they refute none."""
    if p_value(canaries, guesses, right, 0.0, delta) > risk:
        return 0.0
    low, high = 0.0, LARGEST_EPSILON
    while high - low > 1e-6:
        middle = (low + high) / 2
        refuted = p_value(canaries, guesses, right, middle, delta) <= risk
        low, high = (middle, high) if refuted else (low, middle)
    return low


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> Decimal:
    """Return a bound on the probability of this many right guesses or more, rounded up."""
    with localcontext(normal.CONTEXT):
        odds = normal.exp(epsilon)
        largest = (
            math.comb(guesses, right) * (right * Decimal(epsilon) - guesses * (1 + odds).ln()).exp()
        )
        tail = term = largest
        for heads in range(right, guesses):
            term *= odds * (guesses - heads) / (heads + 1)
            tail += term
            if term <= tail * _SLACK and heads > right:
                break
        steepest = below = Decimal(0)
        term = largest
        for step in range(1, right + 1):
            heads = right - step
            term *= (heads + 1) / (odds * (guesses - heads))
            below += term
            steepest = max(steepest, below / step)
            if term <= below * _SLACK / guesses:
                break
        bound = tail + 2 * canaries * Decimal(delta) * steepest
        return min(Decimal(1), bound * (1 + _SLACK * 1000))


def _if_gaussian(test: Test, delta: float, risk: float) -> float:
    """Return epsilon from a lower limit of mu.

    The threshold is chosen on every other canary and judged on the rest, where both rates have
    exact limits (Clopper and Pearson 1934).
    """
    half = np.arange(len(test.scores)) % 2 == 0
    levels = np.unique(np.quantile(test.scores[half], np.linspace(0.001, 0.999, 999)))
    levels = np.concatenate([levels, (levels[1:] + levels[:-1]) / 2])
    chosen, judged = (
        _mu(test.scores[part], test.took_part[part], levels, risk) for part in (half, ~half)
    )
    mu = float(judged[int(chosen.argmax())])
    return epsilon_of(mu, delta) if mu > 0 else 0.0


def _mu(scores: Floats, took_part: NDArray[np.bool_], levels: Floats, risk: float) -> Floats:
    """Return a lower limit of mu from Phi^-1(TPR) - Phi^-1(FPR) <= mu, at each threshold."""
    inside, outside = np.sort(scores[took_part]), np.sort(scores[~took_part])
    hits = len(inside) - np.searchsorted(inside, levels, side="right")
    quiet = np.searchsorted(outside, levels, side="right")
    limits = (_at_least(hits, len(inside), risk / 2), _at_least(quiet, len(outside), risk / 2))
    found: Floats = ndtri(limits[0]) + ndtri(limits[1])
    return found


def _at_least(successes: NDArray[np.int64], trials: int, wrong: float) -> Floats:
    """Return the lower Clopper-Pearson limit of a probability."""
    some = np.maximum(successes, 1)
    limits: Floats = np.where(successes > 0, betaincinv(some, trials - some + 1, wrong), 0.0)
    return limits
