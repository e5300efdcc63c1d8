"""Differential privacy of correlated noise, against the server and corrupt clients.

Of one entry, the honest clients' uploads together are a Gaussian vector around their values, with
covariance own^2 I + pair^2 L: L is the Laplacian of the graph of honest participants, because noise
that is common with a corrupt client hides nothing. Two vectors of client i at distance s (L2, over
all entries) can therefore be told apart as well as two normal distributions of deviation 1 whose
means differ by

    mu_i = s sqrt(((own^2 I + pair^2 L)^-1)_ii),

which is mu-Gaussian differential privacy for client i (`dp.gaussian` turns it into epsilon). It
lies between own noise alone (pair = 0: mu_i = s / own, as in the local model) and the sum of all
own noise (pair -> infinity on a connected graph of h clients: mu_i = s / (own sqrt(h)), as with a
trusted server). The *crowd* of a client says where: the number of clients whose own noise together
hides as much. docs/correlated-noise.md has the assumptions and the proof; `_ROUNDED` is its only
trace of integers.

Crowds are lower bounds and levels upper bounds, rounding included: no machine promises more than
holds.
"""

from __future__ import annotations

import math
from fractions import Fraction
from math import comb

import numpy as np
from numpy.typing import NDArray

from privirec.dp.gaussian import root_upward
from privirec.secagg.correlated.levels import NoiseLevels
from privirec.secagg.parameters import Statement

# Integer noise is Gaussian noise of a variance smaller by 4 square units, rounded at random.
_ROUNDED = 4
_UNIT = 1 / (1 << 53)
"""Largest relative error of one operation in double precision."""
_COSINE_ERROR = 1 / (1 << 48)
"""Largest error of the cosine of k times a computed angle, divided by k: three roundings of an
angle below 2 pi k, and a few of the cosine itself."""


def honest_edges(neighbours: NDArray[np.int64], honest: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the adjacency matrix of the graph between honest participants.

    Row p of `neighbours` holds the places of the neighbours of p; `honest` has one flag a place.
    """
    size = len(neighbours)
    edges = np.zeros((size, size))
    edges[np.repeat(np.arange(size), neighbours.shape[1]), neighbours.ravel()] = 1
    return edges[np.ix_(honest, honest)]


def crowds(levels: NoiseLevels, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the crowd of each honest client, 1 / (own^2 ((own^2 I + pair^2 L)^-1)_ii).

    It lies between 1 and the number of honest clients. Read the matrix as a network of
    conductances: pair^2 along each edge, own^2 from each client to the ground. Then 1 / (..^-1)_ii
    is the conductance from client i to the ground when all others are eliminated, one after the
    other. Eliminating a node only adds, multiplies and divides positive numbers, so nothing
    cancels, whatever the ratio of pair to own. Each elimination changes a conductance by at most
    h + 5 roundings, and the result grows with every conductance, in proportion to all of them. So
    the error of h eliminations is below 2 h (h + 5) roundings, and the result is lowered by that.
    """
    own, pair = _variances(levels)
    size = len(edges)
    error = 2 * size * (size + 5) * _UNIT
    found = np.empty(size)
    for client in range(size):
        order = np.roll(np.arange(size), -client)  # the client first: the others go, last to first
        between = edges[np.ix_(order, order)] * pair
        ground = np.full(size, own)
        for node in range(size - 1, 0, -1):
            towards = between[node, :node]
            share = towards / (ground[node] + towards.sum())
            ground[:node] += share * ground[node]
            between[:node, :node] += np.outer(share, towards)
            np.fill_diagonal(between, 0.0)
        found[client] = ground[0]
    return np.minimum(np.maximum(found / own * (1 - error), 1.0), size)


def ring_crowd(levels: NoiseLevels, statement: Statement, degree: int) -> float:
    """Return a crowd that every honest client has, but for a chance of 2^-security over all.

    But for that chance, among the degree / 2 next places of the ring on either side of any client
    at least `honest_ahead` are honest. The honest clients in their order then contain the ring
    graph in which each is tied to that many on either side, whose eigenvalues are known; more
    edges only hide better. Each eigenvalue is lowered by its largest possible error.
    """
    honest = statement.clients - statement.corrupt
    ahead = honest_ahead(statement, degree)
    own, pair = _variances(levels)
    if 2 * ahead >= honest - 1:
        spectrum = np.full(honest - 1, float(honest))
    else:
        angles = 2 * np.pi * np.arange(1, honest) / honest
        steps = np.arange(1, ahead + 1)[:, None]
        spectrum = (2 - 2 * np.cos(steps * angles)).sum(axis=0)
        spectrum = np.maximum(spectrum - 4 * ahead * ahead * _COSINE_ERROR, 0.0)
    # The eigenvalue zero, of the vector of ones, contributes exactly one.
    hidden = (1.0 + (own / (own + pair * spectrum)).sum()) / honest
    return max(1.0, float(1 / hidden) * (1 - (honest + 10) * _UNIT))


def honest_ahead(statement: Statement, degree: int) -> int:
    """Return how many of degree / 2 consecutive places are honest, everywhere on the ring but for
    a chance of 2^-security; all honest clients in a complete graph."""
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
    """Return mu of one sum, rounded up: `sensitivity` is the largest L2 distance between two
    vectors that a client could send, in announced units."""
    own = 4**levels.own_bits - _ROUNDED
    square = Fraction(sensitivity) ** 2 / (Fraction(4) ** levels.unit * own * Fraction(crowd))
    return root_upward(square)


def _variances(levels: NoiseLevels) -> tuple[float, float]:
    """Return the variances of own noise and of noise between pairs, in squares of upload units."""
    return float(4**levels.own_bits - _ROUNDED), math.ldexp(1.0, 2 * levels.pair_bits)
