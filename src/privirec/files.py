"""Files that only their owner may read, and that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


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
