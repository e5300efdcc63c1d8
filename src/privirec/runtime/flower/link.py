"""Flower's SuperLink behind two doors.

Flower serves everything on one port: clients, but also starting runs (with code of one's own) and
registering nodes, for which it asks nobody who he is. So the SuperLink itself listens on this
machine only, under a certificate made for that, and a second listener in front of the same
application shows the clients' part of it to the world, under the operator's certificate.

    python -m privirec.runtime.flower.link SERVER HOST PORT [arguments of flower-superlink]
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvicorn
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)
from flwr.proto.fleet_pb2 import ActivateNodeRequest

from privirec.errors import PrivirecError
from privirec.runtime.flower.processes import SAYS
from privirec.runtime.homes import ServerHome

FOR_CLIENTS = "/v1/fleet/"
CONNECT = FOR_CLIENTS + "activate-node"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class FrontDoor:
    """The part for clients of Flower's application, and a line for whoever is turned away."""

    def __init__(self, application: Application, home: ServerHome) -> None:
        self._application = application
        self._home = home

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not path.startswith(FOR_CLIENTS):
            if scope["type"] == "http":
                await _answer(send, 404)
            return
        if path != CONNECT:
            await self._application(scope, receive, send)
            return
        body = bytearray()

        async def received() -> MutableMapping[str, Any]:
            message = await receive()
            body.extend(message.get("body", b""))
            return message

        async def sent(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                print(f"{SAYS}{self._turned_away(scope, bytes(body))}", flush=True)
            await send(message)

        await self._application(scope, received, sent)

    def _turned_away(self, scope: Scope, body: bytes) -> str:
        client = scope.get("client") or ("somewhere",)
        try:
            who = who_has(self._home, ActivateNodeRequest.FromString(body).public_key)
        except Exception:  # whatever it was, it was sent by a stranger
            who = "something that is no client"
        return f"turned away {who}, from {client[0]}"


def who_has(home: ServerHome, public_key: bytes) -> str:
    """Whose node key this is, and why it may not come in (again)."""
    wanted = load_pem_public_key(public_key).public_bytes(
        Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    )
    for member in home.members.members:
        try:
            key = load_ssh_public_key((home.folder / f"nodes/{member.client}.pub").read_bytes())
        except (OSError, ValueError, UnsupportedAlgorithm, PrivirecError):
            continue
        if key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) != wanted:
            continue
        if member.revoked:
            return f"client {member.client} ({member.name}): it is revoked"
        return (
            f"client {member.client} ({member.name}): one with its keys is here already, or was "
            "until a minute ago"
        )
    return "a client that is not approved"


async def _answer(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def serve(
    home: ServerHome, address: tuple[str, int], app: Application, settings: dict[str, Any]
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

    async def both() -> None:
        doors = [asyncio.create_task(door.serve()) for door in (inside, outside)]
        await asyncio.wait(doors, return_when=asyncio.FIRST_COMPLETED)
        inside.should_exit = outside.should_exit = True
        await asyncio.gather(*doors)

    asyncio.run(both())


def main() -> None:
    from flwr.superlink.cli import flower_superlink  # noqa: PLC0415 - opens a socket, to look at IPv6

    folder, host, port, *arguments = sys.argv[1:]
    home = ServerHome(Path(folder))
    # Flower starts its server by this one call.
    changed: Any = sys.modules[flower_superlink.__module__]
    changed.uvicorn = SimpleNamespace(
        run=lambda app, **settings: serve(home, (host, int(port)), app, settings)
    )
    sys.argv = ["flower-superlink", *arguments]
    flower_superlink()


if __name__ == "__main__":
    main()
