"""Run LightSecAgg by hand: all parties, and messages that a test may change on the way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from privirec.extra.lightsecagg.messages import decode
from privirec.secagg import (
    ClientPolicy,
    ClientSession,
    Identity,
    Phase,
    Roster,
    ServerSession,
    ServerSettings,
    Statement,
    VectorShape,
    protocol,
)
from privirec.secagg.messages import ProtocolMessage
from privirec.secagg.protocol import Step
from secagg.testing import InsecureSeededBytes

PROTOCOL = protocol("lightsecagg")
LENGTH = 20
SHAPE = VectorShape(LENGTH, 32, 10**6)
POLICY = ClientPolicy()


def vector(client: int) -> np.ndarray:
    return np.random.default_rng(client).integers(0, 10**6, LENGTH)


def plain_sum(clients: Iterable[int]) -> list[int]:
    return np.sum([vector(client) for client in clients], axis=0).tolist()


@dataclass
class Run:
    """All parties; messages of the current step wait in `told` until they are passed on."""

    server: ServerSession
    clients: list[ClientSession]
    identities: list[Identity]
    roster: Roster
    told: dict[int, bytes] = field(default_factory=dict)
    heard: Step | None = None
    """The step whose messages are in `told`."""
    stored: bool = False
    """If true, clients are stored and loaded before every message."""

    def listen(self) -> dict[int, ProtocolMessage]:
        """Return the server's messages of this step."""
        self.heard = self.server.step
        self.told = {client: raw for client, raw in self.server.outgoing() if raw}
        return {client: decode(raw) for client, raw in self.told.items()}

    def answer(self, but: Iterable[int] = ()) -> dict[int, ProtocolMessage]:
        """Let all clients except some answer their messages, or send their vectors."""
        step, replies = self.server.step, {}
        assert step is not None
        for client in sorted(self.told.keys() - set(but)):
            reply = self.session(client).receive(self.told[client])
            assert reply is not None
            replies[client] = decode(reply)
            self.server.receive(client, reply)
        if step.phase is Phase.INPUT:
            for client in sorted(self.server.waiting_for() - set(but)):
                self.server.add_vector(
                    client,
                    step.sum_number,
                    b"".join(self.session(client).contribute(step.sum_number, [vector(client)])),
                )
        return replies

    def session(self, client: int) -> ClientSession:
        if self.stored:
            self.clients[client] = self.load(client)
        return self.clients[client]

    def load(self, client: int, dumped: bytes | None = None) -> ClientSession:
        return PROTOCOL.load_client(
            self.clients[client].dump() if dumped is None else dumped,
            self.identities[client],
            self.roster,
            POLICY,
            InsecureSeededBytes(f"loaded {client} {dumped!r}"),
        )

    def go_to(self, name: str, sum_number: int = 1, gone: Iterable[int] = ()) -> Run:
        """Finish all steps before this one, and fetch the server's messages."""
        out = set(gone)
        while self.server.step is not None:
            if self.server.step is not self.heard:
                self.listen()
            step = self.server.step
            if step.name == name and step.sum_number in (0, sum_number):
                return self
            self.finish_step(out)
        raise AssertionError(f"there is no step {name} of sum {sum_number}")

    def finish_step(self, but: Iterable[int] = ()) -> list[int] | None:
        """Collect answers and end the step; return the sum if the step opens one."""
        assert self.server.step is not None
        opens = self.server.step.opens_sum
        self.answer(but)
        if opens:
            return self.server.open_sum().tolist()
        self.server.advance()
        return None

    def finish_sum(self, but: Iterable[int] = ()) -> list[int]:
        """Finish a sum whose step has been announced."""
        out = set(but)
        while True:
            opened = self.finish_step(out)
            if opened is not None:
                return opened
            self.listen()


def start(
    clients: int = 8,
    *,
    sums: int = 1,
    shares: tuple[float, float] = (0.05, 0.2),
    policy: ClientPolicy = POLICY,
    shape: VectorShape = SHAPE,
    settings: ServerSettings | None = None,
    stored: bool = False,
) -> Run:
    """Start 8 clients, one of them corrupt: T = 1; one may drop: U = 7; 5 must agree."""
    seeded = InsecureSeededBytes("lightsecagg")
    identities = [Identity.generate(seeded) for _ in range(clients)]
    roster = Roster({number: one.public for number, one in enumerate(identities)})
    server = PROTOCOL.server(
        roster,
        Statement.of(clients, *shares, rounds=sums),
        [shape] * sums,
        settings or ServerSettings(block_entries=8),
        seeded,
    )
    sessions = [
        PROTOCOL.client(number, identity, roster, policy, seeded)
        for number, identity in enumerate(identities)
    ]
    return Run(server, sessions, identities, roster, stored=stored)
