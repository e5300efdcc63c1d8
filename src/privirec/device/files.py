"""Files that only their owner may read, and that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def private_folder(folder: Path) -> None:
    """Make the folder if it is missing, for its owner only; an existing one stays as it is."""
    with suppress(FileExistsError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)


def write_private(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a neighbour file, wait for the disk, and rename it."""
    private_folder(path.parent)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            for line in lines:
                file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until what was renamed in the folder is on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
