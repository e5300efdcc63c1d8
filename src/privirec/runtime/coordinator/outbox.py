"""The server's sealed messages: greeting, messages of a step and pieces of the artifact."""

from __future__ import annotations

from pathlib import Path

from privirec.data.catalogue import Catalogue
from privirec.runtime.coordinator.computation import Computation
from privirec.runtime.envelope import EVERYBODY, Envelope
from privirec.runtime.messages import ARTIFACT_FILES, ArtifactPiece, Exchange, Hello, Message
from privirec.secagg import Phase
from privirec.secagg.keys import Identity, Roster
from privirec.secagg.participants import write_participants
from privirec.version import __version__


class Outbox:
    """Sealer of the server's messages in one run."""

    def __init__(self, run: str, server_key: Identity, roster: Roster) -> None:
        self._run = run
        self._server_key = server_key
        self._roster = roster
        self._last_piece: tuple[int, bytes] = (-1, b"")

    def seal(self, message: Message, client: int = EVERYBODY, *parts: bytes) -> bytes:
        return Envelope(self._run, client, message, parts).seal(self._server_key, "to-client")

    def greeting(self, catalogue: Catalogue, *, protected: bool, level: float = 0.0) -> bytes:
        return self.seal(
            Hello(
                version=__version__,
                catalogue=catalogue.fingerprint,
                items=len(catalogue),
                roster=self._roster.digest.hex(),
                protected=protected,
                level=level,
            )
        )

    def of_step(self, computing: Computation) -> dict[int, bytes]:
        """Return the message to each client of the run for a step that has just begun."""
        step, exchange = computing.step, Exchange(step=computing.position)
        if computing.position == 0:
            plan = computing.plan.text
            announced = self.seal(exchange, EVERYBODY, computing.session.announcement, plan)
            return dict.fromkeys(computing.plan.users, announced)
        more: tuple[bytes, ...] = ()
        if step.phase is Phase.INPUT:
            more = (computing.current().encoded,)
        elif step.phase is Phase.RECOVERY:
            more = (write_participants(computing.session.survivors, self._roster),)
        # If the protocol has no message for the clients, the request is sealed only once for all.
        same_for_all = self.seal(exchange, EVERYBODY, b"", *more)
        return {
            client: self.seal(exchange, client, message, *more) if message else same_for_all
            for client, message in computing.session.outgoing()
        }

    def piece(self, artifact: ArtifactStream, offset: int) -> bytes:
        """Return a sealed piece of the artifact, which is the same for all clients."""
        if self._last_piece[0] != offset:
            message, content = artifact.piece(offset)
            self._last_piece = (offset, self.seal(message, EVERYBODY, content))
        return self._last_piece[1]


class ArtifactStream:
    """The files of one artifact, treated as one concatenated stream."""

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
