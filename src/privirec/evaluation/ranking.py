"""Recall@k and NDCG@k by the all-ranking protocol.

Every item is ranked for every user with at least one test item, the user's train items left out,
equal scores by lower item number. Ideal DCG runs over min(k, test items).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numba
import numpy as np
import scipy.sparse as sp
from numba import njit, prange
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from privirec.data.interactions import Dataset
from privirec.errors import DataError
from privirec.filters import kernels
from privirec.threads import one_kernel_thread

USERS_AT_ONCE = 256
Progress = Callable[[int, int], None]


class Scorer(Protocol):
    """Anything that scores all items for a batch of histories."""

    def score(self, user_items: sp.csr_array) -> NDArray[np.float32]: ...


@runtime_checkable
class UserScorer(Protocol):
    """Something that scores all items for people by their numbers: each keeps more than a history,
    so that the history does not say all."""

    def score_users(self, users: NDArray[np.int64]) -> NDArray[np.float32]: ...


@dataclass(frozen=True)
class Metrics:
    """Means over the users with test items."""

    recall: float
    ndcg: float
    users: int
    k: int = 20

    def as_row(self) -> dict[str, float | int]:
        return {f"ndcg@{self.k}": self.ndcg, f"recall@{self.k}": self.recall}


@njit(parallel=True, cache=True)
def _measure(items, test_indptr, test_indices, discounts, recall, ndcg):  # type: ignore[no-untyped-def]
    k = items.shape[1]
    for row in prange(items.shape[0]):
        start, stop = test_indptr[row], test_indptr[row + 1]
        relevant = test_indices[start:stop]
        hits = 0
        gain = 0.0
        for rank in range(k):
            item = items[row, rank]
            if item < 0:
                break
            place = np.searchsorted(relevant, item)
            if place < len(relevant) and relevant[place] == item:
                hits += 1
                gain += discounts[rank]
        ideal = 0.0
        for rank in range(min(k, stop - start)):
            ideal += discounts[rank]
        recall[row] = hits / (stop - start)
        ndcg[row] = gain / ideal


def measure_rankings(
    items: NDArray[np.int64], test: sp.csr_array
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Recall and NDCG of each ranked list (users, k) against the same users' test items."""
    recall = np.empty(len(items))
    ndcg = np.empty(len(items))
    discounts = 1 / np.log2(np.arange(2, items.shape[1] + 2))
    _measure(items, test.indptr, test.indices, discounts, recall, ndcg)
    return recall, ndcg


def tested_batches(
    dataset: Dataset, size: int = USERS_AT_ONCE
) -> Iterator[tuple[sp.csr_array, sp.csr_array]]:
    """Train and test rows of the users that have test items, batch by batch."""
    for part in tested_users(dataset, size):
        yield dataset.train.matrix[part], dataset.test.matrix[part]


def tested_users(dataset: Dataset, size: int = USERS_AT_ONCE) -> Iterator[NDArray[np.int64]]:
    """Numbers of the users that have test items, batch by batch."""
    users = np.flatnonzero(dataset.test.user_degrees)
    if not len(users):
        raise DataError(f"{dataset.name}: no user has a test item")
    for start in range(0, len(users), size):
        yield users[start : start + size]


def rank_unseen(scores: NDArray[np.float32], seen: sp.csr_array, k: int) -> NDArray[np.int64]:
    """The k best items of each row that are not in its history (overwrites the scores)."""
    items = np.empty((len(scores), k), np.int64)
    kernels.mask_entries(seen.indptr, seen.indices, scores)
    kernels.top_items(scores, items, np.empty((len(scores), k), np.float32))
    return items


def evaluate(
    scorer: Scorer | UserScorer,
    dataset: Dataset,
    k: int = 20,
    progress: Progress | None = None,
) -> Metrics:
    """Rank for everybody and average.

    Batches of users are dealt to threads that each work alone: that scales where threads inside
    one batch mostly wait for each other.
    """
    total = int(np.count_nonzero(dataset.test.user_degrees))

    def measure(users: NDArray[np.int64]) -> tuple[float, float, int]:
        train, test = dataset.train.matrix[users], dataset.test.matrix[users]
        with one_kernel_thread():
            if isinstance(scorer, UserScorer):
                scores = scorer.score_users(users)
            else:
                scores = scorer.score(train)
            recall, ndcg = measure_rankings(rank_unseen(scores, train, k), test)
        return float(recall.sum()), float(ndcg.sum()), len(users)

    batches = tested_users(dataset)
    # The first one alone: it makes what scorers prepare on first use, and starts the kernels.
    sums = [measure(next(batches))]

    def tell() -> None:
        if progress:
            progress(sum(users for _, _, users in sums), total)

    tell()
    with threadpool_limits(limits=1, user_api="blas"), ThreadPoolExecutor(_workers()) as pool:
        try:
            for each in pool.map(measure, batches):
                sums.append(each)
                tell()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C does not wait for everybody
            raise
    recall, ndcg, _ = map(sum, zip(*sums, strict=True))
    return Metrics(recall / total, ndcg / total, total, k)


def _workers() -> int:
    """As many threads as kernels may use, if they may be called from several at once."""
    return numba.get_num_threads() if numba.threading_layer() in ("omp", "tbb") else 1
