"""The incoming artifact: pieces in order, then one complete model."""

from __future__ import annotations

import shutil
from pathlib import Path

from privirec.durable import private_folder
from privirec.runtime.messages import ARTIFACT_FILES, ArtifactPiece
from privirec.runtime.refusals import Code, Refusal

LARGEST_ARTIFACT = 1 << 36


class Inbox:
    """A folder that collects the files of one artifact."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, piece: ArtifactPiece, content: bytes | memoryview) -> int:
        """Write a piece, possibly not for the first time; return how many bytes have arrived."""
        total = total_bytes(piece)
        stream = private_folder(self._folder) / "stream"
        stream.touch(mode=0o600)
        if piece.offset > stream.stat().st_size or piece.offset + len(content) > total:
            raise Refusal(Code.BAD_ARTIFACT, "a piece of the artifact that does not fit")
        with stream.open("r+b") as file:
            file.seek(piece.offset)
            file.write(content)
            file.truncate()
        return piece.offset + len(content)

    def unpacked(self, piece: ArtifactPiece) -> Path:
        """Split the received bytes into files, and return their folder."""
        whole = private_folder(self._folder / "artifact")
        with (self._folder / "stream").open("rb") as stream:
            for name, size in piece.files:
                with (whole / name).open("wb") as file:
                    left = size
                    while left:
                        part = stream.read(min(left, 1 << 20))
                        if not part:
                            raise Refusal(Code.BAD_ARTIFACT, "an artifact that is cut off")
                        file.write(part)
                        left -= len(part)
        return whole

    def clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def total_bytes(piece: ArtifactPiece) -> int:
    """Return the size of the whole artifact; refuse impossible files or sizes."""
    names = [name for name, _ in piece.files]
    total = sum(size for _, size in piece.files)
    if not set(names) <= set(ARTIFACT_FILES) or len(set(names)) != len(names):
        raise Refusal(Code.BAD_ARTIFACT, "an artifact of unknown files")
    if total > LARGEST_ARTIFACT:
        raise Refusal(Code.BAD_ARTIFACT, f"an artifact of {total} bytes")
    return total
