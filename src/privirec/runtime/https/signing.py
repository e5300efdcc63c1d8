"""Signatures on clients' requests: they bind the client, the server, the content and the time.

    Authorization: PriviRec client=N, stamp=NANOSECONDS, signature=HEX
    Content-Digest: sha-256=:BASE64:

The stamp is the client's time, and grows from request to request. A server accepts each stamp
once, and none older than the last, so that requests cannot be replayed. The signature covers the
digest of the content, so that the server can authenticate the client before it reads the content.

A client believes a server that reports a wrong clock or a revocation. So the server signs that
report, as a statement about this one request. Otherwise a proxy could invent a time and obtain
signed requests that are valid in a year.

    Server-Word: clock|revoked, now=NANOSECONDS, last=NANOSECONDS, signature=HEX
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from privirec.codec import canonical
from privirec.secagg.errors import BadSignature
from privirec.secagg.keys import MAX_CLIENT_ID, Identity, verify

SCHEME = "PriviRec"
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
_LABEL, _WORD_LABEL = b"privirec-request-1", b"privirec-word-1"
_AUTHORIZATION = re.compile(
    rf"{SCHEME} client=([0-9]{{1,10}}), stamp=([0-9]{{1,20}}), signature=([0-9a-f]{{128}})"
)
_DIGEST = re.compile(r"sha-256=:([A-Za-z0-9+/]{43}=):")
_WORD = re.compile(
    rf"({CLOCK}|{REVOKED}), now=([0-9]{{1,19}}), last=([0-9]{{1,19}}), signature=([0-9a-f]{{128}})"
)


class NotSigned(Exception):
    """A request without a valid signature."""


@dataclass(frozen=True)
class Request:
    """The parts of a request that are signed."""

    client: int
    stamp: int
    method: str
    target: str
    """Path and query, as they are sent."""
    digest: bytes
    """SHA-256 of the content."""

    def statement(self, server_key: bytes) -> bytes:
        """Return the bytes to sign; with `server_key`, a request is valid for one server only."""
        said = {
            "server": server_key.hex(),
            "client": self.client,
            "stamp": self.stamp,
            "method": self.method,
            "target": self.target,
            "digest": self.digest.hex(),
        }
        return _LABEL + canonical(said)


def signed_headers(request: Request, identity: Identity, server_key: bytes) -> dict[str, str]:
    """Return the headers that sign a request."""
    signature = identity.sign(request.statement(server_key)).hex()
    digest = base64.b64encode(request.digest).decode("ascii")
    return {
        "Authorization": (
            f"{SCHEME} client={request.client}, stamp={request.stamp}, signature={signature}"
        ),
        "Content-Digest": f"sha-256=:{digest}:",
    }


def read_request(method: str, target: str, headers: Mapping[str, str]) -> tuple[Request, bytes]:
    """Return a request and its signature, unchecked; raise NotSigned if headers are malformed."""
    found = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
    digest = _DIGEST.fullmatch(headers.get("content-digest", ""))
    if found is None or digest is None or int(found[1]) > MAX_CLIENT_ID:
        raise NotSigned("no request of a client")
    try:
        content = base64.b64decode(digest[1], validate=True)
    except binascii.Error:
        raise NotSigned("no digest of its content") from None
    request = Request(int(found[1]), int(found[2]), method, target, content)
    return request, bytes.fromhex(found[3])


def check_signature(request: Request, signature: bytes, key: bytes, server_key: bytes) -> None:
    """Raise NotSigned unless the owner of the key signed this request."""
    try:
        verify(key, signature, request.statement(server_key), request.client)
    except BadSignature:
        raise NotSigned("not signed by the key of the client that it names") from None


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
            "stamp": request.stamp,
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


def content_digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


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
