"""The server's messages, sealed: the greeting, the messages of a step, pieces of the artifact."""

from __future__ import annotations

from privirec.data.catalogue import Catalogue
from privirec.runtime.network.coordinator.computation import Computation
from privirec.runtime.network.coordinator.outbox import Outbox
from privirec.runtime.network.envelope import EVERYBODY, Envelope
from privirec.runtime.network.messages import Exchange, Hello, Message
from privirec.secagg import Phase
from privirec.secagg.keys import Identity, Roster
from privirec.secagg.participants import write_participants
from privirec.version import __version__


class Post:
    """Seals what the server of one run says."""

    def __init__(self, run: str, server_key: Identity, roster: Roster) -> None:
        self._run = run
        self._server_key = server_key
        self._roster = roster
        self._last_piece: tuple[int, bytes] = (-1, b"")

    def seal(self, message: Message, client: int = EVERYBODY, *parts: bytes) -> bytes:
        return Envelope(self._run, client, message, parts).seal(self._server_key, "to-client")

    def greeting(self, catalogue: Catalogue) -> bytes:
        return self.seal(
            Hello(
                version=__version__,
                catalogue=catalogue.fingerprint,
                items=len(catalogue),
                roster=self._roster.digest.hex(),
            )
        )

    def of_step(self, computing: Computation) -> dict[int, bytes]:
        """What each client in the run is sent in a step that has just begun."""
        step, exchange = computing.step, Exchange(step=computing.position)
        if computing.position == 0:
            plan = computing.plan.text()
            announced = self.seal(exchange, EVERYBODY, computing.session.announcement, plan)
            return dict.fromkeys(computing.plan.users, announced)
        more: tuple[bytes, ...] = ()
        if step.phase is Phase.INPUT:
            more = (computing.current().encoded,)
        elif step.phase is Phase.RECOVERY:
            more = (write_participants(computing.session.survivors, self._roster),)
        # Where the protocol has nothing to say, an ask is sealed once, however many clients.
        same_for_all = self.seal(exchange, EVERYBODY, b"", *more)
        return {
            client: self.seal(exchange, client, message, *more) if message else same_for_all
            for client, message in computing.session.outgoing()
        }

    def piece(self, outbox: Outbox, offset: int) -> bytes:
        """A piece of the artifact; the same goes to everybody who needs it."""
        if self._last_piece[0] != offset:
            message, content = outbox.piece(offset)
            self._last_piece = (offset, self.seal(message, EVERYBODY, content))
        return self._last_piece[1]
