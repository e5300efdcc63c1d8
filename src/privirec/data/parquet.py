"""Parquet files, read with pyarrow if it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privirec.data.columns import TableOptions, choose_columns
from privirec.data.ids import clean_ids
from privirec.data.rows import Rows, with_more
from privirec.errors import DataError


def read_parquet(path: Path, options: TableOptions) -> Rows:
    """Read all rows of a file."""
    pieces = list(parquet_pieces(path, options))
    if not pieces:
        raise DataError(f"{path}: a header and no rows")
    return pieces[0]


def parquet_pieces(path: Path, options: TableOptions, rows: int | None = None) -> Iterator[Rows]:
    """Yield the table in pieces of `rows` rows, or in one piece."""
    try:
        import pyarrow as pa  # noqa: PLC0415  (optional)
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError:
        raise DataError(
            f"{path}: reading Parquet needs pyarrow: pip install 'pyarrow>=14'"
        ) from None
    try:
        header = list(parquet.read_schema(path).names)
        columns = choose_columns(path, header, options)
        wanted = (columns.user, columns.item, columns.rating, columns.time, columns.weight)
        names = [header[column] for column in dict.fromkeys(wanted) if column is not None]
        if rows is None:
            tables: Iterator[Any] = iter([parquet.read_table(path, columns=names)])
        else:
            batches = parquet.ParquetFile(path).iter_batches(rows, columns=names)
            tables = (pa.Table.from_batches([batch]) for batch in batches)
        before = 0
        for table in tables:
            if table.num_rows:

                def ids(column: int, table: Any = table, before: int = before) -> NDArray:
                    return _parquet_ids(path, header[column], table, before)

                def values(column: int, table: Any = table) -> NDArray:
                    return np.asarray(table.column(header[column]).to_numpy())

                items = ids(columns.item)
                users = (
                    np.full(len(items), options.only_user)
                    if columns.user is None
                    else ids(columns.user)
                )
                found = Rows(users, items)
                yield with_more(found, path, header, columns, values, options)
            before += table.num_rows
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except pa.ArrowException as error:
        raise DataError(f"{path}: not a Parquet file: {str(error).splitlines()[0]}") from None


def _parquet_ids(path: Path, name: str, table: Any, before: int) -> NDArray:
    """Return a column as ids; `before` rows of the file come before this table."""
    column = table.column(name)
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy())) + 1
        raise DataError(f"{path}: row {before + row}: column {name} is empty")
    values = column.to_numpy()
    if values.dtype.kind in "iu" and values.min() < 0:
        at = int(np.argmax(values < 0))
        row = before + at + 1
        raise DataError(f"{path}: row {row}: negative id {values[at]} in column {name}")
    return clean_ids(values, f"{path}: column {name}")
