"""Local store of one client: the histories of its users (one person, or a silo) in SQLite.

Every change is on disk completely, or not at all, when the call returns, and forgotten data is
removed from the file (`store_file`). Forgetting cannot change sums that others already have: the
filters of an earlier run count the forgotten interactions until the next run. The store reports how
many these are without recording which.
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
from privirec.device.titles import clean_link, clean_title
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
    """Number of interactions that it may have used and that were forgotten since."""
    finished: bool
    sent: bool
    """True if data computed from its interactions may have left the device."""
    exact: bool
    """True if its sums had no noise."""


@dataclass(frozen=True)
class Summary:
    users: int
    interactions: int
    titles: int
    last_run: Run | None
    pending_forgets: int
    """Number of forgotten interactions that the filters of an earlier run still count."""
    waiting: int
    """Number of interactions that no run has used yet."""
    traces: bool
    """True if forgotten bytes still have to be removed (another program has the file open)."""


class Store(StoreFile):
    """Histories by user and item, both identified by text.

    >>> with Store("me/history.db", create=True) as store:          # doctest: +SKIP
    ...     store.add([("me", "item-1"), ("me", "item-2")])
    """

    # --- changing -------------------------------------------------------------------------------

    def add(self, pairs: Iterable[tuple[object, object]]) -> int:
        """Add (user, item) pairs, all or none; return the number of new ones."""
        return self.add_timed((user, item, None) for user, item in pairs)

    def add_timed(self, rows: Iterable[tuple[object, object, float | None]]) -> int:
        """Add (user, item, time) rows, all or none; return the number of new interactions.

        Times are seconds since 1970, or None. Of an interaction that is there, the latest is kept.
        An item that is added is no longer one of no interest.
        """
        clean = [(clean_id(user, "user"), clean_id(item, "item"), at) for user, item, at in rows]
        with self._change() as db:
            (next_run,) = db.execute("SELECT coalesce(max(number), 0) + 1 FROM runs").fetchone()
            before = db.total_changes
            now = _stamp(datetime.now(UTC))
            db.executemany(
                "INSERT OR IGNORE INTO interactions VALUES (?, ?, ?, ?, NULL)",
                ((user, item, next_run, now) for user, item, _ in clean),
            )
            new = db.total_changes - before
            db.executemany(
                "UPDATE interactions SET happened = max(?3, coalesce(happened, ?3))"
                " WHERE user = ?1 AND item = ?2",
                (row for row in clean if row[2] is not None),
            )
            db.executemany(
                "DELETE FROM dislikes WHERE user = ? AND item = ?", (row[:2] for row in clean)
            )
            return new

    def add_interactions(self, interactions: Interactions) -> int:
        """Add the interactions that a reader returned; return the number of new ones."""
        items = [clean_id(item, "item") for item in interactions.item_ids.tolist()]
        users = [clean_id(user, "user") for user in interactions.user_ids.tolist()]
        rows = np.repeat(np.arange(interactions.n_users), interactions.user_degrees).tolist()
        columns = interactions.matrix.indices.tolist()
        return self.add((users[r], items[c]) for r, c in zip(rows, columns, strict=True))

    def forget_items(self, user: object, items: Iterable[object]) -> int:
        """Forget some items of one user, all or none; raise DataError for a missing item."""
        name = clean_id(user, "user")
        wanted = sorted({clean_id(item, "item") for item in items})
        with self._forgetting() as db:
            for item in wanted:
                if not _forget(db, "user = ? AND item = ?", (name, item)):
                    raise DataError(f"{self.path}: user {name} has no item {item}")
        return len(wanted)

    def forget_user(self, user: object) -> int:
        """Forget one user; return the number of forgotten interactions."""
        name = clean_id(user, "user")
        with self._forgetting() as db:
            gone = _forget(db, "user = ?", (name,))
            if not gone:
                raise DataError(f"{self.path}: no user {name}")
            db.execute("DELETE FROM dislikes WHERE user = ?", (name,))
        return gone

    def forget_everything(self) -> int:
        """Forget all interactions and titles; return the number of forgotten interactions."""
        with self._forgetting() as db:
            gone = _forget(db, "TRUE", ())
            db.execute("DELETE FROM titles")
            db.execute("DELETE FROM dislikes")
        return gone

    def set_titles(self, titles: Mapping[str, str], links: Mapping[str, str] | None = None) -> int:
        """Set titles of items, with links to web pages; return the number of titles.

        A new title and its link replace the old ones.
        """
        rows = [
            (clean_id(item, "item"), clean_title(title), clean_link((links or {}).get(item, "")))
            for item, title in titles.items()
        ]
        with self._change() as db:
            db.executemany("INSERT OR REPLACE INTO titles VALUES (?, ?, ?)", rows)
        return len(rows)

    def dislike(self, user: object, item: object) -> None:
        """Note that an item is of no interest to a user. No run ever uses this."""
        row = clean_id(user, "user"), clean_id(item, "item")
        with self._change() as db:
            db.execute("INSERT OR IGNORE INTO dislikes VALUES (?, ?)", row)

    def undo_dislike(self, user: object, item: object) -> None:
        with self._forgetting() as db:
            db.execute("DELETE FROM dislikes WHERE user = ? AND item = ?", (str(user), str(item)))

    # --- reading --------------------------------------------------------------------------------

    def users(self) -> list[str]:
        with self._reported():
            found = self._db.execute("SELECT DISTINCT user FROM interactions ORDER BY user")
            return [user for (user,) in found]

    def items(self, user: object) -> list[str]:
        """Return the history of one user as item ids; empty for an unknown user."""
        with self._reported():
            found = self._db.execute(
                "SELECT item FROM interactions WHERE user = ? ORDER BY item", (str(user),)
            )
            return [item for (item,) in found]

    def latest(self, user: object) -> list[tuple[str, float | None]]:
        """Return the items of one user with their times: the latest first, then those without."""
        with self._reported():
            return self._db.execute(
                "SELECT item, happened FROM interactions WHERE user = ?"
                " ORDER BY happened IS NULL, happened DESC, item",
                (str(user),),
            ).fetchall()

    def dislikes(self, user: object) -> list[str]:
        """Return the items of no interest to a user."""
        with self._reported():
            found = self._db.execute(
                "SELECT item FROM dislikes WHERE user = ? ORDER BY item", (str(user),)
            )
            return [item for (item,) in found]

    def degrees(self) -> dict[str, int]:
        """Return the number of items of each user."""
        with self._reported():
            return dict(self._db.execute("SELECT user, count(*) FROM interactions GROUP BY user"))

    def title(self, item: str) -> str | None:
        with self._reported():
            found = self._db.execute("SELECT title FROM titles WHERE item = ?", (item,)).fetchone()
        return found[0] if found else None

    def link(self, item: str) -> str:
        """Return the address of an item's web page, or an empty text."""
        with self._reported():
            found = self._db.execute("SELECT link FROM titles WHERE item = ?", (item,)).fetchone()
        return found[0] if found else ""

    def titles(self) -> dict[str, str]:
        """Return all titles, by item."""
        with self._reported():
            return dict(self._db.execute("SELECT item, title FROM titles ORDER BY item"))

    def interactions(
        self, catalogue: Catalogue, user: object | None = None
    ) -> tuple[Interactions, int]:
        """Return histories over a catalogue, and the number of interactions with unknown items.

        Every user of the store has a row, or only the named one. Unknown items are left out.
        """
        with self._reported():
            return self._interactions(catalogue, *_who(user))

    def export(self, path: str | Path) -> int:
        """Write everything to a .csv or .txt file that `privirec device import` can read.

        The file is readable by its owner only and is written atomically.
        """
        path = Path(path)
        count, lines = self.exported(path)
        try:
            write_private(path, lines)
        except OSError as error:
            raise DataError(f"{path}: cannot be written: {error.strerror}") from None
        return count

    def exported(self, path: Path) -> tuple[int, Iterator[str]]:
        """Return the number of interactions, and the lines of an export file with this name."""
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
        """Raise DataError if the file is damaged."""
        with self._reported():
            (found,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise DataError(f"{self.path}: damaged: {str(found).splitlines()[0]}")

    # --- taking part in runs --------------------------------------------------------------------

    def begin_run(
        self, run: str, catalogue: Catalogue, since: datetime | None = None
    ) -> tuple[Interactions, int]:
        """Return the histories to use in a run and the number of interactions left out.

        The run is recorded before its histories are used. Every user that the store had when the
        run began has a row.

        `since` is the start of the calendar period of an exact run. If this store has sent
        something in an exact run before, it uses its state at `since`, whenever it is asked:
        additions wait for the next period, and SitsOut is raised if something was forgotten after
        `since`. The first exact run uses everything, and further runs of its period use the same
        histories.

        A second call for the same run, after a crash or in another process, returns the same
        histories; later additions wait for the next run. If something was forgotten in between, the
        client has to leave the run: forgotten data cannot be used again, and answering one run with
        two different histories would reveal their difference.
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
        """Raise SitsOut if something that this run may use was forgotten."""
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
        """Record that data computed from the histories of this run may leave from now on."""
        with self._change() as db:
            db.execute("UPDATE runs SET sent = 1 WHERE run = ?", (run,))

    def finish_run(self, run: str) -> None:
        """Mark a run as finished and remove the records of earlier runs that it supersedes.

        Its filters replace earlier ones, so forgotten interactions that only those counted are no
        longer pending. The record of an earlier run that sent something is kept until this store
        has sent something in a later run, because it tells the next run which histories to use
        again. (A malicious server could deliver filters before anything was sent, to have the
        record removed.) Only a later exact run removes the record of an exact one.
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
        """Return the recorded runs, oldest first.

        These are the last finished run, all that began later, and earlier ones whose records
        `finish_run` has kept.
        """
        with self._reported():
            found = self._db.execute(
                "SELECT run, begun, users, interactions, forgotten, finished, sent, period != ''"
                " FROM runs ORDER BY number"
            ).fetchall()
        return [
            Run(run, begun, users, interactions, forgotten, *map(bool, truths))
            for run, begun, users, interactions, forgotten, *truths in found
        ]

    def pending_forgets(self) -> int:
        """Return the number of forgotten interactions that current filters may still count."""
        runs = self.runs()
        last = max((place for place, run in enumerate(runs) if run.finished), default=0)
        return max((run.forgotten for run in runs[last:]), default=0)

    # --- internal -------------------------------------------------------------------------------

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
            # Not the first exact run: the state at the start of the period does not depend on when
            # the server asks.
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
        return self._interactions(catalogue, where, (snapshot, as_of, as_of))

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
    """Return an id in the form that the store keeps: printable text without extra spaces."""
    text = " ".join(str(value).split())
    stands_for_nothing = text in MISSING_WORDS or re.fullmatch(r"-[0-9]+", text)
    if not text or not text.isprintable() or stands_for_nothing:
        raise DataError(f"{str(value)[:40]!r} cannot be the id of {_an(kind)}")
    return text


def _forget(db: sqlite3.Connection, where: str, values: tuple[Any, ...]) -> int:
    # `where` is one of the constants above. Values are bound and never part of the statement.
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
    """Return a time as text that sorts chronologically."""
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
