"""The HTTPS carrier in one process, over a network that loses, repeats and damages requests.

Everything but the socket is real: requests are signed, checked, split into ranges and limited as on
a network.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import ssl
import time
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from privirec.runtime import envelope
from privirec.runtime.coordinator.clients import Address
from privirec.runtime.enrolment.roster import RosterEntry
from privirec.runtime.https import connection as connection_module
from privirec.runtime.https import gate as gate_module
from privirec.runtime.https.connection import Connection, Unreachable
from privirec.runtime.https.gate import Gate
from privirec.runtime.https.limits import Limits
from privirec.runtime.https.mailbox import HttpsCarrier, Mailbox, Upload
from privirec.runtime.https.signing import Request, StampsTaken
from privirec.runtime.lines import Lines
from privirec.secagg.keys import SIGNATURE_BYTES, Identity

from .chaos import ChaosCarrier, Federation, Killed, Trouble, killing

PIECE = 1000
"""Bytes per request; small, so that the short messages of these federations are split."""
LIMITS = Limits(rate=1e6, burst=1e6, busy_pause=0.4, idle_pause=0.4)
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
URL = "https://server"


def in_small_pieces(monkeypatch: pytest.MonkeyPatch, piece: int = PIECE) -> None:
    for module in (connection_module, gate_module):
        monkeypatch.setattr(module, "PIECE", piece)


def operator_of(federation: Federation, revoked: Collection[int] = ()) -> Any:
    """Return the parts of the operator's folder that the gate needs."""
    members = [
        RosterEntry(client, f"name-{client}", key.hex(), "", key.hex(), client in revoked)
        for client, key in federation.roster.items()
    ]
    (federation.folder / "roster.json").touch()
    found = SimpleNamespace(members=members, server=federation.operator.public.hex())
    return SimpleNamespace(folder=federation.folder, members=found, server=federation.operator)


class Waiting(httpx.BaseTransport):
    """Synchronous transport around an asynchronous one."""

    def __init__(self, carried_by: httpx.AsyncBaseTransport) -> None:
        self._carried_by = carried_by

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return asyncio.run(self._handle(request))

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        response = await self._carried_by.handle_async_request(request)
        if not isinstance(response.stream, httpx.AsyncByteStream):
            return response  # a streamed response
        body = b"".join([part async for part in response.stream])
        return httpx.Response(
            response.status_code, headers=response.headers, stream=httpx.ByteStream(body)
        )


class HttpsServer:
    """Server process without its run."""

    def __init__(
        self,
        federation: Federation,
        limits: Limits = LIMITS,
        clock: Callable[[], float] | None = None,
        **changes: Any,
    ) -> None:
        given = {"clock": clock} if clock else {}
        self.mailbox = Mailbox(federation.folder / "spool", limits, **given)
        stamps = StampsTaken(began=time.time_ns())  # the waiting time after a start is over
        home = operator_of(federation, **changes)
        self.gate = Gate(home, self.mailbox, limits, Lines(), stamps=stamps, **given)
        self.transport = httpx.ASGITransport(self.gate.application)

    def answers(self) -> list[tuple[int, bytes]]:
        """Return the answers that have arrived, without their signatures."""
        return [
            (client, bytes(whole[:-SIGNATURE_BYTES])) for client, whole in self.mailbox.answers()
        ]

    def device(
        self,
        federation: Federation,
        client: int,
        answer: Callable[[bytes], bytes],
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        seals: bool = True,
        **changes: Any,
    ) -> Connection:
        """Return a connection; it signs the answers unless they are sealed messages already."""
        given = {
            "identity": federation.identities[client],
            "server_key": federation.operator.public,
        }
        own = federation.identities[client]
        return Connection(
            URL,
            client,
            tls=NO_TLS,
            answer=(lambda message: sealed(answer(message), own)) if seals else answer,
            transport=Waiting(transport or self.transport),
            jitter=random.Random(client),
            **(given | changes),
        )


def sealed(content: bytes, identity: Identity) -> bytes:
    """Return content with the signature that ends every message."""
    digest = hashlib.sha256(content).digest()
    return content + identity.sign(envelope.statement("to-server", digest))


def put(
    mailbox: Mailbox, client: int, number: str, whole: bytes, total: int, offset: int, part: bytes
) -> Upload | None:
    """Upload a range of the answer `whole`."""
    request = Request(client, "PATCH", "", 0, *envelope.seal_of(whole))
    return mailbox.put(request, number, total, offset, part)


class BadNetwork(httpx.AsyncBaseTransport):
    """Unreliable network between one client and the server that is currently up."""

    def __init__(self, chaos: HttpsChaos) -> None:
        self._chaos = chaos
        self._late: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        chaos = self._chaos
        content = await request.aread()
        if self._late and chaos.happens("delay"):
            await self._carry(self._late.pop())  # an abandoned request arrives after all
        if chaos.happens("drop"):
            raise httpx.ConnectError("lost on its way")
        if chaos.happens("delay"):
            self._late.append(request)
            raise httpx.ReadTimeout("on its way")
        damaged = request
        if content and chaos.happens("corrupt"):
            damaged = httpx.Request(
                request.method, request.url, headers=request.headers, content=chaos.damage(content)
            )
        response = await self._carry(damaged)
        if chaos.happens("duplicate"):
            again = await self._carry(request)
            if request.method != "PATCH":
                assert again.status_code in (401, 400, 404), "a request counted twice"
            elif response.status_code == 204:
                assert again.status_code in (404, 409), "a range counted twice"
        if chaos.happens("fail"):
            raise httpx.ReadError("the answer was lost")
        body = await response.aread()
        if body and chaos.happens("corrupt"):
            body = chaos.damage(body)
        stream = httpx.ByteStream(body)
        return httpx.Response(response.status_code, headers=response.headers, stream=stream)

    async def _carry(self, request: httpx.Request) -> httpx.Response:
        content = await request.aread()
        copy = httpx.Request(request.method, request.url, headers=request.headers, content=content)
        return await self._chaos.server_up.transport.handle_async_request(copy)


class HttpsChaos(ChaosCarrier):
    """Faults of `ChaosCarrier`, on requests instead of messages."""

    def __init__(self, federation: Federation, seed: int, trouble: Trouble | None = None) -> None:
        super().__init__(federation, seed, trouble)
        self._due = dict.fromkeys(federation.roster, 0.0)
        self._devices: dict[int, Connection] = {}
        self._start()

    def _start(self) -> None:
        """Start a new server process; messages waiting in the old one are lost."""
        self.server_up = HttpsServer(self.federation, clock=lambda: self.time)
        self.server_up.mailbox.begin()
        self._carrier = HttpsCarrier(self.server_up.mailbox, 8.0)

    def connected(self) -> Collection[Address]:
        return self._carrier.connected()

    def send(self, address: Address, message: bytes) -> bool:
        self.messages.append(message)
        return self._carrier.send(address, message)

    def arrivals(self) -> list[tuple[Address, bytes | None]]:
        for client, due in self._due.items():
            if client not in self.away and due <= self.time:
                self._due[client] = self.time + self._turn(client)
        arrived = list(self._carrier.arrivals())
        self._pass_time()
        return arrived

    def _turn(self, client: int) -> float:
        """Let a client's process send one request; it may die on the way."""
        device = self._devices.get(client) or self._devices.setdefault(
            client,
            self.server_up.device(
                self.federation, client, self._node(client), BadNetwork(self), seals=False
            ),
        )
        try:
            return min(device.turn(), 1.0)
        except Unreachable:
            return self.rng.random()
        except Killed:
            self._note("client killed")
            self._devices.pop(client)
            return 1.0

    def _node(self, client: int) -> Callable[[bytes], bytes]:
        def answer(message: bytes) -> bytes:
            with killing(self.rng, self.trouble.kill):
                node = self.federation.node(client)
                reply = bytes(node.answer(message))
            self.messages.append(reply)
            return reply

        return answer

    def happens(self, what: str) -> bool:
        return self._happens(what)

    def damage(self, content: bytes) -> bytes:
        place = self.rng.randrange(len(content))
        changed = bytes([content[place] ^ 1 << self.rng.randrange(8)])
        return content[:place] + changed + content[place + 1 :]

    def _note(self, what: str) -> None:
        super()._note(what)
        if what in ("restart", "server killed"):
            self._start()

    def _deliver_rest(self) -> None:
        """Do nothing: every request in transit has a client that waits for it."""


def spooled(federation: Federation) -> list[Path]:
    return sorted((federation.folder / "spool").iterdir())
