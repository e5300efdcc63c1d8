"""A server in this process to which clients come with invitations; all but the socket is real."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from privirec.data.catalogue import Catalogue, write_catalogue
from privirec.privacy.policy import Policy
from privirec.runtime.enrolment.certificates import make_certificates
from privirec.runtime.enrolment.folders import ClientFolder, OperatorFolder
from privirec.runtime.enrolment.invitations import Invitation, Invitations
from privirec.runtime.enrolment.roster import RosterFile
from privirec.runtime.https.client import Answering, Rosters
from privirec.runtime.https.connection import Connection
from privirec.runtime.https.gate import Gate
from privirec.runtime.https.joining import Joining
from privirec.runtime.https.limits import Limits
from privirec.runtime.https.mailbox import Mailbox
from privirec.runtime.https.signing import StampsTaken
from privirec.runtime.lines import Lines

from .https_chaos import NO_TLS, Waiting

ADDRESS = "https://server.example:9443"
LIMITS = Limits(rate=1e6, burst=1e6, busy_pause=0.0, idle_pause=0.0)


def operator_in(folder: Path) -> OperatorFolder:
    """Create an operator's folder with a catalogue and certificates."""
    home = OperatorFolder.create(folder)
    make_certificates(folder / "tls")
    write_catalogue(folder / "catalogue.txt", Catalogue(["a", "b", "c"]))
    return home


class Site:
    """A server and the folders of its clients."""

    def __init__(self, folder: Path, home: OperatorFolder | None = None) -> None:
        self.folder = folder
        self.home = home or operator_in(folder / "server")
        self.slept: list[float] = []
        self.restart()

    def restart(self) -> None:
        """Start another process of the server."""
        self.mailbox = Mailbox(self.home.folder / "spool", LIMITS)
        self.gate = Gate(self.home, self.mailbox, LIMITS, Lines(), stamps=StampsTaken(began=0))
        self.transport: httpx.BaseTransport = Waiting(httpx.ASGITransport(self.gate.application))

    def invite(self, *names: str, **given: Any) -> list[Invitation]:
        return Invitations(self.home).make([*names], ADDRESS, **{"days": 1, **given})

    def joining(self, invitation: Invitation, folder: Path, say: Any = None) -> Joining:
        return Joining(
            Invitation.parse(invitation.link),
            ClientFolder(folder),
            say or (lambda line: None),
            transport=self.transport,
            sleep=self.slept.append,
        )

    def client(self, name: str) -> ClientFolder:
        """Enrol a client by a link of its own."""
        (invitation,) = self.invite(name)
        self.joining(invitation, self.folder / name).join()
        return ClientFolder(self.folder / name)

    def device(
        self, client: ClientFolder, tell: Callable[[str], None] = lambda line: None
    ) -> tuple[Connection, Answering]:
        """Return the connection of a client, as `privirec client up` makes it."""
        answering = Answering(client)
        connection = Connection(
            ADDRESS,
            client.settings.client,
            *answering.keys(),
            NO_TLS,
            answering.answer,
            keys=answering.keys,
            rosters=Rosters(client, tell),
            transport=self.transport,
        )
        return connection, answering

    def turn(self, client: ClientFolder) -> list[str]:
        """Let a client's process make one turn; return what it tells its owner."""
        told: list[str] = []
        connection, answering = self.device(client, told.append)
        try:
            connection.turn()
        finally:
            connection.close()
            answering.close()
        return told

    def change(self, change: Callable[[RosterFile], RosterFile]) -> None:
        """Change the roster as a command of the operator does; the server reads it."""
        self.home.save(change(self.home.members))
        self.gate.read_roster()


def with_policy(client: ClientFolder, **changes: Any) -> None:
    """Set a client's policy."""
    (client.folder / "policy.toml").write_text(Policy(**changes).as_toml())
