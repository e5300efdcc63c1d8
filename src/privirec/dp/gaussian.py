"""What Gaussian noise buys: exact conversions between mu and (epsilon, delta).

Noise of deviation s on something that one person changes by at most D (as a vector, in Euclidean
length) is mu-GDP with mu = D / s: telling whether the person took part is no easier than telling a
standard normal from one that is shifted by mu (Dong, Roth and Su 2022). Several such releases, each
of which may depend on the ones before, are together as private as one with
mu = sqrt(mu_1^2 + mu_2^2 + ...): nothing is lost in adding up. In terms of epsilon and delta

    delta = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu)

for every epsilon >= 0, and that is the least delta (Balle and Wang 2018).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from privirec.dp.normal import log_ndtr, ndtr, root
from privirec.errors import UsageError

FOR_ROUNDING = 1e-9
"""By so much less is a level than a promise allows: deltas are computed in doubles, which for tiny
ones are right to nine digits."""
LEAST_EPSILON = 1e-4
"""Below this the difference of two nearly equal numbers, which delta is, loses its digits."""
LARGEST_EPSILON = 60.0
"""Beyond this a promise means nothing, and could not be shown: tables of the discrete Gaussian
(`dp.tables`) are exact but for a chance below 2^-144, for which e^epsilon times as much is paid."""


def composed(levels: Iterable[float]) -> float:
    """mu of all releases together."""
    return math.sqrt(math.fsum(mu * mu for mu in levels))


def delta_of(epsilon: float, mu: float) -> float:
    """The least delta with which a mu-GDP release is (epsilon, delta)-private."""
    if mu <= 0:
        return 0.0
    first = ndtr(mu / 2 - epsilon / mu)
    second = math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))
    return float(max(0.0, first - second))


def epsilon_of(mu: float, delta: float) -> float:
    """The least epsilon with which a mu-GDP release is (epsilon, delta)-private."""
    _check_delta(delta)
    if delta_of(0.0, mu) <= delta:
        return 0.0
    if delta_of(LARGEST_EPSILON, mu) > delta:
        return math.inf
    found = root(lambda epsilon: _log(delta_of(epsilon, mu)) - _log(delta), 0, LARGEST_EPSILON)
    return _safe(found, lambda epsilon: delta_of(epsilon, mu) <= delta)


def mu_of(epsilon: float, delta: float) -> float:
    """The most noise-free level at which a release is still (epsilon, delta)-private."""
    _check_delta(delta)
    if not LEAST_EPSILON <= epsilon <= LARGEST_EPSILON:
        raise UsageError(
            f"epsilon = {epsilon}: a number from {LEAST_EPSILON:g} to {LARGEST_EPSILON:g}"
        )
    upper = 1.0
    while delta_of(epsilon, upper) <= delta:
        upper *= 2
    found = root(lambda mu: _log(delta_of(epsilon, mu)) - _log(delta), 1e-9, upper)
    kept = -_safe(-found, lambda mu: delta_of(epsilon, -mu) <= delta)
    return kept * (1 - FOR_ROUNDING)


def _safe(value: float, holds: object) -> float:
    """The nearest number above `value` for which the promise holds: roots end on either side."""
    step = 1e-12
    while not holds(value):  # type: ignore[operator]
        value += step * max(1.0, abs(value))
        step *= 2
    return value


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -1e3


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise UsageError(f"delta = {delta}: a number between 0 and 1")
