"""Run a federation with correlated noise by hand: sessions, and the vectors that it sums."""

from __future__ import annotations

import io
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privirec.extra.correlated import CORRELATED_NOISE, NoiseRule, protocol_of
from privirec.extra.correlated.client import CorrelatedClient
from privirec.extra.correlated.messages import NoisyAnnounce, NoisyNeighbours, decode
from privirec.extra.correlated.server import CorrelatedServer
from privirec.secagg import ClientPolicy, Identity, Protocol, Roster, ServerSettings, Statement
from privirec.secagg.ring import VectorShape
from secagg.testing import InsecureSeededBytes

SHAPE = VectorShape(300, 12, 9, signed=True)
ANY_NOISE = ClientPolicy(own_noise=0.0, proven_sums=True)
"""Policy of clients that accept any level of noise."""
NEARLY_NONE = protocol_of(NoiseRule(sum_bits=40, dropped_bits=30))
"""Protocol with so little noise that rounded sums are exact, with or without drop-outs."""
HARDLY_OWN = protocol_of(NoiseRule(sum_bits=40, dropped_bits=5))
"""Protocol with so little own noise that sums are exact unless pair noise remains in them."""


@dataclass
class Run:
    """All sessions of a run."""

    protocol: Protocol
    roster: Roster
    identities: dict[int, Identity]
    policy: ClientPolicy
    server: CorrelatedServer
    clients: dict[int, CorrelatedClient]
    told: dict[int, bytes]
    """Client -> its NoisyNeighbours message, after `join`."""

    def join(self, silent: Collection[int] = ()) -> Run:
        """Run the first step with all but the silent clients, and keep the messages of the
        second."""
        for client, message in self.server.outgoing():
            if client not in silent:
                answer = self.clients[client].receive(message)
                assert answer is not None
                self.server.receive(client, answer)
        self.server.advance()
        self.told = dict(self.server.outgoing())
        return self

    def tell(self) -> Run:
        """Tell every client who takes part."""
        for client, message in self.told.items():
            assert self.clients[client].receive(message) is None
        return self

    def contribute(self, number: int, gone: Collection[int] = ()) -> None:
        """Send the vectors of all requested clients that are not gone."""
        for client in sorted(self.server.waiting_for() - set(gone)):
            self.server.add_vector(
                client,
                number,
                b"".join(self.clients[client].contribute(number, [self.vector(client, number)])),
            )

    def open(self) -> NDArray[np.int64]:
        step = self.server.step
        assert step is not None
        terms = self.server.terms
        shape = self.protocol.opened_shape(terms.shapes[step.sum_number - 1], terms.statement)
        return shape.ring.decode_signed(self.server.open_sum())

    def sum(self, number: int = 1, gone: Collection[int] = ()) -> NDArray[np.int64]:
        """Collect the vectors and return the opened sum."""
        self.contribute(number, gone)
        return self.open()

    def vector(self, client: int, number: int = 1) -> NDArray[np.int64]:
        shape = self.server.terms.shapes[number - 1]
        most = shape.bound // (len(self.roster) if shape.bounds_sum else 1)
        rng = np.random.default_rng([client, number])
        return rng.integers(-most if shape.signed else 0, most, shape.length, endpoint=True)

    def exact(self, number: int = 1, gone: Collection[int] = ()) -> NDArray[np.int64]:
        """Return the sum without noise."""
        inside = set(self.server.participants) - set(gone)
        return np.sum([self.vector(client, number) for client in sorted(inside)], axis=0)

    def reload(self, client: int) -> None:
        """Replace a client by a new process with its stored state."""
        session = self.protocol.load_client(
            self.clients[client].dump(),
            self.identities[client],
            self.roster,
            self.policy,
            self.clients[client].random,
        )
        assert isinstance(session, CorrelatedClient)
        self.clients[client] = session

    def announce(self) -> NoisyAnnounce:
        return self.server.terms

    def neighbours(self, client: int) -> NoisyNeighbours:
        told = decode(self.told[client])
        assert isinstance(told, NoisyNeighbours)
        return told


def start(
    protocol: Protocol = CORRELATED_NOISE,
    clients: int = 12,
    shapes: tuple[VectorShape, ...] = (SHAPE,),
    *,
    shares: tuple[float, float] = (0.1, 0.25),
    policy: ClientPolicy = ANY_NOISE,
    block_entries: int = 64,
    min_cohort: int = 3,
    seed: int | str = 0,
) -> Run:
    """Create sessions that have not received any message."""
    source = InsecureSeededBytes(f"correlated {seed}")
    identities = {number: Identity.generate(source) for number in range(clients)}
    roster = Roster({number: one.public for number, one in identities.items()})
    statement = Statement.of(clients, *shares, rounds=len(shapes))
    settings = ServerSettings(min_cohort, block_entries, spool=io.BytesIO)
    server = protocol.server(roster, statement, shapes, settings, source)
    assert isinstance(server, CorrelatedServer)
    sessions: dict[int, CorrelatedClient] = {}
    for number, identity in identities.items():
        session = protocol.client(number, identity, roster, policy, source)
        assert isinstance(session, CorrelatedClient)
        sessions[number] = session
    return Run(protocol, roster, identities, policy, server, sessions, {})


def started(*more: object, **settings: object) -> Run:
    """Create sessions that are ready for the first sum."""
    return start(*more, **settings).join().tell()  # type: ignore[arg-type]
