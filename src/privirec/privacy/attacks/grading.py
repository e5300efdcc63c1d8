"""How much of the truth an attack found. The only place where the truth is looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from privirec.data.interactions import Interactions


class RecoveredHistories(Protocol):
    """Row u is `indices[indptr[u]:indptr[u + 1]]`: item numbers, ascending."""

    @property
    def indptr(self) -> NDArray[np.int64]: ...

    @property
    def indices(self) -> NDArray[np.int32]: ...


def grade(
    recovered: RecoveredHistories,
    truth: Interactions,
    visible_items: NDArray[np.bool_] | None = None,
) -> dict[str, int | float]:
    """Match recovered histories with true ones, each at most once, as whole sets of items.

    Users without interactions leave no trace and do not count. An interaction is right if its whole
    history is; where nothing was recovered, nothing is wrong and the precision is 1. If the release
    left items out, `visible_items` marks those it contains and only these are compared.
    """
    matrix = truth.matrix
    if visible_items is not None:
        matrix = matrix.copy()
        matrix.data[~visible_items[matrix.indices]] = 0
        matrix.eliminate_zeros()
    true = _histories(matrix.indptr, matrix.indices)
    found = _histories(recovered.indptr, recovered.indices)
    right = true & found
    right_interactions = _interactions(right)
    return {
        "users": true.total(),
        "users_recovered": right.total(),
        "users_wrong": found.total() - right.total(),
        "interaction_precision": _share(right_interactions, _interactions(found), empty=1.0),
        "interaction_recall": _share(right_interactions, _interactions(true), empty=0.0),
    }


def grade_rows(rows: Mapping[int, NDArray[np.int32]], truth: Interactions) -> dict[str, int]:
    """How many rows of the item-item matrix have the right items in them, for an attack that claims
    to have found some."""
    by_item = truth.matrix.T.tocsr()
    right = 0
    for item, claimed in rows.items():
        users = by_item.indices[by_item.indptr[item] : by_item.indptr[item + 1]]
        right += bool(np.array_equal(np.unique(truth.matrix[users].indices), claimed))
    return {"rows_recovered": right, "rows_wrong": len(rows) - right}


def _histories(indptr: NDArray, indices: NDArray) -> Counter[bytes]:
    """How often each non-empty history occurs, by the bytes of its 32-bit item numbers."""
    items = indices.astype(np.int32, copy=False)
    bounds = pairwise(indptr.tolist())
    return Counter(items[start:stop].tobytes() for start, stop in bounds if stop > start)


def _interactions(histories: Counter[bytes]) -> int:
    return sum(len(items) // 4 * times for items, times in histories.items())


def _share(part: int, whole: int, *, empty: float) -> float:
    return part / whole if whole else empty
