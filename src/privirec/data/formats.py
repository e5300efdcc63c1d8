"""Files that hold interactions: the format of each suffix, and tables with named columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privirec.data.columns import (
    Layout,
    TableOptions,
    layout_of,
    looks_like_a_table,
)
from privirec.data.ids import MISSING_WORDS
from privirec.data.interactions import Interactions
from privirec.data.json_lines import read_json_lines
from privirec.data.parquet import parquet_pieces, read_parquet
from privirec.data.rows import Rows, with_more
from privirec.data.text import (
    BYTE_ORDER_MARK,
    UNREADABLE,
    cannot_be_read,
    in_utf8,
    opened,
    parse_integers,
    read_bytes,
    read_text,
)
from privirec.errors import DataError, warn_of_data

_DELIMITERS = {".csv": ",", ".tsv": "\t", ".inter": "\t", ".dat": "::", ".data": "\t"}
JSON_LINES = (".jsonl", ".ndjson")
SUFFIXES = (".txt", *_DELIMITERS, ".parquet", *JSON_LINES)
TABLES = (*_DELIMITERS, ".parquet")
"""Suffixes of files that can be read in pieces."""
PIECE_BYTES = 1 << 25
LONGEST_ROW = 1 << 28
_LINE_BREAK = "\x1e"
"""Replacement for a line break inside a quoted field."""


def read_interactions(
    path: str | Path,
    *,
    user_column: str | None = None,
    item_column: str | None = None,
    rating_column: str | None = None,
    time_column: str | None = None,
    min_rating: float | None = None,
    delimiter: str | None = None,
    header: bool | None = None,
    only_user: str | None = None,
    weight_column: str | None = None,
) -> Interactions:
    """Read a file of any known format, chosen by its suffix; each row is one interaction.

    Tables are .csv, .tsv, RecBole .inter, MovieLens .dat and .data, .parquet, .jsonl (an object per
    line), and any other file with a `delimiter`; .txt is `user item item ...`. Text may be
    compressed (.csv.gz) and in UTF-8, UTF-16 or Latin-1. Ids are whole numbers or names.

    Parameters
    ----------
    path
        The file.
    user_column, item_column, rating_column, time_column
        Columns with unusual names; usual names are detected. Without a header, numbers from 1.
    min_rating
        Leave out rows with lower ratings. Without it ratings are ignored, and a DataWarning says so
        if they differ.
    delimiter
        Separator between columns, if it cannot be detected from the first lines.
    header
        True if the first line names the columns; by default, unless it is all numbers.
    only_user
        Id of the user of all rows, for a table without a user column.
    weight_column
        Column of weights, one per row, for `fit(..., weighted=True)`.
    """
    options = TableOptions(
        *(user_column, item_column, rating_column, time_column, min_rating),
        *(delimiter, header, only_user, weight_column),
    )
    return read_file(Path(path), options)


def read_file(path: Path, options: TableOptions) -> Interactions:
    """Read a file as `read_interactions` does, with the options in one object."""
    suffix = suffix_of(path)
    if suffix == ".parquet":
        rows = read_parquet(path, options)
    elif suffix in JSON_LINES:
        rows = read_json_lines(path, options)
    elif suffix == ".txt" and not _is_table(path, options):
        if options.weight_column is not None:
            raise DataError(f"{path}: histories in plain text have no column of weights")
        return read_text(path)
    elif suffix in SUFFIXES or options.delimiter is not None:
        content = read_bytes(path)
        layout = layout_of(path, _beginning(path, content), _DELIMITERS.get(suffix), options)
        _say_what_is_assumed(path, layout)
        rows = _parse_delimited(path, content, layout, options)
    else:
        raise DataError(
            f"{path}: unknown kind of file; known are {', '.join(SUFFIXES)}, "
            f"and any table with {options.how('delimiter')}"
        )
    if not len(rows):
        raise DataError(f"{path}: no row has a rating of {options.min_rating:g} or more")
    return Interactions.from_pairs(rows.users, rows.items, times=rows.times, weights=rows.weights)


def suffix_of(path: Path) -> str:
    """Return the suffix that stands for a format, without that of a compression."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def read_pieces(
    path: str | Path, options: TableOptions | None = None, *, piece_bytes: int = PIECE_BYTES
) -> Iterator[Rows]:
    """Yield the rows of a table with one piece in memory at a time.

    The ids of a piece are numbers if all of them are whole numbers, whatever earlier pieces had.
    """
    path, options = Path(path), options or TableOptions()
    suffix = suffix_of(path)
    if suffix == ".parquet":
        yield from parquet_pieces(path, options, piece_bytes // 16)
        return
    if suffix not in _DELIMITERS and options.delimiter is None:
        known = ", ".join(TABLES)
        raise DataError(f"{path}: not a table that can be read in pieces; known are {known}")
    layout: Layout | None = None
    lines, found = 0, False
    for piece in _whole_lines(path, piece_bytes):
        if not lines:
            layout = layout_of(path, _beginning(path, piece), _DELIMITERS.get(suffix), options)
            _say_what_is_assumed(path, layout)
        assert layout is not None  # noqa: S101 - the first piece gave it
        if lines or not layout.has_header or piece[piece.find(b"\n") + 1 :].strip():
            yield _parse_delimited(path, piece, layout, options, lines)
            found = True
        lines += piece.count(b"\n")
    if not lines:
        raise DataError(f"{path}: the file is empty")
    if not found:
        raise DataError(f"{path}: a header and no rows")


def _is_table(path: Path, options: TableOptions) -> bool:
    """Return True if a .txt file is a table, False if its lines are `user item item ...`."""
    if options.delimiter is not None or options.header is not None:
        return True
    beginning = read_bytes(path)[:4096]
    lines = beginning.decode("utf-8", "replace").splitlines()
    if looks_like_a_table(lines[: -1 if len(beginning) == 4096 else None]):
        raise DataError(
            f"{path}: its lines look like user, item, rating and time, not like user item item "
            f"...; say {options.how('delimiter', 'tab')} (or space)"
        )
    return any(mark in lines[0] for mark in (",", ";", "|", "::"))


def _beginning(path: Path, content: bytes) -> str:
    """Return the first lines; bytes that are not text are reported later, with their line."""
    if not content.strip():
        raise DataError(f"{path}: the file is empty")
    cut = content[: 1 << 16]
    if b"\0" in cut:
        _refuse_null(path, content, 0)
    return cut.decode("utf-8", "replace")


def _say_what_is_assumed(path: Path, layout: Layout) -> None:
    """Warn which columns of a table without a header are taken for users, items and so on."""
    columns = layout.columns
    if layout.has_header or layout.delimiter == "::":  # MovieLens files never have a header
        return
    kinds = {"users": columns.user, "items": columns.item, "ratings": columns.rating}
    taken = ", ".join(
        f"column {at + 1} {kind}"
        for kind, at in (kinds | {"times": columns.time}).items()
        if at is not None
    )
    warn_of_data(f"{path}: no header, so {taken}")


def _refuse_null(path: Path, content: bytes, lines_above: int) -> None:
    line = content.count(b"\n", 0, content.index(b"\0")) + 1 + lines_above
    raise DataError(f"{path}:{line}: byte 0x00 is not part of a text file")


def _whole_lines(path: Path, size: int) -> Iterator[bytes]:
    """Yield the file in pieces of about this size that end at the end of a row."""
    waiting = b""
    try:
        with opened(path) as file:
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
    except UNREADABLE as error:
        raise cannot_be_read(path, error) from None
    if waiting:
        yield waiting + b"\n"


def _parse_delimited(
    path: Path, content: bytes, layout: Layout, options: TableOptions, lines_above: int = 0
) -> Rows:
    """Parse the rows in `content`; `lines_above` lines of the file come before it."""
    delimiter = layout.delimiter
    content = in_utf8(path, content, lines_above)
    if delimiter == "::":
        delimiter, content = "\x1f", content.replace(b"::", b"\x1f")
    if b"\0" in content:
        _refuse_null(path, content, lines_above)
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
    if layout.has_header and not lines_above:
        starts, stops, numbers = starts[1:], stops[1:], numbers[1:]
    if len(starts) == 0:
        raise DataError(f"{path}: a header and no rows")

    # Every row has the same number of delimiters, so their positions form a table.
    width = len(layout.names)
    delimiters = np.flatnonzero(codes == ord(delimiter))
    delimiters = delimiters[np.searchsorted(delimiters, starts[0]) :]
    counts = np.searchsorted(delimiters, stops) - np.searchsorted(delimiters, starts)
    uneven = np.flatnonzero(counts != width - 1)
    if len(uneven):
        at = uneven[0]
        raise DataError(f"{path}:{numbers[at]}: {counts[at] + 1} fields where {width} are expected")
    inner = delimiters.reshape(len(starts), width - 1)

    def bounds(column: int) -> tuple[NDArray, NDArray]:
        """Return the start and end of the fields of a column, without surrounding spaces."""
        first = starts if column == 0 else inner[:, column - 1] + 1
        last = stops if column == width - 1 else inner[:, column]
        return _without_spaces(codes, first, last)

    def text(column: int) -> NDArray:
        return _fields(codes, *bounds(column))

    def ids(column: int) -> NDArray:
        return _ids(path, layout.names[column], codes, *bounds(column), numbers=numbers)

    columns = layout.columns
    items = ids(columns.item)
    users = np.full(len(items), options.only_user) if columns.user is None else ids(columns.user)
    return with_more(Rows(users, items), path, layout.names, columns, text, options)


# Longer fields are not ids. Memory grows with the longest field.
LONGEST_ID = 256


def _without_spaces(
    codes: NDArray[np.uint8], starts: NDArray, stops: NDArray
) -> tuple[NDArray, NDArray]:
    while len(padded := np.flatnonzero((starts < stops) & (codes[starts] == ord(" ")))):
        starts = starts.copy()
        starts[padded] += 1
    while len(padded := np.flatnonzero((starts < stops) & (codes[stops - 1] == ord(" ")))):
        stops = stops.copy()
        stops[padded] -= 1
    return starts, stops


def _fields(codes: NDArray[np.uint8], starts: NDArray, stops: NDArray) -> NDArray:
    """Return the fields as text."""
    lengths = stops - starts
    longest = max(int(lengths.max(initial=0)), 1)
    positions = np.minimum(starts[:, None] + np.arange(longest), len(codes) - 1)
    fields = np.where(np.arange(longest) < lengths[:, None], codes[positions], 0)
    return np.char.decode(
        np.ascontiguousarray(fields.astype(np.uint8)).view(f"S{longest}")[:, 0], "utf-8"
    )


def _ids(
    path: Path,
    name: str,
    codes: NDArray[np.uint8],
    starts: NDArray,
    stops: NDArray,
    *,
    numbers: NDArray,
) -> NDArray:
    """Return one column as whole numbers if all its fields are, otherwise as names."""
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
    whole = _without_zero_fraction(codes, starts, stops)
    # A leading zero marks a name: 007 and 7 are different people.
    is_number = _all_digits(codes, starts + negative, whole) & (
        (leading != ord("0")) | (whole - starts == 1)
    )
    if is_number.all():
        if negative.any():
            at = int(np.argmax(negative))
            field = codes[starts[at] : stops[at]].tobytes().decode()
            raise DataError(f"{path}:{numbers[at]}: negative id {field} in column {name}")
        return parse_integers(codes, starts, whole)
    names = _fields(codes, starts, stops)
    _check_names(path, name, names, lengths, numbers)
    with_fraction = np.flatnonzero(is_number & (whole < stops))
    if len(with_fraction):
        plain = _fields(codes, starts[with_fraction], whole[with_fraction])
        both = np.isin(plain, names)
        if both.any():
            at = int(with_fraction[np.argmax(both)])
            raise DataError(
                f"{path}:{numbers[at]}: column {name} holds {names[at]} and also "
                f"{plain[np.argmax(both)]}: are these one and the same id?"
            )
    return names


def _check_names(
    path: Path, column: str, names: NDArray, lengths: NDArray, numbers: NDArray
) -> None:
    """Raise DataError for names that mark a missing id, or that span lines (a missing quote)."""
    short = np.flatnonzero(lengths <= max(map(len, MISSING_WORDS)))
    bad = np.isin(names[short], ("-1", *MISSING_WORDS))
    if bad.any():
        at = int(short[np.argmax(bad)])
        raise DataError(
            f"{path}:{numbers[at]}: {str(names[at])!r} in column {column} looks like a missing id"
        )
    broken = np.char.find(names, _LINE_BREAK) >= 0
    if broken.any():
        at = int(np.argmax(broken))
        raise DataError(
            f"{path}:{numbers[at]}: an id of several lines in column {column}: is a quote missing?"
        )


def _without_zero_fraction(codes: NDArray[np.uint8], starts: NDArray, stops: NDArray) -> NDArray:
    """Return the ends of fields without a zero fraction, as in 1.0, which pandas writes for 1."""
    whole, ends = stops.copy(), stops.copy()
    zeros = np.flatnonzero((stops - starts >= 3) & (codes[stops - 1] == ord("0")))
    while len(zeros):
        ends[zeros] -= 1
        before = codes[ends[zeros] - 1]
        points = zeros[before == ord(".")]
        whole[points] = ends[points] - 1
        zeros = zeros[(before == ord("0")) & (ends[zeros] - starts[zeros] >= 3)]
    return whole


def _all_digits(codes: NDArray[np.uint8], starts: NDArray, stops: NDArray) -> NDArray[np.bool_]:
    """Return a mask of the fields that consist of 1 to 18 digits."""
    lengths = stops - starts
    fine = (lengths > 0) & (lengths <= 18)
    for position in range(min(18, int(lengths.max(initial=0)))):
        digits = codes[np.minimum(starts + position, len(codes) - 1)] - np.uint8(ord("0"))
        fine &= (digits < 10) | (position >= lengths)
    return fine


def _without_quotes(path: Path, content: bytes, delimiter: str, lines_above: int) -> bytes:
    """Return the table, parsed by the csv module, with the unit separator between fields."""
    rows = csv.reader(
        io.StringIO(content.decode("utf-8"), newline=""), delimiter=delimiter, strict=True
    )
    lines: list[str] = []
    begun = 1
    try:
        for row in rows:
            lines.append("\x1f".join(_one_line(field) for field in row))
            lines.extend([""] * (rows.line_num - len(lines)))
            begun = rows.line_num + 1
    except csv.Error as error:
        # For a quote that is never closed the reader reports only the end of the file.
        line, what = rows.line_num, str(error)
        if "unexpected end" in what or "larger than field limit" in what:
            line, what = begun, "a quote that is not closed"
        raise DataError(f"{path}:{line + lines_above}: {what}") from None
    return "\n".join(lines).encode()


def _one_line(field: str) -> str:
    """Return a field on one line; a mark replaces each line break, which no id contains."""
    if "\n" not in field and "\r" not in field:
        return " ".join(field.split())
    return _LINE_BREAK.join(" ".join(line.split()) for line in field.strip().splitlines())
