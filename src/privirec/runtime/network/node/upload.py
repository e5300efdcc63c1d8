"""A client's vector as it is sent: written once, read in parts as often as the server asks."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path

from privirec.durable import sync
from privirec.runtime.network.envelope import MOST_PARTS

_LENGTH = struct.Struct(">I")


def forget_uploads(folder: Path, before: int | None = None) -> None:
    """Remove the uploads of a run, or those of earlier steps."""
    for path in folder.glob("upload-*"):
        number = path.name.removeprefix("upload-")
        if before is None or not number.isdigit() or int(number) < before:
            path.unlink(missing_ok=True)


class UploadFile:
    """The blocks of one sum, each behind its length."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, blocks: Iterable[bytes]) -> int:
        """All blocks, on the disk when this returns; how many bytes they are."""
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
        """Blocks from `first` on, at least one and then as many as have room in a message, and how
        many there are in all."""
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
