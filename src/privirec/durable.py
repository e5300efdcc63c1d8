"""Crash-safe and private files.

Writes are atomic and reach the disk where durability matters. Only one process works in a folder at
a time, and only the owner can read the files.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import sqlite3
import struct
import time
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from privirec.codec import Frame, Malformed
from privirec.errors import FederationError, PrivirecError

LOCK = ".lock"
"""Name of the lock file in a folder that admits one process at a time."""
A_LOOK = 0.05
"""Seconds; longer than `is_taken` takes to test a lock."""


def private_folder(folder: Path) -> Path:
    """Create a folder that only its owner can access; leave an existing one unchanged."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    return folder


def check_folder(folder: Path, whose: str, refusal: type[PrivirecError]) -> None:
    """Raise `refusal` if the path does not exist or is not a folder."""
    if not folder.exists():
        raise refusal(f"{folder}: no such folder")
    if not folder.is_dir():
        raise refusal(f"{folder}: a file, not the folder of {whose}")


def write_whole(path: Path, *parts: bytes, durable: bool = True, mode: int = 0o600) -> None:
    """Replace a file atomically; after a crash it has either the old or the new content."""
    write_pieces(path, parts, durable=durable, mode=mode)


def write_private(path: Path, lines: Iterable[str]) -> None:
    """Replace a file atomically with lines of text, which may be a generator."""
    private_folder(path.parent)
    write_pieces(path, (line.encode() + b"\n" for line in lines))


def write_pieces(
    path: Path, pieces: Iterable[bytes | memoryview], *, durable: bool = True, mode: int = 0o600
) -> None:
    """Replace a file atomically with bytes that need not be in memory all at once."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            os.fchmod(file.fileno(), mode)  # a leftover file may be readable by others
            file.writelines(pieces)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    if durable:
        sync(path.parent)


def mapped(path: Path) -> memoryview:
    """Return the content of a file, which is read when it is used; the file may be removed."""
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def file_sha256(path: Path) -> str:
    """Return the SHA-256 digest of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Wait until a file, or the renames in a folder, have reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def alone(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a folder's lock during the body, so that one process at a time works there.

    If another process holds it, wait, or raise FederationError if `wait` is false.
    """
    with open(os.open(folder / LOCK, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as lock:
        try:
            _lock(lock, wait=wait)
        except BlockingIOError:
            raise FederationError(f"{folder}: another process is at work there") from None
        yield


def _lock(lock: IO[bytes], *, wait: bool) -> None:
    if not wait:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(A_LOOK)  # `is_taken` may hold it for an instant
    fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def is_taken(folder: Path) -> bool:
    """Return True if a process holds the folder's lock (see `alone`).

    Writes nothing and blocks nobody: it shares the lock for an instant, and `alone` waits longer
    than that.
    """
    try:
        with (folder / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except BlockingIOError:
        return True
    return False


class Journal:
    """An append-only file of records; a record that a crash cut off at the end is ignored.

    Layout of a record:

        length of frame and content (u64) | checksum of the length (u32) |
        checksum of the rest (u32) | frame "PRJ" with the event | content
    """

    _FRAME = Frame(b"PRJ", 2)
    _PREFIX = struct.Struct(">QII")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end = 0

    def records(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yield (event, content) of every record from the beginning."""
        if not self.path.exists():
            return
        size = self.path.stat().st_size
        with self.path.open("rb") as file:
            while len(prefix := file.read(self._PREFIX.size)) == self._PREFIX.size:
                if not any(prefix):
                    return  # allocated but never written, as after a power failure
                length, length_check, checksum = self._PREFIX.unpack(prefix)
                try:
                    if zlib.crc32(prefix[:8]) != length_check:
                        raise Malformed("damaged")
                    if length > size - file.tell():
                        return  # the last record was cut off
                    record = file.read(length)
                    if zlib.crc32(record) != checksum:
                        raise Malformed("damaged")
                    what, start = self._FRAME.read(record)
                except Malformed as error:
                    raise FederationError(f"{self.path}: {error}; this run cannot go on") from None
                self._end = file.tell()
                yield what, record[start:]

    def add(self, what: Mapping[str, Any], content: bytes = b"") -> None:
        """Append a record; it is on the disk when this returns."""
        record = self._FRAME.head(what) + content
        with open(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            file.truncate(self._end)  # remove a record that a crash cut off
            file.seek(self._end)
            length = len(record).to_bytes(8, "big")
            file.write(self._PREFIX.pack(len(record), zlib.crc32(length), zlib.crc32(record)))
            file.write(record)
            file.flush()
            os.fsync(file.fileno())
            self._end = file.tell()


class Database:
    """A SQLite file that only its owner can read; a committed transaction is on the disk."""

    def __init__(self, path: Path, schema: str, version: int = 1, *, otherwise: str = "") -> None:
        """Open the file, or create it with the tables of `schema`.

        A file of another version is refused; `otherwise` tells the user what to do about it.
        """
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        self.path = path
        # The finalizer may close the connection in any thread; all other use is by one thread.
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._connection.close)  # in case close() is never called
        # Overwrite deleted secrets, and delete a transaction's journal when it ends. Cache only
        # half a megabyte of pages: the file is small, and the machine may have little memory.
        for setting in ("journal_mode = DELETE", "synchronous = FULL", "secure_delete = ON"):
            self.read(f"PRAGMA {setting}")
        self.read("PRAGMA cache_size = -512")
        found = self.read("PRAGMA user_version")[0][0]
        if not found:
            with self.transaction() as database:
                for statement in filter(str.strip, schema.split(";")):
                    database.execute(statement)
                database.execute(f"PRAGMA user_version = {version:d}")
        elif found != version:
            self.close()
            raise FederationError(f"{path}: written by another version; {otherwise}")

    def read(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        try:
            return self._connection.execute(query, parameters).fetchall()
        except sqlite3.DatabaseError as error:
            raise OSError(f"{self.path}: {error}") from None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the body as one transaction: all of its changes take effect, or none.

        A full disk or a damaged file raises OSError.
        """
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._commit()
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        except sqlite3.DatabaseError as error:
            raise OSError(f"{self.path}: {error}") from None

    def _commit(self) -> None:
        self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()
