"""The client as Flower starts it: one process a message, all of its memory in a folder."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from privirec.errors import PrivirecError
from privirec.runtime.envelope import one_line
from privirec.runtime.flower.carriage import pack, unpack
from privirec.runtime.homes import ClientHome

app = ClientApp()
log = logging.getLogger("privirec.client")


@app.query("privirec")
def answer(message: Message, context: Context) -> Message:
    """Bytes in, bytes out. The folder comes from `--node-config 'home="..."'`."""
    home = Path(str(context.node_config.get("home") or os.environ.get("PRIVIREC_CLIENT", "")))
    log_to(home / "client.log")
    try:
        node = ClientHome(home).node()
    except PrivirecError as error:
        log.error("%s", error)
        raise
    return Message(pack(node.answer(unpack(message))), reply_to=message)


class _Lines(logging.Formatter):
    """Messages quote what others sent: one line each, whatever it was."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(super().formatMessage(record), 2000)


def log_to(path: Path) -> None:
    """What the program says goes to a file for its owner only; never a history, never a secret."""
    logger = logging.getLogger("privirec")
    if logger.handlers:
        return
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(_Lines("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
