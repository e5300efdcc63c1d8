"""The client's side: poll for a message, answer it, upload the answer, and wait.

The client waits as long as the server says, and backs off if the server cannot be reached. It does
one thing at a time with blocking calls; an event loop would take seven megabytes without benefit.
Interrupted transfers are resumed, both of messages and of answers. After a crash the node ensures
consistency: it gives the same answer to the same message.
"""

from __future__ import annotations

import random
import re
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Any, Protocol

import httpx

from privirec.errors import FederationError, UsageError
from privirec.runtime import envelope
from privirec.runtime.envelope import Sealed
from privirec.runtime.https.limits import PIECE
from privirec.runtime.https.signing import (
    CLOCK,
    REVOKED,
    ROSTER,
    UPLOAD,
    Request,
    Stamps,
    Word,
    message_number,
)
from privirec.runtime.logs import SAY_AGAIN
from privirec.secagg.keys import Identity

LARGEST_MESSAGE = (1 << 31) - (1 << 20)
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 600.0
"""Bounds on the seconds that a server can make a client wait."""
FIRST_BACK_OFF, LONGEST_BACK_OFF = 1.0, 300.0
TIMEOUT = httpx.Timeout(30.0, connect=10.0)
ROSTERS = "/v1/roster"
WITHIN = 300.0
"""Time limit for one response in seconds, even if data keeps arriving."""
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,12})-([0-9]{1,12})/([0-9]{1,12})")
_NUMBER = re.compile(r'"([0-9a-f]{32})"')

AnswerMessage = Callable[[bytes], Sealed]


class RosterKeeper(Protocol):
    """Keeper of the rosters that a server shows to a connection."""

    @property
    def number(self) -> int:
        """Number of the roster in place."""

    def wants(self, number: int) -> bool:
        """Return True if the roster with this number is to be fetched."""

    def take(self, content: bytes) -> None:
        """Judge a difference of rosters, and install the roster or not."""


def trusting(certificate: Path) -> ssl.SSLContext:
    """Return a TLS client context that trusts only the CA in `certificate`."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(certificate)
    except (ssl.SSLError, OSError):
        raise UsageError(f"{certificate}: not a certificate to know the server by") from None
    return context


class Unreachable(Exception):
    """The server cannot be reached or misbehaves; retry later."""

    def __init__(self, why: str, after: float = 0.0) -> None:
        super().__init__(why)
        self.after = after


class NotLetIn(Unreachable):
    """The server does not know this client."""


class ClientRevoked(FederationError):
    """The operator has revoked this client."""


@dataclass
class Incoming:
    """A message that has arrived in part."""

    number: str
    total: int
    content: bytearray = field(default_factory=bytearray)


class Outgoing:
    """An answer to be uploaded."""

    def __init__(self, number: str, content: Sealed) -> None:
        self.number, self.content = number, content
        self.digest, self.signature = envelope.seal_of(content)


@dataclass(frozen=True)
class _Reply:
    status: int
    headers: httpx.Headers
    content: bytearray
    word: Word | None
    """The server's signed statement about the request, if there is one."""


class Connection:
    """One client's connection to its server."""

    def __init__(
        self,
        server: str,
        client: int,
        identity: Identity,
        server_key: bytes,
        tls: ssl.SSLContext,
        answer: AnswerMessage,
        *,
        largest: Callable[[], int] = lambda: LARGEST_MESSAGE,
        keys: Callable[[], tuple[Identity, bytes]] | None = None,
        rosters: RosterKeeper | None = None,
        stamps: Stamps | None = None,
        jitter: random.Random | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Initialise the connection.

        `server` is https://HOST[:PORT]. `answer` returns the node's answer to a message. `largest`
        returns the largest message to accept, in bytes. `keys` returns the current identity of
        this client and the current key of the server; it is called when the server rejects those
        in use. `rosters` takes the rosters that the server shows; without it none is fetched.
        """
        self._client = client
        self._identity = identity
        self._server_key = server_key
        self._answer = answer
        self._largest = largest
        self._keys = keys
        self._rosters = rosters
        self._shown = -1
        """Number of the roster that the server last spoke of; -1 if it is in place."""
        self._stamps = stamps or Stamps()
        self._jitter = jitter or random.Random()  # noqa: S311 - spreads load, hides nothing
        self._incoming: Incoming | None = None
        self._outgoing: Outgoing | None = None
        self._sent_before = False
        self._failures = 0
        self.bytes_up = self.bytes_down = self.requests = 0
        """Bytes of answers sent and of messages received, and the number of requests made."""
        self._http = httpx.Client(
            base_url=_address(server),
            verify=tls,
            transport=transport,
            timeout=TIMEOUT,
            trust_env=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # accept no cookies
            follow_redirects=False,
            headers={"Accept-Encoding": "identity", "User-Agent": "privirec"},
            limits=httpx.Limits(max_connections=1, keepalive_expiry=4.0),
        )

    def close(self) -> None:
        self._http.close()

    def stay(self, tell: Callable[[str], None] = lambda line: None) -> None:
        """Poll and answer until interrupted; `tell` is called when the connection changes."""
        connected, say_again_at = False, 0.0
        while True:
            try:
                pause = self.turn()
                if not connected:
                    connected, say_again_at = True, 0.0
                    tell("Connected")
            except Unreachable as error:
                pause = self.back_off(error)
                connected = False
                if time.monotonic() >= say_again_at:
                    say_again_at = time.monotonic() + SAY_AGAIN
                    tell(f"Not connected: {error}; trying again")
            time.sleep(pause)

    def back_off(self, error: Unreachable) -> float:
        """Return the seconds until the next attempt: exponential back-off with jitter."""
        longest = min(LONGEST_BACK_OFF, FIRST_BACK_OFF * 2.0 ** min(self._failures, 20))
        self._failures += 1
        return max(min(error.after, LONGEST_PAUSE), longest * self._jitter.uniform(0.5, 1.0))

    def turn(self) -> float:
        """Poll once and answer the message, if any; return the seconds to wait afterwards."""
        if self._outgoing is None:
            found = self._fetch()
            self._keep_roster()
            if isinstance(found, float):
                self._failures = 0
                return found
            self._incoming = None
            message = bytes(found.content)
            found.content.clear()  # keep only one copy in memory
            self._outgoing = Outgoing(found.number, self._answer(message))
            del message
            self._sent_before = False
        pause = self._deliver(self._outgoing)
        self._outgoing = None
        self._failures = 0
        return pause

    # --- a message --------------------------------------------------------------------------------

    def _fetch(self) -> Incoming | float:
        """Return a complete message, or the seconds to wait if there is none."""
        while True:
            known = self._incoming
            if known is None:
                asked = f"?roster={self._rosters.number}" if self._rosters else ""
                reply = self._ask("GET", f"/v1/next{asked}")
                self._note_roster(reply)
                if reply.status == 204:
                    return self._pause(reply)
            else:
                reply = self._ask(
                    "GET", f"/v1/messages/{known.number}", headers=_from(len(known.content))
                )
                if reply.status in (404, 416):
                    self._incoming = None  # the server no longer waits for this answer
                    return self._pause(reply)
            self._incoming = None  # if the range does not fit, start from the beginning
            self._incoming = self._taken(known, reply)
            if self._is_whole(self._incoming):
                return self._incoming

    def _is_whole(self, incoming: Incoming) -> bool:
        """Return True if all bytes are there; raise Unreachable if they are not as announced."""
        if len(incoming.content) < incoming.total:
            return False
        if message_number(incoming.content) != incoming.number:
            self._incoming = None
            raise Unreachable("a message was damaged on its way")
        self.bytes_down += incoming.total
        return True

    # --- rosters and files ------------------------------------------------------------------------

    def download(self, target: str) -> bytes | None:
        """Return something that the server has for all clients, fetched range by range.

        Return None if it has nothing there.
        """
        known: Incoming | None = None
        while known is None or not self._is_whole(known):
            reply = self._ask("GET", target, headers=_from(len(known.content)) if known else None)
            if reply.status == 404 and known is None:
                return None
            known = self._taken(known, reply)
        return bytes(known.content)

    def _note_roster(self, reply: _Reply) -> None:
        told = reply.headers.get(ROSTER, "")
        self._shown = int(told) if told.isdecimal() and len(told) < 10 else -1

    def _keep_roster(self) -> None:
        """Fetch the roster that the server spoke of, before anything else is answered."""
        number, self._shown = self._shown, -1
        if number >= 0 and self._rosters and self._rosters.wants(number):
            self._fetch_roster(self._rosters)

    def _fetch_roster(self, rosters: RosterKeeper) -> None:
        shown = self.download(f"{ROSTERS}?since={rosters.number}")
        if shown is None:
            raise Unreachable("the server shows no roster")
        rosters.take(shown)

    def _taken(self, known: Incoming | None, reply: _Reply) -> Incoming:
        """Return the message with this range appended; raise Unreachable if it does not fit."""
        start, total = 0, len(reply.content)
        number = _NUMBER.fullmatch(reply.headers.get("etag", ""))
        if reply.status == 206:
            found = _CONTENT_RANGE.fullmatch(reply.headers.get("content-range", ""))
            if found is None or int(found[2]) - int(found[1]) + 1 != len(reply.content):
                raise Unreachable("the server sends a range that is none")
            start, total = int(found[1]), int(found[3])
        elif reply.status != 200:
            raise Unreachable(f"the server answers {reply.status}")
        if number is None or not reply.content:
            raise Unreachable("the server sends a message that is none")
        if total > min(LARGEST_MESSAGE, self._largest()):
            raise Unreachable(f"the server sends a message of {total} bytes, which is too many")
        incoming = known or Incoming(number[1], total)
        fits = (incoming.number, incoming.total, len(incoming.content)) == (number[1], total, start)
        if not fits or start + len(reply.content) > total:
            raise Unreachable("the server sends a range of another message")
        if incoming.content:
            incoming.content += reply.content
        else:
            incoming.content = reply.content  # no copy: most messages are one piece
        return incoming

    # --- an answer --------------------------------------------------------------------------------

    def _deliver(self, outgoing: Outgoing) -> float:
        """Upload an answer, resuming where it stopped; return the seconds to wait afterwards."""
        place = f"/v1/answers/{outgoing.number}"
        offset, total = 0, len(outgoing.content)
        if self._sent_before:
            reply = self._ask("HEAD", f"{place}?digest={outgoing.digest.hex()}")
            if reply.status == 404:
                return self._pause(reply)  # the server no longer waits for it
            offset = self._offset(reply, total)
        self._sent_before = True
        for _ in range(2 + 2 * (total // PIECE + 1)):
            part = bytes(outgoing.content[offset : offset + PIECE])
            reply = self._ask(UPLOAD, f"{place}?total={total}&offset={offset}", part)
            if reply.status in (404, 413, 422):
                return self._pause(reply)  # the server does not wait for it, or rejects it
            if reply.status not in (204, 409):
                raise Unreachable(f"the server answers {reply.status}")
            self.bytes_up += len(part) if reply.status == 204 else 0
            offset = self._offset(reply, total)
            if offset == total and reply.status == 204:
                return self._pause(reply)
        raise Unreachable("the server does not take an answer")

    @staticmethod
    def _offset(reply: _Reply, total: int) -> int:
        told = reply.headers.get("upload-offset", "")
        if not told.isdecimal() or int(told[:12]) > total:
            raise Unreachable("the server does not say how much of an answer it has")
        return int(told[:12])

    # --- one request ------------------------------------------------------------------------------

    def _ask(
        self, method: str, target: str, content: bytes = b"", headers: dict[str, str] | None = None
    ) -> _Reply:
        headers = headers or {}
        reply = self._once(method, target, content, headers)
        if reply.status == 401 and reply.word is not None and reply.word.code == CLOCK:
            self._stamps.use_time_of(reply.word)
            reply = self._once(method, target, content, headers)
        if reply.status == 401 and self._has_other_keys():
            reply = self._once(method, target, content, headers)
        if reply.status == 401 and self._rosters and not target.startswith(ROSTERS):
            self._fetch_roster(self._rosters)  # it may name another key of the server
            self._has_other_keys()
            reply = self._once(method, target, content, headers)
        if reply.status == 401:
            self._outgoing = None  # it may be signed by a key of the past: the node answers again
            raise NotLetIn(
                "the server does not know this client's key; ask the operator whether it is "
                "approved, see that it runs only once, and take in the newest roster: privirec "
                "client roster"
            )
        if reply.status == 403 and reply.word is not None and reply.word.code == REVOKED:
            raise ClientRevoked(
                "this client is revoked: the operator has taken it out of the roster"
            )
        if reply.status in (429, 502, 503, 504):
            raise Unreachable("the server is busy", self._pause(reply))
        return reply

    def _has_other_keys(self) -> bool:
        """Switch to the current keys; return True if they differ from those in use."""
        if self._keys is None:
            return False
        for _ in range(2):  # while new keys wait for their roster, there are two identities
            identity, server_key = self._keys()
            if (identity.public, server_key) != (self._identity.public, self._server_key):
                self._identity, self._server_key = identity, server_key
                return True
        return False

    def _once(self, method: str, target: str, content: bytes, headers: dict[str, str]) -> _Reply:
        if method == UPLOAD and (out := self._outgoing):
            request = Request(self._client, method, target, 0, out.digest, out.signature)
        else:
            request = Request(self._client, method, target, self._stamps.next())
            request = request.signed(self._identity, self._server_key)
        self.requests += 1
        headers |= request.headers()
        body: dict[str, Any] = {"content": content} if content else {}
        until = time.monotonic() + WITHIN
        try:
            with self._http.stream(method, target, headers=headers, **body) as reply:
                found = bytearray()
                for part in reply.iter_raw():
                    found += part
                    if len(found) > PIECE:
                        raise Unreachable("the server sends more than one piece at a time")
                    if time.monotonic() > until:
                        raise Unreachable("the server takes too long for one answer")
                word = Word.read(reply.headers, request, self._server_key)
                return _Reply(reply.status_code, reply.headers, found, word)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            # Forged TLS records, and redirects that httpx parses without following, also raise.
            raise Unreachable(why_not_reached(error)) from None

    def _pause(self, reply: _Reply) -> float:
        """Return the server's Retry-After in seconds, within bounds and with jitter."""
        told = reply.headers.get("retry-after", "")
        seconds = float(told[:6]) if told.isdecimal() else FIRST_BACK_OFF
        return max(SHORTEST_PAUSE, min(seconds, LONGEST_PAUSE)) * self._jitter.uniform(0.8, 1.2)


def _from(start: int) -> dict[str, str]:
    return {"Range": f"bytes={start}-"}


def _address(server: str) -> httpx.URL:
    try:
        return httpx.URL(server)
    except (httpx.InvalidURL, ValueError) as error:
        raise UsageError(f"{server!r} is not an address of a server ({error})") from None


def why_not_reached(error: Exception) -> str:
    """Return in words why a request has failed."""
    text = " ".join(str(error).split())
    if "CERTIFICATE_VERIFY_FAILED" in text:
        why = text.split("certificate verify failed:")[-1].split("(_ssl")[0].strip()
        return f"the server's certificate is not one that ca.crt vouches for ({why})"
    if isinstance(error, httpx.TimeoutException):
        return "the server does not answer"
    return f"the server cannot be reached ({text or type(error).__name__})"
