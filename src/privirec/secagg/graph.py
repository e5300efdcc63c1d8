"""The random k-regular graph of Bell et al. 2020.

The clients form a ring in random order, and each client is connected to the next k/2 on either
side. The graph follows from the public seed and the list of clients, so a client can check the
neighbourhood that the server sends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from privirec.secagg.errors import GraphNotRegular, GraphNotSymmetric
from privirec.secagg.keys import LABEL
from privirec.secagg.prg import MaskGenerator


class RingGraph:
    """Neighbourhoods of clients 0 ... size - 1 (their places in the ascending list of ids)."""

    def __init__(self, size: int, degree: int, seed: bytes) -> None:
        if not 0 < degree < size or (degree % 2 and degree != size - 1):
            raise ValueError(f"no ring graph of degree {degree} on {size} clients")
        self.size = size
        self.degree = degree
        # Sort the places by the first words of the seed's key stream to get a random order.
        words = np.zeros(size, np.dtype("<u8"))
        MaskGenerator().add(words, 0, [seed])
        self._ring = np.argsort(words, kind="stable").astype(np.int64)
        self._seat = np.empty(size, np.int64)
        self._seat[self._ring] = np.arange(size)
        half = np.arange(1, degree // 2 + 1)
        self._steps = (
            np.arange(1, size) if degree == size - 1 else np.concatenate([-half[::-1], half])
        )

    def neighbours(self, place: int) -> NDArray[np.int64]:
        """Return the places of the neighbours of one client, ascending."""
        return np.sort(self._ring[(self._seat[place] + self._steps) % self.size])

    def all_neighbours(self) -> NDArray[np.int64]:
        """Return the neighbours of every client, shape (size, degree).

        Row p lists the places of the neighbours of p, ascending.
        """
        return np.sort(self._ring[(self._seat[:, None] + self._steps) % self.size], axis=1)


@lru_cache(maxsize=8)
def ring_graph(size: int, degree: int, seed: bytes) -> RingGraph:
    """Return a cached graph; many clients in one process compute the same one."""
    return RingGraph(size, degree, seed)


def graph_seed(announcement: bytes, participants: bytes, keys: bytes = b"") -> bytes:
    """Return the graph's public seed, bound to the announcement, participants and keys.

    `keys` is the root of the tree over the keys (see `key_tree`); it is empty in protocols without
    a tree.
    """
    return hashlib.sha256(LABEL + b"graph" + announcement + participants + keys).digest()


def ranks_among_neighbours(neighbours: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rank of each client among its neighbours' neighbours, shape (size, degree).

    Entry [p, j] is the rank of p in the neighbourhood of its j-th neighbour.
    """
    size, degree = neighbours.shape
    # Rows are sorted, so that row * size + neighbour ascends over the whole matrix.
    pairs = (np.arange(size)[:, None] * size + neighbours).ravel()
    reversed_pairs = neighbours * size + np.arange(size)[:, None]
    return np.searchsorted(pairs, reversed_pairs) - neighbours * degree


def check_neighbourhood(
    client: int, listed: Sequence[int], degree: int, expected: Sequence[int]
) -> None:
    """Raise a ProtocolError unless the server's list is the public graph's neighbourhood."""
    if client in listed:
        raise GraphNotSymmetric("the client is listed as its own neighbour")
    if len(listed) != degree:
        raise GraphNotRegular(f"{len(listed)} neighbours in a graph of degree {degree}")
    strangers = set(listed) - set(expected)
    if strangers:
        raise GraphNotSymmetric(
            f"client {min(strangers)} is not a neighbour of this client in the public graph"
        )
