"""Recall@k, NDCG@k and other metrics under the all-ranking protocol.

Every item is ranked for every user with at least one test item. The user's train items are left
out, and equal scores are ordered by item number. The ideal DCG runs over min(k, test items).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, overload, runtime_checkable

import numba
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from privirec.data.frames import FrameOptions, is_frame, rows_of_frame
from privirec.data.given import Progress, as_interactions, count_of, reporting
from privirec.data.ids import clean_ids, places_of
from privirec.data.interactions import Dataset
from privirec.data.rows import Rows
from privirec.errors import DataError, DataWarning, UsageError, warn_of_data
from privirec.filters import exact
from privirec.filters.parts import Parts, Scorer, UserScorer
from privirec.threads import one_kernel_thread

# Small enough that the scores of a batch stay in the cache and the process reuses their memory.
USERS_AT_ONCE = 64
BATCHES_AT_ONCE = 64
Lists = Any
"""Ranked lists by user: a dictionary or a DataFrame."""


@runtime_checkable
class PartScorer(Scorer, Protocol):
    """A scorer that returns its scores in parts, so that not every score has to be computed."""

    def ready_for(self, histories: int, interactions: int) -> None: ...

    def parts(self, user_items: sp.csr_array) -> Parts: ...


@runtime_checkable
class WeightScorer(Scorer, Protocol):
    """A scorer that can count each item of a history by its weight."""

    def weighted_parts(self, histories: sp.csr_array) -> Parts: ...


@dataclass(frozen=True)
class Metrics:
    """Means over the users with test items, computed from the first k items of each ranking."""

    recall: float
    """Share of the test items that are found."""
    ndcg: float
    """Normalised discounted gain of the found items; a higher place counts more."""
    users: int
    """Number of users with test items."""
    k: int = 20
    """Number of items of each ranking that count."""
    mrr: float = math.nan
    """Mean of 1 / place of the first test item; 0 for a user without a hit."""
    hit_rate: float = math.nan
    """Share of users with at least one test item among the first k."""
    coverage: float = math.nan
    """Share of the catalogue that is recommended to at least one user."""
    novelty: float = math.nan
    """Mean of -log2 of the share of users who have a recommended item in train, in bits."""
    precision: float = math.nan
    """Share of the k places that hold test items."""
    map: float = math.nan
    """Mean of the average precision: precision at each hit, over min(k, test items)."""
    per_user: Mapping[str, NDArray] | None = field(default=None, repr=False, compare=False)
    """The same metrics of each user, by name, beside their ids in `user`: columns of a table."""

    def as_row(self) -> dict[str, float | int]:
        """Return NDCG and recall, the two metrics that tables compare."""
        return {f"ndcg@{self.k}": self.ndcg, f"recall@{self.k}": self.recall}

    def full_row(self) -> dict[str, float | int]:
        """Return all metrics."""
        more = ("mrr", "hit_rate", "coverage", "novelty", "precision", "map")
        return self.as_row() | {f"{name}@{self.k}": getattr(self, name) for name in more}


def measure_rankings(
    items: NDArray[np.int64], test: sp.csr_array
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return recall and NDCG of each ranked list (users, k) against the same users' test items."""
    return grade_rankings(items, test)[:2]


def grade_rankings(
    items: NDArray[np.int64], test: sp.csr_array
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Return recall, NDCG, the place of the first test item and average precision of each list.

    Places count from 1; 0 stands for a list without a test item.
    """
    k, wanted = items.shape[1], np.diff(test.indptr)
    width = max(test.shape[1], int(items.max(initial=0)) + 1)
    rows = np.arange(len(items))
    relevant = np.repeat(rows, wanted) * width + test.indices
    hit = np.isin(rows[:, None] * width + items, relevant, kind="sort") & (items >= 0)
    hits, gains = np.cumsum(hit, axis=1), discounts(k)
    # Sums in the order of places, as for a single list.
    ndcg = np.cumsum(hit * gains, axis=1)[:, -1]
    ndcg /= np.cumsum(gains)[np.clip(wanted, 1, k) - 1]
    average = np.cumsum(hit * (hits / np.arange(1, k + 1)), axis=1)[:, -1]
    first = np.where(hit.any(axis=1), hit.argmax(axis=1) + 1, 0)
    return hits[:, -1] / wanted, ndcg, first, average / np.clip(wanted, 1, k)


@lru_cache(maxsize=16)
def discounts(k: int) -> NDArray[np.float64]:
    """Return 1 / log2(place + 1) for each place of a list, counted from 1.

    The values have the same bits on every machine, because clients sum numbers computed from them
    (`federated/contributions/validation.py`).
    """
    found = np.array([exact.ratio_of_logarithms(2, place + 1) for place in range(1, k + 1)])
    found.flags.writeable = False
    return found


@dataclass(frozen=True)
class Batch:
    """Some of the users that have test items, with their train and test rows."""

    users: NDArray[np.int64]
    train: sp.csr_array
    test: sp.csr_array


def tested_batches(
    dataset: Dataset, size: int = USERS_AT_ONCE, *, weighted: bool = False
) -> Iterator[Batch]:
    """Yield all users that have test items in batches; `weighted` gives weights instead of ones."""
    histories = dataset.train.weighted_matrix() if weighted else dataset.train.matrix
    users = np.flatnonzero(dataset.test.user_degrees)
    if not len(users):
        raise DataError(f"{dataset.name}: no user has a test item")
    # Pick the rows of many batches at once: indexing per batch is slower than slicing.
    for many in range(0, len(users), BATCHES_AT_ONCE * size):
        part = users[many : many + BATCHES_AT_ONCE * size]
        train, test = histories[part], dataset.test.matrix[part]
        for start in range(0, len(part), size):
            some = slice(start, start + size)
            yield Batch(part[some], train[some], test[some])


def rank_unseen(scores: NDArray[np.float32], seen: sp.csr_array, k: int) -> NDArray[np.int64]:
    """Return the k best items of each row that are not in its history.

    May overwrite the scores.
    """
    return Parts(np.ascontiguousarray(scores, np.float32)).best(k, seen)[0]


def ranker(
    scorer: Scorer | UserScorer | Lists, dataset: Dataset, k: int, weighted: bool = False
) -> Callable[[Batch], NDArray[np.int64]]:
    """Return a function that ranks the k best unseen items for a batch, or takes given lists.

    The scorer is prepared here for the number of users with test items.
    """
    k = min(count_of(k, "k"), max(dataset.train.n_items, 1))  # longer lists would have empty places
    if _is_lists(scorer):
        lists = _columns_of(scorer, dataset, k)
        return lambda batch: lists[batch.users]
    _check_items(scorer, dataset)
    if weighted:
        if not isinstance(scorer, WeightScorer):
            raise UsageError(f"{type(scorer).__name__} cannot score by the weights of histories")
        return lambda batch: scorer.weighted_parts(batch.train).best(k, batch.train)[0]
    if isinstance(scorer, UserScorer):
        return lambda batch: rank_unseen(scorer.score_users(batch.users), batch.train, k)
    if not isinstance(scorer, PartScorer):
        return lambda batch: rank_unseen(scorer.score(batch.train), batch.train, k)
    users = dataset.test.user_degrees > 0
    scorer.ready_for(int(users.sum()), int(dataset.train.user_degrees[users].sum()))
    return lambda batch: scorer.parts(batch.train).best(k, batch.train)[0]


def _check_items(scorer: Scorer | UserScorer, dataset: Dataset) -> None:
    """Raise UsageError if the model's items have other ids: its columns would be other items."""
    theirs, ours = getattr(scorer, "item_ids", None), dataset.train.item_ids
    if theirs is None or np.array_equal(theirs, np.arange(len(theirs))):
        return
    if len(theirs) == len(ours) and not np.array_equal(theirs, ours):
        raise UsageError(f"the items of the model have other ids than those of {dataset.name}")


def _check_given(scorer: object, dataset: object) -> None:
    """Raise UsageError if the arguments of `evaluate` are swapped or the data is not split."""
    if not isinstance(dataset, Dataset):
        raise UsageError(
            f"evaluate(model, dataset): a Dataset, as split and load_dataset give it, not "
            f"{type(dataset).__name__}"
        )
    known = hasattr(scorer, "score") or isinstance(scorer, UserScorer) or _is_lists(scorer)
    if not known:
        raise UsageError(
            f"evaluate(model, dataset): a fitted model, or lists, not {type(scorer).__name__}, "
            "which has no method score"
        )


@overload
def evaluate(
    scorer: Scorer | UserScorer | Lists,
    dataset: Dataset,
    k: int = 20,
    progress: Progress | bool | None = None,
    *,
    weighted: bool = False,
) -> Metrics: ...


@overload
def evaluate(
    scorer: Scorer | UserScorer | Lists,
    dataset: Dataset,
    k: Sequence[int],
    progress: Progress | bool | None = None,
    *,
    weighted: bool = False,
) -> dict[int, Metrics]: ...


def evaluate(
    scorer: Scorer | UserScorer | Lists,
    dataset: Dataset,
    k: int | Sequence[int] = 20,
    progress: Progress | bool | None = None,
    *,
    weighted: bool = False,
) -> Metrics | dict[int, Metrics]:
    """Rank all items but the train items for every user with a test item, and average the metrics.

    Parameters
    ----------
    scorer
        A fitted model, or anything else with a method `score`. Lists of another library are graded
        too: a dictionary from user id to item ids, best first, or a DataFrame of users and items as
        `recommend_frame` returns it. A user without a list counts as one without a hit.
    dataset
        Histories to rank from (train) and items that should be found (test).
    k
        Number of items of each ranking that count; of several numbers, a dictionary of Metrics
        comes back.
    progress
        True shows a bar; a function is called with the number of users done and the total.
    weighted
        If true, each item of a train history counts by its weight, as in
        `recommend(..., weighted=True)`. Otherwise all count equally, and a DataWarning says so if
        weights differ, whatever the model was fitted on. Test items always count as one.
    """
    _check_given(scorer, dataset)
    depths = [count_of(depth, "k") for depth in (k if isinstance(k, Sequence) else [k])]
    if not depths:
        raise UsageError("k names no number of items")
    as_interactions(dataset.train, weighted)  # for its errors and warnings only
    dataset.check_apart()
    with reporting(progress, "ranking") as report:
        ranked = _ranked(ranker(scorer, dataset, max(depths), weighted), dataset, report, weighted)
    users = np.flatnonzero(dataset.test.user_degrees)
    test = dataset.test.matrix[users]
    found = {depth: _metrics(ranked[:, :depth], test, dataset, depth) for depth in depths}
    return found if isinstance(k, Sequence) else found[depths[0]]


def _ranked(
    rank: Callable[[Batch], NDArray[np.int64]],
    dataset: Dataset,
    report: Progress | None,
    weighted: bool,
) -> NDArray[np.int64]:
    """Return the list of every user with a test item.

    Each thread works on its own batches of users. This scales; threads inside one batch mostly wait
    for each other.
    """
    total = int(np.count_nonzero(dataset.test.user_degrees))
    batches = tested_batches(dataset, weighted=weighted)

    def work(batch: Batch) -> NDArray[np.int64]:
        with one_kernel_thread():
            return rank(batch)

    lists: list[NDArray[np.int64]] = []
    done = 0

    def take(some: NDArray[np.int64]) -> None:
        nonlocal done
        lists.append(some)
        done += len(some)
        if report:
            report(done, total)

    # Rank the first batch alone: it triggers lazy preparation and starts the kernels.
    take(work(next(batches)))
    with threadpool_limits(limits=1, user_api="blas"), ThreadPoolExecutor(_workers()) as pool:
        try:
            for some in pool.map(work, batches):
                take(some)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # so Ctrl-C ends at once
            raise
    return np.concatenate(lists)


def _metrics(ranked: NDArray[np.int64], test: sp.csr_array, dataset: Dataset, k: int) -> Metrics:
    ranked = np.ascontiguousarray(ranked)
    recall, ndcg, first, average = grade_rankings(ranked, test)
    n_items = dataset.train.n_items
    known = ranked[(ranked >= 0) & (ranked < n_items)]
    shown = np.bincount(known, minlength=n_items)
    found = first > 0
    per_user = {
        "ndcg": ndcg,
        "recall": recall,
        "mrr": found / np.maximum(first, 1),
        "hit_rate": found.astype(np.float64),
        "precision": np.rint(recall * np.diff(test.indptr)) / k,
        "map": average,
    }
    users = dataset.test.user_ids[np.flatnonzero(dataset.test.user_degrees)]
    return Metrics(
        **{name: float(values.mean()) for name, values in per_user.items()},
        users=len(users),
        k=k,
        coverage=int(np.count_nonzero(shown)) / n_items,
        novelty=_novelty(shown, dataset.train.item_degrees, dataset.train.n_users),
        per_user={"user": users, **per_user},
    )


def _is_lists(scorer: object) -> bool:
    return isinstance(scorer, Mapping) or is_frame(scorer)


def _columns_of(lists: Lists, dataset: Dataset, k: int) -> NDArray[np.int64]:
    """Return given lists as columns of the data, -1 after their ends, one row for each user.

    An item that the data does not have takes its place, as one that nobody wanted.
    """
    if isinstance(lists, Mapping):
        users = [user for user, items in lists.items() for _ in list(items)[:k]]
        items = [item for some in lists.values() for item in list(some)[:k]]
        rows = Rows(clean_ids(users, "lists"), clean_ids(items, "lists"))
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            rows = rows_of_frame(lists, FrameOptions())
        if "rank" in lists.columns:
            order = np.argsort(np.asarray(lists["rank"].to_numpy()), kind="stable")
            rows = Rows(rows.users[order], rows.items[order])
    at = places_of(rows.users, dataset.train.user_ids)
    column = places_of(rows.items, dataset.train.item_ids)
    n_items = dataset.train.n_items
    order = np.argsort(at, kind="stable")
    at, column = at[order], column[order]
    place = np.arange(len(at)) - np.searchsorted(at, at)
    kept = (at >= 0) & (place < k)
    out = np.full((dataset.train.n_users, k), -1, np.int64)
    out[at[kept], place[kept]] = np.where(column[kept] < 0, n_items, column[kept])
    known = np.sort(np.where(out < n_items, out, -1), axis=1)
    twice = ((known[:, 1:] == known[:, :-1]) & (known[:, 1:] >= 0)).any(axis=1)
    if twice.any():
        raise UsageError(f"the list of user {dataset.train.user_ids[twice][0]} names an item twice")
    without = int(((out[:, 0] < 0) & (dataset.test.user_degrees > 0)).sum())
    if without:
        warn_of_data(f"{without:,} users with test items have no list: each counts as no hit")
    return out


def _novelty(shown: NDArray[np.int64], item_degrees: NDArray[np.int64], n_users: int) -> float:
    """Return the mean self-information of the shown items, in bits.

    An item without users counts as if one user had it.
    """
    share = np.maximum(item_degrees, 1) / max(n_users, 1)
    return float(shown @ -np.log2(share) / max(int(shown.sum()), 1))


def _workers() -> int:
    """Return the number of kernel threads, or 1 if kernels must not be called concurrently."""
    return numba.get_num_threads() if numba.threading_layer() in ("omp", "tbb") else 1


# --- accuracy by popularity -----------------------------------------------------------------------

FIFTHS = 5
"""Number of groups of items with about equal train interactions, the most popular items first.

The first fifth holds the few most popular items, the last one thousands of items that few users
have. NDCG@k of a fifth uses the complete ranking, counts only hits among the items of the fifth,
and is a mean over the users with a test item in it; it is 0 if there is no such user.
"""


@dataclass(frozen=True)
class ByFifths:
    """Metrics over all items, and NDCG of each fifth, the most popular one first."""

    overall: Metrics
    ndcg: tuple[float, ...]


def fifth_of_items(item_degrees: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the fifth of each item, counted from 0; items of equal degree are sorted by number."""
    order = np.argsort(-item_degrees, kind="stable")
    before = np.cumsum(item_degrees[order]) - item_degrees[order]
    fifth = np.empty(len(order), np.int64)
    fifth[order] = np.minimum(FIFTHS * before // max(1, int(item_degrees.sum())), FIFTHS - 1)
    return fifth


def evaluate_by_fifths(scorer: Scorer, dataset: Dataset, k: int = 20) -> ByFifths:
    """Rank the items once per user and measure the rankings on all items and on each fifth."""
    fifth = fifth_of_items(dataset.train.item_degrees)
    recall, gained = 0.0, np.zeros(FIFTHS + 1)
    people = np.zeros(FIFTHS + 1, np.int64)
    rank = ranker(scorer, dataset, k)
    for batch in tested_batches(dataset):
        ranked = rank(batch)
        found, gains = measure_rankings(ranked, batch.test)
        recall += float(found.sum())
        gained[FIFTHS] += gains.sum()
        people[FIFTHS] += len(gains)
        for number in range(FIFTHS):
            part = _only(batch.test, fifth == number)
            has = np.diff(part.indptr) > 0
            gains = measure_rankings(ranked[has], part[has])[1]
            gained[number] += gains.sum()
            people[number] += len(gains)
    means = gained / np.maximum(people, 1)
    total = int(people[FIFTHS])
    overall = Metrics(recall / total, float(means[FIFTHS]), total, k)
    return ByFifths(overall, tuple(float(mean) for mean in means[:FIFTHS]))


def _only(test: sp.csr_array, wanted: NDArray[np.bool_]) -> sp.csr_array:
    """Return the test rows with the items marked in `wanted` only."""
    keep = wanted[test.indices]
    indptr = np.concatenate([[0], np.cumsum(keep)])[test.indptr]
    return sp.csr_array((test.data[keep], test.indices[keep], indptr), shape=test.shape)
