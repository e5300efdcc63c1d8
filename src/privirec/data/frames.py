"""DataFrame input and output; pandas and polars are recognised by duck typing, never imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from privirec.data.columns import Columns, TableOptions, choose_columns
from privirec.data.ids import clean_ids
from privirec.data.rows import Rows, with_more
from privirec.errors import DataError, UsageError

SOURCE = "DataFrame"
"""Name of a DataFrame in messages."""


class FrameOptions(TableOptions):
    """Table options whose messages use the parameter names of `Interactions.from_frame`."""

    def how(self, option: str, value: object = "...") -> str:
        said = super().how(option.removesuffix("_column"), value)
        return f"Interactions.from_frame(..., {said})"


def is_frame(data: object) -> bool:
    """Return True if `data` is a table with named columns, such as those of pandas and polars."""
    if isinstance(data, np.ndarray) or sp.issparse(data) or isinstance(data, Mapping):
        return False
    if hasattr(type(data), "collect") and hasattr(type(data), "columns"):
        raise UsageError("a lazy frame has no rows yet: collect() it first")
    return hasattr(data, "columns") and hasattr(data, "__getitem__")


def columns_of_frame(
    frame: Any, options: TableOptions, source: Path | str = SOURCE
) -> tuple[list[str], Columns]:
    """Return the names of all columns, and the columns that are used."""
    names = [str(name) for name in frame.columns]
    return names, choose_columns(source, names, options)


def rows_of_frame(frame: Any, options: TableOptions, source: Path | str = SOURCE) -> Rows:
    """Return the rows of a frame as interactions; `source` names it in messages.

    None, NaN and negative ids raise DataError with their row number.
    """
    names, columns = columns_of_frame(frame, options, source)
    if not len(frame):
        raise DataError(f"{source}: no rows")

    def values(column: int) -> NDArray:
        found = frame[frame.columns[column]]
        if getattr(getattr(found, "dtype", None), "tz", None) is not None:
            found = found.dt.tz_convert(None)  # UTC; as objects they take twenty times as long
        return np.asarray(found.to_numpy())

    def ids(column: int) -> NDArray:
        return clean_ids(values(column), f"{source}: column {names[column]}")

    items = ids(columns.item)
    users = np.full(len(items), options.only_user) if columns.user is None else ids(columns.user)
    rows = with_more(Rows(users, items), source, names, columns, values, options)
    if not len(rows):
        raise DataError(f"{source}: no row has a rating of {options.min_rating:g} or more")
    return rows


def rows_of_users(frame: Any, users: NDArray) -> Any:
    """Return the rows of some users, or the whole frame if one of them is not found at a glance.

    Turning all ids of a frame into numbers takes a hundred times as long.
    """
    _, columns = columns_of_frame(frame, FrameOptions())
    if columns.user is None or not len(users):
        return frame
    column = frame[frame.columns[columns.user]]
    is_text = str(column.dtype).lower() in ("object", "str", "string", "utf8")
    if is_text != (users.dtype.kind == "U"):
        return frame
    if is_text:
        contains = column.isin if hasattr(column, "isin") else column.is_in
        chosen = np.asarray(contains(users.tolist()))
    else:
        chosen = np.isin(np.asarray(column.to_numpy()), users)
    found = getattr(frame, "iloc", frame)[np.flatnonzero(chosen)]
    present = found[frame.columns[columns.user]].to_numpy()
    return found if len(found) and np.isin(users, np.unique(present)).all() else frame


def frame_like(frame: Any, columns: Mapping[str, ArrayLike]) -> Any:
    """Return a frame of the same library as `frame`."""
    return type(frame)(dict(columns))
