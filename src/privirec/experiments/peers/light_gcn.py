"""Federated LightGCN (He et al. 2020).

Vectors of people and items are propagated along K layers of the graph,

    U(k) = R~ E(k-1),   E(k) = R~^T U(k-1),   R~ = D_U^-1/2 R D_I^-1/2,

and the means over the layers are trained by BPR (Rendle et al. 2009). People keep U(0), its
optimiser and everything derived from them. A person computes a layer of U locally once the previous
layer of items is known; a layer of items is a sum over all people. The derivative runs through the
same layers:

    up:   K layers of items, the derivative by the mean vectors of items, K layers of derivatives;
    down: K + 1 layers of items, K layers of derivatives.

One step of the item side thus takes 2 K + 1 matrices of items times columns each way. With K = 0
the method is matrix factorisation by BPR. Each step uses all people, because smaller batches would
have to compute all layers again.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numba import njit
from numpy.typing import NDArray

from privirec.experiments.peers.training import Adam, Float32, Training, TrainingSteps
from privirec.experiments.peers.training_sums import AtHome, ToldToClients, WeightedRows
from privirec.federated.contributions import Contribution, Histories, ItemDegrees
from privirec.federated.contributions.base import Integers
from privirec.federated.kernels import mixed
from privirec.federated.programs import Broadcast
from privirec.federated.programs.power import item_degrees_told
from privirec.filters.normalize import degree_power

GRADIENT_BITS = 28
"""Ring width of the sum of BPR gradients, in bits.

People also add to items that they do not have (the sampled negatives), so the bound on this sum is
far above its actual values, and it needs a wider ring than the other sums.
"""
Layers = Generator[Contribution | Broadcast, Any, list[Float32]]


@njit(cache=True)
def pairwise(indptr, indices, n_items, seed, first_user, users, items):  # type: ignore[no-untyped-def]
    """Draw an untouched item j for each touched pair (u, i) and differentiate the BPR loss.

    The loss of a pair is -log sigmoid(u (i - j)). Return each person's items (the touched ones,
    then the drawn ones), their weights, and the derivative by the person's vector. If a hundred
    draws find no untouched item, the pair is left out with weight zero.
    """
    columns = users.shape[1]
    drawn = np.empty(2 * len(indices), np.int32)
    weights = np.zeros(2 * len(indices), np.float32)
    slopes = np.zeros((len(indptr) - 1, columns), np.float32)
    for person in range(len(indptr) - 1):
        first, last = indptr[person], indptr[person + 1]
        own, count = indices[first:last], last - first
        row, slope = users[person], slopes[person]
        state = mixed(seed ^ mixed(np.uint64(first_user + person)))
        for place in range(count):
            item = own[place]
            other, touched = np.int64(0), True
            for _ in range(100):
                state = mixed(state)
                other = np.int64(state % np.uint64(n_items))
                found = np.searchsorted(own, other)
                touched = found < count and own[found] == other
                if not touched:
                    break
            drawn[2 * first + place] = item
            drawn[2 * first + count + place] = other
            if touched:
                continue
            margin = 0.0
            for column in range(columns):
                margin += row[column] * (items[item, column] - items[other, column])
            weight = np.float32(1.0 / (1.0 + np.exp(margin)))
            weights[2 * first + place] = -weight
            weights[2 * first + count + place] = weight
            for column in range(columns):
                slope[column] -= weight * (items[item, column] - items[other, column])
    return drawn, weights, slopes


@dataclass(frozen=True)
class KnownPeople:
    """Scorer for people who keep a trained vector of their own."""

    users: Float32
    items: Float32

    def score_users(self, users: NDArray[np.int64]) -> Float32:
        return np.asarray(self.users[users] @ self.items.T, np.float32)


class LightGCN(Training):
    """Federated LightGCN, with the state of all people's devices in one object."""

    name: ClassVar[str] = "lightgcn"
    title: ClassVar[str] = "federated LightGCN"

    def __init__(
        self,
        people: Histories,
        *,
        seed: int = 0,
        columns: int = 64,
        layers: int = 2,
        rate: float = 0.15,
        half_rate_after: int = 10,
        ridge: float = 0.01,
        start: float = 0.1,
        ring_bits: int = 20,
        told_bits: int = 16,
    ) -> None:
        """Draw the initial vectors.

        `rate` is Adam's learning rate, which is a half after `half_rate_after` epochs. `ridge` is
        the penalty on the vectors of each touched pair, and `start` is the standard deviation of
        the initial vectors. `ring_bits` and `told_bits` are the bits of an entry that a client
        sends and receives, respectively.
        """
        self._people, self._columns, self._layers = people, columns, layers
        self._ridge, self._ring_bits, self._told_bits = ridge, ring_bits, told_bits
        generator = np.random.Generator(np.random.Philox(seed))
        self._items = _normal(generator, start, people.n_items, columns)
        self._users = _normal(generator, start, people.n_users, columns)
        self._item_adam = Adam(rate, self._items.shape, half_rate_after)
        self._user_adam = Adam(rate, self._users.shape, half_rate_after)
        self._seeds = generator

    def start(self) -> TrainingSteps:
        people = self._people
        self._degrees: Integers = yield ItemDegrees(people.n_items, people.n_users)
        self._roots = degree_power(self._degrees, -0.5).astype(np.float32)[:, None]
        yield item_degrees_told(people.n_items)
        yield from self._average()

    def epoch(self) -> TrainingSteps:
        by_items, by_users = yield from self.gradients()
        # The loss has a ridge term for each touched pair, so a vector counts degree times.
        by_items += self._ridge * self._degrees[:, None] * self._items
        by_users += self._ridge * self._people.degrees[:, None] * self._users
        self._items -= self._item_adam.step(by_items)
        self._users -= self._user_adam.step(by_users)
        yield from self._average()

    def scorer(self) -> KnownPeople:
        return KnownPeople(self._mean_users, self._mean_items)

    def _average(self) -> TrainingSteps:
        """Compute the mean vectors over all layers, which takes sums over all people."""
        reach = 2 * _largest(self._items)
        layers = yield from self._propagated(self._users, self._items, reach)
        last = ToldToClients.of(layers[-1], self._told_bits)
        yield Broadcast("last layer of items", last.n_bytes)
        self._mean_items = _mean([*layers[:-1], last.values])
        self._mean_users = self._mean_of_people(self._users, layers)

    def gradients(
        self,
    ) -> Generator[Contribution | Broadcast, Any, tuple[Float32, Float32]]:
        """Compute the derivatives of the loss by layer 0 of items and by layer 0 of people.

        The derivatives by people's vectors are computed locally and not sent.
        """
        at_home = np.zeros_like(self._users)
        users, items = self._mean_users, self._mean_items
        draws = np.uint64(self._seeds.integers(2**63))

        def pairs(histories: Histories) -> tuple[sp.csr_array, Float32]:
            matrix, own = histories.matrix, _rows_of(histories)
            drawn, weights, at_home[own] = pairwise(
                matrix.indptr,
                matrix.indices,
                histories.n_items,
                draws,
                histories.first_user,
                users[own],
                items,
            )
            return sp.csr_array((weights, drawn, 2 * matrix.indptr), matrix.shape), users[own]

        everything = np.full(len(items), self._degrees.sum())
        reach = 2 * _largest(items)
        ask = self._sum(pairs, everything, reach, GRADIENT_BITS)
        by_mean_items = ask.decode((yield ask))
        typical = float(np.sqrt(self._degrees.sum() / max(1, self._people.n_users)))
        layers = yield from self._propagated(at_home, by_mean_items, reach * typical)
        by_users = self._mean_of_people(at_home, layers)
        return _mean(layers), by_users

    def _propagated(self, users: Float32, items: Float32, reach: float) -> Layers:
        """Compute layers 0 to K of items, and tell the clients all but the last.

        `reach` bounds d_u^-1/2 times an entry of people's layer 0. Bounds for later layers follow
        from the item layers that were told.
        """
        layers: list[Float32] = [items]
        for number in range(self._layers):
            told = ToldToClients.of(layers[-1], self._told_bits)
            layers[-1] = told.values
            if number == 0:
                ask = self._sum(self._first_layer(users), self._degrees, reach, told=told.n_bytes)
            else:
                reach = _largest(self._roots * layers[-2])
                ask = self._sum(
                    self._later_layer(layers[-2]), self._degrees, reach, told=told.n_bytes
                )
            layers.append(self._roots * ask.decode((yield ask)))
        return layers

    def _first_layer(self, users: Float32) -> AtHome:
        def rows(histories: Histories) -> tuple[sp.csr_array, Float32]:
            roots = np.sqrt(np.maximum(histories.degrees, 1)).astype(np.float32)[:, None]
            return histories.matrix, users[_rows_of(histories)] / roots

        return rows

    def _later_layer(self, items: Float32) -> AtHome:
        """Return the rows d_u^-1/2 (R~ E)_u, the mean of V^-1/2 E over the person's items."""

        def rows(histories: Histories) -> tuple[sp.csr_array, Float32]:
            counts = np.maximum(histories.degrees, 1).astype(np.float32)[:, None]
            return histories.matrix, (histories.matrix @ (self._roots * items)) / counts

        return rows

    def _mean_of_people(self, users: Float32, layers: list[Float32]) -> Float32:
        """Return the mean over layers 0 to K of people, which each person computes locally."""
        if not self._layers:
            return users.copy()
        before = np.sum(layers[:-1], axis=0)
        roots = np.sqrt(np.maximum(self._people.degrees, 1)).astype(np.float32)[:, None]
        rest = roots * self._later_layer(before)(self._people)[1]
        return np.asarray((users + rest) / np.float32(self._layers + 1), np.float32)

    def _sum(
        self,
        at_home: AtHome,
        most: NDArray,
        reach: float,
        width: int | None = None,
        told: int = 0,
    ) -> WeightedRows:
        dither = int(self._seeds.integers(2**63))
        clip = max(reach, 1e-30)
        width = width or self._ring_bits
        return WeightedRows(at_home, self._columns, most, clip, width, dither, told)


def _rows_of(histories: Histories) -> slice:
    return slice(histories.first_user, histories.first_user + histories.n_users)


def _mean(layers: list[Float32]) -> Float32:
    return np.asarray(np.mean(layers, axis=0), np.float32)


def _largest(matrix: Float32) -> float:
    return float(np.abs(matrix).max(initial=0.0))


def _normal(generator: np.random.Generator, deviation: float, rows: int, columns: int) -> Float32:
    return np.asarray(deviation * generator.standard_normal((rows, columns)), np.float32)
