"""Layout of a table: its delimiter, its header and the role of each column.

Settings that are not given are detected: the delimiter from the first lines, a header from fields
that are not numbers, columns from their usual names. Ambiguous tables are refused.
"""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from privirec.errors import DataError, DataWarning, UsageError

# Usual column names, the surest first. Names are compared in lower case, without spaces, "_", "-"
# and RecBole's ":token".
USUAL_USER_COLUMNS = (
    *("user", "userid", "uid", "username", "customer", "customerid", "customername", "member"),
    *("memberid", "visitor", "visitorid", "reviewer", "reviewerid", "account", "accountid"),
    *("person", "personid", "listener", "reader", "subscriber", "subscriberid"),
)
USUAL_ITEM_COLUMNS = (
    *("item", "itemid", "iid", "movie", "movieid", "product", "productid", "asin", "sku"),
    *("book", "bookid", "isbn", "article", "articleid", "business", "businessid", "venueid"),
    *("track", "trackid", "song", "songid", "artist", "artistid", "game", "gameid"),
    *("locationid", "poi", "poiid", "newsid", "contentid", "videoid"),
)
USUAL_RATING_COLUMNS = ("rating", "ratings", "stars", "bookrating", "overall", "userrating")
USUAL_TIME_COLUMNS = (
    *("timestamp", "time", "datetime", "date", "ts", "unixtime", "unixreviewtime", "eventtime"),
    *("createdat", "watchedat", "playedat", "viewedat", "ratedat", "addedat"),
)

MOVIELENS = ("user", "item", "rating", "timestamp")
"""Columns of a table with four columns and no header, in the order that MovieLens uses."""
_NAMED_DELIMITERS = {"tab": "\t", "\\t": "\t", "space": " ", "comma": ",", "semicolon": ";"}
_SNIFFED = ("::", "\t", ";", ",", "|")
_LINES_LOOKED_AT = 20
_NAMES_LISTED = 12
_FEWEST_SECONDS = 10**8
"""Smallest number, in seconds since 1970, that is taken for a time and not for an item."""


@dataclass(frozen=True)
class TableOptions:
    """Settings that describe a table; None means that a setting is detected.

    >>> TableOptions(user_column="who", item_column="what", min_rating=4).min_rating
    4

    `load_dataset("log.csv", table=TableOptions(...))` accepts one; `load_dataset` and
    `read_interactions` also accept the same settings as keyword arguments.
    """

    user_column: str | None = None
    """Column of user ids: a name or, without a header, a number from 1, as for all columns."""
    item_column: str | None = None
    """Column of item ids."""
    rating_column: str | None = None
    """Column of ratings, for `min_rating`."""
    time_column: str | None = None
    """Column of times: numbers, or dates in ISO 8601."""
    min_rating: float | None = None
    """Rows with lower ratings are left out. None: ratings are ignored, and a warning says so."""
    delimiter: str | None = None
    """Separator between fields: one character, "::", "tab" or "space"."""
    header: bool | None = None
    """True if the first line names the columns."""
    only_user: str | None = None
    """Id of the user of all rows, for a table without a user column such as a personal export."""
    weight_column: str | None = None
    """Column of weights, never detected. None: all rows count equally."""

    def __post_init__(self) -> None:
        if self.min_rating is not None and not math.isfinite(self.min_rating):
            raise UsageError(f"a minimum rating of {self.min_rating} is not a finite number")
        if self.delimiter is not None:
            plain = _NAMED_DELIMITERS.get(self.delimiter, self.delimiter)
            if plain != "::" and (len(plain) != 1 or plain in '"\r\n' or not plain.isascii()):
                raise UsageError(
                    f"the delimiter {self.delimiter!r} is neither one character nor ::, tab, space"
                )
            object.__setattr__(self, "delimiter", plain)

    def how(self, option: str, value: object = "...") -> str:
        """Return the text by which messages tell the reader to set this option; here in Python."""
        shown = f'"{value}"' if isinstance(value, str) else value
        return f"{option}={shown}"


@dataclass(frozen=True)
class Columns:
    """Positions of the columns that are used."""

    user: int | None
    """None if there is no user column: all rows belong to `TableOptions.only_user`."""
    item: int
    rating: int | None = None
    time: int | None = None
    weight: int | None = None


@dataclass(frozen=True)
class Layout:
    """Delimiter of a text table, the names of its columns, and the columns that are used."""

    delimiter: str
    names: tuple[str, ...]
    has_header: bool
    columns: Columns


def layout_of(path: Path, beginning: str, usual: str | None, options: TableOptions) -> Layout:
    """Return the layout of a table from its first lines.

    `usual` is the delimiter that the file's suffix stands for.
    """
    lines = [line for line in beginning.splitlines()[:_LINES_LOOKED_AT] if line.strip()]
    delimiter = options.delimiter or _delimiter(path, lines, usual, options)
    first = fields_of(lines[0], delimiter)
    has_header = options.header
    if has_header is None:
        has_header = not all(is_number(field) for field in first)
    if has_header:
        names = tuple(field.strip().split(":")[0].strip() for field in first)
    elif len(first) == len(MOVIELENS):
        names = MOVIELENS
    else:
        names = tuple(str(number) for number in range(1, len(first) + 1))
    chosen = choose_columns(path, names, options, has_header=has_header)
    return Layout(delimiter, names, has_header, chosen)


def choose_columns(
    path: Path | str, names: Sequence[str], options: TableOptions, *, has_header: bool = True
) -> Columns:
    """Return the columns that are used, given or detected; `path` is used in messages."""

    def find(wanted: str | None, usual: Sequence[str], kind: str) -> int | None:
        if wanted is None:
            return _usual_column(path, names, usual, kind, options)
        if wanted in names:
            return names.index(wanted)
        if not has_header and wanted.isdigit() and 1 <= int(wanted) <= len(names):
            return int(wanted) - 1
        raise DataError(f"{path}: no column {wanted!r}; the columns are {_listed(names)}")

    if not has_header and names != MOVIELENS:
        user = 0 if len(names) > 1 else None
        if options.user_column is not None:
            user = find(options.user_column, (), "user")
        item: int | None = 0 if user is None else 1
        if options.item_column is not None:
            item = find(options.item_column, (), "item")
    else:
        user = find(options.user_column, USUAL_USER_COLUMNS, "user")
        item = find(options.item_column, USUAL_ITEM_COLUMNS, "item")
    alone = options.only_user is not None
    if user is None and not alone:
        raise _not_found(path, "user", names, options)
    if item is None and alone and user is None and len(names) == 1 and has_header:
        raise DataError(
            f"{path}: is {names[0]!r} a header, or an item? name it with "
            f"{options.how('item_column')}, or say {options.how('header', False)}"
        )
    if item is None:
        raise _not_found(path, "item", names, options)
    if user == item:
        raise DataError(f"{path}: column {names[item]} cannot hold both users and items")
    rating = find(options.rating_column, USUAL_RATING_COLUMNS, "rating")
    if rating is None and options.min_rating is not None:
        raise _not_found(path, "rating", names, options)
    time = find(options.time_column, USUAL_TIME_COLUMNS, "time")
    weight = find(options.weight_column, (), "weight")
    return Columns(user, item, rating, time, weight)


def _not_found(
    path: Path | str, kind: str, names: Sequence[str], options: TableOptions
) -> DataError:
    what = "ratings" if kind == "rating" else f"{kind} ids"
    how = options.how(f"{kind}_column")
    if isinstance(path, Path):  # a frame always has names for its columns
        how += f", or say {options.how('header', False)}"
    return DataError(
        f"{path}: no column that is known to hold {what}: name it with {how}; the columns are "
        f"{_listed(names)}"
    )


def _listed(names: Sequence[str]) -> str:
    """Return names for a message; of a long list only the first ones."""
    more = f" and {len(names) - _NAMES_LISTED:,} more" if len(names) > _NAMES_LISTED else ""
    return ", ".join(names[:_NAMES_LISTED]) + more


def plain_name(name: str) -> str:
    """Return a column's name in the form that is compared with the usual names."""
    name = name.strip().split(":")[0]
    return "".join(letter for letter in name.lower() if letter not in " _-.")


def _usual_column(
    path: Path | str, names: Sequence[str], usual: Sequence[str], kind: str, options: TableOptions
) -> int | None:
    plain = [plain_name(name) for name in names]
    # The surest name first; of two names that differ only in case or spaces, the leftmost.
    found = [at for name in usual for at, given in enumerate(plain) if given == name]
    if len(found) < 2:
        return found[0] if found else None
    first, *others = (names[at] for at in found)
    # "user" and "user_id" mean the same; "customer" and "account" may be different people.
    if kind in ("user", "item") and not plain[found[0]].startswith(kind):
        several = ", ".join((first, *others))
        raise DataError(
            f"{path}: several columns may hold {kind} ids ({several}): name one with "
            f"{options.how(f'{kind}_column')}"
        )
    warnings.warn(
        f"{path}: column {first} is taken for {kind}s, and {', '.join(others)} left alone: "
        f"{options.how(f'{kind}_column')} names another",
        DataWarning,
        stacklevel=2,
    )
    return found[0]


def _delimiter(path: Path, lines: Sequence[str], usual: str | None, options: TableOptions) -> str:
    """Return the delimiter that splits all lines into equally many fields, `usual` if it does."""
    for delimiter in _SNIFFED if usual is None else (usual, *_SNIFFED):
        counts = {len(fields_of(line, delimiter)) for line in lines}
        if len(counts) == 1 and counts != {1}:
            return delimiter
    # Uneven rows are reported later, and a single column has no delimiter.
    if usual is not None:
        return usual
    raise DataError(f"{path}: no delimiter was detected; set it with {options.how('delimiter')}")


def fields_of(line: str, delimiter: str) -> list[str]:
    """Split one line of a table into fields and remove quotes."""
    if delimiter == "::":
        return [field.strip('"') for field in line.split("::")]
    return next(csv.reader([line], delimiter=delimiter), [])


def is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return field.strip().lower().lstrip("+-") not in ("nan", "inf", "infinity")


def looks_like_a_table(lines: Sequence[str]) -> bool:
    """Return True if lines of whole numbers are rows of user, item, rating and time.

    Otherwise they are histories, `user item item ...`.
    """
    rows = [line.split() for line in lines if line.strip()]
    return (
        len(rows) > 1
        and all(len(row) == len(MOVIELENS) for row in rows)
        and all(row[3].isdigit() and int(row[3]) >= _FEWEST_SECONDS for row in rows)
        and all(len(row[2]) <= 2 for row in rows)
    )
