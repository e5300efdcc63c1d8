"""The server's HTTP interface for clients: an ASGI application on top of the mailbox."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from privirec.runtime.https.gate import Gate, Refused
from privirec.runtime.https.limits import PIECE, Limits
from privirec.runtime.https.mailbox import BadAnswer, BadRange, Mailbox, NoRoom, Waiting
from privirec.runtime.https.signing import Request
from privirec.runtime.lines import Lines
from privirec.runtime.messages import one_line

log = logging.getLogger("privirec.server")

OFFSET = "Upload-Offset"
"""Header with the number of bytes of an answer that have arrived."""
REFUSED_AFTER = 1.0
"""Seconds before an unauthenticated request is refused, to slow down guessing."""
CHUNK = 1 << 15
"""Bytes of a message that are written to a connection at a time."""
SAID_AGAIN = 60.0
"""Seconds before the same line about a refused request is logged again."""
MOST_SAID = 200
"""Lines about refused requests in that time, so that they cannot fill the disk."""
NO_ROOM_AFTER = 60
"""Seconds after which a client retries if the disk had no space for its answer."""
_RANGE = re.compile(r"bytes=([0-9]{1,12})-")
_WHOLE = re.compile(r"[0-9]{1,12}")
_HEX = re.compile(r"[0-9a-f]{64}")

Handler = Callable[[HttpRequest, Request], Awaitable[Response]]


class Metrics:
    """Metrics of one server for Prometheus: counts and bytes, without any client's name."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "privirec_requests", "Requests answered.", ["what", "status"], registry=registry
        )
        self.seconds = Histogram(
            "privirec_request_seconds",
            "Time from a request's head to its answer.",
            buckets=(0.005, 0.02, 0.1, 0.5, 2.0, 10.0),
            registry=registry,
        )
        self.received = Counter(
            "privirec_received_bytes", "Bytes of answers received.", registry=registry
        )
        self.sent = Counter("privirec_sent_bytes", "Bytes of messages sent.", registry=registry)
        self.connections = Gauge("privirec_connections", "Open connections.", registry=registry)
        self.connected = Gauge(
            "privirec_clients_connected", "Clients that were here a moment ago.", registry=registry
        )
        self.approved = Gauge(
            "privirec_clients_approved", "Clients in the roster.", registry=registry
        )
        self.running = Gauge("privirec_run_in_progress", "1 during a run.", registry=registry)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)


class Door:
    """HTTP routes for clients; `Gate` authenticates and limits the requests."""

    def __init__(
        self, gate: Gate, mailbox: Mailbox, limits: Limits, metrics: Metrics, lines: Lines
    ) -> None:
        self._gate = gate
        self._mailbox = mailbox
        self._limits = limits
        self._metrics = metrics
        self._lines = lines
        self._said: dict[str, float] = {}
        self.application = Starlette(
            routes=[
                Route("/v1/next", self._guarded("next", self._next), methods=["GET"]),
                Route("/v1/messages/{number}", self._guarded("message", self._message)),
                Route(
                    "/v1/answers/{number}",
                    self._guarded("answer", self._answer),
                    methods=["PATCH", "HEAD"],
                ),
                Route("/health", self._health, methods=["GET"]),
            ]
        )
        self.application.router.redirect_slashes = False  # they trust the Host header
        self.watched = Starlette(
            routes=[
                Route("/metrics", self._count, methods=["GET"]),
                Route("/health", self._health, methods=["GET"]),
            ]
        )
        """Application for monitoring; not to be exposed to the network."""

    async def keep_up(self) -> None:
        """Reload the roster and update the gauges every second, until cancelled."""
        while True:
            try:
                self._gate.read_roster()
            except Exception:
                log.exception("the roster cannot be read; the last one counts")
            present = len(self._mailbox.connected())
            self._metrics.connected.set(present)
            self._metrics.approved.set(self._gate.approved)
            self._metrics.running.set(self._mailbox.running)
            self._metrics.connections.set(len(self._lines))
            await asyncio.sleep(1.0)

    # --- requests ---------------------------------------------------------------------------------

    async def _next(self, _http: HttpRequest, request: Request) -> Response:
        waiting = self._mailbox.first(request.client)
        if waiting is None:
            return Response(status_code=204, headers=self._when_again(request.client))
        return self._range(waiting, 0)

    async def _message(self, http: HttpRequest, request: Request) -> Response:
        waiting = self._mailbox.find(request.client, http.path_params["number"])
        if waiting is None:
            return Response(status_code=404)
        found = _RANGE.fullmatch(http.headers.get("range", "bytes=0-"))
        if found is None or int(found[1]) >= len(waiting.content):
            return Response(status_code=416)
        return self._range(waiting, int(found[1]))

    async def _answer(self, http: HttpRequest, request: Request) -> Response:
        number, digest = http.path_params["number"], http.query_params.get("digest", "")
        if _HEX.fullmatch(digest) is None:
            raise Refused(400, "", known=True)
        if http.method == "HEAD":
            there = self._mailbox.received(request.client, number, digest)
            return Response(status_code=404) if there is None else _there(204, there)
        offset, total = (_whole(http.query_params.get(name, "")) for name in ("offset", "total"))
        if total > self._limits.largest_answer:
            why = f"client {request.client}: an answer that is too large (--largest-reply)"
            raise Refused(413, why, known=True)
        part = await self._content(http, request)
        try:
            answer = self._mailbox.put(request.client, number, digest, total, offset, part)
        except BadRange as error:
            return _there(409, error.received)
        except NoRoom as error:
            log.error("no room for answers (%s): see where %s lies", error, "https/spool")
            later = {"Retry-After": str(NO_ROOM_AFTER)}
            raise Refused(503, "", headers=later, known=True) from None
        except BadAnswer:
            raise Refused(422, f"client {request.client}: another answer", known=True) from None
        if answer is None:
            return Response(status_code=404)
        self._metrics.received.inc(len(part))
        response = _there(204, answer.received)
        response.headers.update(self._when_again(request.client))
        return response

    async def _health(self, _http: HttpRequest) -> Response:
        return PlainTextResponse("ok\n")

    async def _count(self, _http: HttpRequest) -> Response:
        return Response(self._metrics.text(), media_type=CONTENT_TYPE_LATEST)

    # --- around them ------------------------------------------------------------------------------

    def _guarded(self, what: str, handler: Handler) -> Callable[[HttpRequest], Any]:
        async def guarded(http: HttpRequest) -> Response:
            began = time.perf_counter()
            try:
                request = self._gate.admit(http.method, _target(http), http.headers)
                if (line := http.scope.get("state", {}).get("line")) is not None:
                    self._lines.proven(line, request.client)
                with self._gate.turn(request):
                    self._mailbox.seen(request.client)
                    response = await handler(http, request)
            except Refused as refused:
                response = await self._refuse(http, refused)
            except ClientDisconnect:
                response = Response(status_code=400)  # the client is gone
            self._metrics.requests.labels(what, response.status_code).inc()
            self._metrics.seconds.observe(time.perf_counter() - began)
            return response

        return guarded

    async def _refuse(self, http: HttpRequest, refused: Refused) -> Response:
        if refused.why:
            self._say(f"turned away {refused.why}", http)
        if not refused.known:
            await asyncio.sleep(REFUSED_AFTER)
        headers = {"Connection": "close"} | refused.headers
        return PlainTextResponse(refused.code, refused.status, headers=headers)

    async def _content(self, http: HttpRequest, request: Request) -> bytes:
        """Read a request's content; refuse it if it is too large or not what was signed."""
        content = bytearray()
        stream = http.stream()
        try:
            while True:
                async with asyncio.timeout(self._limits.silence):
                    part = await anext(stream, None)
                if part is None:
                    break
                content += part
                if len(content) > PIECE:
                    why = f"client {request.client}: a request of more than {PIECE} bytes"
                    raise Refused(413, why, known=True)
        except TimeoutError:
            why = f"client {request.client}: a request that stopped in the middle"
            raise Refused(408, why, known=True) from None
        if hashlib.sha256(content).digest() != request.digest:
            raise Refused(400, f"client {request.client}: content that it did not sign", known=True)
        return bytes(content)

    def _range(self, waiting: Waiting, start: int) -> Response:
        total = len(waiting.content)
        stop = min(start + PIECE, total)
        headers = {"ETag": f'"{waiting.number}"', "Cache-Control": "no-store"}
        if (start, stop) != (0, total):
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{total}"
        self._metrics.sent.inc(stop - start)
        headers["Content-Length"] = str(stop - start)
        return StreamingResponse(
            _chunks(waiting.content, start, stop),
            200 if stop - start == total else 206,
            headers=headers,
            media_type="application/octet-stream",
        )

    def _when_again(self, client: int) -> dict[str, str]:
        seconds = str(round(self._mailbox.pause(client)))
        return {"Retry-After": seconds, "Cache-Control": "no-store"}

    def _say(self, what: str, http: HttpRequest) -> None:
        host = http.client.host if http.client else "somewhere"
        line = one_line(f"{what}, from {host}")
        now = time.monotonic()
        if now - self._said.get(line, -SAID_AGAIN) >= SAID_AGAIN:
            if len(self._said) >= MOST_SAID:
                self._said = {old: at for old, at in self._said.items() if now - at < SAID_AGAIN}
            if len(self._said) < MOST_SAID:
                self._said[line] = now
                log.warning("%s", line)


async def _chunks(content: bytes, start: int, stop: int) -> AsyncIterator[bytes]:
    """Yield a message in small chunks, as fast as the client reads them.

    If whole messages were buffered, a thousand slow clients would need a thousand times the memory.
    """
    for place in range(start, stop, CHUNK):
        yield content[place : min(place + CHUNK, stop)]


def _target(http: HttpRequest) -> str:
    query = http.scope["query_string"].decode("latin-1")
    path = http.scope["raw_path"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _there(status: int, received: int) -> Response:
    return Response(status_code=status, headers={OFFSET: str(received)})


def _whole(text: str) -> int:
    if _WHOLE.fullmatch(text) is None:
        raise Refused(400, "", known=True)
    return int(text)
