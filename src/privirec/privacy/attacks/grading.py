"""Grading of attacks: how much of the truth they found.

The truth is used only here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.data.interactions import Interactions
from privirec.privacy.attacks.base import Control, Found, Guesses, Test

FALSE_POSITIVES = 0.001
"""False positive rate that a cautious attacker accepts."""
PARTS = 5
_MOST_MATCHED = 1_000


class RecoveredHistories(Protocol):
    """Histories in compressed rows: row u is `indices[indptr[u]:indptr[u + 1]]`, items
    ascending."""

    @property
    def indptr(self) -> NDArray[np.int64]: ...

    @property
    def indices(self) -> NDArray[np.int32]: ...


def graded(found: Found, truth: Interactions) -> dict[str, Any]:
    """Return all grades of a result, except for its own facts."""
    row: dict[str, Any] = {"users": None, "users_recovered": None, "users_wrong": None}
    row |= {"interaction_precision": None, "interaction_recall": None}
    if found.claims_histories:
        row |= grade(found, truth, found.visible_items)
        row |= grade_beside_popularity(found, truth, found.visible_items)
        if found.n_users:
            row |= grade_by_parts(found, truth, found.visible_items)
    if found.rows:
        row |= grade_rows(found.rows, truth)
    if found.users_of or found.rows_tried is not None:
        row |= grade_user_lists(found.users_of, found.rows_tried, truth)
    if found.control is not None:
        row |= grade_control(found.control)
    if found.guesses is not None:
        row |= grade_guesses(found.guesses)
    if found.tests:
        row |= grade_tests(found.tests)
    return row


def grade(
    recovered: RecoveredHistories,
    truth: Interactions,
    visible_items: NDArray[np.bool_] | None = None,
) -> dict[str, int | float | None]:
    """Match recovered histories with true ones, each at most once, as whole sets of items.

    Users without interactions leave no trace and do not count. An interaction is right if its
    history is. If nothing was claimed, the precision is None. If the release left items out,
    `visible_items` marks those it contains: interactions and `parts_recovered` then refer to the
    part of each history on these items, while `users_recovered` counts whole histories only.
    """
    matrix = _visible(truth, visible_items)
    true = _histories(matrix.indptr, matrix.indices)
    found = _histories(recovered.indptr, recovered.indices)
    right = true & found
    right_interactions = _interactions(right)
    claimed = _interactions(found)
    row: dict[str, int | float | None] = {
        "users": true.total(),
        "users_recovered": right.total(),
        "users_wrong": found.total() - right.total(),
        "interaction_precision": right_interactions / claimed if claimed else None,
        "interaction_recall": _share(right_interactions, _interactions(true)),
    }
    if visible_items is None:
        return row
    whole = _histories(truth.matrix.indptr, truth.matrix.indices)
    counts = {
        "users": whole.total(),
        "users_recovered": (whole & found).total(),
        "parts": true.total(),
        "parts_recovered": right.total(),
    }
    return row | counts


def grade_beside_popularity(
    recovered: RecoveredHistories,
    truth: Interactions,
    visible_items: NDArray[np.bool_] | None = None,
) -> dict[str, int | float | None]:
    """Compare the claims with guesses by popularity.

    The precisions are the share of a claim that lies in the most similar true history, and the same
    for equally many of the most popular items. `popularity_recovered` is the number of histories
    hit by chance, by equally many sets of the same lengths drawn by popularity.
    """
    bounds = list(pairwise(recovered.indptr.tolist()))[:_MOST_MATCHED]
    if not bounds:
        return {
            "matched_precision": None,
            "popularity_precision": None,
            "popularity_recovered": None,
        }
    matrix = _visible(truth, visible_items)
    matrix.sort_indices()
    popular = np.argsort(-np.bincount(matrix.indices, minlength=matrix.shape[1]), kind="stable")
    claims = [recovered.indices[start:stop] for start, stop in bounds]
    guesses = [popular[: stop - start] for start, stop in bounds]
    return {
        "matched_precision": _matched(claims, matrix),
        "popularity_precision": _matched(guesses, matrix),
        "popularity_recovered": (
            _histories(matrix.indptr, matrix.indices) & _drawn([len(one) for one in claims], matrix)
        ).total(),
    }


def _drawn(lengths: Sequence[int], matrix: sp.csr_array) -> Counter[bytes]:
    """Draw sets of these lengths by popularity, without replacement (Gumbel trick)."""
    popularity = np.bincount(matrix.indices, minlength=matrix.shape[1])
    in_use = np.flatnonzero(popularity)
    scores = np.log(popularity[in_use])
    rng = np.random.Generator(np.random.Philox(5))
    drawn: Counter[bytes] = Counter()
    for length in lengths:
        perturbed = scores + rng.gumbel(size=len(scores))
        chosen = in_use[np.argsort(-perturbed)[:length]]
        drawn[np.sort(chosen).astype(np.int32).tobytes()] += 1
    return drawn


def grade_by_parts(
    recovered: RecoveredHistories,
    truth: Interactions,
    visible_items: NDArray[np.bool_] | None = None,
) -> dict[str, float | None]:
    """Return precision and recall by fifths of history length and of item popularity.

    The shortest and the rarest come first. Fifths are of the true histories and of the true
    interactions.
    """
    matrix = _visible(truth, visible_items)
    true = _histories(matrix.indptr, matrix.indices)
    found = _histories(recovered.indptr, recovered.indices)
    right = true & found
    kinds = [_Flat.of(one) for one in (true, found, right)]
    popularity = np.bincount(matrix.indices, minlength=matrix.shape[1])
    row: dict[str, float | None] = {}
    for name, measure in (
        ("length", lambda flat: flat.lengths),
        ("popularity", lambda flat: popularity[flat.items]),
    ):
        weights = [measure(flat) for flat in kinds]
        edges = (
            np.quantile(weights[0], np.linspace(0, 1, PARTS + 1)[1:-1]) if len(weights[0]) else 0
        )
        counts = [
            np.bincount(np.searchsorted(np.atleast_1d(edges), values), minlength=PARTS)
            for values in weights
        ]
        for part in range(PARTS):
            all_true, claimed, correct = (int(count[part]) for count in counts)
            row[f"recall_by_{name}_{part + 1}"] = correct / all_true if all_true else None
            row[f"precision_by_{name}_{part + 1}"] = correct / claimed if claimed else None
    return row


@dataclass(frozen=True)
class _Flat:
    """Histories as single interactions, and the length of each history."""

    items: NDArray[np.int32]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, histories: Counter[bytes]) -> _Flat:
        lists = [np.frombuffer(one, np.int32) for one in histories.elements()]
        items = np.concatenate([np.zeros(0, np.int32), *lists])
        return cls(items, np.array([len(one) for one in lists], np.int64))


def grade_rows(rows: Mapping[int, NDArray[np.int32]], truth: Interactions) -> dict[str, int]:
    """Count the claimed rows of the item-item matrix that contain exactly the right items."""
    by_item = truth.matrix.T.tocsr()
    right = 0
    for item, claimed in rows.items():
        users = by_item.indices[by_item.indptr[item] : by_item.indptr[item + 1]]
        right += bool(np.array_equal(np.unique(truth.matrix[users].indices), claimed))
    return {"rows_recovered": right, "rows_wrong": len(rows) - right}


def grade_user_lists(
    users_of: Mapping[int, NDArray[np.int64]], tried: int | None, truth: Interactions
) -> dict[str, int | float]:
    """Count the items with exactly the right users."""
    by_item = truth.matrix.T.tocsr()
    by_item.sort_indices()
    right = sum(
        np.array_equal(by_item.indices[by_item.indptr[item] : by_item.indptr[item + 1]], users)
        for item, users in users_of.items()
    )
    tried = len(users_of) if tried is None else tried
    return {
        "lists_tried": tried,
        "lists_recovered": int(right),
        "lists_wrong": len(users_of) - int(right),
        "lists_share": _share(int(right), tried),
    }


def grade_control(control: Control) -> dict[str, int | float]:
    """Compare guesses with people who took part and with equally many who did not.

    For each group, return the number of whole histories hit, and the share of a guess that lies in
    the most similar history.
    """
    claims = {np.sort(claim).astype(np.int32).tobytes() for claim in control.claims}
    hits = [
        len(claims & _histories(people.matrix.indptr, people.matrix.indices).keys())
        for people in (control.inside, control.outside)
    ]
    some = control.claims[:_MOST_MATCHED]
    return {
        "control_precision": _matched(some, control.inside.matrix),
        "control_precision_on_outsiders": _matched(some, control.outside.matrix),
        "control_guesses": len(claims),
        "control_hits_on_participants": hits[0],
        "control_hits_on_outsiders": hits[1],
    }


def grade_guesses(guesses: Guesses) -> dict[str, int | float | None]:
    """Return precision and recall of guesses about named people, next to those by popularity."""
    claimed = sum(map(len, guesses.guessed))
    right = _common(guesses.guessed, guesses.truth)
    usual = sum(map(len, guesses.from_popularity))
    exact = sum(
        bool(np.array_equal(np.sort(one), np.sort(true)))
        for one, true in zip(guesses.guessed, guesses.truth, strict=True)
    )
    wrong = sum(map(bool, map(len, guesses.guessed))) - exact
    by_popularity = _common(guesses.from_popularity, guesses.truth)
    return {
        "users": len(guesses.truth),
        "users_recovered": exact if guesses.whole else None,
        "users_wrong": wrong if guesses.whole else None,
        "interaction_precision": right / claimed if claimed else None,
        "interaction_recall": _share(right, sum(map(len, guesses.truth))),
        "popularity_precision": by_popularity / usual if usual else None,
    }


def grade_tests(tests: Mapping[str, Test]) -> dict[str, Any]:
    """Return the grades of the best membership test, and the area under the curve of every test."""
    areas = {name: area_under(test) for name, test in tests.items()}
    best = max(areas, key=lambda name: areas[name])
    test = tests[best]
    row: dict[str, Any] = {
        "candidates": len(test.scores),
        "outsiders": int(np.count_nonzero(~test.took_part)),
        "statistic": best,
        "auc": areas[best],
        "tpr_at_0.1%_fpr": true_positives_at(test, FALSE_POSITIVES),
        "tpr_at_1%_fpr": true_positives_at(test, 0.01),
        "tpr_at_10%_fpr": true_positives_at(test, 0.1),
    }
    if len(areas) > 1:
        row |= {f"auc_{name}": area for name, area in areas.items()}
    return row


def area_under(test: Test) -> float:
    """Return the probability that a participant scores higher than a non-participant."""
    inside, outside = test.scores[test.took_part], np.sort(test.scores[~test.took_part])
    if not len(inside) or not len(outside):
        return 0.5
    below = np.searchsorted(outside, inside, side="left")
    up_to = np.searchsorted(outside, inside, side="right")
    return float((below + up_to).mean() / (2 * len(outside)))


def true_positives_at(test: Test, false_positives: float) -> float:
    """Return the share of participants found at this false positive rate or less."""
    inside, outside = test.scores[test.took_part], np.sort(test.scores[~test.took_part])
    if not len(inside) or not len(outside):
        return 0.0
    allowed = int(false_positives * len(outside))
    threshold = outside[len(outside) - 1 - allowed]
    return float((inside > threshold).mean())


def roc(test: Test) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return false and true positive rates for every threshold, from none to all."""
    order = np.argsort(-test.scores, kind="stable")
    inside = test.took_part[order]
    last = np.append(np.diff(test.scores[order]) != 0, True)  # ties share one threshold
    true = np.cumsum(inside)[last] / max(1, int(inside.sum()))
    false = np.cumsum(~inside)[last] / max(1, int((~inside).sum()))
    return np.concatenate([[0.0], false]), np.concatenate([[0.0], true])


def _visible(truth: Interactions, visible_items: NDArray[np.bool_] | None) -> sp.csr_array:
    matrix = truth.matrix
    if visible_items is not None:
        matrix = matrix.copy()
        matrix.data[~visible_items[matrix.indices]] = 0
        matrix.eliminate_zeros()
    return matrix


def _matched(claims: Sequence[NDArray[Any]], matrix: sp.csr_array) -> float:
    """Return the share of claimed interactions that are in the most similar true histories."""
    indptr = np.concatenate([[0], np.cumsum([len(claim) for claim in claims])])
    indices = np.concatenate(claims)
    shape = (len(claims), matrix.shape[1])
    rows = sp.csr_array((np.ones(len(indices), np.float32), indices, indptr), shape=shape)
    common = sp.csr_array(rows @ matrix.T)
    best = common.max(axis=1).toarray().reshape(-1) if common.nnz else np.zeros(len(claims))
    return float(best.sum() / max(1, len(indices)))


def _common(some: Sequence[NDArray[Any]], others: Sequence[NDArray[Any]]) -> int:
    return sum(len(np.intersect1d(a, b)) for a, b in zip(some, others, strict=True))


def _histories(indptr: NDArray, indices: NDArray) -> Counter[bytes]:
    """Count each non-empty history, keyed by the bytes of its 32-bit item numbers."""
    items = indices.astype(np.int32, copy=False)
    bounds = pairwise(indptr.tolist())
    return Counter(items[start:stop].tobytes() for start, stop in bounds if stop > start)


def _interactions(histories: Counter[bytes]) -> int:
    return sum(len(items) // 4 * times for items, times in histories.items())


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
