"""Flower's SuperLink behind two doors.

Flower serves everything on one port: clients, but also starting runs and registering nodes, for
which it asks for no authentication. So the SuperLink itself listens on this machine only, under a
certificate made for that, and a second listener in front of the same application shows the clients'
part of it, under the operator's certificate, to clients of the roster. It opens when the file
SERVER/flower/open is there: when they are registered.

    python -m privirec.carriers.flower.link SERVER HOST PORT [arguments of flower-superlink]
"""

from __future__ import annotations

import asyncio
import base64
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvicorn
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)
from flwr.supercore.primitives.asymmetric import verify_signature

from privirec.carriers.flower import allowed_programs
from privirec.carriers.flower.launch import OPEN, SAYS
from privirec.runtime.network.enrolment.folders import OperatorFolder
from privirec.runtime.network.enrolment.roster import Member
from privirec.runtime.network.messages import one_line

FOR_CLIENTS = "/v1/fleet/"
CONNECT = FOR_CLIENTS + "activate-node"
LARGEST = {FOR_CLIENTS + "push-object": 1 << 24, FOR_CLIENTS + "push-messages": 1 << 24}
"""Bytes of a request; Flower sends what is larger in pieces of five megabytes."""
LARGEST_OF_OTHERS = 1 << 16
CLOCKS_DIFFER = 300.0
"""Seconds, as Flower itself allows."""
SAID_AGAIN = 60.0
"""Seconds until the same line about somebody who was turned away."""

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class _Refused(Exception):
    def __init__(self, status: int, who: str) -> None:
        self.status, self.who = status, who


class FrontDoor:
    """The part for clients of Flower's application, for those who are approved.

    A client proves who it is before its request is read, so that strangers cost nothing.
    """

    def __init__(self, application: Application, home: OperatorFolder) -> None:
        self._application = application
        self._home = home
        self._known: dict[bytes, Member] = {}
        self._read_at = -1.0
        self._said: dict[str, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            member = self._admitted(scope)
        except _Refused as refused:
            if refused.who:
                self._say(f"turned away {refused.who}", scope)
            await send({"type": "http.response.start", "status": refused.status, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        left = _largest(scope)

        async def received() -> Event:
            nonlocal left
            event = await receive()
            left -= len(event.get("body", b""))
            return event if left >= 0 else {"type": "http.disconnect"}

        async def sent(event: Event) -> None:
            answered = event["type"] == "http.response.start"
            if answered and event["status"] >= 400 and scope["path"] == CONNECT:
                # A known client, and Flower does not let it in.
                who = f"client {member.client} ({member.name})"
                why = "one with its keys is here already, or was until a minute ago"
                self._say(f"turned away {who}: {why}", scope)
            await send(event)

        await self._application(scope, received, sent)

    def _admitted(self, scope: Scope) -> Member:
        """The member behind a request; refuse one from a client that is not on the roster."""
        if not scope.get("path", "").startswith(FOR_CLIENTS):
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
            or abs(age) > CLOCKS_DIFFER
            or not verify_signature(key, stamp, signature)
        ):
            raise _Refused(401, "something without the key it shows, or with another clock")
        member = self._members().get(_der(key))
        if member is None:
            raise _Refused(401, "a client that is not approved")
        if member.revoked:
            raise _Refused(401, f"client {member.client} ({member.name}): it is revoked")
        if size > _largest(scope):
            who = f"client {member.client} ({member.name}): a request of {size} bytes"
            raise _Refused(413, who)
        return member

    def _members(self) -> dict[bytes, Member]:
        """Node key -> member; read again when the roster has changed."""
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


def node_keys(home: OperatorFolder) -> dict[bytes, Member]:
    """Flower's key of every client that ever was in the roster."""
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


def _largest(scope: Scope) -> int:
    return LARGEST.get(scope["path"], LARGEST_OF_OTHERS)


def serve(
    home: OperatorFolder, address: tuple[str, int], app: Application, settings: dict[str, Any]
) -> None:
    """Both doors on one loop, until one of them closes. Settings are those of the inner one."""
    inside = uvicorn.Server(uvicorn.Config(app, **settings))
    tls = home.folder / "tls"
    outer = {
        "host": address[0],
        "port": address[1],
        "ssl_certfile": str(tls / "server.crt"),
        "ssl_keyfile": str(tls / "server.key"),
        "lifespan": "off",
        "proxy_headers": False,
        "server_header": False,
    }
    outside = uvicorn.Server(uvicorn.Config(FrontDoor(app, home), **(settings | outer)))

    async def open_up() -> None:
        while not (home.folder / OPEN).exists():
            await asyncio.sleep(0.1)
        await outside.serve()

    async def both() -> None:
        doors = [asyncio.create_task(inside.serve()), asyncio.create_task(open_up())]
        await asyncio.wait(doors, return_when=asyncio.FIRST_COMPLETED)
        inside.should_exit = outside.should_exit = True
        if not outside.started:
            doors[1].cancel()
        await asyncio.gather(*doors, return_exceptions=True)

    asyncio.run(both())


def main() -> None:
    # Opens a socket, to look at IPv6.
    from flwr.superlink.cli import flower_superlink  # noqa: PLC0415

    folder, host, port, *arguments = sys.argv[1:]
    home = OperatorFolder(Path(folder))
    # Flower starts its server by this one call.
    started = SimpleNamespace(
        run=lambda app, **settings: serve(home, (host, int(port)), app, settings)
    )
    allowed_programs.replace(sys.modules[flower_superlink.__module__], uvicorn=started)
    sys.argv = ["flower-superlink", *arguments]
    flower_superlink()


if __name__ == "__main__":
    main()
