"""Scores as a base plus a low-rank part, and the best items without computing all scores.

The score of item j for a history is base_j + c . w_j. The base is stored for every item; the
coordinates c of the history and the vectors w_j of the items are short. By Cauchy-Schwarz c . w_j
is at most |c| |w_j|, and after the first coordinates at most their sum plus the product of the
lengths of the rest. By that bound few items can be among the best, and only for these c . w_j is
computed completely. A full scoring adds the same numbers in the same order, so lists and scores are
the same to the last bit.

Rounding: a term of a computed c . w_j goes through one product and at most 2 stages + 4 additions,
and the absolute values of the terms add up to at most |c| |w_j|. The error is therefore less than
g |c| |w_j| with g = (2 stages + 6) 2^-24, also for the partial sum at any stage. The bound itself
takes five roundings of numbers of at most 2 |c| |w_j|. `slack` is 2 (2 stages + 24) 2^-24, which is
more than 2 g and these roundings together; lengths are computed in double precision and rounded up.
Adding the base rounds the score and its bound in the same way, and rounding preserves their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.compiled import STAGE, Later
from privirec.data.given import count_of
from privirec.errors import UsageError
from privirec.filters.operators import Float32

kernels = Later("privirec.filters.kernels")

# Largest dense matrix that is built for row sums, in bytes.
MOST_BYTES = 2 << 30

FEW = 1000
"""Number of histories below which a low-rank part is added to all scores."""

# Rows of that matrix come from main memory, the states of a repeated product from a cache.
_FROM_MEMORY = 3


class Scorer(Protocol):
    """An object that scores all items for a batch of histories."""

    def score(self, user_items: sp.csr_array) -> NDArray[np.float32]: ...


@runtime_checkable
class UserScorer(Protocol):
    """An object that scores all items for users by their numbers.

    Such a method keeps state per user, so that a history alone does not determine the scores.
    """

    def score_users(self, users: NDArray[np.int64]) -> NDArray[np.float32]: ...


class ItemVectors:
    """Item side of a low-rank part: one vector per item."""

    def __init__(self, vectors: Float32) -> None:
        """Prepare `vectors` of shape (items, rank)."""
        wide = _padded(vectors)
        stages = wide.reshape(len(wide), -1, STAGE).transpose(1, 0, 2)
        self._vectors = kernels.aligned((wide.size // STAGE, STAGE))
        self._vectors.reshape(stages.shape)[:] = stages
        self._tails = np.ascontiguousarray(_lengths_from(wide).T)

    def add(self, coordinates: Float32, scores: Float32) -> None:
        """Add coordinates @ vectors^T to the scores, in place."""
        kernels.add_inner_products(_padded(coordinates), self._vectors, scores)

    def best(
        self, base: Float32, coordinates: Float32, items: NDArray[np.int64], values: Float32
    ) -> None:
        """Compute `kernels.top_items` of base + coordinates @ vectors^T."""
        wide = _padded(coordinates)
        slack = np.float32(2 * (2 * len(self._tails) + 24) * 2.0**-24)
        reaches, vectors, tails = _lengths_from(wide), self._vectors, self._tails
        kernels.best_of_sums(base, wide, reaches, vectors, tails, slack, items, values)


@dataclass(frozen=True)
class Parts:
    """The scores of a block of histories: base + coordinates @ vectors^T, or the base alone."""

    base: Float32
    """(users, items); `scores` and `best` may overwrite it."""
    coordinates: Float32 | None = None
    vectors: ItemVectors | None = None

    def scores(self) -> Float32:
        """Return all scores."""
        if self.coordinates is not None and self.vectors is not None:
            self.vectors.add(self.coordinates, self.base)
        return self.base

    def best(
        self, count: int, seen: sp.csr_array | None = None
    ) -> tuple[NDArray[np.int64], Float32]:
        """Return the best items of each row and their scores, without the items in `seen`.

        The best come first, ties by lower item number; -1 fills places without a candidate.
        """
        # The compiled loops check no bounds: they would write outside a list of length 0, and
        # outside rows that are shorter than the histories.
        count_of(count, "the length of a list")
        if seen is not None and seen.shape != self.base.shape:
            raise UsageError(f"scores of shape {self.base.shape} for histories of {seen.shape}")
        items = np.empty((len(self.base), count), np.int64)
        values = np.empty((len(self.base), count), np.float32)
        if seen is not None:
            kernels.mask_entries(seen.indptr, seen.indices, self.base)
        if self.coordinates is not None and self.vectors is not None:
            self.vectors.best(self.base, self.coordinates, items, values)
        else:
            kernels.top_items(self.base, items, values)
        return items, values


def _padded(vectors: Float32) -> Float32:
    """Pad with columns of zeros to a whole number of stages, at least one."""
    rank = vectors.shape[1]
    stages = max(1, -(-rank // STAGE))
    out = kernels.aligned((len(vectors), stages * STAGE))
    out[:, :rank] = vectors
    out[:, rank:] = 0
    return out


def _lengths_from(vectors: Float32) -> Float32:
    """Return the length of each row from each stage on, rounded up: (rows, stages)."""
    stages = vectors.reshape(len(vectors), -1, STAGE)
    squares = np.einsum("ijk,ijk->ij", stages, stages, dtype=np.float64)
    lengths = np.sqrt(np.cumsum(squares[:, ::-1], axis=1)[:, ::-1])
    return np.nextafter(lengths.astype(np.float32), np.float32(np.inf))


def row_sums_pay(histories: int, interactions: int, n_items: int, a_history: int) -> bool:
    """Return True if it is cheaper to filter every item once and add up rows for each history.

    Costs count numbers touched, because memory access dominates these computations.

    A filter is linear, so the scores of a history are the sum of those of its items. Filtering one
    history or one item touches `a_history` numbers; adding up rows touches |I| numbers per
    interaction. If histories outnumber items, the filter then runs once per item instead of once
    per history.
    """
    if 4 * n_items * n_items > MOST_BYTES:
        return False
    once = n_items * a_history
    each = _FROM_MEMORY * interactions * n_items
    return once + each < histories * a_history


def vectors_pay(histories: int, rank: int) -> bool:
    """Return True if preparing a low-rank part for bounds pays.

    The preparation costs about as much as scoring `rank` histories. Compiling the loop takes
    seconds after installation, which a few histories do not pay back.
    """
    return histories >= max(rank, FEW)
