"""Files of a running federation: for their owner only, and whole or not at all."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from privirec.errors import FederationError


def private_folder(folder: Path) -> Path:
    """Make the folder, for its owner only."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    return folder


def write_whole(path: Path, *parts: bytes, durable: bool = True) -> None:
    """Replace a file in one step; after a crash it is the old or the new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until what was renamed in the folder is on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One process at a time in a folder."""
    with open(os.open(folder / ".lock", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
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
