"""Signatures on clients' requests, by which the server knows a client before it reads any content.

A request that asks for something is signed itself: client, server, method, target and time.

    Authorization: PriviRec client=N, stamp=NANOSECONDS, signature=HEX

The stamp is the client's time, and grows from request to request. A server accepts each stamp
once, and none older than the last, so that requests cannot be replayed.

An upload (PATCH) carries the seal of the answer: the digest of the message, and the signature that
ends it (`envelope`). Nothing is signed twice. The same upload made twice has the same effect, so it
needs no stamp; the answer must have the digest once it is complete.

    Authorization: PriviRec client=N, digest=HEX, signature=HEX

A client believes a server that reports a wrong clock or a revocation. So the server signs that
report, as a statement about this one request. Otherwise a proxy could invent a time and obtain
signed requests that are valid in a year.

    Server-Word: clock|revoked, now=NANOSECONDS, last=NANOSECONDS, signature=HEX
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from privirec.codec import canonical
from privirec.runtime import envelope
from privirec.secagg.errors import BadSignature
from privirec.secagg.keys import MAX_CLIENT_ID, Identity, verify

SCHEME = "PriviRec"
ROSTER = "Roster"
"""Header with the number of the roster that the server shows."""
UPLOAD = "PATCH"
"""Method of requests that upload an answer."""
SERVER_WORD = "Server-Word"
REVOKED, CLOCK = "revoked", "clock"
"""Codes by which a server refuses a client whose signature is valid."""
BEHIND = 300 * 10**9
"""Nanoseconds by which a stamp may be older than the server's time."""
AHEAD = 2 * 10**9
"""Nanoseconds by which a stamp may be newer than the server's time.

A restarted server does not remember the stamps that it accepted before. So it accepts none up to
this far ahead of its starting time.
"""
_LABEL, _WORD_LABEL = b"privirec-request-2", b"privirec-word-2"
_AUTHORIZATION = re.compile(
    rf"{SCHEME} client=([0-9]{{1,10}}), (?:stamp=([0-9]{{1,20}})|digest=([0-9a-f]{{64}})), "
    r"signature=([0-9a-f]{128})"
)
_WORD = re.compile(
    rf"({CLOCK}|{REVOKED}), now=([0-9]{{1,19}}), last=([0-9]{{1,19}}), signature=([0-9a-f]{{128}})"
)


class NotSigned(Exception):
    """A request without a valid signature."""


@dataclass(frozen=True)
class Request:
    """A request of a client, with its signature."""

    client: int
    method: str
    target: str
    """Path and query, as they are sent."""
    stamp: int = 0
    """The client's time in nanoseconds; 0 for an upload."""
    digest: bytes = b""
    """Digest of the answer that is uploaded; empty for other requests."""
    signature: bytes = b""

    @property
    def is_upload(self) -> bool:
        return self.method == UPLOAD

    def signed(self, identity: Identity, server_key: bytes) -> Request:
        """Return the request with a signature of its own; an upload has that of its answer."""
        return replace(self, signature=identity.sign(self._statement(server_key)))

    def headers(self) -> dict[str, str]:
        """Return the header that carries the signature."""
        what = f"digest={self.digest.hex()}" if self.is_upload else f"stamp={self.stamp}"
        who = f"{SCHEME} client={self.client}"
        return {"Authorization": f"{who}, {what}, signature={self.signature.hex()}"}

    @classmethod
    def read(cls, method: str, target: str, headers: Mapping[str, str]) -> Request:
        """Return a request, unchecked; raise NotSigned if its header is malformed."""
        found = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
        if found is None or int(found[1]) > MAX_CLIENT_ID:
            raise NotSigned("no request of a client")
        if (method == UPLOAD) is not (found[2] is None):
            raise NotSigned("a request with the signature of another kind of request")
        seal = int(found[2] or 0), bytes.fromhex(found[3] or ""), bytes.fromhex(found[4])
        return cls(int(found[1]), method, target, *seal)

    def check(self, key: bytes, server_key: bytes) -> None:
        """Raise NotSigned unless the owner of the key signed this request, or its answer."""
        try:
            verify(key, self.signature, self._statement(server_key), self.client)
        except BadSignature:
            raise NotSigned("not signed by the key of the client that it names") from None

    def is_signed(self, key: bytes, server_key: bytes) -> bool:
        """Return True if the owner of the key signed this request; see `check`."""
        try:
            self.check(key, server_key)
        except NotSigned:
            return False
        return True

    @property
    def asks_for_roster(self) -> bool:
        return self.method == "GET" and self.target.startswith("/v1/roster?")

    def _statement(self, server_key: bytes) -> bytes:
        """Return the signed bytes; with `server_key`, a request is valid for one server only."""
        if self.is_upload:
            return envelope.statement("to-server", self.digest)
        said = {
            "server": server_key.hex(),
            "client": self.client,
            "stamp": self.stamp,
            "method": self.method,
            "target": self.target,
        }
        return _LABEL + canonical(said)


@dataclass(frozen=True)
class Word:
    """Signed statement of a server about a request of a known client that it refuses."""

    code: str
    now: int
    """The server's time."""
    last: int
    """Stamps up to this one are not accepted."""

    def _statement(self, request: Request) -> bytes:
        said = {
            "client": request.client,
            "request": request.signature.hex(),
            "code": self.code,
            "now": self.now,
            "last": self.last,
        }
        return _WORD_LABEL + canonical(said)

    def signed(self, request: Request, server: Identity) -> dict[str, str]:
        """Return the header that carries the signed statement."""
        signature = server.sign(self._statement(request)).hex()
        text = f"{self.code}, now={self.now}, last={self.last}, signature={signature}"
        return {SERVER_WORD: text}

    @classmethod
    def read(cls, headers: Mapping[str, str], request: Request, server_key: bytes) -> Word | None:
        """Return the server's statement about this request, or None without a valid one."""
        found = _WORD.fullmatch(headers.get(SERVER_WORD, ""))
        if found is None:
            return None
        word = cls(found[1], int(found[2]), int(found[3]))
        try:
            statement = word._statement(request)
            verify(server_key, bytes.fromhex(found[4]), statement, request.client)
        except BadSignature:
            return None
        return word


def message_number(content: bytes | bytearray) -> str:
    """Return a message's identifier, derived from its content: a resent message keeps it."""
    return hashlib.sha256(content).hexdigest()[:32]


class Stamps:
    """A client's stamps: increasing, by its own clock or as corrected by the server."""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._offset = 0
        self._last = 0

    def next(self) -> int:
        self._last = max(self._clock() + self._offset, self._last + 1)
        return self._last

    def use_time_of(self, server: Word) -> None:
        """Adopt the server's time, and continue after the last stamp that it accepted."""
        self._offset = server.now - self._clock()
        self._last = server.last


def steady_time() -> Callable[[], int]:
    """Return a clock of nanoseconds since 1970 that is not affected by changes of the system time.

    If the system time were set back, the server would refuse all new stamps until it caught up.
    """
    began = time.time_ns() - time.monotonic_ns()
    return lambda: began + time.monotonic_ns()


class StampsTaken:
    """The server's record of accepted stamps."""

    def __init__(self, clock: Callable[[], int] | None = None, began: int | None = None) -> None:
        """Initialise; stamps up to `began` are refused for every client."""
        self.now = clock or steady_time()
        self._began = self.now() + AHEAD if began is None else began
        self._last: dict[int, int] = {}

    def last(self, client: int) -> int:
        """Return the stamp up to which a client's stamps are refused."""
        return self._last.get(client, self._began)

    def take(self, client: int, stamp: int) -> bool:
        """Accept a stamp and return True, or return False if it is a replay or out of range."""
        now = self.now()
        if not max(self.last(client), now - BEHIND) < stamp <= now + AHEAD:
            return False
        self._last[client] = stamp
        return True
