"""A client's memory between two messages, in one SQLite file.

    FOLDER/memory.db      the current run, the runs that are over, and for the client's lifetime:
                          the clients it shared sums with, how many numbers those sums opened,
                          their cost (`record`), the runs in which the server made impossible
                          claims, and the bytes sent and received in every run
    FOLDER/last-answer    note of the last answer that left, to detect a database that is older or
                          gone; written from the start, so that a backup from before the first
                          answer is detected too

The content of an answer is always in the database before the answer leaves. The two files check
each other: the note counts answers, and the database stores the time at which the note was written,
as recorded by the file system (no program sets that time back). A client thus detects if one or
both files come from a backup. Only a snapshot of the whole disk goes undetected.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from privirec.durable import Database, alone, private_folder, write_whole
from privirec.federated.contributions import Opened
from privirec.runtime.node import record
from privirec.runtime.node.run_state import SECRETS, ClientRun, Participation

FILE = "memory.db"
_VERSION = 3
_NO_RUN = "-"
"""Entry in the note for the run before there is any."""
_SCHEMA = """
CREATE TABLE runs (
    run TEXT PRIMARY KEY, state TEXT, session BLOB, noise_seed BLOB, reply BLOB
) WITHOUT ROWID;
CREATE TABLE cohorts (
    members TEXT, told INTEGER, binds INTEGER, run TEXT NOT NULL,
    PRIMARY KEY (members, told, binds)
) WITHOUT ROWID;
CREATE TABLE opened (
    run TEXT, sum INTEGER, numbers INTEGER NOT NULL, unknowns INTEGER NOT NULL,
    PRIMARY KEY (run, sum)
) WITHOUT ROWID;
CREATE TABLE spoilt (run TEXT PRIMARY KEY, claim TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE life (answers INTEGER NOT NULL);
INSERT INTO life VALUES (0);
CREATE TABLE noted (place INTEGER PRIMARY KEY, run TEXT, answers INTEGER, changed INTEGER);
"""
# Created if missing; a file from before this table existed has no data on its earlier runs.
_TAKEN = """
CREATE TABLE IF NOT EXISTS taken (
    run TEXT PRIMARY KEY, begun TEXT NOT NULL, part TEXT NOT NULL, why TEXT NOT NULL,
    bytes_up INTEGER NOT NULL, bytes_down INTEGER NOT NULL
)
"""
_OTHER_VERSION = (
    "an earlier one did not remember all that this one counts on. Make a new "
    "client (privirec client new), or, if no sum was ever opened, remove this file and last-answer"
)

# Makes common backup tools skip the folder, since a state from before an answer is useless.
_CACHE_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# Secrets of a run: do not back up.\n"


@dataclass(frozen=True)
class ForLife:
    """An answer's addition to what a client remembers for its lifetime."""

    cohort: frozenset[str] = frozenset()
    """Lasting names of the clients over which a sum may be open once this answer has left."""
    is_told: bool = False
    """True if these are exactly the clients in the sum; False if they are all that may be in it."""
    binds: bool = True
    """True if this client has pledged to join later sums only together with all of them."""
    sum_number: int = 0
    opened: Opened | None = None
    """Amount that the sum of this number opens."""
    spent: tuple[Any, ...] | None = None
    """Cost of the sum, as a row of the record."""


@dataclass(frozen=True)
class TakenPart:
    """Summary of a run, kept permanently for the client's owner."""

    run: str
    begun: str
    """Time at which the client first heard of the run, in UTC."""
    part: Participation
    why: str
    """Why the client left the run, or that the run is over."""
    bytes_up: int
    bytes_down: int


class Memory:
    """Records of one client's runs. Of a run that is over, little more than its number is kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = private_folder(folder)
        if not (folder / "CACHEDIR.TAG").exists():
            write_whole(folder / "CACHEDIR.TAG", _CACHE_TAG)
        self._database = Database(
            folder / FILE, _SCHEMA + record.SCHEMA + _TAKEN, _VERSION, otherwise=_OTHER_VERSION
        )
        if not self._database.read("SELECT 1 FROM sqlite_master WHERE name = 'taken'"):
            with self._database.transaction() as database:
                database.execute(_TAKEN)
        if not self._known_note()[0]:
            with alone(folder):
                if not self._known_note()[0] and self._note()[0] in ("", _NO_RUN):
                    self._note_now(_NO_RUN, 0)

    def close(self) -> None:
        self._database.close()

    # --- runs -------------------------------------------------------------------------------------

    def knows(self, run: str) -> bool:
        """Return True if this run was ever begun."""
        return bool(self._database.read("SELECT 1 FROM runs WHERE run = ?", (run,)))

    def load(self, run: str) -> ClientRun | None:
        """Return the state of a run, or None if the run is unknown or its state was erased."""
        query = f"SELECT state, {', '.join(SECRETS)} FROM runs WHERE run = ?"  # noqa: S608
        for state, *secrets in self._database.read(query, (run,)):
            if state is not None:
                return ClientRun.from_row(
                    json.loads(state), dict(zip(SECRETS, secrets, strict=True))
                )
        return None

    def begin(self, state: ClientRun) -> None:
        """Begin a run, and erase the state of every other one; their numbers are kept."""
        with self._database.transaction() as database:
            nothing = ", ".join(f"{name} = NULL" for name in ("state", *SECRETS))
            database.execute(f"UPDATE runs SET {nothing} WHERE run != ?", (state.run,))  # noqa: S608
            _write(database, state)

    def save(self, state: ClientRun) -> None:
        with self._database.transaction() as database:
            _write(database, state)

    def commit(self, state: ClientRun, for_life: ForLife) -> None:
        """Write the state after an answer and the answer's lifelong part in one transaction."""
        with self._database.transaction() as database:
            _write(database, state)
            database.execute("UPDATE life SET answers = answers + 1")
            if for_life.cohort:
                if for_life.is_told:
                    database.execute("DELETE FROM cohorts WHERE run = ? AND NOT told", (state.run,))
                database.execute(
                    "INSERT OR IGNORE INTO cohorts VALUES (?, ?, ?, ?)",
                    (
                        json.dumps(sorted(for_life.cohort)),
                        *(for_life.is_told, for_life.binds, state.run),
                    ),
                )
            if for_life.opened is not None:
                opened = for_life.opened
                database.execute(
                    "INSERT INTO opened VALUES (?, ?, ?, ?)",
                    (state.run, for_life.sum_number, opened.numbers, opened.unknowns),
                )
            if for_life.spent is not None:
                places = ", ".join("?" * len(for_life.spent))
                database.execute(
                    f"INSERT INTO spent ({record.COLUMNS}) VALUES ({places})",  # noqa: S608
                    for_life.spent,
                )
            if state.spoilt:
                row = (state.run, state.spoilt)
                database.execute("INSERT OR IGNORE INTO spoilt VALUES (?, ?)", row)

    # --- lifetime ---------------------------------------------------------------------------------

    def cohorts(self, *, told: bool, binding: bool = False) -> list[frozenset[str]]:
        """Return the sets of clients, by lasting name, that this client shared sums with.

        If `told`, these are the sets it was told of; otherwise those of sums it may have been in.
        If `binding`, only the sets to which this client is bound are returned.
        """
        query = "SELECT members FROM cohorts WHERE told = ? AND binds >= ? ORDER BY members"
        found = self._database.read(query, (told, binding))
        return [frozenset(json.loads(members)) for (members,) in found]

    def opened_share(self) -> float:
        """Return the share of the item-item matrix that all sums together may have opened."""
        found = self._database.read("SELECT numbers, unknowns FROM opened")
        return sum(Opened(*row).share for row in found)

    def spoilt(self) -> dict[str, str]:
        """Return the runs in which the server made an impossible claim, with the claim."""
        return dict(self._database.read("SELECT run, claim FROM spoilt ORDER BY run"))

    def taken_part(self) -> list[TakenPart]:
        """Return every run that this client has begun, oldest first."""
        found = self._database.read(
            "SELECT run, begun, part, why, bytes_up, bytes_down FROM taken ORDER BY rowid"
        )
        return [
            TakenPart(run, begun, Participation(part), why, up, down)
            for run, begun, part, why, up, down in found
        ]

    def spent(self) -> list[tuple[Any, ...]]:
        """Return the rows of the record in order."""
        return self._database.read(f"SELECT {record.COLUMNS} FROM spent ORDER BY number")  # noqa: S608

    def last_seal(self) -> bytes:
        """Return the seal of the last row of the record, or empty bytes if there is none."""
        found = self._database.read("SELECT seal FROM spent ORDER BY number DESC LIMIT 1")
        return bytes(found[0][0]) if found else b""

    # --- restored or missing files ----------------------------------------------------------------

    def note_answer(self, state: ClientRun) -> None:
        """Note, before they leave, all answers that this state knows of."""
        if self._known_note()[:2] == (state.run, state.answers):
            return
        self._note_now(state.run, state.answers)

    def _note_now(self, run: str, answers: int) -> None:
        note = self._folder / "last-answer"
        words = (run, answers, self._answers_in_life(), self._lines())
        write_whole(note, " ".join(map(str, words)).encode() + b"\n")
        with self._database.transaction() as database:
            row = (run, answers, changed_at(note))
            database.execute("INSERT OR REPLACE INTO noted VALUES (0, ?, ?, ?)", row)

    def is_restored(self, state: ClientRun) -> bool:
        """Return True if more answers may have left than this state knows of.

        Such a client would answer a step twice. A crash can make note and database differ at two
        moments that do not count: after an answer was committed and before it was noted, and after
        it was noted and before the database stored the time. Nothing has left in either case.
        """
        run, answers, _, _, changed = self._note()
        known_run, known_answers, known_changed = self._known_note()
        if (run, answers) != (known_run, known_answers):
            return (run, answers) != (state.run, state.answers)
        return not _same_time(changed, known_changed)

    def is_older(self) -> bool:
        """Return True if answers have left that this file does not know of.

        Its lifelong memory is then incomplete.
        """
        run, answers, life, lines, changed = self._note()
        if life > self._answers_in_life() or lines > self._lines():
            return True
        known_run, known_answers, known_changed = self._known_note()
        if known_run and not run:
            return True  # the note is written first, so no crash leaves only the database's entry
        both = (run, answers) == (known_run, known_answers)
        return both and not _same_time(changed, known_changed)

    def _answers_in_life(self) -> int:
        return int(self._database.read("SELECT answers FROM life")[0][0])

    def _lines(self) -> int:
        return int(self._database.read("SELECT count(*) FROM spent")[0][0])

    def _note(self) -> tuple[str, int, int, int, int]:
        """Return the content of the note and its change time, or empty values if it is unreadable.

        The content is the run and number of the last answer that may have left, the number of
        answers in this client's lifetime, and the number of rows in its record.
        """
        note = self._folder / "last-answer"
        try:
            run, *counts = note.read_text(encoding="ascii").split()
            answers, life, lines = map(int, counts)
            return run, answers, life, lines, changed_at(note)
        except (FileNotFoundError, ValueError):
            return "", 0, 0, 0, 0

    def _known_note(self) -> tuple[str, int, int]:
        """Return the run, number and change time of the note, as the database has them."""
        for row in self._database.read("SELECT run, answers, changed FROM noted"):
            return row[0], row[1], row[2]
        return "", 0, 0


def changed_at(path: Path) -> int:
    """Return the file system's change time (ctime), which does not depend on the file's dates."""
    return path.stat().st_ctime_ns


def _same_time(found: int, known: int) -> bool:
    """Compare times; some file systems keep only whole seconds once a file leaves the cache."""
    second = 1_000_000_000
    return found == known or (found % second == 0 and found // second == known // second)


def _write(database: sqlite3.Connection, state: ClientRun) -> None:
    secrets = [getattr(state, name) for name in SECRETS]
    row = (state.run, json.dumps(state.as_row()), *secrets)
    database.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?)", row)
    begun = datetime.now(UTC).isoformat(timespec="seconds")
    database.execute(
        "INSERT INTO taken VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (run) DO UPDATE SET"
        " part = excluded.part, why = excluded.why,"
        " bytes_up = excluded.bytes_up, bytes_down = excluded.bytes_down",
        (state.run, begun, state.part.value, state.why_left, state.bytes_up, state.bytes_down),
    )
