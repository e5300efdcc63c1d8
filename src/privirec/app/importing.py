"""The work of `privirec device import`: read an export, match its titles, fill the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from privirec.app.history import ONLY_USER, counted
from privirec.data.catalogue import Catalogue, read_catalogue
from privirec.data.columns import (
    USUAL_ITEM_COLUMNS,
    USUAL_USER_COLUMNS,
    TableOptions,
    is_number,
    plain_name,
)
from privirec.data.dates import read_dates
from privirec.data.exports import Entry, Export, Mapped, Record, read_export, usual_columns
from privirec.data.formats import JSON_LINES, read_file, suffix_of
from privirec.data.interactions import Interactions
from privirec.device import Store, load_model
from privirec.device.matching import How, Match, Matcher
from privirec.device.store import clean_id
from privirec.device.titles import TITLES_FILE, read_titles_and_links
from privirec.errors import DataError, UsageError

EXPORTS = (".csv", ".tsv", ".json", ".zip", ".html", ".htm", *JSON_LINES)
"""Suffixes of files in which an export of a service is looked for."""
LISTED = 10
"""Number of titles of a kind that a report names."""


class Unsure(StrEnum):
    """Treatment of titles that are nearly the same."""

    ASK = "ask"
    SKIP = "skip"
    TAKE = "take"


@dataclass(frozen=True)
class ImportOptions:
    """Choices of a person who imports a file."""

    user: str | None = None
    artifact: Path | None = None
    """Model whose items are the catalogue, besides those that the store knows."""
    titles: Path | None = None
    """File of titles, which the store takes over."""
    unsure: Unsure = Unsure.SKIP
    keep_unknown: bool = False
    """True to add items outside the catalogue under the names in the file."""
    day_first: bool | None = None
    profile: str | None = None


@dataclass(frozen=True)
class Questions:
    """Ways to ask the person; None where there is no terminal."""

    columns: Callable[[Sequence[Record]], Mapped | None] | None = None
    same: Callable[[Entry, Sequence[str], dict[str, str]], str | None] | None = None
    """Returns the item that an entry is, of these items with their titles, or None."""


@dataclass
class Imported:
    """Result of an import, in sentences and rows."""

    sentences: list[str]
    rows: list[dict[str, Any]] = field(default_factory=list)
    """A row for each title: how it matched, and with which item."""
    unsure: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    """Titles that were not added, and the items that each may be."""


def import_file(
    source: Path,
    store: Path,
    table: TableOptions,
    options: ImportOptions,
    questions: Questions = Questions(),
) -> Imported:
    """Add the history in a file to a store: all of it that matches, or nothing.

    Raises DataError if nothing matches. The store is created if it is missing.
    """
    titles, links = _given_titles(store, options)
    matcher, alone = _known(store, titles, options)
    export = _export_of(source, table, options, questions)
    if export is None:
        found = read_file(source, replace(table, only_user=alone))
        if options.user is not None and found.user_ids.tolist() != [alone]:
            raise UsageError(f"{source}: names its users itself, so --user does not go with it")
        if not found.n_interactions:
            raise DataError(f"{source}: users and no items (a line is: user item item ...)")
        if found.user_ids.tolist() != [alone]:
            return _of_users(source, store, found, matcher, options)
        export = Export("", _entries(found))
    if len(export.profiles) > 1:
        raise UsageError(
            f"{source}: several people share this account; name yours with --profile "
            f"({', '.join(export.profiles)})"
        )
    entries = _together(export, table.min_rating)
    result = _match(source, export, entries, matcher, options, questions)
    with Store(store, create=True) as opened:
        if titles:
            opened.set_titles(titles, links)
        new = opened.add_timed((alone, item, when) for item, when in result.times.items())
    more = f" {result.kept:,} of them under the name in the file." if result.kept else ""
    added = f"{counted(len(result.times))} of user {alone} in {source}, {new:,} of them new in "
    return Imported(
        [*_summary(export, result, matcher), f"{added}{store}.{more}"], result.rows, result.unsure
    )


# --- the catalogue --------------------------------------------------------------------------------


def _given_titles(store: Path, options: ImportOptions) -> tuple[dict[str, str], dict[str, str]]:
    """Return titles and links of the named file, or of the file beside a client's catalogue."""
    if options.titles is not None:
        return read_titles_and_links(options.titles)
    beside = store.parent / TITLES_FILE
    if (store.parent / "catalogue.txt").is_file() and beside.is_file():
        return read_titles_and_links(beside)
    return {}, {}


def _known(store: Path, titles: dict[str, str], options: ImportOptions) -> tuple[Matcher, str]:
    """Return all items that the device knows, and the user of a file without users."""
    users: list[str] = []
    beside = store.parent / "catalogue.txt"
    ids: list[str] = list(read_catalogue(beside).names) if beside.is_file() else []
    named: dict[str, str] = {}
    if store.exists():
        with Store(store) as opened:
            users, named = opened.users(), opened.titles()
    if options.artifact is not None:
        model = load_model(options.artifact)
        columns = range(model.components.n_items) if model.item_ids is None else model.item_ids
        ids += Catalogue(columns).names
    alone = options.user or (users[0] if len(users) == 1 else ONLY_USER)
    return Matcher(named | titles, ids), alone


# --- reading --------------------------------------------------------------------------------------


def _export_of(
    source: Path, table: TableOptions, options: ImportOptions, questions: Questions
) -> Export | None:
    """Return the export in a file, or None for a table of ids and other formats."""
    suffix = suffix_of(source)
    if suffix not in EXPORTS or table.header is False:
        return None

    def choose(records: Sequence[Record]) -> Mapped | None:
        names = list(dict.fromkeys(name for record in records for name in record))
        if any(name in names for name in USUAL_USER_COLUMNS) or table.user_column is not None:
            return None
        time, rating = usual_columns(names)
        time, rating = table.time_column or time, table.rating_column or rating
        if table.item_column is not None:
            if plain_name(table.item_column) in names:
                return Mapped(table.item_column, time, rating, only=True)
            return None
        is_table = suffix in (".csv", ".tsv", *JSON_LINES)
        if is_table and (not names or all(map(is_number, names))):
            return None
        titled = next((each for each in ("title", "name") if each in names), None)
        usual = [each for each in USUAL_ITEM_COLUMNS if each in names]
        if is_table and titled is None and (usual or questions.columns is None):
            return None
        if titled is not None or usual:
            return Mapped(titled or usual[0], time, rating)
        if questions.columns is None:
            raise DataError(
                f"{source}: an export of no service that is known here; name the field of titles "
                f"with {table.how('item_column')}; the fields are {', '.join(names[:12])}"
            )
        return questions.columns(records)

    return read_export(source, day_first=options.day_first, profile=options.profile, choose=choose)


def _entries(found: Interactions) -> list[Entry]:
    """Return the history of one user, read from a table of items."""
    items = found.item_ids.astype(str)[found.matrix.indices].tolist()
    times: list[float | None] = [None] * len(items)
    if found.times is not None:
        times = read_dates(found.times.tolist()).seconds
    return [Entry((item,), ids=(item,), when=when) for item, when in zip(items, times, strict=True)]


def _together(export: Export, least: float | None) -> list[Entry]:
    """Return one entry for each title, with all its ids, its best rating and its latest time.

    Titles rated below `least` are left out. Services write ratings and times in separate files.
    """
    groups: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in export.entries:
        groups.setdefault((entry.names, entry.by), []).append(entry)
    found = []
    for (names, by), entries in groups.items():
        ids = tuple(dict.fromkeys(each for entry in entries for each in entry.ids))
        when = max((each.when for each in entries if each.when is not None), default=None)
        rating = max((each.rating for each in entries if each.rating is not None), default=None)
        if least is not None and rating is not None and rating < least:
            export.left_out[f"rated below {least:g}"] += 1
        else:
            found.append(Entry(names, by, ids, when, rating))
    return found


def _of_users(
    source: Path, store: Path, found: Interactions, matcher: Matcher, options: ImportOptions
) -> Imported:
    """Add a table of several users, whose items are ids."""
    ids = found.item_ids.astype(str).tolist()
    if len(matcher) and not options.keep_unknown:
        known = sum(matcher.match((), ids=(each,)).how is How.EXACT for each in ids)
        if not known:
            raise _nothing(source, len(ids), ids, matcher)
    with Store(store, create=True) as opened:
        new = opened.add_interactions(found)
    return Imported(
        [f"{counted(found.n_interactions)} in {source}, {new:,} of them new in {store}."]
    )


# --- matching -------------------------------------------------------------------------------------


@dataclass
class _Matched:
    times: dict[str, float | None] = field(default_factory=dict)
    """Items to add, with the latest time of each."""
    counts: Counter[How] = field(default_factory=Counter)
    """Number of different titles, by how they match."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    unsure: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    kept: int = 0


def _match(
    source: Path,
    export: Export,
    entries: Sequence[Entry],
    matcher: Matcher,
    options: ImportOptions,
    questions: Questions,
) -> _Matched:
    """Match all entries; raise DataError if no item is found."""
    found = _Matched()
    if not len(matcher) and export.service and not options.keep_unknown:
        raise DataError(
            f"{source}: {len(entries):,} titles of {export.service}, and no catalogue to match "
            "them to: name a file of titles with --titles or a model with --artifact"
        )
    for entry in entries:
        if (item := _item_of(entry, matcher, options, questions, found)) is not None:
            known = found.times.get(item)
            found.times[item] = max(filter(None, (known, entry.when)), default=None)
    if not found.times:
        names = [each.names[0] for each in entries]
        raise _nothing(source, len(names), names, matcher, found, export)
    return found


def _item_of(
    entry: Entry,
    matcher: Matcher,
    options: ImportOptions,
    questions: Questions,
    found: _Matched,
) -> str | None:
    """Return the item that an entry stands for, and count how it was found."""
    if not len(matcher):  # A table of ids before any catalogue is known.
        own = entry.ids[0] if entry.ids else entry.names[0]
        match = Match(How.EXACT, (clean_id(own, "item"),), 1.0)
    else:
        match = matcher.match(entry.names, entry.by, entry.ids)
    item = match.items[0] if match.how in (How.EXACT, How.CLOSE) else None
    if match.how is How.UNSURE:
        if options.unsure is Unsure.TAKE:
            item = match.items[0]
        elif options.unsure is Unsure.ASK and questions.same is not None:
            titles = {each: matcher.titles.get(each, each) for each in match.items}
            item = questions.same(entry, match.items, titles)
    if match.how is How.UNSURE and item is None:
        found.unsure.append((entry.names[0], match.items[:3]))
    kept = item is None and options.keep_unknown
    if kept:
        item = clean_id(entry.ids[0] if entry.ids else entry.names[0], "item")
        found.kept += 1
    found.counts[match.how] += 1
    found.rows.append(
        {
            "title": entry.names[0],
            "by": entry.by,
            "match": match.how.value,
            "item": item,
            "candidates": [matcher.titles.get(each, each) for each in match.items],
            "similarity": round(match.similarity, 3),
        }
    )
    return item


def _nothing(
    source: Path,
    count: int,
    names: Sequence[str],
    matcher: Matcher,
    found: _Matched | None = None,
    export: Export | None = None,
) -> DataError:
    """Return the error of an import without any match, with what can be done."""
    if not count:
        reasons = _reasons(export) if export else ""
        return DataError(f"{source}: nothing to import; left out: {reasons or 'nothing'}")
    unsure = found.counts[How.UNSURE] if found else 0
    if unsure:
        return DataError(
            f"{source}: nothing was imported: of {count:,} titles {unsure:,} may be in the "
            "catalogue under another name; --unsure take accepts the best match, ask asks"
        )
    example = next(iter(matcher.titles.values()), "")
    hint = (
        f"its titles look like {example!r}; is it the right catalogue?"
        if example
        else "it has no titles, only ids: name a file of titles with --titles"
    )
    return DataError(
        f"{source}: nothing was imported: none of {count:,} items (such as {names[0][:60]!r}) is "
        f"among the {len(matcher):,} of the catalogue; {hint} --keep-unknown keeps them anyway"
    )


# --- telling --------------------------------------------------------------------------------------


def _summary(export: Export, found: _Matched, matcher: Matcher) -> list[str]:
    """Return sentences on what was read and how it matched."""
    said = []
    titles = sum(found.counts.values())
    if export.service:
        said.append(
            f"An export of {export.service}: {len(export.entries):,} entries, "
            f"{titles:,} different titles."
        )
    if export.left_out:
        said.append(f"Left out: {_reasons(export)}.")
    if not len(matcher):
        return said
    shown = [
        f"{found.counts[how]:,} {words}"
        for how, words in (
            (How.EXACT, "in the catalogue"),
            (How.CLOSE, "in it with another spelling"),
            (How.UNSURE, "unsure"),
            (How.NONE, "not in it"),
        )
        if found.counts[how]
    ]
    said.append(f"Titles: {', '.join(shown)}.")
    for how, words in (
        (How.CLOSE, "Taken for the same"),
        (How.UNSURE, "Unsure, so not added (--unsure ask or take)"),
        (How.NONE, "Not in the catalogue"),
    ):
        rows = [row for row in found.rows if row["match"] == how]
        if how is How.UNSURE:
            rows = [row for row in rows if row["item"] is None]
        if rows:
            more = f" and {len(rows) - LISTED:,} more" if len(rows) > LISTED else ""
            said.append(f"{words}: {'; '.join(map(_line, rows[:LISTED]))}{more}.")
    return said


def _line(row: dict[str, Any]) -> str:
    title = row["title"][:60]
    if row["match"] == How.NONE:
        return title
    return f"{title} = {' or '.join(each[:60] for each in row['candidates'][:3])}"


def _reasons(export: Export) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(export.left_out.items()))
