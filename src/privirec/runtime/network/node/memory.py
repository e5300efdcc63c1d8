"""What a client must remember between two messages, in one SQLite file.

    FOLDER/memory.db      the run it takes part in, the runs that are over, cohorts of earlier sums
    FOLDER/last-answer    number of the last answer that left, to notice a file from a backup

One order for everything: what an answer will be is in the file before the answer leaves. The two
files know each other: the note counts answers, and the database keeps when the note was written, as
the file system has it (no program sets that time back). So a client notices if one of them, or
both, come from a backup; only a snapshot of the whole disk keeps everything as it was.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from privirec.durable import Database, private_folder, write_whole
from privirec.runtime.network.node.run_state import SECRETS, ClientRun

_SCHEMA = """
CREATE TABLE runs (
    run TEXT PRIMARY KEY, state TEXT, session BLOB, noise_seed BLOB, reply BLOB
) WITHOUT ROWID;
CREATE TABLE cohorts (clients TEXT PRIMARY KEY, run TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE noted (place INTEGER PRIMARY KEY, run TEXT, answers INTEGER, changed INTEGER);
"""

# So that common backup tools leave the folder out: a state from before an answer is no use.
_CACHE_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# Secrets of a run: do not back up.\n"


class Memory:
    """The runs of one client; of a run that is over only that it was."""

    def __init__(self, folder: Path) -> None:
        self._folder = private_folder(folder)
        if not (folder / "CACHEDIR.TAG").exists():
            write_whole(folder / "CACHEDIR.TAG", _CACHE_TAG)
        self._database = Database(folder / "memory.db", _SCHEMA)

    def close(self) -> None:
        self._database.close()

    def knows(self, run: str) -> bool:
        """Whether this run was ever begun."""
        return bool(self._database.read("SELECT 1 FROM runs WHERE run = ?", (run,)))

    def load(self, run: str) -> ClientRun | None:
        """The run, if this client remembers more of it than that it was."""
        query = f"SELECT state, {', '.join(SECRETS)} FROM runs WHERE run = ?"  # noqa: S608
        for state, *secrets in self._database.read(query, (run,)):
            if state is not None:
                return ClientRun.from_row(
                    json.loads(state), dict(zip(SECRETS, secrets, strict=True))
                )
        return None

    def begin(self, state: ClientRun) -> None:
        """One run at a time: of every other one, from now on, only that it was."""
        with self._database.transaction() as database:
            nothing = ", ".join(f"{name} = NULL" for name in ("state", *SECRETS))
            database.execute(f"UPDATE runs SET {nothing} WHERE run != ?", (state.run,))  # noqa: S608
            _write(database, state)

    def save(self, state: ClientRun, *, new_cohort: frozenset[int] = frozenset()) -> None:
        """The state, and in the same transaction a cohort over which a sum may be open now."""
        with self._database.transaction() as database:
            _write(database, state)
            if new_cohort:
                database.execute(
                    "INSERT OR IGNORE INTO cohorts VALUES (?, ?)",
                    (json.dumps(sorted(new_cohort)), state.run),
                )

    def cohorts(self) -> list[frozenset[int]]:
        """Every set of clients over which a sum may have been opened, each once."""
        found = self._database.read("SELECT clients FROM cohorts ORDER BY clients")
        return [frozenset(json.loads(clients)) for (clients,) in found]

    def note_answer(self, state: ClientRun) -> None:
        """Every answer that this state knows of may leave now."""
        if self._known_note()[:2] == (state.run, state.answers):
            return
        note = self._folder / "last-answer"
        write_whole(note, f"{state.run} {state.answers}\n".encode())
        with self._database.transaction() as database:
            row = (state.run, state.answers, changed_at(note))
            database.execute("INSERT OR REPLACE INTO noted VALUES (0, ?, ?, ?)", row)

    def is_restored(self, state: ClientRun) -> bool:
        """Whether more answers may have left than this state knows of: it would answer twice.

        Two moments at which a crash leaves note and database apart are none of that: after an
        answer was committed and before it is noted, and after it is noted and before the database
        knows when. Nothing has left in either.
        """
        run, answers, changed = self._note()
        known_run, known_answers, known_changed = self._known_note()
        if (run, answers) != (known_run, known_answers):
            return (run, answers) != (state.run, state.answers)
        return not _same_time(changed, known_changed)

    def _note(self) -> tuple[str, int, int]:
        """Run and number of the last answer that may have left, and when that was written; nothing
        if it cannot be read."""
        note = self._folder / "last-answer"
        try:
            run, answers = note.read_text(encoding="ascii").split()
            return run, int(answers), changed_at(note)
        except (FileNotFoundError, ValueError):
            return "", 0, 0

    def _known_note(self) -> tuple[str, int, int]:
        """The same as the database has it."""
        for row in self._database.read("SELECT run, answers, changed FROM noted"):
            return row[0], row[1], row[2]
        return "", 0, 0


def changed_at(path: Path) -> int:
    """When the file system last changed this file, whatever its content or its dates say."""
    return path.stat().st_ctime_ns


def _same_time(found: int, known: int) -> bool:
    """Some file systems keep whole seconds only, once the file is out of the cache."""
    second = 1_000_000_000
    return found == known or (found % second == 0 and found // second == known // second)


def _write(database: sqlite3.Connection, state: ClientRun) -> None:
    secrets = [getattr(state, name) for name in SECRETS]
    row = (state.run, json.dumps(state.as_row()), *secrets)
    database.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?)", row)
