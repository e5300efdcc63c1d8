"""Rows of any table: users, items and optionally times and weights, filtered by rating."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privirec.data.columns import Columns, TableOptions
from privirec.data.ids import clean_ratings, clean_times, clean_weights
from privirec.errors import DataError, warn_of_data


@dataclass(frozen=True)
class Rows:
    """Ids of users and items, with the times and weights of the interactions if known."""

    users: NDArray
    items: NDArray
    times: NDArray | None = None
    weights: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.items)


def with_more(
    rows: Rows,
    source: Path | str,
    names: Sequence[str],
    columns: Columns,
    values_of: Callable[[int], NDArray],
    options: TableOptions,
) -> Rows:
    """Add times and weights to the rows, and drop rows rated too low.

    `values_of` returns a column by its number; `source` and `names` are used in messages.
    """
    times = None
    if columns.time is not None:
        where = f"{source}: column {names[columns.time]}"
        try:
            times = clean_times(values_of(columns.time), where)
        except DataError as error:
            if options.time_column is not None:
                raise
            warn_of_data(f"{error}; read without times")
    weights = None
    if columns.weight is not None:
        where = f"{source}: column {names[columns.weight]}"
        weights = clean_weights(values_of(columns.weight), where)
    keep: Any = slice(None)
    if columns.rating is not None:
        where = f"{source}: column {names[columns.rating]}"
        values = values_of(columns.rating)
        if options.min_rating is not None:
            keep = clean_ratings(values, where) >= options.min_rating
        elif columns.rating != columns.weight and (values != values[0]).any():
            warn_of_data(
                f"{where} is not looked at: each row is an interaction, whatever its rating "
                f"({options.how('min_rating', 4)} keeps rows of 4 and more; 0 keeps all)"
            )
    times, weights = (None if more is None else more[keep] for more in (times, weights))
    return Rows(rows.users[keep], rows.items[keep], times, weights)
