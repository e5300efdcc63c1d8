"""Titles of items and links to their web pages, from a table."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from privirec.data.columns import USUAL_ITEM_COLUMNS, plain_name
from privirec.errors import DataError

TITLES_FILE = "titles.csv"
"""Titles and links beside a catalogue, in a client's folder."""
LONGEST_LINK = 500
_LINKS = ("link", "url", "href", "page")
_SEPARATORS = {".csv": ",", ".tsv": "\t"}


def clean_title(title: str) -> str:
    """Return a title on one line, without characters that could control a terminal."""
    return "".join(letter for letter in " ".join(title.split()) if letter.isprintable())


def clean_link(link: str) -> str:
    """Return the address of a web page, or an empty text for anything else."""
    link = link.strip()
    is_safe = link.startswith(("https://", "http://")) and link.isprintable() and " " not in link
    return link if is_safe and len(link) <= LONGEST_LINK else ""


def read_titles(
    path: str | Path, *, item_column: str | None = None, title_column: str | None = None
) -> dict[str, str]:
    """Read titles from a .csv or .tsv file with a header.

    The default columns are item_id (or another usual name) and title.
    """
    return read_titles_and_links(path, item_column=item_column, title_column=title_column)[0]


def read_titles_and_links(
    path: str | Path, *, item_column: str | None = None, title_column: str | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    """Read titles and, from a column such as link or url, the web pages of items."""
    path = Path(path)
    if path.suffix.lower() not in _SEPARATORS:
        raise DataError(f"{path}: titles are read from .csv and .tsv files")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8 text") from None
    table = csv.reader(io.StringIO(text, newline=""), delimiter=_SEPARATORS[path.suffix.lower()])
    titles: dict[str, str] = {}
    links: dict[str, str] = {}
    try:
        header = [name.strip() for name in next(table, [])]
        item = _column(path, header, item_column, (*USUAL_ITEM_COLUMNS, "id"), "item ids")
        title = _column(path, header, title_column, ("title", "name", "itemtitle"), "titles")
        link = next((at for at, name in enumerate(header) if plain_name(name) in _LINKS), None)
        for row in table:
            if not row:
                continue
            if len(row) != len(header):
                raise DataError(
                    f"{path}:{table.line_num}: {len(row)} fields where {len(header)} are expected"
                )
            titles[row[item]] = row[title]
            if link is not None and row[link]:
                links[row[item]] = row[link]
    except csv.Error as error:
        raise DataError(f"{path}:{table.line_num}: {error}") from None
    if not titles:
        raise DataError(f"{path}: no titles in it")
    return titles, links


def _column(
    path: Path, header: list[str], wanted: str | None, usual: tuple[str, ...], what: str
) -> int:
    for position, name in enumerate(header):
        if name == wanted or (wanted is None and plain_name(name) in usual):
            return position
    missing = f"no column {wanted!r}" if wanted else f"no column that is known to hold {what}"
    raise DataError(f"{path}: {missing}; the columns are {', '.join(header) or 'none'}")
