"""Tests of personal exports in the layouts of their services, whole and damaged, and of importing.

All content is made up.
"""

from __future__ import annotations

import io
import json
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from privirec.app import importing
from privirec.app.cli import device as device_commands
from privirec.app.cli import questions
from privirec.data.dates import read_dates
from privirec.data.exports import read_export
from privirec.device import Store
from privirec.errors import DataError, DataWarning, PrivirecError

TITLES = """item_id,title,link
b1,A Wizard of Earthsea,https://example.org/b1
f1,The Lighthouse (2019),https://example.org/f1
f2,Salt and Stone,
g1,Night Train,
m1,Ann Ember – Quiet Garden,
s1,Winter Harbour,
"""


def spotify() -> Any:
    return [
        {"endTime": "2024-01-31 12:00", "artistName": "Ann Ember", "trackName": "Quiet Garden"}
        | {"msPlayed": 181000},
        {"endTime": "2024-02-01 12:00", "artistName": "Ann Ember", "trackName": "Quiet Garden"}
        | {"msPlayed": 181000},
        {"endTime": "2024-02-02 12:00", "artistName": "Ann Ember", "trackName": "Skipped"}
        | {"msPlayed": 4000},
    ]


def endsong() -> Any:
    empty = {"episode_name": None, "episode_show_name": None, "spotify_episode_uri": None}
    track = {
        "ts": "2024-01-31T12:00:00Z",
        "ms_played": 181000,
        "master_metadata_track_name": "Quiet Garden - Remastered 2011",
        "master_metadata_album_artist_name": "Ann Ember",
        "spotify_track_uri": "spotify:track:1",
        "ip_addr": "192.0.2.1",
    }
    return [track | empty]


def library() -> Any:
    track = {"artist": "Ann Ember", "album": "Green", "track": "Quiet Garden", "uri": "spotify:1"}
    return {"tracks": [track], "albums": [], "shows": [], "bannedTracks": []}


def takeout() -> Any:
    common = {"header": "YouTube", "products": ["YouTube"], "time": "2024-01-31T12:00:00.000Z"}
    channel = [{"name": "Harbour Films", "url": "https://www.youtube.com/channel/1"}]
    video = "https://www.youtube.com/watch?v=abc-DEF_123"
    return [
        common | {"title": "Watched Winter Harbour", "titleUrl": video, "subtitles": channel},
        common
        | {"title": "Watched Buy this", "titleUrl": video}
        | {"details": [{"name": "From Google Ads"}]},
        common | {"title": "Watched a video that has been removed"},
    ]


def steam() -> Any:
    games = [
        {
            "appid": 10,
            "name": "Night Train",
            "playtime_forever": 60,
            "rtime_last_played": 1706702400,
        },
        {"appid": 20, "name": "Never Played", "playtime_forever": 0, "rtime_last_played": 0},
    ]
    return {"response": {"game_count": 2, "games": games}}


NETFLIX = 'Title,Date\n"Winter Harbour: Season 1: Pilot","1/31/24"\n"Salt and Stone","1/30/24"\n'
VIEWING = (
    "Profile Name,Start Time,Duration,Attributes,Title,Supplemental Video Type,Device Type,"
    "Bookmark,Latest Bookmark,Country\n"
    "Ann,2024-01-31 12:00:00,00:40:00,,Winter Harbour: Season 1: Pilot,,TV,00:40,00:40,NO\n"
    "Ann,2024-01-31 11:00:00,00:00:20,,Salt and Stone,TRAILER,TV,00:00,00:00,NO\n"
)
GOODREADS = (
    "Book Id,Title,Author,Author l-f,Additional Authors,ISBN,ISBN13,My Rating,Average Rating,"
    "Date Read,Date Added,Bookshelves,Exclusive Shelf,My Review\n"
    '11,"A Wizard of Earthsea (Earthsea Cycle, #1)",Some Author,"Author, Some",,="0547773749",'
    '="9780547773742",5,4.0,2024/01/31,2023/01/01,,read,"Good, ""really"" good"\n'
    "12,Something Else,Other Author,,,,,0,3.5,,2024/01/01,to-read,to-read,\n"
)
WATCHED = "Date,Name,Year,Letterboxd URI\n2024-01-31,The Lighthouse,2019,https://boxd.it/aaaa\n"
RATINGS = (
    "Date,Name,Year,Letterboxd URI,Rating\n2024-02-01,The Lighthouse,2019,https://boxd.it/a,2\n"
)
DIARY = (
    "Date,Name,Year,Letterboxd URI,Rating,Rewatch,Tags,Watched Date\n"
    "2024-02-02,The Lighthouse,2019,https://boxd.it/a,2,,,2024-01-30\n"
)
AMAZON = (
    '"Website","Order ID","Order Date","Currency","ASIN","Quantity","Order Status","Product Name"\n'
    '"Amazon.com","111-1","2024-01-31T12:00:00Z","USD","B000000001","1","Closed",'
    '"A Wizard of Earthsea"\n'
    '"Amazon.com","111-2","2024-01-31T12:00:00Z","USD","B000000002","1","Cancelled","Lamp"\n'
)
STEAM_PAGE = (
    "<!doctype html><html><script>var rgGames = "
    '[{"appid":10,"name":"Night Train","hours_forever":"1,204","last_played":1706702400},'
    '{"appid":20,"name":"Never Played"}];</script></html>'
)

NOON, DAY = read_dates(["2024-01-31T12:00Z", "2024-01-31"]).seconds
WHOLE: dict[str, tuple[str, str, str, str, float | None]] = {
    # name: file, content, service, item, time
    "spotify": ("StreamingHistory0.json", json.dumps(spotify()), "Spotify", "m1", NOON),
    "endsong": ("endsong_0.json", json.dumps(endsong()), "Spotify", "m1", NOON),
    "library": ("YourLibrary.json", json.dumps(library()), "Spotify", "m1", None),
    "takeout": ("watch-history.json", json.dumps(takeout()), "YouTube", "s1", NOON),
    "steam": ("games.json", json.dumps(steam()), "Steam", "g1", NOON),
    "steam-page": ("games.html", STEAM_PAGE, "Steam", "g1", NOON),
    "netflix": ("NetflixViewingHistory.csv", NETFLIX, "Netflix", "s1", DAY),
    "viewing": ("ViewingActivity.csv", VIEWING, "Netflix", "s1", NOON),
    "goodreads": ("goodreads_library_export.csv", GOODREADS, "Goodreads", "b1", DAY),
    "watched": ("watched.csv", WATCHED, "Letterboxd", "f1", DAY),
    "diary": ("diary.csv", DIARY, "Letterboxd", "f1", None),
    "amazon": ("Retail.OrderHistory.1.csv", AMAZON, "Amazon", "b1", NOON),
}


def run(*arguments: object, error: str | None = None) -> str:
    result = CliRunner().invoke(device_commands.app, [str(each) for each in arguments])
    if error is None:
        assert result.exit_code == 0, result.exception
        return " ".join(result.stdout.split())
    assert isinstance(result.exception, PrivirecError), result.output
    message = str(result.exception)
    assert error in message, message
    assert "\n" not in message
    return message


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with the titles of a small catalogue."""
    (tmp_path / "titles.csv").write_text(TITLES)
    run("titles", tmp_path / "titles.csv", "--store", tmp_path / "here" / "me.db")
    return tmp_path / "here" / "me.db"


def latest(store: Path) -> dict[str, float | None]:
    with Store(store) as opened:
        return dict(opened.latest("me"))


# --- every service --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WHOLE)
def test_an_export_is_recognised_by_its_content_and_matched(
    name: str, store: Path, tmp_path: Path
) -> None:
    file, content, service, item, time = WHOLE[name]
    source = tmp_path / f"renamed{Path(file).suffix}"
    source.write_text(content)
    said = run("import", source, "--store", store, "--json", tmp_path / "rows.json")
    assert f"An export of {service}" in said
    found = latest(store)
    assert item in found
    if name == "spotify":
        assert found[item] == NOON + 24 * 3600  # the later of two plays
        assert "1 played for less than 30 seconds" in said
    elif time is not None:
        assert found[item] == time
    if name in ("takeout", "steam", "steam-page", "viewing", "goodreads", "amazon"):
        assert "Left out: 1 " in said
    rows = [json.loads(line) for line in (tmp_path / "rows.json").read_text().splitlines()]
    assert {row["match"] for row in rows} <= {"exact", "close", "unsure", "none"}
    assert "0 of them new" in run("import", source, "--store", store)


@pytest.mark.parametrize("name", WHOLE)
def test_the_same_in_an_archive_among_other_files(name: str, store: Path, tmp_path: Path) -> None:
    file, content, _, item, _ = WHOLE[name]
    source = tmp_path / "my_data.zip"
    with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"deep/folder/{file}", content)
        if name not in ("steam", "steam-page"):
            archive.writestr("deep/ReadMe.pdf", b"%PDF")
            archive.writestr("watchlist.csv", WATCHED.replace("The Lighthouse", "Night Train"))
    run("import", source, "--store", store)
    assert item in latest(store)
    assert "g1" not in latest(store) or item == "g1"  # nothing from the watch list


def test_files_of_one_archive_are_read_together(store: Path, tmp_path: Path) -> None:
    source = tmp_path / "letterboxd.zip"
    with zipfile.ZipFile(source, "w") as archive:
        for name, content in (("watched", WATCHED), ("ratings", RATINGS), ("diary", DIARY)):
            archive.writestr(f"{name}.csv", content)
    assert "3 entries, 1 different titles" in run("import", source, "--store", store)
    assert latest(store) == {"f1": read_dates(["2024-02-01"]).seconds[0]}
    low = ("--store", tmp_path / "new.db", "--titles", tmp_path / "titles.csv", "--min-rating", 3)
    run("import", source, *low, error="nothing to import; left out: 1 rated below 3")


@pytest.mark.parametrize("name", WHOLE)
def test_damaged_exports_are_refused_and_nothing_is_written(
    name: str, store: Path, tmp_path: Path
) -> None:
    """Test files that are cut off, empty or in a wrong encoding."""
    file, content, *_ = WHOLE[name]
    source = tmp_path / file
    before = store.read_bytes()
    for damaged in (b"", b" \n", content.encode()[: len(content) // 3], b"\x00\x01\x02" * 50):
        source.write_bytes(damaged)
        run("import", source, "--store", store, error=file.split(".")[0])
        assert store.read_bytes() == before
        fresh = tmp_path / "fresh.db"
        run("import", source, "--store", fresh, error=file.split(".")[0])
        assert not fresh.exists()
    for encoding in ("utf-16", "utf-8-sig"):
        source.write_bytes(content.encode(encoding))
        run("import", source, "--store", store)


def test_other_encodings_are_read(store: Path, tmp_path: Path) -> None:
    source = tmp_path / "NetflixViewingHistory.csv"
    source.write_bytes(
        'Title,Date\n"Amélie","31.01.24"\n"Salt and Stone","30.01.24"\n'.encode("cp1252")
    )
    with pytest.warns(DataWarning, match="read as Windows-1252"):
        assert "Not in the catalogue: Amélie" in run("import", source, "--store", store)
    assert latest(store) == {"f2": DAY - 24 * 3600}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"a.txt": "x", "b.txt": "y"}, "no history of Spotify"),
        ({"watched.csv": WATCHED, "endsong_0.json": json.dumps(endsong())}, "import one of them"),
        ({"endsong_0.json": '[{"ts": "2024'}, "not complete JSON; was the download cut off?"),
    ],
)
def test_archives_that_do_not_help(
    content: dict[str, str], why: str, store: Path, tmp_path: Path
) -> None:
    source = tmp_path / "my.zip"
    with zipfile.ZipFile(source, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
    run("import", source, "--store", store, error=why)
    source.write_bytes(source.read_bytes()[:-30])
    run("import", source, "--store", store, error="my.zip")


def test_an_archive_that_unpacks_to_too_much_is_refused(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privirec.data.exports.LARGEST_FILE", 100_000)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("endsong_0.json", "[" + " " * 1_000_000 + "]")
    source = tmp_path / "bomb.zip"
    source.write_bytes(buffer.getvalue())
    run("import", source, "--store", store, error="unpacked")


# --- people who share an account, dates -----------------------------------------------------------


def test_a_shared_account_needs_a_profile(store: Path, tmp_path: Path) -> None:
    source = tmp_path / "ViewingActivity.csv"
    source.write_text(VIEWING + VIEWING.splitlines()[1].replace("Ann", "Bob", 1) + "\n")
    run("import", source, "--store", store, error="name yours with --profile (Ann, Bob)")
    run("import", source, "--store", store, "--profile", "Cy", error="no profile Cy")
    run("import", source, "--store", store, "--profile", "Bob")
    assert list(latest(store)) == ["s1"]


def test_dates_that_may_mean_two_days_are_told(store: Path, tmp_path: Path) -> None:
    source = tmp_path / "n.csv"
    source.write_text('Title,Date\n"Salt and Stone","3/4/24"\n')
    with pytest.warns(DataWarning, match="3/4/24 is read with the month first"):
        run("import", source, "--store", store)
    run("import", source, "--store", store, "--day-first")
    assert latest(store) == {"f2": read_dates(["2024-04-03"]).seconds[0]}


# --- what matched, and what did not ---------------------------------------------------------------


def test_an_import_without_a_match_fails_and_says_what_to_do(store: Path, tmp_path: Path) -> None:
    source = tmp_path / "n.csv"
    source.write_text('Title,Date\n"Nothing Like It","1/31/24"\n')
    said = run("import", source, "--store", store, error="nothing was imported: none of 1 items")
    assert "is it the right catalogue?" in said
    assert "--keep-unknown" in said
    run("import", source, "--store", tmp_path / "new.db", error="no catalogue to match them to")
    assert not (tmp_path / "new.db").exists()
    run("import", source, "--store", store, "--keep-unknown")
    assert list(latest(store)) == ["Nothing Like It"]
    source.write_text("item\nx9\n")
    run("import", source, "--store", store, error="none of 1 items (such as 'x9')")
    source.write_text("user,item\nann,x9\nbob,x8\n")
    run("import", source, "--store", store, error="none of 2 items")


def test_unsure_titles_are_listed_taken_or_asked(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "n.csv"
    source.write_text('Title,Date\n"Nigth Train","1/31/24"\n"Salt and Stone","1/31/24"\n')
    said = run("import", source, "--store", store)
    assert "Titles: 1 in the catalogue, 1 unsure." in said
    assert "Nigth Train = Night Train" in said
    assert list(latest(store)) == ["f2"]
    run("import", source, "--store", store, "--unsure", "ask", error="no terminal to ask on")
    run("import", source, "--store", store, "--unsure", "take")
    assert sorted(latest(store)) == ["f2", "g1"]
    source.write_text('Title,Date\n"Nigth Train","1/31/24"\n')
    run("forget", "g1", "--store", store)
    run("import", source, "--store", store, error="1 may be in the catalogue under another name")
    asked: list[str] = []
    monkeypatch.setattr(device_commands.sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(questions.typer, "prompt", lambda *a, **k: asked.append(a[0]) or "1")
    found = importing.import_file(
        *(source, store, importing.TableOptions()),
        importing.ImportOptions(unsure=importing.Unsure.ASK),
        importing.Questions(same=questions.ask_same),
    )
    assert asked == ["The same as which one (empty: none)?"]
    assert found.rows[0]["item"] == "g1"


def test_an_unknown_table_is_mapped_by_options_or_questions(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "mine.json"
    source.write_text(json.dumps([{"what": "Night Train", "seen on": "31.01.2024", "mark": "4"}]))
    run("import", source, "--store", store, error="the fields are what, seenon, mark")
    run("import", source, "--store", store, "--item-column", "what", "--time-column", "seen on")
    assert latest(store) == {"g1": DAY}
    table = tmp_path / "mine.csv"
    table.write_text("what;seen on;mark\nSalt and Stone;31.01.2024;4\nWinter Harbour;;2\n")
    run("import", table, "--store", store, error="name it with --item-column")
    answers = iter(["9", "what", "2", "3"])
    monkeypatch.setattr(questions.typer, "prompt", lambda *a, **k: next(answers))
    importing.import_file(
        *(table, store, importing.TableOptions(min_rating=3), importing.ImportOptions()),
        importing.Questions(columns=questions.ask_columns),
    )
    assert latest(store) == {"g1": DAY, "f2": DAY}


def test_a_catalogue_of_a_file_or_beside_the_store(store: Path, tmp_path: Path) -> None:
    source, titles = tmp_path / "n.csv", tmp_path / "titles.csv"
    source.write_text(NETFLIX)
    new = tmp_path / "new.db"
    run("import", source, "--store", new, error="no catalogue")
    (tmp_path / "catalogue.txt").write_text("b1\nf1\nf2\ng1\nm1\ns1\n")  # as in a client's folder
    run("import", source, "--store", new)
    assert sorted(latest(new)) == ["f2", "s1"]
    with Store(new) as opened:
        assert opened.link("f1") == "https://example.org/f1"
    other = tmp_path / "elsewhere" / "me.db"
    run("import", source, "--store", other, "--titles", titles)
    with Store(other) as opened:
        assert opened.title("b1") == "A Wizard of Earthsea"
        assert opened.link("b1") == "https://example.org/b1"


def test_an_import_is_whole_or_not_at_all(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "n.csv"
    source.write_text(NETFLIX)
    connect: Callable[..., Any] = sqlite3.connect

    class Failing(sqlite3.Connection):
        def executemany(self, statement: str, rows: Any) -> Any:
            if statement.startswith("UPDATE"):
                raise sqlite3.OperationalError("disk I/O error")
            return super().executemany(statement, rows)

    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, factory=Failing, **k))
    run("import", source, "--store", store, error="disk I/O error")
    monkeypatch.undo()
    assert latest(store) == {}
    run("import", source, "--store", store)
    assert sorted(latest(store)) == ["f2", "s1"]


def test_what_is_no_history_is_said(tmp_path: Path) -> None:
    for name, content, why in (
        ("a.json", "[]", "no list of records"),
        ("a.json", "[1, 2]", "no list of records"),
        ("a.json", "[" * 100_000, "a.json"),
        ("a.html", "<html>Watched things</html>", "ask the service for JSON"),
        ("a.csv", "a,b\n\0,1\n", "neither text nor an archive"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(DataError, match=why):
            read_export(tmp_path / name)
