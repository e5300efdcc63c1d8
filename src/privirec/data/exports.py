"""Personal exports of services: Spotify, YouTube, Netflix, Goodreads, Letterboxd, Amazon, Steam.

A file is recognised by its content, because people rename files. Records of JSON and rows of CSV
are treated alike: a `Layout` says which fields a service writes and which of them are used.
"""

from __future__ import annotations

import csv
import html
import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from privirec.data.columns import (
    USUAL_ITEM_COLUMNS,
    USUAL_RATING_COLUMNS,
    USUAL_TIME_COLUMNS,
    plain_name,
)
from privirec.data.dates import read_dates
from privirec.data.text import UNREADABLE, cannot_be_read, in_utf8, opened
from privirec.errors import DataError, warn_of_data

Record = Mapping[str, Any]

LARGEST_FILE = 1 << 29
"""Most bytes of a file, unpacked."""
SHORTEST_PLAY = 30_000
"""Milliseconds; a track that was played for less was skipped."""
_SHELVES = ("read", "currently-reading")
_SNIFFED = (",", ";", "\t", "|")


class Entry(NamedTuple):
    """One thing that a person watched, heard, read, played or bought."""

    names: tuple[str, ...]
    """Possible titles, the most specific first."""
    by: str = ""
    """Artist, author or channel."""
    ids: tuple[str, ...] = ()
    """Ids that a catalogue may use, such as an ISBN."""
    when: float | None = None
    """Seconds since 1970, if known."""
    rating: float | None = None


@dataclass
class Export:
    """Entries of an export, and the rows that were left out."""

    service: str
    """Name of the service, or empty for any other table."""
    entries: list[Entry] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Number of rows that are left out, by reason."""
    profiles: list[str] = field(default_factory=list)
    """Names of the profiles that share the account, if there are several."""


class Mapped(NamedTuple):
    """Columns of an unknown table."""

    item: str
    time: str | None = None
    rating: str | None = None
    only: bool = False
    """True if no other column can hold an id."""


@dataclass(frozen=True)
class Layout:
    """Fields that one kind of file of a service has, by plain names (`plain_name`)."""

    service: str
    needs: frozenset[str]
    """Fields by which a record is recognised."""
    title: tuple[str, ...]
    """Fields of the title; the first one with content is used, as for all fields."""
    by: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    when: tuple[str, ...] = ()
    rating: tuple[str, ...] = ()
    names: Callable[[str, Record], tuple[str, ...]] = lambda title, record: (title,)
    """Returns all names under which a catalogue may list a title."""
    unwanted: Callable[[Record], str] = lambda record: ""
    """Returns the reason to leave a record out, or an empty text."""
    only: bool = False
    """True if a record has no other fields."""
    profile: str = ""
    """Field with the name of a profile, if several people share an account."""

    def fits(self, record: Record) -> bool:
        return self.needs == set(record) if self.only else self.needs <= set(record)


# --- the services ---------------------------------------------------------------------------------


def _short(name: str) -> Callable[[Record], str]:
    def unwanted(record: Record) -> str:
        played = _number(record.get(name))
        is_short = played is not None and played < SHORTEST_PLAY
        return "played for less than 30 seconds" if is_short else ""

    return unwanted


def _video(record: Record) -> str:
    said = json.dumps(record.get("details", ""))
    if "Google Ads" in said:
        return "advertisements"
    if "watch?v=" not in str(record.get("titleurl", "")) and "youtu.be/" not in str(
        record.get("titleurl", "")
    ):
        return "no videos, or removed since"
    return ""


_WATCHED = re.compile(
    r"^(?:Watched|Vous avez regardé|Has visto|Hai guardato|Você assistiu a?|Je hebt gekeken naar) "
    r"|(?: angesehen| を視聴しました)$"
)


def _video_names(title: str, record: Record) -> tuple[str, ...]:
    return (_WATCHED.sub("", title.replace("\xa0", " ")),)


_SEASON = re.compile(
    r":\s*(?:(?:limited )?series|season|part|volume|book|chapter|staffel|saison|temporada|"
    r"stagione|teil|partie|parte)\b.*$",
    re.IGNORECASE,
)


def _episode_names(title: str, record: Record) -> tuple[str, ...]:
    """Return a title and, for an episode such as "Show: Season 1: Pilot", that of the show."""
    show = _SEASON.sub("", title)
    if show == title and title.count(": ") > 1:
        show = title.partition(": ")[0]
    return tuple(dict.fromkeys((title, show)))


def _book_names(title: str, record: Record) -> tuple[str, ...]:
    """Return a title, without its series such as "(Earthsea, #1)" and without its subtitle."""
    alone = re.sub(r"\s*\([^()]*#[^()]*\)$", "", title)
    return tuple(dict.fromkeys((title, alone, alone.partition(": ")[0])))


def _film_names(title: str, record: Record) -> tuple[str, ...]:
    year = str(record.get("year") or "")
    return (f"{title} ({year})", title) if year else (title,)


def _fields(*names: str) -> frozenset[str]:
    return frozenset(map(plain_name, names))


LAYOUTS = (
    Layout(
        "Spotify",
        _fields("ts", "ms_played", "master_metadata_track_name"),
        title=("mastermetadatatrackname", "episodename", "audiobooktitle"),
        by=("mastermetadataalbumartistname", "episodeshowname"),
        ids=("spotifytrackuri", "spotifyepisodeuri", "audiobookuri"),
        when=("ts",),
        unwanted=_short("msplayed"),
    ),
    Layout(
        "Spotify",
        _fields("endTime", "artistName", "trackName", "msPlayed"),
        title=("trackname",),
        by=("artistname",),
        when=("endtime",),
        unwanted=_short("msplayed"),
    ),
    Layout(
        "Spotify",
        _fields("endTime", "podcastName", "episodeName", "msPlayed"),
        title=("episodename",),
        by=("podcastname",),
        when=("endtime",),
        names=lambda title, record: (title, str(record["podcastname"])),
        unwanted=_short("msplayed"),
    ),
    Layout(
        "Spotify",
        _fields("artist", "track", "uri"),
        title=("track",),
        by=("artist",),
        ids=("uri",),
    ),
    Layout(
        "YouTube",
        _fields("header", "title", "time", "products"),
        title=("title",),
        by=("subtitles",),
        ids=("titleurl",),
        when=("time",),
        names=_video_names,
        unwanted=_video,
    ),
    Layout(
        "Netflix",
        _fields("Profile Name", "Start Time", "Duration", "Title"),
        title=("title",),
        when=("starttime",),
        names=_episode_names,
        unwanted=lambda record: (
            "trailers and previews"
            if str(record.get("supplementalvideotype") or "").strip()
            else ""
        ),
        profile="profilename",
    ),
    Layout(
        "Netflix",
        _fields("Title", "Date"),
        title=("title",),
        when=("date",),
        names=_episode_names,
        only=True,
    ),
    Layout(
        "Goodreads",
        _fields("Book Id", "Title", "Author", "Exclusive Shelf"),
        title=("title",),
        by=("author",),
        ids=("bookid", "isbn13", "isbn"),
        when=("dateread", "dateadded"),
        rating=("myrating",),
        names=_book_names,
        unwanted=lambda record: (
            "" if record.get("exclusiveshelf") in _SHELVES else "on a shelf of books not read yet"
        ),
    ),
    Layout(
        "Letterboxd",
        _fields("Date", "Name", "Year", "Letterboxd URI"),
        title=("name",),
        ids=("letterboxduri",),
        when=("watcheddate", "date"),
        rating=("rating",),
        names=_film_names,
    ),
    Layout(
        "Amazon",
        _fields("Order ID", "Order Date", "ASIN", "Product Name"),
        title=("productname",),
        ids=("asin",),
        when=("orderdate",),
        unwanted=lambda record: (
            "cancelled orders" if str(record.get("orderstatus")).lower() == "cancelled" else ""
        ),
    ),
    Layout(
        "Amazon",
        _fields("Order ID", "Order Date", "Title", "ASIN/ISBN"),
        title=("title",),
        ids=("asin/isbn",),
        when=("orderdate",),
    ),
    Layout(
        "Amazon",
        _fields("ASIN", "Title", "OrderId"),
        title=("title",),
        ids=("asin",),
        when=("orderdate",),
    ),
    Layout(
        "Steam",
        _fields("appid", "name", "playtime_forever"),
        title=("name",),
        ids=("appid",),
        when=("rtimelastplayed",),
        unwanted=lambda record: "" if _number(record["playtimeforever"]) else "games never played",
    ),
    Layout(
        "Steam",
        _fields("appid", "name"),
        title=("name",),
        ids=("appid",),
        when=("lastplayed",),
        unwanted=lambda record: "" if record.get("hoursforever", "?") else "games never played",
    ),
)

SERVICES = tuple(dict.fromkeys(layout.service for layout in LAYOUTS))

_IN_ARCHIVE = re.compile(
    r"(?:^|/)(?:StreamingHistory\w*|Streaming_History_[\w-]+|endsong\w*|YourLibrary)\.json$"
    r"|watch-history\.(?:json|html)$"
    r"|(?:^|/)(?:NetflixViewingHistory|ViewingActivity|goodreads_library_export)\.csv$"
    r"|(?:^|/)(?:watched|ratings|diary|Digital Items)\.csv$|Retail\.OrderHistory[\w.]*\.csv$",
    re.IGNORECASE,
)
"""Members of an archive that hold a history; others, such as a watch list, do not."""


# --- reading --------------------------------------------------------------------------------------


def read_export(
    path: Path,
    *,
    day_first: bool | None = None,
    profile: str | None = None,
    choose: Callable[[Sequence[Record]], Mapped | None] | None = None,
) -> Export | None:
    """Read an export of a known service, or a table whose columns are chosen.

    `profile` is the person whose rows are read if an account is shared. `choose` receives the
    records of a file of no known service and returns its columns; without it, or if it returns
    None, None is returned.
    """
    parts = list(_parts(path))
    found = Export("")
    for name, content in parts:
        records = _records(path, name, content)
        layout = next((each for each in LAYOUTS if records and each.fits(records[0])), None)
        if layout is None and len(parts) == 1:
            mapped = choose(records) if choose else None
            if mapped is None:
                return None
            layout = _mapped(mapped)
        if layout is None:
            continue
        if found.service not in ("", layout.service):
            raise DataError(
                f"{path}: of {found.service} and of {layout.service}; import one of them"
            )
        found.service = layout.service
        _read(found, layout, records, name, day_first, profile)
    if not found.entries and not found.left_out:
        raise DataError(f"{path}: no viewing, listening, reading or buying history in it")
    return found


def _mapped(chosen: Mapped) -> Layout:
    time, rating = ((plain_name(each),) if each else () for each in (chosen.time, chosen.rating))
    item = plain_name(chosen.item)
    ids = (item,) if chosen.only else (*USUAL_ITEM_COLUMNS, item)
    return Layout("", frozenset(), (item,), ids=ids, when=time, rating=rating)


def _read(
    found: Export,
    layout: Layout,
    records: Sequence[Record],
    name: str,
    day_first: bool | None,
    profile: str | None,
) -> None:
    """Add the entries of one file."""
    if layout.profile:
        found.profiles = sorted({str(each.get(layout.profile, "")) for each in records})
        if profile is not None:
            if profile not in found.profiles:
                raise DataError(f"{name}: no profile {profile}; there are {found.profiles}")
            records = [each for each in records if each.get(layout.profile) == profile]
            found.profiles = [profile]
    dates = read_dates((_first(each, layout.when) for each in records), day_first=day_first)
    if dates.is_ambiguous:
        said = _first(records[0], layout.when)
        warn_of_data(f"{name}: {said} is read with the month first (--day-first: with the day)")
    for record, when in zip(records, dates.seconds, strict=True):
        title = _title(_first(record, layout.title))
        reason = layout.unwanted(record) or ("" if title else "rows without a title")
        if reason:
            found.left_out[reason] += 1
            continue
        ids = tuple(_id(each) for at in layout.ids if (each := record.get(at)) not in (None, ""))
        rating = _number(_first(record, layout.rating))
        by = _title(_first(record, layout.by))
        names = tuple(filter(None, map(_title, layout.names(title, record))))
        found.entries.append(Entry(names, by, ids, when, rating or None))


def _parts(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of a file, or of the members of an archive that hold a history."""
    try:
        with opened(path) as file:
            content = file.read(LARGEST_FILE + 1)
    except UNREADABLE as error:
        raise cannot_be_read(path, error) from None
    if content[:2] == b"PK":
        yield from _members(path)
        return
    if len(content) > LARGEST_FILE:
        raise DataError(f"{path}: more than {LARGEST_FILE >> 20} MiB")
    if not content.strip():
        raise DataError(f"{path}: the file is empty")
    yield path.name, content


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        with zipfile.ZipFile(path) as archive:
            wanted = [each for each in archive.infolist() if _IN_ARCHIVE.search(each.filename)]
            if not wanted:
                wanted = [each for each in archive.infolist() if not each.is_dir()]
                wanted = wanted if len(wanted) == 1 else []
            if not wanted:
                raise DataError(
                    f"{path}: no history of {', '.join(SERVICES)} in this archive; unpack it and "
                    "name the file"
                )
            left = LARGEST_FILE
            for member in sorted(wanted, key=lambda each: each.filename):
                with archive.open(member) as file:
                    content = file.read(left + 1)  # The size that an archive states may be wrong.
                left -= len(content)
                if left < 0:
                    raise DataError(f"{path}: more than {LARGEST_FILE >> 20} MiB unpacked")
                yield member.filename, content
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, *UNREADABLE) as error:
        raise DataError(f"{path}: not a readable archive: {error}") from None


def _records(path: Path, name: str, content: bytes) -> list[Record]:
    """Return the records of a file: JSON objects, or the rows of a table."""
    where = path if name == path.name else Path(f"{path}:{name}")
    text = in_utf8(where, _in_utf8_if_utf16(content)).decode("utf-8-sig")
    beginning = text.lstrip()[:1]
    if beginning in ("[", "{"):
        return _of_json(where, text)
    if beginning == "<":
        return _of_page(where, text)
    return list(_of_table(where, text))


def _in_utf8_if_utf16(content: bytes) -> bytes:
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16", "replace").encode()
    return content


def _of_json(where: Path, text: str) -> list[Record]:
    try:
        found = json.loads(text)
    except RecursionError:
        raise DataError(f"{where}: not a list of records") from None
    except ValueError as error:
        at = getattr(error, "lineno", 1)
        lines = [json_line for json_line in text.splitlines() if json_line.strip()]
        if len(lines) > 1 and lines[0].rstrip().endswith("}"):
            return _of_json_lines(where, lines)
        raise DataError(
            f"{where}:{at}: not complete JSON; was the download cut off? ({error})"
        ) from None
    records: list[Record] = [
        {plain_name(key): value for key, value in each.items()} for each in _objects(found, 3)
    ]
    if not records:
        raise DataError(f"{where}: no list of records in it")
    return records


def _of_json_lines(where: Path, lines: Sequence[str]) -> list[Record]:
    try:
        return _of_json(where, f"[{','.join(lines)}]")
    except DataError:
        raise DataError(f"{where}: not complete JSON; was the download cut off?") from None


def _objects(found: object, depth: int) -> list[dict[str, Any]]:
    """Return the first list of objects inside a JSON value."""
    if isinstance(found, list):
        return [each for each in found if isinstance(each, dict)]
    if isinstance(found, dict) and depth:
        for each in found.values():
            if inner := _objects(each, depth - 1):
                return inner
    return []


_GAMES = re.compile(r"rgGames\s*=\s*(?=\[)|\"rgGames\"\s*:\s*(?=\[)")


def _of_page(where: Path, text: str) -> list[Record]:
    """Return the games in a saved page of a Steam profile."""
    for page in (text, html.unescape(text)):
        if found := _GAMES.search(page):
            try:
                games, _ = json.JSONDecoder().raw_decode(page, found.end())
            except (ValueError, RecursionError):
                raise DataError(f"{where}: the list of games is cut off") from None
            never = {"hoursforever": ""}  # The page leaves it out for games that were never played.
            return [
                never | {plain_name(key): value for key, value in each.items()} for each in games
            ]
    raise DataError(
        f"{where}: a web page without a list of games; ask the service for JSON or CSV instead "
        "(Google Takeout: Multiple formats, History, JSON)"
    )


def _of_table(where: Path, text: str) -> Iterator[Record]:
    if "\0" in text:
        raise DataError(f"{where}: neither text nor an archive")
    first = text.partition("\n")[0]
    delimiter = max(_SNIFFED, key=first.count)
    try:
        table = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        header = [plain_name(name.lstrip("\ufeff")) for name in next(table, [])]
        for row in table:
            if any(field.strip() for field in row):
                yield dict(zip(header, row, strict=False))
    except csv.Error as error:
        raise DataError(f"{where}: {error}; was the download cut off?") from None


# --- fields ---------------------------------------------------------------------------------------


def _first(record: Record, names: Iterable[str]) -> Any:
    """Return the first of these fields with content, or None."""
    for name in names:
        value = record.get(name)
        if value not in (None, "", 0):
            return value
    return None


def _title(value: Any) -> str:
    """Return a title on one line. YouTube names a channel in a list of objects."""
    if isinstance(value, list):
        value = value[0].get("name", "") if value and isinstance(value[0], dict) else ""
    if value is None or isinstance(value, dict):
        return ""
    return "".join(each for each in " ".join(str(value).split()) if each.isprintable())


def _id(value: Any) -> str:
    """Return an id: of a video in its address, of a book without the marks of a spreadsheet."""
    text = str(value).strip()
    video = re.search(r"(?:watch\?v=|youtu\.be/)([\w-]{6,20})", text)
    return video[1] if video else text.removeprefix("=").strip('"')


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        found = float(str(value).replace(",", "."))
    except ValueError:
        return None
    return found if found == found and abs(found) < 1e300 else None  # noqa: PLR0124 - not NaN


def usual_columns(names: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the columns of times and ratings, if one has a name that says so."""
    time, rating = (
        next((name for name in known if name in names), None)
        for known in (USUAL_TIME_COLUMNS, USUAL_RATING_COLUMNS)
    )
    return time, rating
