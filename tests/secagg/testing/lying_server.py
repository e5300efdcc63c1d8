"""A server that sends each client any lie, and opens all that the answers let it open.

Nothing is mocked: the clients are sessions that check every message, and the server combines shares
and recomputes masks as an attacker would. `groups` returns the sets of honest clients whose sum the
server has obtained, and `opened_sum` computes that sum from the data it received.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Set
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privirec.secagg import keys
from privirec.secagg.bell2020 import BellClient
from privirec.secagg.bell2020.messages import (
    Confirm,
    Confirmed,
    Survivors,
    Unmask,
    decode,
)
from privirec.secagg.errors import ProtocolError
from privirec.secagg.graph import ring_graph
from privirec.secagg.keys import KEY_BYTES, Identity, Roster
from privirec.secagg.messages import ProtocolMessage, encode
from privirec.secagg.parameters import Parameters, ServerModel, Statement
from privirec.secagg.participants import write_participants
from privirec.secagg.prg import MaskGenerator
from privirec.secagg.protocol import ClientPolicy, ServerSettings
from privirec.secagg.registry import protocol
from privirec.secagg.ring import VectorShape
from privirec.secagg.shamir import SHARE_BYTES, combine
from secagg.testing.randomness import InsecureSeededBytes

SHAPE = VectorShape(4, 32, 1 << 16)

View = Set[int]
"""Clients in the sum according to what one client is told."""


@dataclass(frozen=True)
class Setting:
    """A federation for one sum, and the clients that collude with the server."""

    clients: int
    shares: tuple[float, float] = (0.05, 0.2)
    server: ServerModel = ServerModel.ACTIVE
    protocol: str = "secagg+"
    corrupt: frozenset[int] = frozenset()
    correctness_bits: int = 30
    """Bits of correctness; fewer bits give a smaller graph, for tests with many runs."""
    seed: int | str = 0


@dataclass
class Loot:
    """Data that a server has obtained by lying."""

    refusals: Counter[str] = field(default_factory=Counter)
    """Names of the errors with which clients refused."""
    seed_shares: dict[int, dict[int, bytes]] = field(default_factory=dict)
    """Owner -> position of the holder among the owner's neighbours, from 1 -> share."""
    key_shares: dict[int, dict[int, bytes]] = field(default_factory=dict)
    answered: set[int] = field(default_factory=set)
    """Honest clients that disclosed shares."""


class LyingServer:
    """Attack on one sum: call `gather` first, then `tell` any number of times."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        random_bytes = InsecureSeededBytes(f"lying server {setting.seed}")
        scheme, number = protocol(setting.protocol), setting.clients
        self.identities = [Identity.generate(random_bytes) for _ in range(number)]
        self.roster = Roster({client: one.public for client, one in enumerate(self.identities)})
        statement = Statement.of(
            *(number, *setting.shares),
            correctness_bits=setting.correctness_bits,
            server=setting.server,
        )
        settings = ServerSettings(block_entries=8)
        self.session: Any = scheme.server(self.roster, statement, [SHAPE], settings, random_bytes)
        self._policy = policy = ClientPolicy(corrupt_share=setting.shares[0], server=setting.server)
        self.clients: list[BellClient] = [
            scheme.client(client, one, self.roster, policy, random_bytes)  # type: ignore[misc]
            for client, one in enumerate(self.identities)
        ]
        self.loot = Loot()
        self.masked: dict[int, NDArray[Any]] = {}
        """Client -> its vector as received."""
        self.hidden_by: dict[int, frozenset[int]] = {}
        """Client -> neighbours whose common masks are in its vector."""
        self._corrupt_keys: dict[int, bytes] = {}

    # --- public information -----------------------------------------------------------------------

    def vector(self, client: int) -> NDArray[np.int64]:
        """Return the secret vector of a client."""
        return np.random.default_rng([client, 7]).integers(0, SHAPE.bound, SHAPE.length)

    @property
    def parameters(self) -> Parameters:
        found: Parameters = self.session.parameters
        return found

    def neighbours(self, client: int) -> list[int]:
        found: list[int] = self.session._neighbours[client].tolist()
        return found

    def ring(self) -> list[int]:
        """Return the clients in the order of the ring."""
        session = self.session
        graph = ring_graph(self.setting.clients, self.parameters.neighbours, session._graph)
        found: list[int] = graph._ring.tolist()
        return found

    # --- set-up and vectors -----------------------------------------------------------------------

    def gather(
        self,
        dropped: Set[int] = frozenset(),
        kept_back: Callable[[], Mapping[int, Set[int]]] = dict,
    ) -> None:
        """Run the set-up and collect the vectors of all clients that are not dropped.

        `kept_back` is called once the graph is known. It maps a client to the senders whose shares
        the server withholds from it.
        """
        for client, message in self.session.outgoing():
            self._take(client, message)
            if client in self.setting.corrupt:
                self._corrupt_keys[client] = self.clients[client].state.mask_privates.reveal()
        self.session.advance()
        for client, message in self.session.outgoing():
            self._take(client, message)
        self.session.advance()
        kept = kept_back()
        for client, message in self.session.outgoing():
            delivered: Any = decode(message)
            hidden = kept.get(client, frozenset())
            shares = tuple(one for one in delivered.shares if one.sender not in hidden)
            try:
                self.clients[client].receive(encode(replace(delivered, shares=shares)))
            except ProtocolError as error:
                self.loot.refusals[type(error).__name__] += 1
                continue
            self.hidden_by[client] = frozenset(self.clients[client].state.peers)
            if client not in dropped:
                self._take_vector(client)
        for client in self.setting.corrupt:
            self._take_everything(client)

    def _take(self, client: int, message: bytes) -> None:
        reply = self.clients[client].receive(message)
        if reply is not None:
            self.session.receive(client, reply)

    def _take_vector(self, client: int) -> None:
        packed = b"".join(self.clients[client].contribute(1, [self.vector(client)]))
        self.masked[client] = SHAPE.ring.unpack(packed, SHAPE.length)

    def _take_everything(self, client: int) -> None:
        """Collect both shares of every peer from a corrupt client."""
        state = self.clients[client].state
        held = state.held_shares.reveal()
        for place, owner in enumerate(state.peers):
            start = 2 * SHARE_BYTES * place
            middle, stop = start + SHARE_BYTES, start + 2 * SHARE_BYTES
            self._keep(self.loot.seed_shares, owner, client, held[start:middle])
            self._keep(self.loot.key_shares, owner, client, held[middle:stop])

    def _keep(
        self, kept: dict[int, dict[int, bytes]], owner: int, holder: int, share: bytes
    ) -> None:
        kept.setdefault(owner, {})[self.neighbours(owner).index(holder) + 1] = share

    def fork(self) -> LyingServer:
        """Return a copy after `gather` to try other lies, with clients as they were stored."""
        other = copy(self)
        other.loot = Loot(
            self.loot.refusals.copy(),
            {owner: dict(found) for owner, found in self.loot.seed_shares.items()},
            {owner: dict(found) for owner, found in self.loot.key_shares.items()},
        )
        load = protocol(self.setting.protocol).load_client
        other.clients = [
            load(one.dump(), self.identities[place], self.roster, self._policy, one.random)  # type: ignore[misc]
            for place, one in enumerate(self.clients)
        ]
        return other

    # --- lies -------------------------------------------------------------------------------------

    def tell(self, views: Mapping[int, View]) -> Loot:
        """Tell each of these clients who is in the sum, and collect the answers.

        If clients confirm, all of them sign first. Each then receives the signatures of its
        neighbours, whatever they signed. Corrupt neighbours sign what the client expects.
        """
        confirmed: dict[int, bytes] = {}
        told_to = [client for client in views if client not in self.setting.corrupt]
        for client in told_to:
            bitmap = write_participants(views[client], self.roster)
            reply = self._answer(client, Survivors(self.session.terms.run, 1, client, bitmap))
            if isinstance(reply, Confirm):
                confirmed[client] = reply.signature
            elif isinstance(reply, Unmask):
                self._take_shares(client, views[client], reply)
        for client in confirmed:
            signatures = self._signatures(client, views[client], confirmed)
            reply = self._answer(client, Confirmed(self.session.terms.run, 1, client, signatures))
            if isinstance(reply, Unmask):
                self._take_shares(client, views[client], reply)
        return self.loot

    def _signatures(
        self, client: int, view: View, confirmed: Mapping[int, bytes]
    ) -> tuple[bytes, ...]:
        statement = self.clients[client]._statement()
        found = []
        for peer in sorted(self.hidden_by[client] & view):
            if peer in self.setting.corrupt:
                found.append(self.identities[peer].sign(statement))
            elif peer in confirmed:
                found.append(confirmed[peer])
        return tuple(found)

    def _answer(self, client: int, message: ProtocolMessage) -> ProtocolMessage | None:
        try:
            reply = self.clients[client].receive(encode(message))
        except ProtocolError as error:
            self.loot.refusals[type(error).__name__] += 1
            return None
        return decode(reply) if reply else None

    def _take_shares(self, client: int, view: View, reply: Unmask) -> None:
        self.loot.answered.add(client)
        held = sorted(self.hidden_by[client])
        inside = [owner for owner in held if owner in view]
        outside = [owner for owner in held if owner not in view]
        for owner, share in zip(inside, reply.seed_shares, strict=True):
            self._keep(self.loot.seed_shares, owner, client, share)
        for owner, share in zip(outside, reply.key_shares, strict=True):
            self._keep(self.loot.key_shares, owner, client, share)

    # --- opened secrets and sums ------------------------------------------------------------------

    def opened_seeds(self) -> set[int]:
        """Return the honest clients whose seeds the server can rebuild."""
        return self._rebuilt(self.loot.seed_shares)

    def opened_keys(self) -> set[int]:
        """Return the honest clients whose mask keys the server can rebuild."""
        return self._rebuilt(self.loot.key_shares)

    def _rebuilt(self, shares: Mapping[int, Mapping[int, bytes]]) -> set[int]:
        needed = self.parameters.threshold
        enough = {owner for owner, found in shares.items() if len(found) >= needed}
        return enough - self.setting.corrupt

    def groups(self) -> list[frozenset[int]]:
        """Return the smallest sets of honest clients whose sum the server knows.

        All other known sums are combinations of these. A client stays hidden if its seed is
        unknown, or if it has a mask in common with an honest client whose key is unknown and that
        is not in the same group or has not applied the mask on its side.
        """
        keys_known = self.opened_keys()
        left = self.opened_seeds() & self.masked.keys()
        hiding = {
            client: frozenset()
            if client in keys_known
            else self.hidden_by[client] - keys_known - self.setting.corrupt
            for client in left
        }
        while hidden := {
            client
            for client in left
            if any(peer not in left or client not in hiding[peer] for peer in hiding[client])
        }:
            left -= hidden
        found = []
        while left:
            group, frontier = set(), {min(left)}
            while frontier:
                group |= frontier
                frontier = {peer for one in frontier for peer in hiding[one]} - group
            found.append(frozenset(group))
            left -= group
        return found

    def opened_sum(self, group: Set[int]) -> NDArray[np.int64]:
        """Return the sum over a group, from masked vectors and rebuilt secrets alone."""
        total = np.zeros(SHAPE.length, SHAPE.ring.dtype)
        generator = MaskGenerator()
        for client in group:
            total += self.masked[client]
            generator.subtract(total, 0, [self._rebuild(self.loot.seed_shares[client])])
            for peer in self.hidden_by[client] - group:
                seed = self._common_seed(client, peer)
                # Undo what the client did.
                remove = generator.subtract if client < peer else generator.add
                remove(total, 0, [seed])
        return SHAPE.ring.reduce(total).astype(np.int64)

    def _common_seed(self, client: int, peer: int) -> bytes:
        known = peer if peer in self.opened_keys() | self.setting.corrupt else client
        other = client if known == peer else peer
        if known in self.setting.corrupt:
            private = self._corrupt_keys[known]
        else:
            private = self._rebuild(self.loot.key_shares[known])
        public = self.session._advertised[other].mask_keys[:KEY_BYTES]
        (agreed,) = keys.agree(private, [public])
        return keys.mask_seed(
            self.session.exchange.label, agreed, self.session.terms.run, 1, client, peer
        )

    def _rebuild(self, shares: Mapping[int, bytes]) -> bytes:
        (secret,) = combine(sorted(shares.items())[: self.parameters.threshold])
        return secret
