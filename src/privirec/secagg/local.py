"""All clients and the server in one process, with real cryptography, and a count of every byte."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privirec.errors import UsageError
from privirec.secagg.errors import ProtocolError
from privirec.secagg.keys import Identity, Roster
from privirec.secagg.messages import KINDS
from privirec.secagg.parameters import Statement
from privirec.secagg.protocol import ClientPolicy, ClientSession, Phase, ServerSettings, protocol
from privirec.secagg.randomness import RandomBytes
from privirec.secagg.ring import VectorShape, Words

Contribution = Callable[[int], Iterable[NDArray[Any]]]
"""Client -> its integers, in blocks of any sizes that add up to the round's length."""

DROP_STAGES = ("advertise", "share", "input", "unmask")
DropOuts = Mapping[str, Collection[int]]
"""Stage -> clients that are gone from there on."""


@dataclass
class Traffic:
    """Bytes of real messages, by kind of message and client."""

    clients: int
    up: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """Kind -> bytes each client sent."""
    down: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """Kind -> bytes each client received."""

    def count(self, direction: dict[str, NDArray[np.int64]], client: int, message: bytes) -> None:
        kind = KINDS[message[1]].__name__.lower()
        if kind not in direction:
            direction[kind] = np.zeros(self.clients, np.int64)
        direction[kind][client] += len(message)

    def up_per_client(self) -> NDArray[np.int64]:
        return sum(self.up.values(), np.zeros(self.clients, np.int64))

    def down_per_client(self) -> NDArray[np.int64]:
        return sum(self.down.values(), np.zeros(self.clients, np.int64))

    def mean_by_kind(self) -> dict[str, float]:
        """Mean bytes a client of each kind of message."""
        return {
            kind: float(counts.mean())
            for direction in (self.up, self.down)
            for kind, counts in direction.items()
        }


@dataclass(frozen=True)
class OpenedSum:
    """What one round reveals."""

    round_number: int
    total: Words
    """Sum modulo 2^width; `values` reads it with its sign."""
    shape: VectorShape
    survivors: tuple[int, ...]
    """Clients whose contributions are in the sum."""

    def values(self) -> NDArray[Any]:
        """The sum as integers: int64 if the shape is signed, else the words themselves.

        Of a long signed vector, decode slices of `total` with `shape.ring.decode_signed` instead.
        """
        return self.shape.ring.decode_signed(self.total) if self.shape.signed else self.total


class LocalFederation:
    """Clients 0 ... n - 1 and a server that sum a list of vectors, set up once for all of them.

    Every client is a session of its own that checks all it is told; nothing is shared between
    them but the roster.
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
        policy: ClientPolicy | None = None,
        settings: ServerSettings | None = None,
        dropouts: DropOuts | None = None,
        random_bytes: RandomBytes = os.urandom,
        observe: Callable[[str, int, bytes], None] | None = None,
    ) -> None:
        """Run the set-up exchange. `dropouts` here are at the stages "advertise" and "share".

        `observe(direction, client, message)` sees every message, "up" or "down".
        """
        scheme = protocol(protocol_name)
        statement = Statement.of(
            clients,
            corrupt_share,
            dropped_share,
            security_bits=security_bits,
            correctness_bits=correctness_bits,
            rounds=len(shapes),
        )
        policy = policy or ClientPolicy(
            corrupt_share=min(0.05, corrupt_share), max_dropped_share=max(0.3, dropped_share)
        )
        self.shapes = tuple(shapes)
        self.traffic = Traffic(clients)
        self._observe = observe
        self._gone: set[int] = set()
        identities = [Identity.generate(random_bytes) for _ in range(clients)]
        roster = Roster({number: one.public for number, one in enumerate(identities)})
        self.server = scheme.server(
            roster, statement, shapes, settings or ServerSettings(), random_bytes
        )
        self.clients: list[ClientSession] = [
            scheme.client(number, identity, roster, policy, random_bytes)
            for number, identity in enumerate(identities)
        ]
        self._set_up(_checked(dropouts))

    def sum(self, contribution: Contribution, dropouts: DropOuts | None = None) -> OpenedSum:
        """Sum the next round's vectors over all clients that are left.

        `dropouts` are at the stages "input" and "unmask"; whoever drops stays away for good.
        Raises a ProtocolError when the run cannot finish safely.
        """
        gone = _checked(dropouts)
        number = self.server.round_number
        self._gone |= gone["input"]
        for client in sorted(self.server.waiting_for() - self._gone):
            for message in self.clients[client].contribute(number, contribution(client)):
                self._send_up(client, message)
        outgoing = self.server.advance()
        self._gone |= gone["unmask"]
        self._exchange(outgoing)
        survivors = self.server.survivors
        total = self.server.open_sum()
        return OpenedSum(number, total, self.shapes[number - 1], survivors)

    def _set_up(self, gone: dict[str, set[int]]) -> None:
        self._gone |= gone["advertise"]
        announcement = self.server.announcement
        self._exchange((client, announcement) for client in range(len(self.clients)))
        outgoing = self.server.advance()
        self._gone |= gone["share"]
        self._exchange(outgoing)
        while self.server.phase is Phase.SETUP:
            self._exchange(self.server.advance())

    def _exchange(self, outgoing: Iterable[tuple[int, bytes]]) -> None:
        refusal: ProtocolError | None = None
        for client, message in outgoing:
            if client in self._gone:
                continue
            self._count("down", client, message)
            try:
                reply = self.clients[client].receive(message)
            except ProtocolError as error:
                self._gone.add(client)
                refusal = error
                continue
            if reply is not None:
                self._send_up(client, reply)
        # In one process nobody lies: a refusal means that the settings do not fit together.
        if refusal is not None:
            raise refusal

    def _send_up(self, client: int, message: bytes) -> None:
        self._count("up", client, message)
        self.server.receive(client, message)

    def _count(self, direction: str, client: int, message: bytes) -> None:
        self.traffic.count(
            self.traffic.up if direction == "up" else self.traffic.down, client, message
        )
        if self._observe:
            self._observe(direction, client, message)


def _checked(dropouts: DropOuts | None) -> dict[str, set[int]]:
    unknown = set(dropouts or ()) - set(DROP_STAGES)
    if unknown:
        raise UsageError(f"clients drop at the stages {', '.join(DROP_STAGES)}, not {unknown}")
    return {stage: set((dropouts or {}).get(stage, ())) for stage in DROP_STAGES}
