"""The server's HTTP interface: it admits approved clients, within limits, to the mailbox.

A request is judged by its head, before its content is read: the client's signature, the roster, no
replay, and limits on rate and number.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from privirec.durable import private_folder, write_whole
from privirec.errors import PrivirecError
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.enrolment.invitations import (
    Admitted,
    Application,
    Invitations,
    NotEnrolled,
)
from privirec.runtime.enrolment.roster import RosterEntry, RosterFile
from privirec.runtime.health import Level, disk, until
from privirec.runtime.https.limits import PIECE, TITLES_FILE, Allowance, Limits
from privirec.runtime.https.mailbox import BadAnswer, BadRange, Mailbox, NoRoom, Waiting
from privirec.runtime.https.metrics import ServerMetrics
from privirec.runtime.https.signing import (
    CLOCK,
    REVOKED,
    ROSTER,
    UPLOAD,
    NotSigned,
    Request,
    StampsTaken,
    Word,
    message_number,
)
from privirec.runtime.lines import Lines
from privirec.runtime.messages import one_line
from privirec.secagg.keys import Identity

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
MOST_JOINING = 8
"""Applications of new clients at a time."""
LARGEST_APPLICATION = 1 << 13
"""Largest application of a new client, in bytes."""
LOOK_AGAIN = 5
"""Seconds after which a client that waits for the operator's approval asks again."""
SEEN = "seen.json"
WRITE_SEEN = 60.0
A_DAY = 86_400.0
_RANGE = re.compile(r"bytes=([0-9]{1,12})-")
_WHOLE = re.compile(r"[0-9]{1,12}")
_HEX = re.compile(r"[0-9a-f]{64}")

Handler = Callable[[HttpRequest, Request], Awaitable[Response]]


class Rejected(Exception):
    """A request that is not served."""

    def __init__(
        self,
        status: int,
        why: str = "",
        *,
        code: str = "",
        headers: Mapping[str, str] | None = None,
        known: bool = False,
    ) -> None:
        """Initialise a rejection.

        `why` goes to the log, `code` to the client. `known` is True if the client has proven its
        identity.
        """
        super().__init__(why)
        self.status, self.why, self.code, self.known = status, why, code, known
        self.headers = dict(headers or {})


class Gate:
    """HTTP routes for clients, and the check of every request."""

    def __init__(
        self,
        home: OperatorFolder,
        mailbox: Mailbox,
        limits: Limits,
        lines: Lines,
        clock: Callable[[], float] = time.monotonic,
        stamps: StampsTaken | None = None,
    ) -> None:
        self._home = home
        self._mailbox = mailbox
        self._limits = limits
        self._lines = lines
        self._clock = clock
        self._stamps = stamps or StampsTaken()
        self._metrics = ServerMetrics()
        self._said: dict[str, float] = {}
        self._nobody = Identity.generate(os.urandom).public
        """Public key without an owner, used to check signatures of unknown clients."""
        self._roster: RosterFile | None = None
        self._shown: tuple[tuple[int, int], bytes] | None = None
        """Last difference of the roster that was shown: its ends, and its bytes."""
        self._members: dict[int, RosterEntry] = {}
        self._server_key = b""
        self._read_at: tuple[int, ...] = ()
        self._allowances: dict[int, Allowance] = {}
        self._together = 0
        self._joining = 0
        self.certificate_ends = 0.0
        """Time at which the certificate ends; 0 if a proxy has it."""
        self._warned = 0.0
        self._last_seen = read_seen(home)
        """Client -> time of its last request."""
        self._seen_written = 0.0
        self.read_roster()
        self.application = Starlette(
            routes=[
                Route("/v1/next", self._guarded("next", self._next), methods=["GET"]),
                Route("/v1/messages/{number}", self._guarded("message", self._message)),
                Route("/v1/roster", self._guarded("roster", self._show_roster), methods=["GET"]),
                Route("/v1/catalogue", self._guarded("catalogue", self._file("catalogue.txt"))),
                Route("/v1/titles", self._guarded("titles", self._file(TITLES_FILE))),
                Route(
                    "/v1/answers/{number}",
                    self._guarded("answer", self._answer),
                    methods=[UPLOAD, "HEAD"],
                ),
                Route("/v1/join", self._authority, methods=["GET"]),
                Route("/v1/join", self._join, methods=["POST"]),
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

    # --- admission --------------------------------------------------------------------------------

    @property
    def approved(self) -> int:
        return sum(not member.revoked for member in self._members.values())

    def read_roster(self) -> None:
        """Read the roster and the server's key again if either file has changed."""
        # A new key of the server may be written after the roster that names it.
        changed = _changed(self._home.folder / "roster.json", self._home.folder / "run.key")
        if changed != self._read_at:
            try:
                found = self._home.members
            except OSError:
                raise  # a problem of this machine that may be temporary, so try again
            except Exception:
                self._read_at = changed  # do not read an invalid file again
                raise
            self._read_at = changed
            self._roster = found
            self._members = {member.client: member for member in found.members}
            self._server_key = bytes.fromhex(found.server)
            self._server = self._home.server

    def admit(self, method: str, target: str, headers: Mapping[str, str]) -> Request:
        """Return the request; raise Rejected unless an approved client signed it."""
        try:
            request = Request.read(method, target, headers)
            member = self._members.get(request.client)
            # Unknown clients get the same refusal after the same amount of work.
            key = bytes.fromhex(member.key) if member else self._nobody
            self._check_signature(request, key)
        except NotSigned as error:
            raise Rejected(401, str(error)) from None
        if member is None:
            raise Rejected(401, "not signed by the key of the client that it names")
        name = f"client {member.client} ({member.name})"
        if member.revoked:
            word = self._word(REVOKED, request)
            raise Rejected(403, f"{name}: it is revoked", code=REVOKED, headers=word)
        if not request.is_upload and not self._stamps.take(request.client, request.stamp):
            word = self._word(CLOCK, request)
            why = f"{name}: a request that came before, or a clock that is wrong"
            raise Rejected(401, why, code=CLOCK, headers=word, known=True)
        return request

    def _check_signature(self, request: Request, key: bytes) -> None:
        """Raise NotSigned unless the client signed the request, for this server.

        A client that does not know the server's new key yet learns it from the roster.
        """
        try:
            request.check(key, self._server_key)
        except NotSigned:
            former = self._roster.former_servers if request.asks_for_roster and self._roster else ()
            if not any(request.is_signed(key, bytes.fromhex(old)) for old in former):
                raise

    def _word(self, code: str, request: Request) -> dict[str, str]:
        last = self._stamps.last(request.client)
        return Word(code, self._stamps.now(), last).signed(request, self._server)

    @contextmanager
    def turn(self, request: Request) -> Iterator[None]:
        """Count a request while it is served; raise Rejected if there are too many."""
        client = request.client
        own = self._allowances.setdefault(client, Allowance(self._limits, self._clock))
        if own.at_once >= self._limits.at_once:
            raise _later(429, 1.0, f"client {client}: too many requests at once")
        if self._together >= self._limits.together:
            raise _later(503, 2.0, "")  # not the client's fault, so its rate is not charged
        if wait := own.seconds_to_wait():
            raise _later(429, wait, f"client {client}: too many requests")
        own.at_once += 1
        self._together += 1
        try:
            yield
        finally:
            own.at_once -= 1
            self._together -= 1

    async def keep_up(self) -> None:
        """Reload the roster and update the gauges every second, until cancelled."""
        while True:
            try:
                self.read_roster()
            except Exception:
                log.exception("the roster cannot be read; the last one counts")
            present = len(self._mailbox.connected())
            self._metrics.connected.set(present)
            self._metrics.approved.set(self.approved)
            self._metrics.running.set(self._mailbox.running)
            self._metrics.connections.set(len(self._lines))
            self._metrics.look_at(self._home.folder)
            self._metrics.certificate.set(self.certificate_ends)
            self._warn_of_the_end()
            self._write_seen()
            await asyncio.sleep(1.0)

    def _warn_of_the_end(self) -> None:
        """Log once a day that the certificate ends soon."""
        if not self.certificate_ends or time.time() - self._warned < A_DAY:
            return
        self._warned = time.time()
        found = until(self.certificate_ends, "the server's certificate")
        if found.level is not Level.OK:
            log.warning("%s", found.said)

    def _write_seen(self) -> None:
        """Write down when clients were last here, every minute; they are asked nothing."""
        if (now := time.monotonic()) - self._seen_written < WRITE_SEEN:
            return
        self._seen_written = now
        seen = {str(client): round(at) for client, at in self._last_seen.items()}
        with suppress(OSError):  # the disk may be full
            path = private_folder(self._home.folder / "https") / SEEN
            write_whole(path, json.dumps(seen).encode(), durable=False)

    def count_run(self, result: Mapping[str, Any]) -> None:
        """Count a run that has ended, with its result, in the metrics."""
        self._metrics.count_run(result)

    # --- requests ---------------------------------------------------------------------------------

    async def _next(self, http: HttpRequest, request: Request) -> Response:
        waiting = self._mailbox.first(request.client)
        if waiting is None:
            response = Response(status_code=204, headers=self._when_again(request.client))
        else:
            response = self._range(waiting, 0)
        if (number := http.query_params.get("roster")) is not None:
            response.headers.update(self._newer_roster(request.client, _whole(number)))
        return response

    def _offered(self, client: int) -> RosterFile | None:
        """Return the roster for a client: that of the run, if it is in one.

        A client that takes another roster in the middle of a run leaves it.
        """
        run = self._mailbox.roster
        return run if run is not None and run.has(client) else self._roster

    def _newer_roster(self, client: int, known: int) -> dict[str, str]:
        """Return the header that tells a client of a roster that it does not have."""
        if (offered := self._offered(client)) is None or self._roster is None:
            return {}
        if known > self._roster.number:
            log.error(
                "client %d has roster %d, and here is roster %d: bring back the newest roster.json",
                *(client, known, self._roster.number),
            )
            return {ROSTER: str(self._roster.number)}
        return {ROSTER: str(offered.number)} if known < offered.number else {}

    async def _show_roster(self, http: HttpRequest, request: Request) -> Response:
        since, offered = _whole(http.query_params.get("since", "")), self._offered(request.client)
        if offered is not None and since > offered.number:
            offered = self._roster
        if offered is None:
            return Response(status_code=404)
        ends = min(since, offered.number), offered.number
        if self._shown is None or self._shown[0] != ends:
            self._shown = ends, offered.difference(since).model_dump_json().encode()
        return self._ranged(http, Waiting(message_number(self._shown[1]), self._shown[1], 0.0))

    def _file(self, name: str) -> Handler:
        """Return the handler of a file that every client may have."""

        async def show(http: HttpRequest, _request: Request) -> Response:
            path = self._home.folder / name
            if not path.is_file():
                return Response(status_code=404)
            content = path.read_bytes()
            return self._ranged(http, Waiting(message_number(content), content, 0.0))

        return show

    async def _message(self, http: HttpRequest, request: Request) -> Response:
        waiting = self._mailbox.find(request.client, http.path_params["number"])
        if waiting is None:
            return Response(status_code=404)
        return self._ranged(http, waiting)

    def _ranged(self, http: HttpRequest, waiting: Waiting) -> Response:
        found = _RANGE.fullmatch(http.headers.get("range", "bytes=0-"))
        if found is None or int(found[1]) >= len(waiting.content):
            return Response(status_code=416)
        return self._range(waiting, int(found[1]))

    async def _answer(self, http: HttpRequest, request: Request) -> Response:
        number = http.path_params["number"]
        if not request.is_upload:
            digest = http.query_params.get("digest", "")
            if _HEX.fullmatch(digest) is None:
                raise Rejected(400, "", known=True)
            there = self._mailbox.received(request.client, number, bytes.fromhex(digest))
            return Response(status_code=404) if there is None else _there(204, there)
        offset, total = (_whole(http.query_params.get(name, "")) for name in ("offset", "total"))
        if total > self._limits.largest_answer:
            why = f"client {request.client}: an answer that is too large (--largest-reply)"
            raise Rejected(413, why, known=True)
        part = await self._content(http, f"client {request.client}: a request", PIECE)
        try:
            answer = self._mailbox.put(request, number, total, offset, part)
        except BadRange as error:
            return _there(409, error.received)
        except NoRoom as error:
            log.error("no room for answers (%s): see where %s lies", error, "https/spool")
            later = {"Retry-After": str(NO_ROOM_AFTER)}
            raise Rejected(503, "", headers=later, known=True) from None
        except BadAnswer:
            raise Rejected(422, f"client {request.client}: another answer", known=True) from None
        if answer is None:
            return Response(status_code=404)
        self._metrics.received.inc(len(part))
        response = _there(204, answer.received)
        response.headers.update(self._when_again(request.client))
        return response

    # --- enrolment --------------------------------------------------------------------------------

    async def _authority(self, _http: HttpRequest) -> Response:
        """Return the certificates by which a client is to know this server; its link has their
        fingerprint."""
        path = self._home.folder / "tls" / "ca.crt"
        if not path.is_file():
            return Response(status_code=404)
        return Response(path.read_bytes(), media_type="application/octet-stream")

    async def _join(self, http: HttpRequest) -> Response:
        """Enrol a client that knows the code of an invitation."""
        if self._joining >= MOST_JOINING:
            return Response(status_code=503, headers={"Retry-After": "2"})
        self._joining += 1
        try:
            content = await self._content(http, "an application", LARGEST_APPLICATION)
            admitted = await asyncio.to_thread(self._enrol, content)
        except NotEnrolled as error:
            self._say(f"turned away an application: {error.why}", http)
            await asyncio.sleep(REFUSED_AFTER)
            return PlainTextResponse(error.why, 403, headers={"Connection": "close"})
        except Rejected as refused:
            return await self._refuse(http, refused)
        except ClientDisconnect:
            return Response(status_code=400)
        except (PrivirecError, OSError) as error:
            log.error("cannot enrol a client: %s", error)
            return Response(status_code=503, headers={"Retry-After": str(NO_ROOM_AFTER)})
        finally:
            self._joining -= 1
        if admitted is None:
            return Response(status_code=202, headers={"Retry-After": str(LOOK_AGAIN)})
        self.read_roster()
        log.info("client %d (%s) has enrolled", admitted.client, admitted.name)
        return Response(admitted.model_dump_json(), media_type="application/json")

    def _enrol(self, content: bytes) -> Admitted | None:
        application = Application.parse(content, self._home.operator)
        return Invitations(self._home).enrol(application)

    async def _health(self, _http: HttpRequest) -> Response:
        found = disk(self._home.folder)
        if found.level is Level.BAD:
            return PlainTextResponse(f"{found.said}\n", 503)
        return PlainTextResponse("ok\n")

    async def _count(self, _http: HttpRequest) -> Response:
        return Response(self._metrics.text(), media_type=CONTENT_TYPE_LATEST)

    # --- around them ------------------------------------------------------------------------------

    def _guarded(self, what: str, handler: Handler) -> Callable[[HttpRequest], Any]:
        async def guarded(http: HttpRequest) -> Response:
            began = time.perf_counter()
            try:
                request = self.admit(http.method, _target(http), http.headers)
                if (line := http.scope.get("state", {}).get("line")) is not None:
                    self._lines.proven(line, request.client)
                with self.turn(request):
                    self._mailbox.seen(request.client)
                    self._last_seen[request.client] = time.time()
                    response = await handler(http, request)
            except Rejected as refused:
                response = await self._refuse(http, refused)
            except ClientDisconnect:
                response = Response(status_code=400)  # the client is gone
            self._metrics.requests.labels(what, response.status_code).inc()
            self._metrics.seconds.observe(time.perf_counter() - began)
            return response

        return guarded

    async def _refuse(self, http: HttpRequest, refused: Rejected) -> Response:
        if refused.why:
            self._say(f"turned away {refused.why}", http)
        if not refused.known:
            await asyncio.sleep(REFUSED_AFTER)
        headers = {"Connection": "close"} | refused.headers
        return PlainTextResponse(refused.code, refused.status, headers=headers)

    async def _content(self, http: HttpRequest, what: str, most: int) -> bytes:
        """Read a request's content; refuse it if it is too large or too slow."""
        content = bytearray()
        stream = http.stream()
        try:
            while True:
                async with asyncio.timeout(self._limits.silence):
                    part = await anext(stream, None)
                if part is None:
                    break
                content += part
                if len(content) > most:
                    raise Rejected(413, f"{what} of more than {most} bytes", known=True)
        except TimeoutError:
            raise Rejected(408, f"{what} that stopped in the middle", known=True) from None
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


def read_seen(home: OperatorFolder) -> dict[int, float]:
    """Return for each client the time of its last request, as the server last wrote it down."""
    try:
        found = json.loads((home.folder / "https" / SEEN).read_bytes())
        return {int(client): float(at) for client, at in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


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
        raise Rejected(400, "", known=True)
    return int(text)


def _changed(*paths: Path) -> tuple[int, ...]:
    return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)


def _later(status: int, seconds: float, why: str) -> Rejected:
    after = str(max(1, round(seconds)))
    return Rejected(status, why, headers={"Retry-After": after}, known=True)
