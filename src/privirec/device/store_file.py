"""The file of a store: created atomically, private, transactional, without traces of deleted data.

Every change is one transaction that is on disk when the call returns (write-ahead log, full
synchronisation), so a kill at any moment leaves either all of it or nothing. After forgetting, the
file is rewritten and the log emptied; if that is interrupted, the next opening completes it.
(Earlier bytes that the disk, a backup or a snapshot keeps are beyond a program's reach.)
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from privirec.durable import private_folder, sync
from privirec.errors import DataError

SCHEMA_VERSION = 4
_APPLICATION = 0x50525354  # "PRST": identifies the file in SQLite's header
_WAIT_SECONDS = 10.0

# The store numbers its runs. A run uses the interactions whose `first_run` is at most its
# `snapshot`, which is its own number or that of an earlier run whose histories it uses again.
# `forgotten` counts interactions it may have used that were deleted since. `sent` is 1 once data
# computed from them may have left. An exact run belongs to a calendar period (`period`) and uses
# the state at the start of the period (`as_of`). In the first exact run `as_of` is empty, and the
# run uses everything. `happened` is the time that an export stated, in seconds since 1970.
# `dislikes` never take part in a run.
_SCHEMA = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE interactions (
    user TEXT NOT NULL, item TEXT NOT NULL, first_run INTEGER NOT NULL,
    added TEXT NOT NULL DEFAULT '', happened REAL, PRIMARY KEY (user, item)
) WITHOUT ROWID;
CREATE TABLE titles (
    item TEXT PRIMARY KEY, title TEXT NOT NULL, link TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE TABLE dislikes (
    user TEXT NOT NULL, item TEXT NOT NULL, PRIMARY KEY (user, item)
) WITHOUT ROWID;
CREATE TABLE runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL UNIQUE, begun TEXT NOT NULL,
    users INTEGER NOT NULL, interactions INTEGER NOT NULL,
    forgotten INTEGER NOT NULL DEFAULT 0, finished INTEGER NOT NULL DEFAULT 0,
    snapshot INTEGER NOT NULL DEFAULT 0, sent INTEGER NOT NULL DEFAULT 0,
    period TEXT NOT NULL DEFAULT '', as_of TEXT NOT NULL DEFAULT ''
);
"""
# Version 1 did not record if data was sent, so every run is assumed to have sent some.
_FROM_VERSION_1 = (
    "ALTER TABLE runs ADD COLUMN snapshot INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE runs ADD COLUMN sent INTEGER NOT NULL DEFAULT 0",
    "UPDATE runs SET snapshot = number, sent = 1",
)
# Version 2 did not record when interactions were added. Those not used by a run that sent data
# count as added now, all others as old. Its runs may have been exact.
_FROM_VERSION_2 = (
    "ALTER TABLE interactions ADD COLUMN added TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE runs ADD COLUMN period TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE runs ADD COLUMN as_of TEXT NOT NULL DEFAULT ''",
    "UPDATE runs SET period = begun",
    "UPDATE interactions SET added = strftime('%Y-%m-%dT%H:%M:%S+00:00', 'now')"
    " WHERE first_run > (SELECT coalesce(max(snapshot), 0) FROM runs WHERE sent)",
)
_FROM_VERSION_3 = (
    "ALTER TABLE interactions ADD COLUMN happened REAL",
    "ALTER TABLE titles ADD COLUMN link TEXT NOT NULL DEFAULT ''",
    "CREATE TABLE dislikes (user TEXT NOT NULL, item TEXT NOT NULL, PRIMARY KEY (user, item))"
    " WITHOUT ROWID",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
_CHANGES = {1: _FROM_VERSION_1, 2: _FROM_VERSION_2, 3: _FROM_VERSION_3}


class StoreFile:
    """SQLite file with the tables of a store; `Store` defines the operations on them."""

    def __init__(self, path: str | Path, *, create: bool = False) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            raise DataError(f"{self.path}: is a folder, not a store")
        if not self.path.exists():
            if not create:
                raise DataError(
                    f"{self.path}: no store there; make one with: privirec device import"
                )
            self._create()
        self._tighten()
        address = f"file:{quote(str(self.path.absolute()))}?mode=rw"
        with self._reported():
            self._db = sqlite3.connect(
                address, uri=True, isolation_level=None, timeout=_WAIT_SECONDS
            )
        try:
            with self._reported():
                self._check_kind()
                _prepare(self._db)
                if self._setting("traces"):
                    self._remove_traces()
        except BaseException:
            self._db.close()
            raise
        self._tighten()

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _create(self) -> None:
        """Create an empty store under a temporary name and link it into place when complete."""
        aside = self.path.with_name(f".{self.path.name}.{os.getpid()}.new")
        try:
            private_folder(self.path.parent)
            aside.unlink(missing_ok=True)
            os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            db = sqlite3.connect(aside, isolation_level=None)
            try:
                _prepare(db)
                db.execute("BEGIN IMMEDIATE")
                for statement in _SCHEMA.split(";\n"):
                    db.execute(statement)
                db.execute(f"PRAGMA application_id = {_APPLICATION}")
                db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                db.execute("COMMIT")
            finally:
                db.close()
            with suppress(FileExistsError):  # another process has created it
                os.link(aside, self.path)
            sync(self.path.parent)
        except (OSError, sqlite3.Error) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise DataError(f"{self.path}: no store can be made there: {why}") from None
        finally:
            for suffix in ("", "-wal", "-shm"):
                aside.with_name(aside.name + suffix).unlink(missing_ok=True)

    def _tighten(self) -> None:
        """Restrict access to the owner, even if the file was copied with wider permissions."""
        for suffix in ("", "-wal", "-shm"):
            file = self.path.with_name(self.path.name + suffix)
            with suppress(FileNotFoundError, PermissionError):
                if file.stat().st_mode & 0o077:
                    file.chmod(0o600)

    def _check_kind(self) -> None:
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        if application != _APPLICATION:
            raise DataError(f"{self.path}: not a PriviRec store")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version in _CHANGES:
            with self._change() as db:
                for each in range(version, SCHEMA_VERSION):
                    for statement in _CHANGES[each]:
                        db.execute(statement)
        elif version != SCHEMA_VERSION:
            raise DataError(
                f"{self.path}: a store of version {version}; this program knows {SCHEMA_VERSION}"
            )

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Turn SQLite errors into DataError with one line about this file."""
        try:
            yield
        except sqlite3.OperationalError as error:
            text = str(error)
            if "locked" in text:
                text = "in use by another program"
            raise DataError(f"{self.path}: {text}") from None
        except sqlite3.DatabaseError as error:
            text = str(error)
            if "not a database" in text:
                text = "not a PriviRec store"
            raise DataError(f"{self.path}: {text}") from None

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """Run one transaction: committed at the end, rolled back by any error."""
        with self._reported():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _forgetting(self) -> Iterator[sqlite3.Connection]:
        """Run a change, then remove the bytes of deleted data from the file."""
        with self._change() as db:
            # Set in the same transaction, so that an interrupted removal is completed later.
            db.execute("INSERT OR REPLACE INTO settings VALUES ('traces', 'yes')")
            yield db
        with self._reported():
            self._remove_traces()

    def _remove_traces(self) -> None:
        """Rewrite the file and empty the log; if others use the file, the next opening does it."""
        try:
            self._db.execute("VACUUM")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                return
            raise
        if self._empty_log():
            self._db.execute("DELETE FROM settings WHERE name = 'traces'")
            self._empty_log()

    def _empty_log(self) -> bool:
        (busy, _, _) = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy

    def _setting(self, name: str) -> str | None:
        found = self._db.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
        return found[0] if found else None

    def _count(self, query: str) -> int:
        return int(self._db.execute(query).fetchone()[0])


def _prepare(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA secure_delete = ON")
    # Rewriting the file makes a temporary copy: keep it in memory, not in a shared folder.
    db.execute("PRAGMA temp_store = MEMORY")
