"""The server's request to all clients to use an earlier model again, between runs.

    SERVER/go-back.json    hash of the model, number of the request, and clients that answered

Clients that are away are asked when they come back. The next model ends the request.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from privirec.durable import write_whole
from privirec.errors import UsageError
from privirec.models.artifact import MANIFEST
from privirec.runtime import envelope
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.envelope import BadEnvelope, Envelope
from privirec.runtime.https.mailbox import Mailbox
from privirec.runtime.messages import GoBack, Goodbye

log = logging.getLogger("privirec.server")

FILE = "go-back.json"


class Request(BaseModel):
    """Request to all clients, and those that have answered."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    """Name of the run whose model it is."""
    model: str
    """Hash of its manifest."""
    number: int
    answered: tuple[int, ...] = ()


def model_hash(home: OperatorFolder, run: str) -> str:
    """Return the hash by which clients know the model of a run."""
    try:
        manifest = (home.run(run) / "model" / MANIFEST).read_bytes()
    except OSError:
        raise UsageError(f"the run {run} has no model") from None
    return hashlib.sha256(manifest).hexdigest()


def request(home: OperatorFolder) -> Request | None:
    """Return the request that is in force, if any."""
    try:
        return Request.model_validate_json((home.folder / FILE).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def ask(home: OperatorFolder, run: str) -> Request:
    """Ask all clients for the model of a run."""
    before = request(home)
    number = max(int(time.time()), before.number + 1 if before else 0)
    made = Request(run=run, model=model_hash(home, run), number=number)
    _write(home, made)
    return made


def over(home: OperatorFolder) -> None:
    """End the request: there is a newer model."""
    (home.folder / FILE).unlink(missing_ok=True)


class Asking:
    """The server's side while no run is served."""

    def __init__(self, home: OperatorFolder, mailbox: Mailbox) -> None:
        self._home = home
        self._mailbox = mailbox
        self._asked: dict[int, int] = {}
        """Client -> number of the last request that waits for it."""

    def forget(self) -> None:
        """Ask everybody again that has not answered; a run has emptied the mailbox."""
        self._asked.clear()

    def step(self) -> None:
        """Take answers, and ask the clients that are here now."""
        wanted = request(self._home)
        if wanted is None:
            return
        members = self._home.members
        answered = set(wanted.answered)
        for client, reply in self._mailbox.answers():
            try:
                found = envelope.peek(reply, "to-server")
                envelope.check(reply, bytes.fromhex(members.member(client).key), "to-server")
            except BadEnvelope as error:
                log.warning("client %d: %s", client, error)
                continue
            if found.client == client and isinstance(found.message, Goodbye):
                answered.add(client)
        here = self._mailbox.connected() & set(members.roster())
        for client in sorted(here - answered):
            if self._asked.get(client) == wanted.number:
                continue
            self._asked[client] = wanted.number
            message = GoBack(model=wanted.model, number=wanted.number)
            self._mailbox.send(
                client, Envelope("", client, message).seal(self._home.server, "to-client")
            )
        if answered != set(wanted.answered):
            _write(self._home, wanted.model_copy(update={"answered": tuple(sorted(answered))}))


def _write(home: OperatorFolder, made: Request) -> None:
    text = json.dumps(made.model_dump(mode="json"))
    write_whole(Path(home.folder / FILE), text.encode())
