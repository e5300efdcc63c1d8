"""How a table is laid out: its delimiter, whether it has a header, which column is what.

What nobody says is found out: the delimiter by the first lines, a header by its being no row of
numbers, columns by their usual names. What cannot be told for sure is refused.
"""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from privirec.errors import DataError, DataWarning, UsageError

# How columns are usually called, the surest names first; compared in lower case, without spaces,
# "_", "-" and RecBole's ":token".
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
"""What the columns of a table without a header are, if it has four: as MovieLens has them."""
_NAMED_DELIMITERS = {"tab": "\t", "\\t": "\t", "space": " ", "comma": ",", "semicolon": ";"}
_SNIFFED = ("::", "\t", ";", ",", "|")
_LINES_LOOKED_AT = 20
_NAMES_LISTED = 12
_FEWEST_SECONDS = 10**8
"""Since 1970, for a number to be taken for a moment and not for an item."""


@dataclass(frozen=True)
class TableOptions:
    """What somebody says of a table; None: to be found out.

    >>> TableOptions(user_column="who", item_column="what", min_rating=4).min_rating
    4

    `load_dataset("log.csv", table=TableOptions(...))` takes one; `load_dataset` and
    `read_interactions` take the same settings one by one.
    """

    user_column: str | None = None
    """A name; or, without a header, a number from 1. So for all columns."""
    item_column: str | None = None
    """Of item ids."""
    rating_column: str | None = None
    """Of ratings, for `min_rating`."""
    time_column: str | None = None
    """Of times: numbers, or dates as ISO 8601 has them."""
    min_rating: float | None = None
    """Rows with lower ratings are left out; None: ratings are not looked at, and that is said."""
    delimiter: str | None = None
    """What stands between fields: one character, "::", "tab" or "space"."""
    header: bool | None = None
    """Whether the first line names the columns."""
    only_user: str | None = None
    """Whose rows they are if there is no column of users: a person's own export."""
    weight_column: str | None = None
    """How much each row counts; None: all alike. Never found out, only named."""

    def __post_init__(self) -> None:
        if self.min_rating is not None and not math.isfinite(self.min_rating):
            raise UsageError(f"a least rating of {self.min_rating} says nothing")
        if self.delimiter is not None:
            plain = _NAMED_DELIMITERS.get(self.delimiter, self.delimiter)
            if plain != "::" and (len(plain) != 1 or plain in '"\r\n' or not plain.isascii()):
                raise UsageError(
                    f"the delimiter {self.delimiter!r} is neither one character nor ::, tab, space"
                )
            object.__setattr__(self, "delimiter", plain)

    def how(self, option: str, value: object = "...") -> str:
        """How somebody who reads a message says this option, here to the library."""
        shown = f'"{value}"' if isinstance(value, str) else value
        return f"{option}={shown}"


@dataclass(frozen=True)
class Columns:
    """Positions of the columns that count."""

    user: int | None
    """None: there is none, and all rows are of `TableOptions.only_user`."""
    item: int
    rating: int | None = None
    time: int | None = None
    weight: int | None = None


@dataclass(frozen=True)
class Layout:
    """What separates the fields of a text table, what its columns are called, and which count."""

    delimiter: str
    names: tuple[str, ...]
    has_header: bool
    columns: Columns


def layout_of(path: Path, beginning: str, usual: str | None, options: TableOptions) -> Layout:
    """The layout of a table that begins so. `usual` is the delimiter that its suffix stands for."""
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
    """Which columns are users, items, ratings and times; `path` says where, for messages."""

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
    """Names for a message; of very many the first."""
    more = f" and {len(names) - _NAMES_LISTED:,} more" if len(names) > _NAMES_LISTED else ""
    return ", ".join(names[:_NAMES_LISTED]) + more


def plain_name(name: str) -> str:
    """A column's name as it is compared with the usual ones."""
    name = name.strip().split(":")[0]
    return "".join(letter for letter in name.lower() if letter not in " _-.")


def _usual_column(
    path: Path | str, names: Sequence[str], usual: Sequence[str], kind: str, options: TableOptions
) -> int | None:
    plain = [plain_name(name) for name in names]
    # The surest name first; of two that differ in case or spaces only, the one further left.
    found = [at for name in usual for at, given in enumerate(plain) if given == name]
    if len(found) < 2:
        return found[0] if found else None
    first, *others = (names[at] for at in found)
    # "user" and "user_id" are one thing; a customer beside an account may be two.
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
    """What divides all lines alike: what the suffix stands for, if that does, or another."""
    for delimiter in _SNIFFED if usual is None else (usual, *_SNIFFED):
        counts = {len(fields_of(line, delimiter)) for line in lines}
        if len(counts) == 1 and counts != {1}:
            return delimiter
    # Rows that differ are said to later, and a single column has nothing between its fields.
    if usual is not None:
        return usual
    raise DataError(f"{path}: what separates its fields? say it with {options.how('delimiter')}")


def fields_of(line: str, delimiter: str) -> list[str]:
    """One line of a table, quotes taken off."""
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
    """Whether lines of whole numbers are rows of user, item, rating and time, and not histories."""
    rows = [line.split() for line in lines if line.strip()]
    return (
        len(rows) > 1
        and all(len(row) == len(MOVIELENS) for row in rows)
        and all(row[3].isdigit() and int(row[3]) >= _FEWEST_SECONDS for row in rows)
        and all(len(row[2]) <= 2 for row in rows)
    )
