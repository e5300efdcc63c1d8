"""A client's vector for upload: written once, and read in parts as often as the server asks."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path

from privirec.durable import sync
from privirec.runtime.envelope import MOST_PARTS

_LENGTH = struct.Struct(">I")


def forget_uploads(folder: Path, before: int | None = None) -> None:
    """Remove all uploads of a run, or only those of steps before `before`."""
    for path in folder.glob("upload-*"):
        number = path.name.removeprefix("upload-")
        if before is None or not number.isdigit() or int(number) < before:
            path.unlink(missing_ok=True)


class UploadFile:
    """File with the blocks of one sum, each preceded by its length."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, blocks: Iterable[bytes]) -> int:
        """Write all blocks to the disk, and return their total bytes."""
        size = 0
        partial = self.path.with_suffix(".part")
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            for block in blocks:
                file.write(_LENGTH.pack(len(block)))
                file.write(block)
                size += len(block)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, self.path)
        sync(self.path.parent)
        return size

    def read(self, first: int, room: int) -> tuple[tuple[bytes, ...], int]:
        """Return blocks from `first` on, and the total number of blocks.

        At least one block is returned, and then as many as fit into `room` bytes.
        """
        count = 0
        parts: list[bytes] = []
        full = False
        with self.path.open("rb") as file:
            while prefix := file.read(_LENGTH.size):
                (size,) = _LENGTH.unpack(prefix)
                full = full or (bool(parts) and size > room) or len(parts) == MOST_PARTS
                if count >= first and not full:
                    parts.append(file.read(size))
                    room -= size
                else:
                    file.seek(size, os.SEEK_CUR)
                count += 1
        return tuple(parts), count
