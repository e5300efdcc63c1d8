"""The client as Flower starts it: one process per message, with all state in its folder."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from privirec.errors import FederationError, PrivirecError
from privirec.extra.flower.packing import pack, unpack
from privirec.runtime.enrolment.folders import ClientFolder
from privirec.runtime.logs import logged_to

OWN_PROBLEM = "a problem of its own; its log says which"
"""The only text that a server receives about an error on a client."""

app = ClientApp()
log = logging.getLogger("privirec.client")


@app.query("privirec")
def answer(message: Message, context: Context) -> Message:
    """Answer a message. The client's folder is set by `--node-config 'home="..."'`."""
    home = Path(str(context.node_config.get("home") or os.environ.get("PRIVIREC_CLIENT", "")))
    with logged_to(home / "client.log"):
        try:
            with closing(ClientFolder(home).node()) as node:
                reply = node.answer(unpack(message))
        except Exception as error:
            # Flower sends an exception's text to the server; it may contain paths or private data.
            if isinstance(error, PrivirecError | OSError):
                log.error("cannot answer: %s", error)
            else:
                log.exception("cannot answer")
            raise FederationError(OWN_PROBLEM) from None
    return Message(pack(bytes(reply)), reply_to=message)
