"""Differential privacy of correlated noise, against the server and corrupt clients.

For one entry, the uploads of all honest clients form a Gaussian vector around their values, with
covariance own^2 I + pair^2 L. L is the Laplacian of the graph of honest participants, because noise
that is shared with a corrupt client hides nothing. Therefore two vectors of client i at distance s
(L2, over all entries) are as distinguishable as two normal distributions of standard deviation 1
whose means differ by

    mu_i = s sqrt(((own^2 I + pair^2 L)^-1)_ii),

which is mu-Gaussian differential privacy for client i (`dp.gaussian` converts it to epsilon). It
lies between own noise alone (pair = 0: mu_i = s / own, as in the local model) and the sum of all
own noise (pair -> infinity on a connected graph of h clients: mu_i = s / (own sqrt(h)), as with a
trusted server). The *crowd* of a client tells where it lies: it is the number of clients whose own
noise together hides as much. docs/reference/correlated-noise.md states the assumptions and the
proof. `_ROUNDED` is the only correction for integer noise.

Crowds are lower bounds and levels are upper bounds, including rounding errors, so that no machine
overstates the guarantee.
"""

from __future__ import annotations

import math
from fractions import Fraction
from math import comb

import numpy as np
from numpy.typing import NDArray

from privirec.extra.correlated.levels import NoiseLevels
from privirec.federated.dp.gaussian import root_upward
from privirec.secagg.parameters import Statement

# Integer noise is randomly rounded Gaussian noise with a variance smaller by 4 square units.
_ROUNDED = 4
_UNIT = 1 / (1 << 53)
"""Maximum relative error of one operation in double precision."""


def honest_edges(neighbours: NDArray[np.int64], honest: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the adjacency matrix of the graph between honest participants.

    Row p of `neighbours` lists the places of the neighbours of p; `honest` has one flag per place.
    """
    size = len(neighbours)
    edges = np.zeros((size, size))
    edges[np.repeat(np.arange(size), neighbours.shape[1]), neighbours.ravel()] = 1
    return edges[np.ix_(honest, honest)]


def crowds(levels: NoiseLevels, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the crowd of each honest client, 1 / (own^2 ((own^2 I + pair^2 L)^-1)_ii).

    It lies between 1 and the number of honest clients. Interpret the matrix as a network of
    conductances: pair^2 along each edge, own^2 from each client to the ground. Then 1 / (..^-1)_ii
    is the conductance from client i to the ground after all others are eliminated one by one.
    Eliminating a node only adds, multiplies and divides positive numbers, so there is no
    cancellation, whatever the ratio of pair to own. Each elimination changes a conductance by at
    most h + 5 roundings. The result increases with every conductance and is proportional to all of
    them together. Therefore the error of h eliminations is below 2 h (h + 5) roundings, and the
    result is lowered by that. It is the same on every machine.
    """
    own, pair = _variances(levels)
    size = len(edges)
    error = 2 * size * (size + 5) * _UNIT
    found = np.empty(size)
    for client in range(size):
        order = np.roll(np.arange(size), -client)  # the client first; eliminate from the end
        between = edges[np.ix_(order, order)] * pair
        ground = np.full(size, own)
        for node in range(size - 1, 0, -1):
            towards = between[node, :node]
            # Add in a fixed order: np.sum depends on the vector width of the CPU.
            share = towards / (ground[node] + np.add.accumulate(towards)[-1])
            ground[:node] += share * ground[node]
            between[:node, :node] += np.outer(share, towards)
            np.fill_diagonal(between, 0.0)
        found[client] = ground[0]
    return np.minimum(np.maximum(found / own * (1 - error), 1.0), size)


def honest_ahead(statement: Statement, degree: int) -> int:
    """Return the minimum number of honest clients among degree / 2 consecutive places.

    It holds everywhere on the ring except with probability 2^-security. In a complete graph, return
    the number of honest clients.
    """
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
    """Return mu of one sum, rounded up.

    `sensitivity` is the maximum L2 distance between two possible vectors of a client, in announced
    units.
    """
    own = 4**levels.own_bits - _ROUNDED
    square = Fraction(sensitivity) ** 2 / (Fraction(4) ** levels.unit * own * Fraction(crowd))
    return root_upward(square)


def _variances(levels: NoiseLevels) -> tuple[float, float]:
    """Return the variances of own and of pairwise noise, in squared upload units."""
    return float(4**levels.own_bits - _ROUNDED), math.ldexp(1.0, 2 * levels.pair_bits)
