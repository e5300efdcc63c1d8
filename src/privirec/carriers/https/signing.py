"""Each request of a client, signed by its identity: by whom, for which server, what, and when.

    Authorization: PriviRec client=N, stamp=NANOSECONDS, signature=HEX
    Content-Digest: sha-256=:BASE64:

The stamp is the client's time, and grows from request to request: a server takes each stamp once
and none that is older than the last, so that nobody can send a request again. The signature covers
the digest of the content, so that a server knows who sends something before it reads it.
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
SERVER_TIME = "Server-Time"
"""Header with the server's time, for a client whose clock is wrong."""
CLOCKS_DIFFER = 300 * 10**9
"""Nanoseconds by which a stamp may differ from the server's time."""
_LABEL = b"privirec-request-1"
_AUTHORIZATION = re.compile(
    rf"{SCHEME} client=([0-9]{{1,10}}), stamp=([0-9]{{1,20}}), signature=([0-9a-f]{{128}})"
)
_DIGEST = re.compile(r"sha-256=:([A-Za-z0-9+/]{43}=):")


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

    def use_time_of(self, server: int) -> None:
        """The server says what time it is. A wrong one costs this client nothing but answers."""
        self._offset = server - self._clock()
        self._last = 0


class StampsTaken:
    """The server's side: which stamps still count."""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        # What was taken before this server was started is not known any more.
        self._began = clock()
        self._last: dict[int, int] = {}

    def take(self, client: int, stamp: int) -> bool:
        """Whether a request of this stamp counts; the same one does not count again."""
        now = self._clock()
        last = self._last.get(client, self._began)
        if not max(last, now - CLOCKS_DIFFER) < stamp <= now + CLOCKS_DIFFER:
            return False
        self._last[client] = stamp
        return True

    def now(self) -> int:
        return self._clock()
