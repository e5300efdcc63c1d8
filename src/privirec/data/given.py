"""Input adapters: histories in any supported form, with or without weights, and counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp

from privirec.data.frames import FrameOptions, columns_of_frame, is_frame
from privirec.data.interactions import Interactions, is_pairs, sparse_rows
from privirec.errors import UsageError, warn_of_data

UserItems = Any
"""Histories: a sparse or dense matrix (rows users, columns items), Interactions, a pandas or polars
DataFrame with a row for each interaction, or a list of pairs (user, item)."""
Progress = Callable[[int, int], None]
# Weights below this, relative to a mean of one, vanish in single precision next to any other.
_LEAST_WEIGHT = 1e-12


def warn_of_weights(histories: sp.csr_array) -> None:
    """Warn that values are ignored, if they differ and a user could expect them to count."""
    values = histories.data[histories.data != 0]
    if len(values) and (values != values[0]).any():
        warn_of_data(
            f"values from {values.min():g} to {values.max():g} in user_items: each counts as one "
            "interaction, whatever its value; weighted=True looks at values. Leave out what "
            "is not an interaction"
        )


def rows_over(user_items: UserItems, n_items: int) -> sp.csr_array:
    """Return a matrix of histories as sparse rows, without stored zeros and repeated entries."""
    histories = sparse_rows(user_items)
    if histories.ndim == 1:  # the result of indexing a sparse array with one number
        histories = sp.csr_array(histories.reshape(1, -1))
    if histories.shape[1] != n_items:
        raise UsageError(f"histories over {histories.shape[1]} items, filters over {n_items}")
    if not histories.has_canonical_format or not histories.data.all():
        histories = histories.copy()
        histories.sum_duplicates()
        histories.eliminate_zeros()
    return histories


def as_interactions(user_items: UserItems, weighted: bool | str = False) -> Interactions:
    """Convert histories of any form to Interactions; keep weights only if `weighted` is set."""
    if is_frame(user_items):
        if weighted is True:
            raise UsageError('weights of a DataFrame stand in a column: name it, weighted="..."')
        return Interactions.from_frame(user_items, weight=weighted or None)
    check_no_column(weighted)
    if is_pairs(user_items):
        user_items = Interactions.of(user_items)
    if isinstance(user_items, Interactions):
        if weighted and user_items.weights is None:
            raise UsageError(
                'these Interactions have no weights: Interactions.from_frame(..., weight="...") '
                "and from_matrix(..., weighted=True) give them some"
            )
        if not weighted:
            warn_of_weights(user_items.weighted_matrix())
        return user_items if weighted else user_items.unweighted()
    rows = sparse_rows(user_items)
    if not weighted:
        warn_of_weights(rows)
    return Interactions.from_matrix(rows, weighted=bool(weighted))


def is_history(user_items: UserItems) -> bool:
    """Return True for a list of items, the history of one person."""
    if not isinstance(user_items, list | tuple | set | frozenset):
        return False
    return all(isinstance(item, str | Integral) for item in user_items)


def joined(parts: Sequence[Interactions]) -> Interactions:
    """Return the users of all parts one after the other, over the items of all parts."""
    if not parts:
        raise UsageError("there is nobody to learn from: no clients")
    kinds = {part.item_ids.dtype.kind == "U" for part in parts}
    if len(kinds) > 1:
        raise UsageError("some clients number their items and others name them: make all ids text")
    items = np.unique(np.concatenate([part.item_ids for part in parts]))
    rows = sp.vstack([part.over(part.user_ids, items).matrix for part in parts], format="csr")
    return Interactions.from_matrix(rows, item_ids=items)


def check_no_column(weighted: bool | str) -> None:
    """Raise UsageError if `weighted` names a column: only a DataFrame has named columns."""
    if isinstance(weighted, str):
        raise UsageError(f"weighted={weighted!r} names a column of a DataFrame, and this is none")


def relative(train: Interactions) -> Interactions:
    """Scale weights to a mean of one.

    Their unit then does not matter, and settings that count people, such as a regularisation, mean
    the same as without weights. If all weights are equal, they are dropped.
    """
    if train.weights is None or not len(train.weights):
        return train.unweighted()
    # Dividing by the largest first avoids overflow and makes equal weights exactly one.
    weights = train.weights / train.weights.max()
    weights /= weights.mean()
    if weights.min() < _LEAST_WEIGHT:
        low, high = train.weights.min(), train.weights.max()
        raise UsageError(f"weights from {low:g} to {high:g} differ too much for single precision")
    return train.unweighted() if (weights == 1).all() else replace(train, weights=weights)


def framed(user_items: UserItems, weighted: bool | str) -> tuple[list[str], Interactions, Any]:
    """Return the names of the user and item columns, the interactions, and a frame to answer in."""
    if is_frame(user_items):
        names, columns = columns_of_frame(user_items, FrameOptions())
        assert columns.user is not None  # noqa: S101 - without one it would have been refused
        chosen = [names[columns.user], names[columns.item]]
        return chosen, as_interactions(user_items, weighted), user_items
    try:
        import pandas  # noqa: PLC0415 - optional
    except ImportError:
        raise UsageError(
            "a DataFrame needs pandas or polars: pip install pandas, or give a frame of either"
        ) from None
    return ["user", "item"], as_interactions(user_items, weighted), pandas.DataFrame()


@contextmanager
def reporting(progress: Progress | bool | None, name: str) -> Iterator[Progress | None]:
    """Yield the function to call with the work done and all of it; True stands for a bar."""
    if progress is True:
        from privirec.progress import shown_progress  # noqa: PLC0415 - few need it

        with shown_progress() as phases:
            yield phases(name)
    elif progress is None or progress is False or callable(progress):
        yield progress or None
    else:
        raise UsageError(f"progress is True or a function (done, total), not {progress!r}")


def count_of(number: object, name: str) -> int:
    """Return `number` as an int; raise UsageError unless it is a whole number from one on."""
    if isinstance(number, bool) or not isinstance(number, Integral):
        raise UsageError(f"{name} must be a whole number, not {number!r}")
    if number < 1:
        raise UsageError(f"{name} must be at least 1")
    return int(number)
