"""Files that hold interactions: which suffix means which format, and tables with two columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privirec.data.interactions import Interactions
from privirec.data.text import BYTE_ORDER_MARK, parse_integers, read_bytes, read_text
from privirec.errors import DataError

# How ids are usually called; compared in lower case, without "_" and without RecBole's ":token".
USUAL_USER_COLUMNS = ("user", "userid")
USUAL_ITEM_COLUMNS = ("item", "itemid", "movieid")

_DELIMITERS = {".csv": ",", ".tsv": "\t", ".inter": "\t", ".dat": "::"}
_MOVIELENS_HEADER = ["UserID", "MovieID", "Rating", "Timestamp"]  # its .dat files carry none
SUFFIXES = (".txt", *_DELIMITERS, ".parquet")
TABLES = (*_DELIMITERS, ".parquet")
"""What can be read in pieces."""
PIECE_BYTES = 1 << 25
LONGEST_ROW = 1 << 28


def read_interactions(
    path: str | Path, *, user_column: str | None = None, item_column: str | None = None
) -> Interactions:
    """Read any known format, told by the suffix; each row or rating is one interaction.

    Tables (.csv, .tsv, RecBole .inter, MovieLens .dat, .parquet) need a user and an item column;
    the usual names are found without being told. Ids are whole numbers or names.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(f"{path}: unknown kind of file; known are {', '.join(SUFFIXES)}")
    if suffix == ".txt":
        return read_text(path)
    read = _read_parquet if suffix == ".parquet" else _read_delimited
    users, items = read(path, user_column, item_column)
    return Interactions.from_pairs(users, items)


def read_pieces(
    path: str | Path,
    *,
    user_column: str | None = None,
    item_column: str | None = None,
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[tuple[NDArray, NDArray]]:
    """The rows of a table as (users, items), a piece in memory at a time.

    A piece whose ids are all whole numbers has numbers, whatever the pieces before it had.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        yield from _parquet_pieces(path, user_column, item_column, piece_bytes // 16)
        return
    if suffix not in _DELIMITERS:
        known = ", ".join(TABLES)
        raise DataError(f"{path}: not a table that can be read in pieces; known are {known}")
    header, lines, found = b"", 0, False
    for piece in _whole_lines(path, piece_bytes):
        if not lines and suffix != ".dat":
            header = piece[: piece.find(b"\n") + 1]
        # All pieces but the first get the header once more, which is not a line of the file.
        content, above = (header + piece, lines - 1) if header and lines else (piece, lines)
        if content[len(header) :].strip():
            found = True
            yield _parse_delimited(path, content, user_column, item_column, above)
        lines += piece.count(b"\n")
    if not found:
        raise DataError(f"{path}: {'a header and no rows' if lines else 'the file is empty'}")


def _whole_lines(path: Path, size: int) -> Iterator[bytes]:
    """The file in pieces of about this size that end where a row ends."""
    waiting = b""
    try:
        with path.open("rb") as file:
            while read := file.read(size):
                waiting = waiting + read if waiting else read.removeprefix(BYTE_ORDER_MARK)
                cut = waiting.rfind(b"\n") + 1
                while cut and waiting.count(b'"', 0, cut) % 2:  # inside a quoted field
                    cut = waiting.rfind(b"\n", 0, cut - 1) + 1
                if cut:
                    yield waiting[:cut]
                    waiting = waiting[cut:]
                elif len(waiting) > LONGEST_ROW:
                    raise DataError(f"{path}: a row of more than {LONGEST_ROW:,} bytes")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    if waiting:
        yield waiting + b"\n"


def _read_delimited(
    path: Path, user_column: str | None, item_column: str | None
) -> tuple[NDArray, NDArray]:
    return _parse_delimited(path, read_bytes(path), user_column, item_column)


def _parse_delimited(
    path: Path,
    content: bytes,
    user_column: str | None,
    item_column: str | None,
    lines_above: int = 0,
) -> tuple[NDArray, NDArray]:
    """The ids in `content`, before which the file has so many lines."""
    delimiter = _DELIMITERS[path.suffix.lower()]
    header: list[str] | None = None
    if delimiter == "::":
        header, delimiter, content = _MOVIELENS_HEADER, "\t", content.replace(b"::", b"\t")
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1 + lines_above
        raise DataError(f"{path}:{line}: byte 0x{content[error.start]:02x} is not UTF-8") from None
    if b"\0" in content:
        line = content.count(b"\n", 0, content.index(b"\0")) + 1 + lines_above
        raise DataError(f"{path}:{line}: byte 0x00 is not part of a text file")
    if b'"' in content:
        content = _without_quotes(path, content, delimiter, lines_above)
        delimiter = "\x1f"

    codes = np.frombuffer(content if content.endswith(b"\n") else content + b"\n", np.uint8)
    stops = np.flatnonzero(codes == ord("\n"))
    starts = np.concatenate(([0], stops[:-1] + 1))
    stops = stops - ((stops > starts) & (codes[stops - 1] == ord("\r")))
    numbers = np.arange(1, len(stops) + 1) + lines_above
    filled = stops > starts
    starts, stops, numbers = starts[filled], stops[filled], numbers[filled]

    if header is None:
        first = codes[starts[0] : stops[0]].tobytes().decode("utf-8")
        header = first.split(delimiter)
        starts, stops, numbers = starts[1:], stops[1:], numbers[1:]
    if len(starts) == 0:
        raise DataError(f"{path}: a header and no rows")
    chosen = _choose_columns(path, header, user_column, item_column)

    # Every row has the same number of delimiters, so their positions form a table.
    delimiters = np.flatnonzero(codes == ord(delimiter))
    delimiters = delimiters[np.searchsorted(delimiters, starts[0]) :]
    counts = np.searchsorted(delimiters, stops) - np.searchsorted(delimiters, starts)
    uneven = np.flatnonzero(counts != len(header) - 1)
    if len(uneven):
        at = uneven[0]
        raise DataError(
            f"{path}:{numbers[at]}: {counts[at] + 1} fields where {len(header)} are expected"
        )
    inner = delimiters.reshape(len(starts), len(header) - 1)
    users, items = (
        _ids(
            path,
            header[column],
            codes,
            starts if column == 0 else inner[:, column - 1] + 1,
            stops if column == len(header) - 1 else inner[:, column],
            numbers=numbers,
        )
        for column in chosen
    )
    return users, items


# Longer fields are no ids, and memory grows with the longest one.
LONGEST_ID = 256


def _ids(
    path: Path,
    name: str,
    codes: NDArray[np.uint8],
    starts: NDArray,
    stops: NDArray,
    *,
    numbers: NDArray,
) -> NDArray:
    """One column as whole numbers if all its fields are such, as names otherwise."""
    while len(padded := np.flatnonzero((starts < stops) & (codes[starts] == ord(" ")))):
        starts = starts.copy()
        starts[padded] += 1
    while len(padded := np.flatnonzero((starts < stops) & (codes[stops - 1] == ord(" ")))):
        stops = stops.copy()
        stops[padded] -= 1
    lengths = stops - starts
    missing = np.flatnonzero(lengths == 0)
    if len(missing):
        raise DataError(f"{path}:{numbers[missing[0]]}: column {name} is empty")
    endless = np.flatnonzero(lengths > LONGEST_ID)
    if len(endless):
        raise DataError(
            f"{path}:{numbers[endless[0]]}: an id of {lengths[endless[0]]:,} bytes in column {name}"
        )
    leading = codes[starts]
    negative = leading == ord("-")
    # A leading zero marks a name: 007 and 7 are different people.
    is_number = _all_digits(codes, starts + negative, stops) & (
        (leading != ord("0")) | (lengths == 1)
    )
    if is_number.all():
        if negative.any():
            at = int(np.argmax(negative))
            field = codes[starts[at] : stops[at]].tobytes().decode()
            raise DataError(f"{path}:{numbers[at]}: negative id {field} in column {name}")
        return parse_integers(codes, starts, stops)
    positions = np.minimum(starts[:, None] + np.arange(lengths.max()), len(codes) - 1)
    fields = np.where(np.arange(lengths.max()) < lengths[:, None], codes[positions], 0)
    return np.char.decode(
        np.ascontiguousarray(fields.astype(np.uint8)).view(f"S{lengths.max()}")[:, 0], "utf-8"
    )


def _all_digits(codes: NDArray[np.uint8], starts: NDArray, stops: NDArray) -> NDArray[np.bool_]:
    """Which fields are 1 to 18 digits and nothing else."""
    lengths = stops - starts
    fine = (lengths > 0) & (lengths <= 18)
    for position in range(min(18, int(lengths.max(initial=0)))):
        digits = codes[np.minimum(starts + position, len(codes) - 1)] - np.uint8(ord("0"))
        fine &= (digits < 10) | (position >= lengths)
    return fine


def _without_quotes(path: Path, content: bytes, delimiter: str, lines_above: int) -> bytes:
    """The same table with the unit separator between fields, read by the csv module."""
    rows = csv.reader(io.StringIO(content.decode("utf-8"), newline=""), delimiter=delimiter)
    lines: list[str] = []
    try:
        for row in rows:
            # Fields with line breaks or separators are none that hold ids.
            lines.append("\x1f".join(" ".join(field.split()) for field in row))
            lines.extend([""] * (rows.line_num - len(lines)))
    except csv.Error as error:
        raise DataError(f"{path}:{rows.line_num + lines_above}: {error}") from None
    return "\n".join(lines).encode()


def _read_parquet(
    path: Path, user_column: str | None, item_column: str | None
) -> tuple[NDArray, NDArray]:
    pieces = list(_parquet_pieces(path, user_column, item_column))
    if not pieces:
        raise DataError(f"{path}: a header and no rows")
    return pieces[0]


def _parquet_pieces(
    path: Path, user_column: str | None, item_column: str | None, rows: int | None = None
) -> Iterator[tuple[NDArray, NDArray]]:
    """So many rows at a time, or all at once."""
    try:
        import pyarrow as pa  # noqa: PLC0415  (optional)
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError:
        raise DataError(
            f"{path}: reading Parquet needs pyarrow: pip install 'privirec[parquet]'"
        ) from None
    try:
        header = list(parquet.read_schema(path).names)
        chosen = _choose_columns(path, header, user_column, item_column)
        names = [header[column] for column in chosen]
        if rows is None:
            tables: Iterator[Any] = iter([parquet.read_table(path, columns=names)])
        else:
            batches = parquet.ParquetFile(path).iter_batches(rows, columns=names)
            tables = (pa.Table.from_batches([batch]) for batch in batches)
        before = 0
        for table in tables:
            if table.num_rows:
                users, items = (_parquet_ids(path, name, table, before) for name in names)
                yield users, items
            before += table.num_rows
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except pa.ArrowException as error:
        raise DataError(f"{path}: not a Parquet file: {str(error).splitlines()[0]}") from None


def _parquet_ids(path: Path, name: str, table: Any, before: int) -> NDArray:
    """A column as ids, of a table before which the file has so many rows."""
    column = table.column(name)
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy())) + 1
        raise DataError(f"{path}: row {before + row}: column {name} is empty")
    values = column.to_numpy()
    if values.dtype.kind in "iu":
        if values.min() < 0:
            at = int(np.argmax(values < 0))
            row = before + at + 1
            raise DataError(f"{path}: row {row}: negative id {values[at]} in column {name}")
        return values.astype(np.int64)
    if all(isinstance(value, str) for value in values):
        return values.astype(str)
    raise DataError(f"{path}: column {name} holds {column.type}, neither numbers nor names")


def _choose_columns(
    path: Path, header: list[str], user_column: str | None, item_column: str | None
) -> tuple[int, int]:
    names = [name.strip().split(":")[0] for name in header]
    return (
        _find_column(path, names, user_column, USUAL_USER_COLUMNS, "user"),
        _find_column(path, names, item_column, USUAL_ITEM_COLUMNS, "item"),
    )


def _find_column(
    path: Path, names: list[str], wanted: str | None, usual: tuple[str, ...], kind: str
) -> int:
    if wanted is not None:
        if wanted in names:
            return names.index(wanted)
        missing = f"no column {wanted!r}"
    else:
        for position, name in enumerate(names):
            if name.lower().replace("_", "") in usual:
                return position
        missing = f"no column that is known to hold {kind} ids, name it with --{kind}-column"
    raise DataError(f"{path}: {missing}; the columns are {', '.join(names)}")
