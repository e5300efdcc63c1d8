"""Connections to a door for clients: those that say nothing, or say it too slowly, are cut.

uvicorn waits for the head of a request as long as somebody likes, and for somebody who does not
take its answer. Here the head has to be there within seconds, and the whole has its time; of
connections that have not shown who they are only so many are kept, the newest, and so
many of each client.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import resource
from collections import OrderedDict
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_WITHIN = 10.0
"""Seconds for the head of a request, and for the TLS handshake before it."""
UNPROVEN = 1024
"""Connections that have not shown who they are."""
PROVEN = 32
"""Connections of one client."""
LARGEST_HEAD = 1 << 14
_OPEN_FILES = 1 << 14


class Line(H11Protocol):
    """One connection."""

    def __init__(self, lines: Lines, **given: Any) -> None:
        super().__init__(**given)
        self.app_state = {**self.app_state, "line": self}  # seen by whoever gets the request
        self.idle_since: float | None = None
        """Since when the head of a request is awaited; None while one is answered."""
        self.busy_since = 0.0
        """Since when the last one is answered."""
        self.proven_as: int | None = None
        """Who is at the other end, once that is shown."""
        self._lines = lines

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.idle_since = self.loop.time()
        self._lines.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._lines.lost(self)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self.idle_since, self.busy_since = None, self.loop.time()

    def on_response_complete(self) -> None:
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def cut(self) -> None:
        self.transport.abort()


class Lines:
    """All connections."""

    def __init__(self, within: float = math.inf) -> None:
        """`within`: seconds for a request and its answer."""
        self._within = within
        self._all: set[Line] = set()
        self._unproven: OrderedDict[Line, None] = OrderedDict()
        self._of: dict[int, OrderedDict[Line, None]] = {}

    def opened(self, line: Line) -> None:
        self._all.add(line)
        self._unproven[line] = None
        if len(self._unproven) > UNPROVEN:
            self._unproven.popitem(last=False)[0].cut()

    def proven(self, line: Line, client: int) -> None:
        """This client is at the other end."""
        self._unproven.pop(line, None)
        self._forget(line)
        line.proven_as = client
        own = self._of.setdefault(client, OrderedDict())
        own[line] = None
        if len(own) > PROVEN:
            own.popitem(last=False)[0].cut()

    def lost(self, line: Line) -> None:
        self._all.discard(line)
        self._unproven.pop(line, None)
        self._forget(line)

    def __len__(self) -> int:
        return len(self._all)

    def _forget(self, line: Line) -> None:
        if line.proven_as is None or (own := self._of.get(line.proven_as)) is None:
            return
        own.pop(line, None)
        if not own:
            del self._of[line.proven_as]

    async def watch(self) -> None:
        """Cut those that wait for nothing."""
        while True:
            await asyncio.sleep(HEAD_WITHIN / 4)
            self.cut_late(asyncio.get_running_loop().time())

    def cut_late(self, now: float) -> None:
        for line in list(self._all):
            idle = line.idle_since is not None
            since, within = (
                (line.idle_since, HEAD_WITHIN) if idle else (line.busy_since, self._within)
            )
            if since is not None and now - since > within:
                line.cut()


def prepare_process() -> None:
    """Handshakes that take long are given up, and many connections are no trouble."""
    # The default of every server; uvicorn offers no setting of its own.
    vars(importlib.import_module("asyncio.constants"))["SSL_HANDSHAKE_TIMEOUT"] = HEAD_WITHIN
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
