"""All clients and the server in one process, with real cryptography and a count of every byte."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privirec.errors import UsageError
from privirec.secagg.errors import OutOfOrder, ProtocolError
from privirec.secagg.keys import Identity, RandomBytes, Roster
from privirec.secagg.parameters import ServerModel, Statement
from privirec.secagg.protocol import (
    ClientPolicy,
    ClientSession,
    Phase,
    ServerSettings,
    Step,
)
from privirec.secagg.registry import protocol
from privirec.secagg.ring import VectorShape, Words

VectorOf = Callable[[int], Iterable[NDArray[Any]]]
"""Client -> its integers, in blocks of any sizes that add up to the length of the vector."""

Departures = Mapping[str, Collection[int]]
"""Name of a step -> clients that drop out before they receive the messages of this step."""


@dataclass
class Traffic:
    """Bytes of real messages, by step and client."""

    clients: int
    up: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """Name of a step -> bytes sent by each client in it, over all sums."""
    down: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """Name of a step -> bytes received by each client in it, over all sums."""

    def count(
        self, direction: dict[str, NDArray[np.int64]], step: str, client: int, size: int
    ) -> None:
        if step not in direction:
            direction[step] = np.zeros(self.clients, np.int64)
        direction[step][client] += size

    def up_per_client(self) -> NDArray[np.int64]:
        return sum(self.up.values(), np.zeros(self.clients, np.int64))

    def down_per_client(self) -> NDArray[np.int64]:
        return sum(self.down.values(), np.zeros(self.clients, np.int64))

    def mean_by_step(self) -> dict[str, tuple[float, float]]:
        """Return, for each step, the mean bytes that a client sent and received."""
        nothing = np.zeros(self.clients, np.int64)
        return {
            step: (
                float(self.up.get(step, nothing).mean()),
                float(self.down.get(step, nothing).mean()),
            )
            for step in (self.down | self.up)
        }


@dataclass(frozen=True)
class OpenedSum:
    """Result of one sum."""

    sum_number: int
    total: Words
    """Words of the shape's ring; `values` decodes their sign."""
    shape: VectorShape
    """Shape of the opened sum; wider than announced if the protocol leaves noise in it."""
    survivors: tuple[int, ...]
    """Clients whose contributions are in the sum."""
    deviation: float = 0.0
    """Standard deviation of the error of an entry."""

    def values(self) -> NDArray[Any]:
        """Return the sum as integers: int64 if the shape is signed, else the words themselves.

        For a long signed vector, decode slices of `total` with `shape.ring.decode_signed` instead.
        """
        return self.shape.ring.decode_signed(self.total) if self.shape.signed else self.total


class LocalFederation:
    """Clients 0 ... n - 1 and a server that sum a list of vectors after one common set-up.

    Every client is a separate session that checks every message. Sessions share nothing but the
    roster.
    """

    def __init__(
        self,
        protocol_name: str,
        clients: int,
        shapes: Sequence[VectorShape],
        *,
        corrupt_share: float = 0.05,
        dropped_share: float = 0.05,
        security_bits: int = 40,
        correctness_bits: int = 30,
        server: ServerModel = ServerModel.SEMI_HONEST,
        policy: ClientPolicy | None = None,
        settings: ServerSettings | None = None,
        departures: Departures | None = None,
        random_bytes: RandomBytes = os.urandom,
        observe: Callable[[str, int, bytes], None] | None = None,
    ) -> None:
        """Run the set-up; `departures` refers to its steps.

        `observe(direction, client, message)` is called for every message, with direction "up" or
        "down", and for every vector, with direction "vector".
        """
        self.protocol = protocol(protocol_name)
        statement = Statement.of(
            clients,
            corrupt_share,
            dropped_share,
            security_bits=security_bits,
            correctness_bits=correctness_bits,
            rounds=len(shapes),
            server=server,
        )
        policy = policy or ClientPolicy(
            corrupt_share=min(0.05, corrupt_share), max_dropped_share=max(0.3, dropped_share)
        )
        self.shapes = tuple(shapes)
        self.traffic = Traffic(clients)
        self._statement = statement
        self._observe = observe
        self._gone: set[int] = set()
        identities = [Identity.generate(random_bytes) for _ in range(clients)]
        roster = Roster({number: one.public for number, one in enumerate(identities)})
        self.server = self.protocol.server(
            roster, statement, shapes, settings or ServerSettings(), random_bytes
        )
        self.clients: list[ClientSession] = [
            self.protocol.client(number, identity, roster, policy, random_bytes)
            for number, identity in enumerate(identities)
        ]
        self._schedule = self.protocol.schedule_for(statement)
        departures = _checked(departures, self._schedule.setup)
        while (step := self._step()).phase is Phase.SETUP:
            self._exchange(step, departures)
            self.server.advance()

    def sum(
        self,
        vector_of: VectorOf,
        departures: Departures | None = None,
        length: int | None = None,
    ) -> OpenedSum:
        """Sum the next vectors over all remaining clients.

        `length` is that of the vectors, by default the announced one. `departures` refers to the
        steps of a sum. A client that departs does not return. Raise a ProtocolError if the run
        cannot finish safely.
        """
        names = self._schedule.names[len(self._schedule.setup) :]
        departures = _checked(departures, names)
        if length is not None:
            self.server.ask(self.server.asked, length)
        while True:
            step = self._step()
            self._exchange(step, departures, vector_of, length)
            if step.opens_sum:
                break
            self.server.advance()
        total = self.server.open_sum()
        announced = self.shapes[step.sum_number - 1].shortened(length)
        shape = self.protocol.opened_shape(announced, self._statement)
        server = self.server
        return OpenedSum(step.sum_number, total, shape, server.survivors, server.deviation)

    def _step(self) -> Step:
        if self.server.step is None:
            raise OutOfOrder("the run is over")
        return self.server.step

    def _exchange(
        self,
        step: Step,
        departures: Departures,
        vector_of: VectorOf | None = None,
        length: int | None = None,
    ) -> None:
        """Run one step with all remaining clients."""
        self._gone |= set(departures.get(step.name, ()))
        refusal: ProtocolError | None = None
        for client, message in self.server.outgoing():
            if client in self._gone:
                continue
            self._count("down", step, client, message)
            try:
                reply = self.clients[client].receive(message) if message else None
            except ProtocolError as error:
                self._gone.add(client)
                refusal = error
                continue
            if reply is not None:
                self._count("up", step, client, reply)
                self.server.receive(client, reply)
        # No party lies in one process, so a refusal means that the settings contradict each other.
        if refusal is not None:
            raise refusal
        if step.phase is Phase.INPUT and vector_of is not None:
            for client in sorted(self.server.waiting_for() - self._gone):
                number = step.sum_number
                shorter: dict[str, Any] = {} if length is None else {"length": length}
                blocks = self.clients[client].contribute(number, vector_of(client), **shorter)
                packed = b"".join(blocks)
                self._count("vector", step, client, packed)
                self.server.add_vector(client, number, packed)

    def _count(self, direction: str, step: Step, client: int, message: bytes) -> None:
        counts = self.traffic.down if direction == "down" else self.traffic.up
        self.traffic.count(counts, step.name, client, len(message))
        if self._observe and message:
            self._observe(direction, client, message)


def _checked(departures: Departures | None, names: Sequence[str]) -> Departures:
    unknown = set(departures or ()) - set(names)
    if unknown:
        raise UsageError(f"clients can depart at the steps {', '.join(names)}, not {unknown}")
    return departures or {}
