"""Connections of clients to the server, with timeouts and limits on their number.

uvicorn waits without limit for the head of a request, and for a peer that does not read its
response. Here the head must arrive within `HEAD_WITHIN` seconds, and a request with its response
has a time limit as well. The server keeps only the newest `UNPROVEN` connections that are not yet
authenticated, and the newest `PROVEN` connections of each client.
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
"""Largest number of connections that are not authenticated."""
PROVEN = 32
"""Largest number of connections per client."""
LARGEST_HEAD = 1 << 14
_OPEN_FILES = 1 << 14


class Line(H11Protocol):
    """One connection, with the times that its limits depend on."""

    def __init__(self, lines: Lines, **given: Any) -> None:
        super().__init__(**given)
        self.app_state = {**self.app_state, "line": self}  # request handlers find it in the scope
        self.idle_since: float | None = None
        """Time since which a request's head is awaited; None while a request is answered."""
        self.busy_since = 0.0
        """Time at which the last request's head arrived."""
        self.proven_as: int | None = None
        """Client at the other end; None until it is authenticated."""
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
    """All open connections of one server."""

    def __init__(self, within: float = math.inf) -> None:
        """Initialise; `within` is the time limit for a request and its response, in seconds."""
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
        """Record that a connection is authenticated as this client."""
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
        """Abort connections that exceed a time limit, until cancelled."""
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
    """Shorten the timeout of TLS handshakes, and raise the limit on open files."""
    # This changes asyncio's default, because uvicorn has no setting for it.
    vars(importlib.import_module("asyncio.constants"))["SSL_HANDSHAKE_TIMEOUT"] = HEAD_WITHIN
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
