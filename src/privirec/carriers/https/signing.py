"""Each request of a client, signed by its identity: by whom, for which server, what, and when.

    Authorization: PriviRec client=N, stamp=NANOSECONDS, signature=HEX
    Content-Digest: sha-256=:BASE64:

The stamp is the client's time, and grows from request to request: a server takes each stamp once
and none that is older than the last, so that nobody can send a request again. The signature covers
the digest of the content, so that a server knows who sends something before it reads it.

A client follows what a server says about its clock, or about having been revoked. So the server
signs that, as its word about this request: a proxy that makes up a time would get requests signed
that count in a year.

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
"""What a client that has shown who it is hears from a server that does not serve it."""
BEHIND = 300 * 10**9
"""Nanoseconds by which a stamp may be older than the server's time."""
AHEAD = 2 * 10**9
"""Nanoseconds by which it may be newer. A server that was started counts none of so far ahead:
what it has taken before is not known any more."""
_LABEL, _WORD_LABEL = b"privirec-request-1", b"privirec-word-1"
_AUTHORIZATION = re.compile(
    rf"{SCHEME} client=([0-9]{{1,10}}), stamp=([0-9]{{1,20}}), signature=([0-9a-f]{{128}})"
)
_DIGEST = re.compile(r"sha-256=:([A-Za-z0-9+/]{43}=):")
_WORD = re.compile(
    rf"({CLOCK}|{REVOKED}), now=([0-9]{{1,19}}), last=([0-9]{{1,19}}), signature=([0-9a-f]{{128}})"
)


class NotSigned(Exception):
    """A request that is not signed as it should be."""


@dataclass(frozen=True)
class Request:
    """What is signed."""

    client: int
    stamp: int
    method: str
    target: str
    """Path and query, as they are sent."""
    digest: bytes
    """SHA-256 of the content."""

    def statement(self, server_key: bytes) -> bytes:
        """`server_key`: a request to one server says nothing to another."""
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
    """What a client adds to a request."""
    signature = identity.sign(request.statement(server_key)).hex()
    digest = base64.b64encode(request.digest).decode("ascii")
    return {
        "Authorization": (
            f"{SCHEME} client={request.client}, stamp={request.stamp}, signature={signature}"
        ),
        "Content-Digest": f"sha-256=:{digest}:",
    }


def read_request(method: str, target: str, headers: Mapping[str, str]) -> tuple[Request, bytes]:
    """What a request claims, and its signature. Raises NotSigned where it claims nothing."""
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
    """Raises NotSigned unless the owner of the key made this request."""
    try:
        verify(key, signature, request.statement(server_key), request.client)
    except BadSignature:
        raise NotSigned("not signed by the key of the client that it names") from None


@dataclass(frozen=True)
class Word:
    """What a server says to a client that it knows and does not serve."""

    code: str
    now: int
    """The server's time."""
    last: int
    """No stamp up to this one counts."""

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
        """The header with it."""
        signature = server.sign(self._statement(request)).hex()
        text = f"{self.code}, now={self.now}, last={self.last}, signature={signature}"
        return {SERVER_WORD: text}

    @classmethod
    def read(cls, headers: Mapping[str, str], request: Request, server_key: bytes) -> Word | None:
        """The word about this request, if the server has given one."""
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
    """A message is known by what is in it: sent again, it is the same."""
    return hashlib.sha256(content).hexdigest()[:32]


class Stamps:
    """A client's stamps: its own time, or the server's where that differs too much; each larger
    than the last."""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._offset = 0
        self._last = 0

    def next(self) -> int:
        self._last = max(self._clock() + self._offset, self._last + 1)
        return self._last

    def use_time_of(self, server: Word) -> None:
        """The server says what time it is, and which stamps do not count any more."""
        self._offset = server.now - self._clock()
        self._last = server.last


def steady_time() -> Callable[[], int]:
    """Nanoseconds since 1970 at the start and by a clock that nobody sets from then on: with one
    that is set back, no stamp would count until it is where it was."""
    began = time.time_ns() - time.monotonic_ns()
    return lambda: began + time.monotonic_ns()


class StampsTaken:
    """The server's side: which stamps still count."""

    def __init__(self, clock: Callable[[], int] | None = None, began: int | None = None) -> None:
        """`began`: no stamp up to this one counts, whoever's."""
        self.now = clock or steady_time()
        self._began = self.now() + AHEAD if began is None else began
        self._last: dict[int, int] = {}

    def last(self, client: int) -> int:
        """No stamp of a client up to this one counts."""
        return self._last.get(client, self._began)

    def take(self, client: int, stamp: int) -> bool:
        """Whether a request of this stamp counts; the same one does not count again."""
        now = self.now()
        if not max(self.last(client), now - BEHIND) < stamp <= now + AHEAD:
            return False
        self._last[client] = stamp
        return True
