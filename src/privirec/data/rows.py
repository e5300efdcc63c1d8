"""Rows of any table: users, items and perhaps times; low ratings leave rows out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from privirec.data.columns import Columns, TableOptions
from privirec.data.ids import clean_ratings, clean_times
from privirec.errors import DataError, DataWarning


@dataclass(frozen=True)
class Rows:
    """Ids of users and items, and the moments of the interactions if they are known."""

    users: NDArray
    items: NDArray
    times: NDArray | None = None

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
    """Rows with their times, and without those that are rated too low.

    `values_of` gives a column by its number; `source` and `names` are what messages call things.
    """
    times = None
    if columns.time is not None:
        where = f"{source}: column {names[columns.time]}"
        try:
            times = clean_times(values_of(columns.time), where)
        except DataError as error:
            if options.time_column is not None:
                raise
            warnings.warn(f"{error}; read without times", DataWarning, stacklevel=4)
    keep: Any = slice(None)
    if columns.rating is not None:
        where = f"{source}: column {names[columns.rating]}"
        values = values_of(columns.rating)
        if options.min_rating is not None:
            keep = clean_ratings(values, where) >= options.min_rating
        elif (values != values[0]).any():
            warnings.warn(
                f"{where} is not looked at: each row is an interaction, whatever its rating "
                "(min_rating=4, or --min-rating 4, keeps rows of 4 and more; 0 keeps all)",
                DataWarning,
                stacklevel=4,
            )
    return Rows(rows.users[keep], rows.items[keep], None if times is None else times[keep])
