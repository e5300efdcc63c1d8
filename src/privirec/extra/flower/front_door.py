"""The public part of Flower's application: authenticated access for clients on the roster.

A client is authenticated before the body of its request is read, and its use is limited by an
`Allowance`. `Inside` filters the replies that the server's own processes can see.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import datetime
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.primitives.asymmetric import verify_signature
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from privirec.extra.flower.allowance import AT_ONCE, Allowance, HeldBack, NotAllowed
from privirec.extra.flower.launch import LARGEST_REPLY, SAYS
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.enrolment.roster import Member
from privirec.runtime.lines import Lines
from privirec.runtime.messages import one_line

FOR_CLIENTS = "/v1/fleet/"
CONNECT, PULL = FOR_CLIENTS + "activate-node", FOR_CLIENTS + "pull-messages"
REPLY, STORE = FOR_CLIENTS + "push-messages", FOR_CLIENTS + "push-object"
SERVED = {
    *(CONNECT, PULL, REPLY, STORE),
    *(
        FOR_CLIENTS + name
        for name in (
            *("deactivate-node", "send-node-heartbeat", "get-run", "get-fab", "pull-object"),
            "confirm-message-received",
        )
    ),
}
FOR_THE_SERVER = "/v1/runtime/pull-messages"
LARGEST = {STORE: 6 << 20, REPLY: 1 << 20}
"""Largest request in bytes, by path; Flower sends larger objects in pieces of five megabytes."""
LARGEST_OF_OTHERS = 1 << 16
TOGETHER = 512
"""Concurrent requests of all clients; further ones wait."""
SILENCE = 60.0
"""Seconds without data after which a request that has begun is refused."""
REFUSED_AFTER = 1.0
"""Seconds before an unauthenticated request is refused, to slow down guessing."""
PROTOBUF = PROTOBUF_MEDIA_TYPE.encode()
CLOCKS_DIFFER = 300.0
"""Largest difference between the clocks in seconds, as in Flower itself."""
SAID_AGAIN = 60.0
"""Seconds before the same line about a refused request is logged again."""

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class _Refused(Exception):
    """A refused request; `who` is for the log, and empty if nothing is to be logged."""

    def __init__(self, status: int, who: str) -> None:
        self.status, self.who = status, who


class _TooMuch(_Refused):
    """A refused request of an authenticated client."""

    def __init__(self, status: int, member: Member, what: str) -> None:
        super().__init__(status, f"client {member.client} ({member.name}): {what}")


class FrontDoor:
    """The clients' part of Flower's application, for approved clients only.

    A client is authenticated before the body of its request is read, so that requests of strangers
    are cheap. An `Allowance` keeps a hostile client from using up the resources of the others. A
    refusal is a status code without a body. The code is the same for an unknown key and for a key
    whose possession is not proven. A revoked client that proves its key gets 410.
    """

    def __init__(
        self,
        application: Application,
        home: OperatorFolder,
        lines: Lines | None = None,
        largest_reply: int = LARGEST_REPLY,
    ) -> None:
        self._application = application
        self._home = home
        self._lines = lines or Lines()
        self._largest_reply = largest_reply
        self.held_back = HeldBack(time.monotonic)
        self._allowances: dict[int, Allowance] = {}
        self._room = asyncio.Semaphore(TOGETHER)
        self._known: dict[bytes, Member] = {}
        self._read_at = -1.0
        self._said: dict[str, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            member = self._admitted(scope)
            line = scope.get("state", {}).get("line")
            if line is not None:
                self._lines.proven(line, member.client)
            own = self._allowances.setdefault(
                member.client, Allowance(time.monotonic, self.held_back, self._largest_reply)
            )
            await self._serve(member, own, scope, receive, send)
        except _Refused as refused:
            if refused.who:
                self._say(f"turned away {refused.who}", scope)
            if not isinstance(refused, _TooMuch):
                await asyncio.sleep(REFUSED_AFTER)
            head = {"status": refused.status, "headers": [(b"connection", b"close")]}
            await send({"type": "http.response.start", **head})
            await send({"type": "http.response.body", "body": b""})

    async def _serve(
        self, member: Member, own: Allowance, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Pass a request on to Flower, within the client's allowance."""
        if own.at_once >= AT_ONCE:
            raise _TooMuch(429, member, "too many requests at once")
        own.at_once += 1
        try:
            await asyncio.sleep(own.seconds_to_wait())
            async with self._room:
                content = await self._content(member, own, scope, receive)
                await self._pass_on(member, own, scope, content, receive, send)
        finally:
            own.at_once -= 1

    async def _content(
        self, member: Member, own: Allowance, scope: Scope, receive: Receive
    ) -> bytes:
        """Read and check the body of a request, within the limit for its path."""
        most = LARGEST.get(scope["path"], LARGEST_OF_OTHERS)
        content, more = bytearray(), True
        while more:
            try:
                event = await asyncio.wait_for(receive(), SILENCE)
            except TimeoutError:
                raise _TooMuch(408, member, "a request that stopped in the middle") from None
            if event["type"] == "http.disconnect":
                raise _Refused(400, "")  # the client is gone, so the status does not matter
            content += event.get("body", b"")
            more = event.get("more_body", False)
            if len(content) > most:
                raise _TooMuch(413, member, f"a request of more than {most} bytes")
        try:
            if scope["path"] == REPLY:
                own.reply(bytes(content))
            elif scope["path"] == STORE:
                own.store(len(content))
        except NotAllowed as refused:
            raise _TooMuch(403, member, str(refused)) from None
        return bytes(content)

    async def _pass_on(
        self,
        member: Member,
        own: Allowance,
        scope: Scope,
        content: bytes,
        receive: Receive,
        send: Send,
    ) -> None:
        answer, status = bytearray(), 0

        async def sent(event: Event) -> None:
            nonlocal status
            if event["type"] == "http.response.start":
                status = event["status"]
                if status >= 400 and scope["path"] == CONNECT:
                    # The client is authenticated, but Flower refuses to activate its node.
                    who = f"client {member.client} ({member.name})"
                    why = "one with its keys is here already, or was until a minute ago"
                    self._say(f"turned away {who}: {why}", scope)
            elif scope["path"] in (PULL, REPLY, STORE):
                answer.extend(event.get("body", b""))
                if not event.get("more_body", False):
                    _note(own, scope["path"], content, bytes(answer) if status == 200 else None)
            await send(event)

        await self._application(scope, _again(content, receive), sent)

    def _admitted(self, scope: Scope) -> Member:
        """Return the member that sent a request; refuse it unless an approved client signed it."""
        if scope.get("path") not in SERVED or scope.get("method", "POST") != "POST":
            raise _Refused(404, "")
        headers = {bytes(name).lower(): bytes(value) for name, value in scope["headers"]}
        try:
            pem = base64.b64decode(headers[b"flwr-public-key"], validate=True)
            key = load_pem_public_key(pem)
            signature = base64.b64decode(headers[b"flwr-signature"], validate=True)
            stamp = headers[b"flwr-timestamp"]
            age = time.time() - datetime.fromisoformat(stamp.decode("ascii")).timestamp()
            size = int(headers.get(b"content-length", b"0"))
        except (KeyError, ValueError, UnicodeDecodeError):
            raise _Refused(401, "something that is no client") from None
        if (
            not isinstance(key, EllipticCurvePublicKey)
            or not isinstance(key.curve, SECP384R1)
            or abs(age) > CLOCKS_DIFFER
            or not verify_signature(key, stamp, signature)
        ):
            raise _Refused(401, "something without the key it shows, or with another clock")
        member = self._members().get(_der(key))
        if member is None:
            raise _Refused(401, "a client that is not approved")
        if member.revoked:
            # The client has proven its key, so it may learn that it is revoked.
            raise _Refused(410, f"client {member.client} ({member.name}): it is revoked")
        kind = headers.get(b"content-type", PROTOBUF).split(b";")[0].strip()
        if kind != PROTOBUF or b"content-encoding" in headers:
            raise _TooMuch(415, member, "a request of another kind")
        if size > (most := LARGEST.get(scope["path"], LARGEST_OF_OTHERS)):
            raise _TooMuch(413, member, f"a request of more than {most} bytes")
        return member

    def _members(self) -> dict[bytes, Member]:
        """Return the members by node key; the roster is read again when it has changed."""
        changed = (self._home.folder / "roster.json").stat().st_mtime
        if changed != self._read_at:
            self._known, self._read_at = node_keys(self._home), changed
        return self._known

    def _say(self, what: str, scope: Scope) -> None:
        client = scope.get("client") or ("somewhere",)
        line = one_line(f"{what}, from {client[0]}")
        now = time.monotonic()
        if now - self._said.get(line, -SAID_AGAIN) >= SAID_AGAIN:
            self._said = {old: at for old, at in self._said.items() if now - at < SAID_AGAIN}
            self._said[line] = now
            print(f"{SAYS}{line}", flush=True)


class Inside:
    """Flower's application as the server's own processes see it, without incomplete replies."""

    def __init__(self, application: Application, held_back: HeldBack) -> None:
        self._application = application
        self._held_back = held_back

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != FOR_THE_SERVER:
            await self._application(scope, receive, send)
            return
        content, more = bytearray(), True
        while more:
            event = await receive()
            content += event.get("body", b"")
            more = event.get("more_body", False)
        request = PullAppMessagesRequest.FromString(bytes(content))
        complete = [one for one in request.message_ids if one not in self._held_back]
        if request.message_ids and not complete:
            head = {"status": 200, "headers": [(b"content-type", PROTOBUF)]}
            await send({"type": "http.response.start", **head})
            await send({"type": "http.response.body", "body": b""})
            return
        del request.message_ids[:]
        request.message_ids.extend(complete)
        await self._application(scope, _again(request.SerializeToString(), receive), send)


def _again(content: bytes, receive: Receive) -> Receive:
    """Return a `Receive` that yields a body that was already read, then continues."""
    request: Event | None = {"type": "http.request", "body": content, "more_body": False}

    async def received() -> Event:
        nonlocal request
        event, request = request, None
        return await receive() if event is None else event

    return received


def _note(own: Allowance, path: str, asked: bytes, answer: bytes | None) -> None:
    """Record Flower's response to a client; `answer` is None if Flower refused."""
    if path == REPLY:
        own.replied(answer)
    elif answer is not None and path == PULL:
        own.was_sent(answer)
    elif answer is not None:
        own.stored(asked, answer)


def node_keys(home: OperatorFolder) -> dict[bytes, Member]:
    """Return the members by their Flower node key, revoked members included."""
    found = {}
    for member in home.members.members:
        try:
            key = load_ssh_public_key(member.node.encode())
        except (ValueError, UnsupportedAlgorithm):
            continue
        if isinstance(key, EllipticCurvePublicKey):
            found[_der(key)] = member
    return found


def _der(key: EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
