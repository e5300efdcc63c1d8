"""The server and the client as Flower starts them, with its messages between them.

Flower starts a process for each message to a client; all state is in the client's folder, which is
set by `--node-config 'home="..."'`. The server's folder is given by the environment variable
PRIVIREC_SERVER, so that users who may start runs cannot choose it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from privirec.errors import FederationError, PrivirecError
from privirec.runtime.coordinator.clients import Address
from privirec.runtime.enrolment.folders import ClientFolder, OperatorFolder
from privirec.runtime.envelope import LARGEST
from privirec.runtime.logs import logged_to
from privirec.runtime.runs import RunFolder

OWN_PROBLEM = "a problem of its own; its log says which"
"""The only text that a server receives about an error on a client."""
PAUSE = 0.25
"""Seconds between two polls for replies."""
_RECORD, _NAME = "message", "bytes"

client = ClientApp()
server = ServerApp()


def pack(content: bytes) -> RecordDict:
    """Return the content of a Flower message: one array, which Flower splits into chunks itself."""
    array = Array(dtype="uint8", shape=(len(content),), stype="bytes", data=content)
    return RecordDict({_RECORD: ArrayRecord({_NAME: array})})


def unpack(message: Message) -> bytes:
    """Return the bytes of a message, or b"" if it is not ours; the signature check refuses that."""
    record = message.content.get(_RECORD)
    if not isinstance(record, ArrayRecord) or _NAME not in record:
        return b""
    return bytes(record[_NAME].data)


@client.query("privirec")
def answer(message: Message, context: Context) -> Message:
    """Return a client's reply to a message."""
    home = Path(str(context.node_config.get("home") or os.environ.get("PRIVIREC_CLIENT", "")))
    log = logging.getLogger("privirec.client")
    with logged_to(home / "client.log"):
        try:
            with closing(ClientFolder(home).node()) as node:
                reply = node.answer(unpack(message))
        except Exception as error:
            # Flower sends an exception's text to the server; it may contain paths or private data.
            unexpected = not isinstance(error, PrivirecError | OSError)
            log.error("cannot answer: %s", error, exc_info=unexpected)
            raise FederationError(OWN_PROBLEM) from None
    return Message(pack(bytes(reply)), reply_to=message)


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Serve one run; an interrupted run of this name resumes."""
    home = OperatorFolder(Path(os.environ["PRIVIREC_SERVER"]))
    name = str(context.run_config.get("name") or f"run-{context.run_id}")
    RunFolder(home, name).serve(lambda spec: FlowerCarrier(grid, spec.silence))


class FlowerCarrier:
    """Carrier over Flower's Grid; an address is the id of a Flower node."""

    largest_reply = LARGEST

    def __init__(self, grid: Grid, time_to_live: float) -> None:
        """Initialise; Flower discards a message after `time_to_live` seconds."""
        self._grid = grid
        self._time_to_live = time_to_live
        self._pending: dict[str, int] = {}

    def connected(self) -> Collection[Address]:
        return list(self._grid.get_node_ids())

    def send(self, address: Address, message: bytes) -> bool:
        node = int(str(address))
        wrapped = Message(pack(message), node, "query.privirec", ttl=self._time_to_live)
        sent = next(iter(self._grid.push_messages([wrapped])), None)
        if sent:
            self._pending[sent] = node
        return bool(sent)

    def arrivals(self) -> Iterator[tuple[Address, bytes | None]]:
        for reply in self._grid.pull_messages(list(self._pending)) if self._pending else ():
            node = self._pending.pop(reply.metadata.reply_to_message_id, None)
            if node is not None:
                # The text of an error is not read: a modified client can put anything in it.
                yield node, None if reply.has_error() else unpack(reply)

    def is_idle(self) -> bool:
        return not self._pending

    def rest(self) -> None:
        time.sleep(PAUSE)
