"""The one way to write things down: whole or not at all, on the disk when it counts, one process
at a time, and readable by the owner only."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from privirec.errors import FederationError


def private_folder(folder: Path) -> Path:
    """Make the folder if it is missing, for its owner only; an existing one stays as it is."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    return folder


def write_whole(path: Path, *parts: bytes, durable: bool = True, mode: int = 0o600) -> None:
    """Replace a file in one step; after a crash it is the old or the new one."""
    _write(path, parts, durable, mode)


def write_private(path: Path, lines: Iterable[str]) -> None:
    """The same with lines of text, however many."""
    private_folder(path.parent)
    _write(path, (line.encode() + b"\n" for line in lines), True)


def _write(path: Path, parts: Iterable[bytes], durable: bool, mode: int = 0o600) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            os.fchmod(file.fileno(), mode)  # one that was left there may be open to others
            file.writelines(parts)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    if durable:
        sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or what was renamed in a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def alone(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """One process at a time in a folder: this one waits for its turn, or is refused."""
    with open(os.open(folder / ".lock", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise FederationError(f"{folder}: another process is at work there") from None
        yield


class Journal:
    """Records that are only ever added. What a crash cut off at the end does not count."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end = 0

    def records(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """(what, bytes) from the beginning."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            while True:
                head = file.read(16)
                if len(head) < 16:
                    return
                check, size, length = struct.unpack(">IIQ", head)
                what = file.read(size)
                content = file.read(length)
                if len(what) + len(content) < size + length:
                    return
                if zlib.crc32(content, zlib.crc32(what)) != check:
                    raise FederationError(f"{self.path}: damaged; this run cannot go on")
                self._end = file.tell()
                yield json.loads(what), content

    def add(self, content: bytes = b"", **what: Any) -> None:
        """On the disk when this returns."""
        text = json.dumps(what, sort_keys=True).encode()
        head = struct.pack(">IIQ", zlib.crc32(content, zlib.crc32(text)), len(text), len(content))
        flags = os.O_RDWR | os.O_CREAT
        with open(os.open(self.path, flags, 0o600), "r+b") as file:
            file.truncate(self._end)  # what an earlier crash cut off
            file.seek(self._end)
            file.write(head + text + content)
            file.flush()
            os.fsync(file.fileno())
            self._end = file.tell()
