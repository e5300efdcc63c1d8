"""Accuracy by popularity: NDCG of one ranking, measured on one fifth of the items at a time.

Items are sorted by their number of users in train and cut into five groups of about equal train
interactions. The first fifth holds the few most popular items, the last one thousands of items
that few users have. NDCG@k of a fifth uses the complete ranking, counts only hits among the items
of the fifth, and is a mean over the users with a test item in it; it is 0 if there is no such user.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.data.interactions import Dataset
from privirec.evaluation.ranking import (
    Metrics,
    Scorer,
    measure_rankings,
    ranker,
    tested_batches,
)

FIFTHS = 5


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
