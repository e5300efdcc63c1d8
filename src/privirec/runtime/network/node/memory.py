"""What a client must remember between two messages, in one SQLite file.

    FOLDER/memory.db      the run it takes part in, the runs that are over, cohorts of earlier sums
    FOLDER/last-answer    number of the last answer that left, to notice a file from a backup

One order for everything: what an answer will be is in the file before the answer leaves.
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
        if self._noted() != (state.run, state.answers):
            note = f"{state.run} {state.answers}\n".encode()
            write_whole(self._folder / "last-answer", note)

    def is_restored(self, state: ClientRun) -> bool:
        """Whether more answers have left than this state knows of: it would answer twice.

        The note names a run before the first answer of that run leaves. So a state with answers
        beside a note of another run, or beside none, is an older one too.
        """
        run, answers = self._noted()
        return answers > state.answers if run == state.run else state.answers > 0

    def _noted(self) -> tuple[str, int]:
        """Run and number of the last answer that may have left; nothing if that cannot be read."""
        try:
            run, answers = (self._folder / "last-answer").read_text(encoding="ascii").split()
            return run, int(answers)
        except (FileNotFoundError, ValueError):
            return "", 0


def _write(database: sqlite3.Connection, state: ClientRun) -> None:
    secrets = [getattr(state, name) for name in SECRETS]
    row = (state.run, json.dumps(state.as_row()), *secrets)
    database.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?)", row)
