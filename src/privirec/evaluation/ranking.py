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
from privirec.filters.parts import Parts
from privirec.filters.scorers import Scorer, UserScorer
from privirec.threads import one_kernel_thread

# Small enough that the scores of a batch stay in the cache, and their memory in the process.
USERS_AT_ONCE = 64
BATCHES_AT_ONCE = 64
Progress = Callable[[int, int], None]


@runtime_checkable
class PartScorer(Scorer, Protocol):
    """One that scores in parts, so that not all scores need be computed."""

    def ready_for(self, histories: int, interactions: int) -> None: ...

    def parts(self, user_items: sp.csr_array) -> Parts: ...


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


@dataclass(frozen=True)
class Batch:
    """Some users that have test items."""

    users: NDArray[np.int64]
    train: sp.csr_array
    test: sp.csr_array


def tested_batches(dataset: Dataset, size: int = USERS_AT_ONCE) -> Iterator[Batch]:
    """All users that have test items, batch by batch."""
    users = np.flatnonzero(dataset.test.user_degrees)
    if not len(users):
        raise DataError(f"{dataset.name}: no user has a test item")
    # Rows are picked for many batches at once: for each alone it takes longer than to slice it.
    for many in range(0, len(users), BATCHES_AT_ONCE * size):
        part = users[many : many + BATCHES_AT_ONCE * size]
        train, test = dataset.train.matrix[part], dataset.test.matrix[part]
        for start in range(0, len(part), size):
            some = slice(start, start + size)
            yield Batch(part[some], train[some], test[some])


def rank_unseen(scores: NDArray[np.float32], seen: sp.csr_array, k: int) -> NDArray[np.int64]:
    """The k best items of each row that are not in its history (overwrites the scores)."""
    return Parts(scores).best(k, seen)[0]


def ranker(
    scorer: Scorer | UserScorer, dataset: Dataset, k: int
) -> Callable[[Batch], NDArray[np.int64]]:
    """What gives the k best unseen items of a batch, once ready for everybody with test items."""
    if isinstance(scorer, UserScorer):
        return lambda batch: rank_unseen(scorer.score_users(batch.users), batch.train, k)
    if not isinstance(scorer, PartScorer):
        return lambda batch: rank_unseen(scorer.score(batch.train), batch.train, k)
    users = dataset.test.user_degrees > 0
    scorer.ready_for(int(users.sum()), int(dataset.train.user_degrees[users].sum()))
    return lambda batch: scorer.parts(batch.train).best(k, batch.train)[0]


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
    dataset.check_apart()
    total = int(np.count_nonzero(dataset.test.user_degrees))
    rank = ranker(scorer, dataset, k)

    def measure(batch: Batch) -> tuple[float, float, int]:
        with one_kernel_thread():
            recall, ndcg = measure_rankings(rank(batch), batch.test)
        return float(recall.sum()), float(ndcg.sum()), len(batch.users)

    batches = tested_batches(dataset)
    # The first one alone: it makes what scorers prepare on first use, and starts the kernels.
    sums = np.array(measure(next(batches)))

    def tell() -> None:
        if progress:
            progress(int(sums[2]), total)

    tell()
    with threadpool_limits(limits=1, user_api="blas"), ThreadPoolExecutor(_workers()) as pool:
        try:
            for each in pool.map(measure, batches):
                sums += each
                tell()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C does not wait for everybody
            raise
    recall, ndcg = (float(each) / total for each in sums[:2])
    return Metrics(recall, ndcg, total, k)


def _workers() -> int:
    """As many threads as kernels may use, if they may be called from several at once."""
    return numba.get_num_threads() if numba.threading_layer() in ("omp", "tbb") else 1
