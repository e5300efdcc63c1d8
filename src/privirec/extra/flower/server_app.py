"""The server as Flower starts it: one PriviRec run over Flower's messages.

The server's folder is given by the environment variable PRIVIREC_SERVER, so that users who may
start runs cannot choose it. An interrupted run resumes when a run of the same name is started.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from privirec.extra.flower.packing import KIND, pack, unpack
from privirec.runtime.coordinator.clients import Address
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.envelope import LARGEST
from privirec.runtime.runs import RunFolder

app = ServerApp()
log = logging.getLogger("privirec.server")

PAUSE = 0.25
"""Seconds between two polls for replies."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve one run, up to the delivery of the artifact to every client."""
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
        self._reported: dict[int, str | None] = {}

    def connected(self) -> Collection[Address]:
        return list(self._grid.get_node_ids())

    def send(self, address: Address, message: bytes) -> bool:
        node = int(str(address))
        wrapped = Message(pack(message), node, KIND, ttl=self._time_to_live)
        sent = next(iter(self._grid.push_messages([wrapped])), None)
        if sent:
            self._pending[sent] = node
        return bool(sent)

    def arrivals(self) -> Iterator[tuple[Address, bytes | None]]:
        for reply in self._grid.pull_messages(list(self._pending)) if self._pending else ():
            node = self._pending.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            if not reply.has_error():
                yield node, unpack(reply)
                continue
            # The reason is untrusted: a modified client can put any text in it.
            if self._reported.get(node) != reply.error.reason:
                log.warning("node %s cannot answer: %s", node, reply.error.reason)
                self._reported[node] = reply.error.reason
            yield node, None

    def is_idle(self) -> bool:
        return not self._pending

    def rest(self) -> None:
        time.sleep(PAUSE)
