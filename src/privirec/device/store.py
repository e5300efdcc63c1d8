"""The local store of one client: the histories of its users (one person, or a silo) in SQLite.

Every change is on the disk as a whole, or not at all, when the call returns, and what was forgotten
is out of the file (`store_file`). What forgetting cannot do is change sums that others already
have: filters of an earlier run count the forgotten interactions until the next run, and the store
says how many those are without remembering which.
"""

from __future__ import annotations

import csv
import io
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from privirec.data.catalogue import Catalogue
from privirec.data.ids import MISSING_WORDS
from privirec.data.interactions import Interactions
from privirec.data.text import fits_text, text_lines
from privirec.device.store_file import StoreFile
from privirec.device.titles import clean_title
from privirec.durable import write_private
from privirec.errors import DataError, FederationError, SitsOut, UsageError


@dataclass(frozen=True)
class Run:
    """A run that this store took part in."""

    run: str
    begun: str
    users: int
    interactions: int
    forgotten: int
    """Interactions it may have used that were forgotten since."""
    finished: bool
    sent: bool
    """Whether something that was made of them may have left."""


@dataclass(frozen=True)
class Summary:
    users: int
    interactions: int
    titles: int
    last_run: Run | None
    pending_forgets: int
    """Forgotten interactions that the filters of an earlier run still count."""
    waiting: int
    """Interactions that no run has used yet."""
    traces: bool
    """Whether forgotten bytes still have to be removed (another program holds the file open)."""


class Store(StoreFile):
    """Histories by user and item, both named by text.

    >>> with Store("me/history.db", create=True) as store:          # doctest: +SKIP
    ...     store.add([("me", "item-1"), ("me", "item-2")])
    """

    # --- changing -------------------------------------------------------------------------------

    def add(self, pairs: Iterable[tuple[object, object]]) -> int:
        """Add (user, item) pairs, all or none; returns how many were new."""
        rows = [(clean_id(user, "user"), clean_id(item, "item")) for user, item in pairs]
        with self._change() as db:
            (next_run,) = db.execute("SELECT coalesce(max(number), 0) + 1 FROM runs").fetchone()
            before = db.total_changes
            now = _stamp(datetime.now(UTC))
            db.executemany(
                "INSERT OR IGNORE INTO interactions VALUES (?, ?, ?, ?)",
                ((user, item, next_run, now) for user, item in rows),
            )
            return db.total_changes - before

    def add_interactions(self, interactions: Interactions) -> int:
        """Add what a reader read; returns how many were new."""
        items = [clean_id(item, "item") for item in interactions.item_ids.tolist()]
        users = [clean_id(user, "user") for user in interactions.user_ids.tolist()]
        rows = np.repeat(np.arange(interactions.n_users), interactions.user_degrees).tolist()
        columns = interactions.matrix.indices.tolist()
        return self.add((users[r], items[c]) for r, c in zip(rows, columns, strict=True))

    def forget_items(self, user: object, items: Iterable[object]) -> int:
        """Forget some items of one user, all or none; an item that is not there is an error."""
        name = clean_id(user, "user")
        wanted = sorted({clean_id(item, "item") for item in items})
        with self._forgetting() as db:
            for item in wanted:
                if not _forget(db, "user = ? AND item = ?", (name, item)):
                    raise DataError(f"{self.path}: user {name} has no item {item}")
        return len(wanted)

    def forget_user(self, user: object) -> int:
        """Forget one user; returns how many interactions that were."""
        name = clean_id(user, "user")
        with self._forgetting() as db:
            gone = _forget(db, "user = ?", (name,))
            if not gone:
                raise DataError(f"{self.path}: no user {name}")
        return gone

    def forget_everything(self) -> int:
        """Forget every interaction, and the titles too; returns how many interactions that were."""
        with self._forgetting() as db:
            gone = _forget(db, "TRUE", ())
            db.execute("DELETE FROM titles")
        return gone

    def set_titles(self, titles: Mapping[str, str]) -> int:
        """Titles of items, of the whole catalogue or a part; a new one replaces the old."""
        rows = [(clean_id(item, "item"), clean_title(title)) for item, title in titles.items()]
        with self._change() as db:
            db.executemany("INSERT OR REPLACE INTO titles VALUES (?, ?)", rows)
        return len(rows)

    # --- looking --------------------------------------------------------------------------------

    def users(self) -> list[str]:
        with self._reported():
            found = self._db.execute("SELECT DISTINCT user FROM interactions ORDER BY user")
            return [user for (user,) in found]

    def items(self, user: object) -> list[str]:
        """The history of one user, by item id; empty for somebody unknown."""
        with self._reported():
            found = self._db.execute(
                "SELECT item FROM interactions WHERE user = ? ORDER BY item", (str(user),)
            )
            return [item for (item,) in found]

    def degrees(self) -> dict[str, int]:
        """How many items each user has."""
        with self._reported():
            return dict(self._db.execute("SELECT user, count(*) FROM interactions GROUP BY user"))

    def title(self, item: str) -> str | None:
        with self._reported():
            found = self._db.execute("SELECT title FROM titles WHERE item = ?", (item,)).fetchone()
        return found[0] if found else None

    def titles(self) -> dict[str, str]:
        """All titles, by item."""
        with self._reported():
            return dict(self._db.execute("SELECT item, title FROM titles ORDER BY item"))

    def interactions(
        self, catalogue: Catalogue, user: object | None = None
    ) -> tuple[Interactions, int]:
        """Histories over a catalogue, and how many interactions it does not know (left out).

        Every user of the store has a row, or only the one that is named.
        """
        with self._reported():
            return self._interactions(catalogue, *_who(user))

    def export(self, path: str | Path) -> int:
        """Write everything to a .csv or .txt file that `privirec store import` reads back.

        Only the owner can read it, and it appears whole or not at all.
        """
        path = Path(path)
        count, lines = self.exported(path)
        try:
            write_private(path, lines)
        except OSError as error:
            raise DataError(f"{path}: cannot be written: {error.strerror}") from None
        return count

    def exported(self, path: Path) -> tuple[int, Iterator[str]]:
        """How many interactions there are, and the lines of a file of this name with them."""
        if path.suffix.lower() not in (".csv", ".txt"):
            raise UsageError(f"{path}: export to a name that ends in .csv or .txt")
        with self._reported():
            query = "SELECT user, item FROM interactions ORDER BY user, item"
            pairs = self._db.execute(query).fetchall()
        lines = _csv_lines(pairs) if path.suffix.lower() == ".csv" else _text_lines(path, pairs)
        return len(pairs), lines

    def summary(self) -> Summary:
        with self._reported():
            return Summary(
                users=self._count("SELECT count(DISTINCT user) FROM interactions"),
                interactions=self._count("SELECT count(*) FROM interactions"),
                titles=self._count("SELECT count(*) FROM titles"),
                last_run=self._last_run(),
                pending_forgets=self.pending_forgets(),
                waiting=self._count(
                    "SELECT count(*) FROM interactions"
                    " WHERE first_run > (SELECT coalesce(max(snapshot), 0) FROM runs)"
                ),
                traces=self._setting("traces") is not None,
            )

    def check(self) -> None:
        """Raise if the file is damaged."""
        with self._reported():
            (found,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise DataError(f"{self.path}: damaged: {str(found).splitlines()[0]}")

    # --- taking part in runs --------------------------------------------------------------------

    def begin_run(
        self, run: str, catalogue: Catalogue, since: datetime | None = None
    ) -> tuple[Interactions, int]:
        """The histories to use in a run (and the count left out), noted before they are used: of
        users with an interaction in the catalogue, since others would be counted and hide nobody.

        `since`: when the calendar period of an exact run began. Whoever was in such a run before
        uses what was there at that moment, whenever it is asked: additions wait for the next
        period, and SitsOut says that something was forgotten. The first run of all uses
        everything, and further ones of its period the same.

        Asked again for the same run, after a crash or in another process, it gives the same
        histories: what was added meanwhile waits for the next run. If something was forgotten
        meanwhile the client has to leave the run, because it cannot be used again, and answering
        one run with two different histories would give the difference away.
        """
        with self._change() as db:
            known = db.execute(
                "SELECT snapshot, as_of, finished FROM runs WHERE run = ?", (run,)
            ).fetchone()
            if known is None:
                return self._begin_new(db, run, catalogue, since)
            snapshot, as_of, finished = known
            if finished:
                raise FederationError(f"{self.path}: run {run} is over")
            self.check_run(run)
            return self._in_run(catalogue, snapshot, as_of)

    def check_run(self, run: str) -> None:
        """Raise SitsOut if something was forgotten that this run may use."""
        with self._reported():
            for (forgotten,) in self._db.execute(
                "SELECT forgotten FROM runs WHERE run = ?", (run,)
            ):
                if forgotten:
                    raise SitsOut(
                        f"{self.path}: items were forgotten since run {run} began, so this client "
                        "leaves it"
                    )

    def note_sent(self, run: str) -> None:
        """Something that was made of the histories of this run may have left from now on."""
        with self._change() as db:
            db.execute("UPDATE runs SET sent = 1 WHERE run = ?", (run,))

    def finish_run(self, run: str) -> None:
        """The filters of this run replace those before, and what those still counted is over.

        What runs before it have sent is remembered until this store has sent something in a later
        one: by that the next run knows which histories it has to use again. (Filters may come
        before anything was sent, from a server that would like this to be forgotten.)
        """
        with self._change() as db:
            done = db.execute("UPDATE runs SET finished = 1 WHERE run = ?", (run,)).rowcount
            if not done:
                raise UsageError(f"{self.path}: no run {run} has begun")
            db.execute(
                "DELETE FROM runs AS earlier WHERE EXISTS (SELECT 1 FROM runs AS this"
                " WHERE this.run = ? AND earlier.number < this.number"
                " AND (this.sent OR NOT earlier.sent)"
                " AND (this.period != '' OR earlier.period = ''))",
                (run,),
            )

    def runs(self) -> list[Run]:
        """The last finished run, all that began later, and before it those that have sent something
        since this store last did; oldest first."""
        with self._reported():
            found = self._db.execute(
                "SELECT run, begun, users, interactions, forgotten, finished, sent"
                " FROM runs ORDER BY number"
            ).fetchall()
        return [
            Run(run, begun, users, interactions, forgotten, bool(finished), bool(sent))
            for run, begun, users, interactions, forgotten, finished, sent in found
        ]

    def pending_forgets(self) -> int:
        """Forgotten interactions that may still be counted in filters, until the next run."""
        runs = self.runs()
        last = max((place for place, run in enumerate(runs) if run.finished), default=0)
        return max((run.forgotten for run in runs[last:]), default=0)

    # --- inside ---------------------------------------------------------------------------------

    def _begin_new(
        self, db: sqlite3.Connection, run: str, catalogue: Catalogue, since: datetime | None
    ) -> tuple[Interactions, int]:
        period = "" if since is None else _stamp(since)
        used = db.execute(
            "SELECT snapshot, as_of, forgotten FROM runs WHERE sent AND period != '' AND period = ?"
            " ORDER BY forgotten DESC, number DESC",
            (period,),
        ).fetchone()
        as_of = used[1] if used else ""
        if (
            period
            and not used
            and self._count("SELECT count(*) FROM runs WHERE sent AND period != ''")
        ):
            # Not the first: what a server could time is what was there when the period began.
            as_of = period
        forgot = self._setting("forgot") or ""
        if (used and used[2]) or (as_of and not used and forgot >= as_of):
            raise SitsOut(f"{self.path}: items were forgotten that were there on {period}")
        (last,) = db.execute(
            "SELECT max(coalesce((SELECT max(number) FROM runs), 0),"
            " coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'runs'), 0))"
        ).fetchone()
        snapshot = used[0] if used else last + 1
        found, ignored = self._in_run(catalogue, snapshot, as_of)
        db.execute(
            "INSERT INTO runs (number, run, begun, users, interactions, snapshot, period, as_of)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(last + 1, run, _stamp(datetime.now(UTC))),
                *(found.n_users, found.n_interactions, snapshot, period, as_of),
            ),
        )
        return found, ignored

    def _in_run(self, catalogue: Catalogue, snapshot: int, as_of: str) -> tuple[Interactions, int]:
        where = "first_run <= ? AND (? = '' OR added < ?)"
        found, ignored = self._interactions(catalogue, where, (snapshot, as_of, as_of))
        return found.without_idle_users(), ignored

    def _interactions(
        self, catalogue: Catalogue, where: str, values: tuple[Any, ...]
    ) -> tuple[Interactions, int]:
        found = self._db.execute(
            f"SELECT user, item FROM interactions WHERE {where} ORDER BY user",  # noqa: S608
            values,
        ).fetchall()
        names: list[str] = []
        rows = np.empty(len(found), np.int64)
        for place, (user, _) in enumerate(found):
            if not names or names[-1] != user:
                names.append(user)
            rows[place] = len(names) - 1
        columns = catalogue.columns(item for _, item in found)
        known = columns >= 0
        histories = Interactions.from_indices(
            rows[known], columns[known], np.array(names, str), catalogue.item_ids
        )
        return histories, int(np.count_nonzero(~known))

    def _last_run(self) -> Run | None:
        runs = self.runs()
        return runs[-1] if runs else None


def clean_id(value: object, kind: str) -> str:
    """An id as the store keeps it: printable text without surplus blanks."""
    text = " ".join(str(value).split())
    stands_for_nothing = text in MISSING_WORDS or re.fullmatch(r"-[0-9]+", text)
    if not text or not text.isprintable() or stands_for_nothing:
        raise DataError(f"{str(value)[:40]!r} cannot be the id of {_an(kind)}")
    return text


def _forget(db: sqlite3.Connection, where: str, values: tuple[Any, ...]) -> int:
    # `where` is one of the constants above; values never become part of the statement.
    used = (
        "SELECT count(*) FROM interactions WHERE first_run <= runs.snapshot"  # noqa: S608
        f" AND (runs.as_of = '' OR added < runs.as_of) AND {where}"
    )
    db.execute(f"UPDATE runs SET forgotten = forgotten + ({used})", values)  # noqa: S608
    gone = db.execute(f"DELETE FROM interactions WHERE {where}", values).rowcount  # noqa: S608
    if gone:
        now = _stamp(datetime.now(UTC))
        db.execute("INSERT OR REPLACE INTO settings VALUES ('forgot', ?)", (now,))
    return gone


def _stamp(moment: datetime) -> str:
    """In a form in which earlier is smaller."""
    return moment.astimezone(UTC).isoformat(timespec="seconds")


def _who(user: object | None) -> tuple[str, tuple[Any, ...]]:
    return ("TRUE", ()) if user is None else ("user = ?", (str(user),))


def _csv_lines(pairs: list[tuple[str, str]]) -> Iterator[str]:
    yield "user,item"
    for pair in pairs:
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(pair)
        yield line.getvalue()


def _text_lines(path: Path, pairs: list[tuple[str, str]]) -> Iterator[str]:
    if not pairs:
        return iter(())
    numbers = []
    for ids in zip(*pairs, strict=True):
        if not all(re.fullmatch(r"0|[1-9][0-9]{0,17}", name) for name in ids):
            raise DataError(f"{path}: the text format holds numbers only; export to a .csv file")
        numbers.append(np.array([int(name) for name in ids], np.int64))
    found = Interactions.from_pairs(*numbers)
    if not (fits_text(found.user_ids) and fits_text(found.item_ids)):
        raise DataError(f"{path}: numbers too large for the text format; export to a .csv file")
    return text_lines(found)


def _an(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeio" else f"a {kind}"
