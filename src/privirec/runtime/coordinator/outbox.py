"""The outgoing artifact: pieces of its files, which are treated as one concatenated stream."""

from __future__ import annotations

from pathlib import Path

from privirec.runtime.messages import ARTIFACT_FILES, ArtifactPiece


class Outbox:
    """The files of one artifact."""

    def __init__(self, artifact: Path, piece_bytes: int) -> None:
        self._files = [
            (artifact / name, (artifact / name).stat().st_size)
            for name in ARTIFACT_FILES
            if (artifact / name).exists()
        ]
        self._piece_bytes = piece_bytes

    @property
    def total(self) -> int:
        return sum(size for _, size in self._files)

    def piece(self, offset: int) -> tuple[ArtifactPiece, bytes]:
        """Return the piece that starts at `offset`, as large as fits into one message."""
        room, position, parts = self._piece_bytes, 0, []
        place = offset
        for path, size in self._files:
            inside = place - position
            if 0 <= inside < size and room:
                with path.open("rb") as file:
                    file.seek(inside)
                    parts.append(file.read(min(room, size - inside)))
                room -= len(parts[-1])
                place += len(parts[-1])
            position += size
        files = tuple((path.name, size) for path, size in self._files)
        return ArtifactPiece(files=files, offset=offset), b"".join(parts)
