"""What correlated noise promises: differential privacy against the server and corrupt clients.

Of one entry, the honest clients' uploads together are a Gaussian vector around their values, with
covariance own^2 I + pair^2 L: L is the Laplacian of the graph of honest participants, because noise
that is common with a corrupt client hides nothing. Two vectors of client i at distance s (L2, over
all entries) can therefore be told apart as well as two normal distributions of deviation 1 whose
means differ by

    mu_i = s sqrt(((own^2 I + pair^2 L)^-1)_ii),

which is mu-Gaussian differential privacy for client i. Between own noise alone (pair = 0: mu_i =
s / own, as in the local model) and the sum of all own noise (pair -> infinity on a connected graph
of h clients: mu_i = s / (own sqrt(h)), as with a trusted server) it says how large a crowd hides a
client. docs/correlated-noise.md has the assumptions and the proof; `_ROUNDED` is its only trace of
integers.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import comb, exp, sqrt

import numpy as np
from numpy.typing import NDArray

from privirec.dp.normal import log_ndtr
from privirec.secagg.correlated.levels import NoiseLevels
from privirec.secagg.parameters import Statement

# Integer noise is Gaussian noise of a variance smaller by 4 square units, rounded at random.
_ROUNDED = 4


def honest_laplacian(
    neighbours: NDArray[np.int64], honest: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Laplacian of the graph between honest participants.

    `neighbours`: row p has the places of the neighbours of p; `honest`: of each place whether.
    """
    size = len(neighbours)
    adjacent = np.zeros((size, size))
    adjacent[np.repeat(np.arange(size), neighbours.shape[1]), neighbours.ravel()] = 1
    adjacent = adjacent[np.ix_(honest, honest)]
    return np.diag(adjacent.sum(axis=1)) - adjacent


def crowds(levels: NoiseLevels, laplacian: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each honest client, as how many clients' own noise together its vector is hidden.

    1 / (own^2 ((own^2 I + pair^2 L)^-1)_ii), between 1 and the number of honest clients.
    """
    own, pair = _variances(levels)
    values, vectors = np.linalg.eigh(laplacian)
    inverse = (vectors**2) @ (1 / (own + pair * np.maximum(values, 0)))
    return 1 / (own * inverse)


def ring_crowd(levels: NoiseLevels, statement: Statement, degree: int) -> float:
    """A crowd that every honest client has, but for a chance of 2^-security over all of them.

    But for that chance, among the degree / 2 next places of the ring on either side of anybody at
    least `honest_ahead` are honest. The honest clients in their order then contain the ring graph
    in which each is tied to so many on either side, whose spectrum is known; more edges only hide
    better.
    """
    honest = statement.clients - statement.corrupt
    ahead = honest_ahead(statement, degree)
    own, pair = _variances(levels)
    angles = 2 * np.pi * np.arange(honest) / honest
    if 2 * ahead >= honest - 1:
        spectrum = np.where(angles > 0, float(honest), 0.0)
    else:
        steps = np.arange(1, ahead + 1)[:, None]
        spectrum = (2 - 2 * np.cos(steps * angles)).sum(axis=0)
    return float(1 / (own * np.mean(1 / (own + pair * spectrum))))


def honest_ahead(statement: Statement, degree: int) -> int:
    """Honest clients among degree / 2 consecutive places, everywhere on the ring but for a chance
    of 2^-security; all of them in a complete graph."""
    clients, corrupt = statement.clients, statement.corrupt
    if degree >= clients - 1:
        return clients - corrupt
    half = degree // 2
    tail = 0
    for among in range(min(half, corrupt), -1, -1):
        tail += comb(corrupt, among) * comb(clients - corrupt, half - among)
        if (tail * clients) << statement.security_bits > comb(clients, half):
            return half - among
    return half


def distinguishability(sensitivity: float, levels: NoiseLevels, crowd: float) -> float:
    """mu of one sum: `sensitivity` is the largest L2 distance between two vectors that a client
    could send, in announced units."""
    own, _ = _variances(levels)
    return sensitivity / (2.0**levels.unit * sqrt(own * crowd))


def composed(parts: Iterable[float]) -> float:
    """mu of several sums together, each with fresh noise, whatever the later ones depend on."""
    return sqrt(sum(part * part for part in parts))


def epsilon(mu: float, delta: float) -> float:
    """Least epsilon for which mu-Gaussian differential privacy is (epsilon, delta)."""
    if not 0 < delta < 1 or mu < 0:
        raise ValueError(f"no epsilon for mu = {mu} and delta = {delta}")
    if mu == 0 or _delta(mu, 0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while _delta(mu, high) > delta:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(mu, middle) > delta else (low, middle)
    return high


def _delta(mu: float, eps: float) -> float:
    """Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)."""
    first, second = log_ndtr(mu / 2 - eps / mu), log_ndtr(-mu / 2 - eps / mu)
    return float(exp(first) - exp(min(0.0, eps + second)))


def _variances(levels: NoiseLevels) -> tuple[float, float]:
    """Of own noise and the noise of pairs, in squares of upload units."""
    return 4.0**levels.own_bits - _ROUNDED, 4.0**levels.pair_bits
