"""The server: relays messages, adds masked vectors and removes the remaining masks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from privirec.secagg import keys
from privirec.secagg.bell2020.messages import (
    Advertise,
    Confirm,
    Confirmed,
    Deliver,
    Neighbours,
    SealedShares,
    Shares,
    Survivors,
    Unmask,
)
from privirec.secagg.bell2020.shared import PAIR_BYTES, Scheme, survivors_statement
from privirec.secagg.errors import BadKey, BadShare, BelowThreshold, OutOfOrder, Unconfirmed
from privirec.secagg.graph import graph_seed, ranks_among_neighbours, ring_graph
from privirec.secagg.key_tree import HASH_BYTES, KeyTree, key_leaf
from privirec.secagg.keys import KEY_BYTES, TAG_BYTES, RandomBytes, Roster
from privirec.secagg.messages import ProtocolMessage, addressed, encode
from privirec.secagg.parameters import Parameters, Statement
from privirec.secagg.participants import write_participants
from privirec.secagg.prg import MaskGenerator
from privirec.secagg.protocol import Phase, ServerSettings, Step
from privirec.secagg.ring import VectorShape, Words
from privirec.secagg.server_base import BaseServer
from privirec.secagg.shamir import check_consistent, combine
from privirec.secagg.uploads import ChangeBlock


class BellServer(BaseServer):
    """A server that sees masked vectors and one of the two secrets of each client.

    `none` uses the same exchange without masks and overrides `draw_graph` and `seeds_to_remove`.
    """

    exchange: Scheme

    def __init__(
        self,
        scheme: Scheme,
        roster: Roster,
        statement: Statement,
        shapes: Sequence[VectorShape],
        settings: ServerSettings,
        random_bytes: RandomBytes,
    ) -> None:
        super().__init__(scheme, roster, statement, shapes, settings, random_bytes)
        scheme.parameters(statement)  # raise early if no parameters satisfy the statement
        self._advertised: dict[int, Advertise] = {}
        # Filled when the advertise step ends. From then on, clients are places in `_ids`.
        self._ids: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._place_of: dict[int, int] = {}
        self._map = b""
        self._tree: KeyTree | None = None
        self._graph = b""
        self._parameters = Parameters(0, 0)
        self._neighbours: NDArray[np.int64] = np.empty((0, 0), np.int64)
        self._ranks: NDArray[np.int64] = np.empty((0, 0), np.int64)
        self._shares: dict[int, tuple[bytes, bytes]] = {}
        # Data of the sum that is being opened.
        self._masking: NDArray[np.bool_] = np.empty(0, np.bool_)
        self._survived: NDArray[np.bool_] = np.empty(0, np.bool_)
        self._confirmed: dict[int, bytes] = {}
        self._collected: dict[int, list[tuple[int, bytes]]] = {}

    @property
    def parameters(self) -> Parameters:
        return self._parameters

    def messages(self, step: Step) -> Iterator[tuple[int, bytes]]:
        if step.name == "share":
            return self._neighbour_messages()
        if step.name == "unmask" and self._confirmed:
            return self._confirmed_messages()
        if step.phase is Phase.RECOVERY:
            return self._survivor_messages(step.sum_number)
        if step.sum_number == 1:
            return self._share_messages()
        return ((client, b"") for client in sorted(self.active))

    def take_answer(self, message: ProtocolMessage) -> None:
        if isinstance(message, Advertise):
            self._take_keys(message)
        elif isinstance(message, Shares):
            self._take_shares(message)
        elif isinstance(message, Confirm):
            self._take_confirmation(message)
        elif isinstance(message, Unmask):
            self._take_opened(message)
        else:
            raise OutOfOrder(f"{type(message).__name__} is not for the server")

    def step_over(self, step: Step) -> None:
        if step.name == "advertise":
            self._form_graph()
        elif step.name == "share":
            self._masking = self._places_of(self.active)
        elif step.name == "confirm":
            missing = len(self.survivors) - len(self._confirmed)
            if missing:
                raise Unconfirmed(
                    f"{missing} of {len(self.survivors)} clients have not confirmed who is in the "
                    "sum: no sum is opened"
                )
        else:
            self._survived = self._places_of(self.active)

    def sum_over(self) -> None:
        self._confirmed.clear()
        self._collected.clear()
        self._shares.clear()
        if self.participants:
            self._masking = self._places_of(self.active)

    # --- set-up -----------------------------------------------------------------------------------

    def _take_keys(self, message: Advertise) -> None:
        client = message.client
        if len(message.mask_keys) != self.terms.statement.rounds * KEY_BYTES:
            raise BadKey(f"client {client} does not have one key for each sum")
        keys.check_publics(message.sealing_key + message.mask_keys, client)
        signed = keys.advertised_bytes(self.digest, client, message.sealing_key, message.mask_keys)
        keys.verify(self.roster[client], message.signature, signed, client)
        self._advertised[client] = message

    def _form_graph(self) -> None:
        size = len(self.participants)
        self._parameters = self.exchange.parameters(self.terms.statement.with_clients(size))
        self._ids = np.array(self.participants, np.uint32)
        self._place_of = {client: place for place, client in enumerate(self.participants)}
        self._map = write_participants(self.participants, self.roster)
        self._neighbours = self.draw_graph()
        self._ranks = ranks_among_neighbours(self._neighbours)

    def draw_graph(self) -> NDArray[np.int64]:
        """Return the neighbours' places, shape (participants, degree).

        Row p lists the places of the neighbours of p, ascending.
        """
        advertised = (self._advertised[client] for client in self.participants)
        self._tree = KeyTree(
            [key_leaf(one.client, one.sealing_key, one.mask_keys) for one in advertised]
        )
        self._graph = graph_seed(self.digest, self._map, self._tree.root)
        size, degree = len(self.participants), self._parameters.neighbours
        return ring_graph(size, degree, self._graph).all_neighbours()

    def _neighbour_messages(self) -> Iterator[tuple[int, bytes]]:
        for place, client in enumerate(self.participants):
            peers = self._ids[self._neighbours[place]].tolist()
            message = Neighbours(
                self.terms.run,
                client,
                self._parameters.neighbours,
                self._parameters.threshold,
                self._map,
                self._tree.root if self._tree else bytes(HASH_BYTES),
                self._tree.path(place) if self._tree else (),
                tuple(self._advertised[peer] for peer in peers),
            )
            yield client, encode(message)

    def _take_shares(self, message: Shares) -> None:
        size = self.terms.statement.rounds * PAIR_BYTES + TAG_BYTES
        if [len(sealed) for sealed in message.sealed] != [size] * self._parameters.neighbours:
            raise BadShare(f"client {message.client} has not sent shares for all its neighbours")
        # One string per client: thousands of small objects per client would take too much memory.
        place = self._place_of[message.client]
        self._shares[place] = (message.nonce, b"".join(message.sealed))

    def _share_messages(self) -> Iterator[tuple[int, bytes]]:
        shares, self._shares = self._shares, {}
        size = self.terms.statement.rounds * PAIR_BYTES + TAG_BYTES
        for place in np.flatnonzero(self._masking).tolist():
            delivered = []
            ranks = self._ranks[place].tolist()
            for peer, rank in zip(self._neighbours[place].tolist(), ranks, strict=True):
                if peer in shares:
                    nonce, sealed = shares[peer]
                    part = sealed[size * rank : size * (rank + 1)]
                    delivered.append(SealedShares(int(self._ids[peer]), nonce, part))
            client = int(self._ids[place])
            yield client, encode(Deliver(self.terms.run, client, tuple(delivered)))

    # --- sums -------------------------------------------------------------------------------------

    def _survivor_messages(self, sum_number: int) -> Iterator[tuple[int, bytes]]:
        survivors = write_participants(self.survivors, self.roster)
        raw = encode(Survivors(self.terms.run, sum_number, 0, survivors))
        return ((client, addressed(raw, client)) for client in self.survivors)

    def _take_confirmation(self, message: Confirm) -> None:
        client = message.client
        survivors = write_participants(self.survivors, self.roster)
        signed = survivors_statement(self.digest, self._graph, self._parameters, survivors)
        keys.verify(self.roster[client], message.signature, signed, client)
        self._confirmed[client] = message.signature

    def _confirmed_messages(self) -> Iterator[tuple[int, bytes]]:
        for client in self.survivors:
            near, _ = self._lists(self._place_of[client])
            signatures = tuple(self._confirmed[peer] for peer in self._ids[near].tolist())
            yield client, encode(Confirmed(self.terms.run, 1, client, signatures))

    def _lists(self, place: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return a client's neighbours whose vectors arrived, and those whose vectors did not."""
        peers = self._neighbours[place]
        survived = self._survived[peers]
        return peers[survived], peers[self._masking[peers] & ~survived]

    def _take_opened(self, message: Unmask) -> None:
        place = self._place_of[message.client]
        survivors, dropped = self._lists(place)
        if len(message.seed_shares) != len(survivors) or len(message.key_shares) != len(dropped):
            raise BadShare(f"client {message.client} has not answered for all its neighbours")
        rank_at = dict(
            zip(self._neighbours[place].tolist(), self._ranks[place].tolist(), strict=True)
        )
        owners = survivors.tolist() + dropped.tolist()
        shares = message.seed_shares + message.key_shares
        for owner, share in zip(owners, shares, strict=True):
            collected = self._collected.setdefault(owner, [])
            # Keep one share more than needed, to check that the shares are consistent.
            if len(collected) <= self._parameters.threshold:
                collected.append((rank_at[owner] + 1, share))

    def masks_to_remove(self, sum_number: int) -> ChangeBlock:
        add, subtract = self.seeds_to_remove(sum_number)
        generator = MaskGenerator()

        def unmask(offset: int, block: Words) -> None:
            generator.add(block, offset, add)
            generator.subtract(block, offset, subtract)

        return unmask

    def seeds_to_remove(self, sum_number: int) -> tuple[list[bytes], list[bytes]]:
        """Return the seeds of the masks that remain in the total: (to add, to subtract)."""
        needed = self._parameters.threshold
        add: list[bytes] = []
        subtract: list[bytes] = []
        for owner in np.flatnonzero(self._masking).tolist():
            shares = self._collected.get(owner, [])
            if not self._survived[owner] and not self._survived[self._neighbours[owner]].any():
                continue  # no client in the sum has a mask with this client
            if len(shares) < needed:
                raise BelowThreshold(
                    f"{len(shares)} shares of a secret of client {self._ids[owner]} are left "
                    f"and {needed} are needed: no sum is opened"
                )
            if len(shares) > needed:
                check_consistent(shares)
            (secret,) = combine(shares[:needed])
            if self._survived[owner]:
                subtract.append(secret)
            else:
                self._remove_pairs(owner, sum_number, secret, add, subtract)
        return add, subtract

    def _remove_pairs(
        self,
        owner: int,
        sum_number: int,
        private: bytes,
        add: list[bytes],
        subtract: list[bytes],
    ) -> None:
        """Collect the seeds of the masks that survivors have in common with a dropped client."""
        client = int(self._ids[owner])
        if keys.public_key(private) != self._mask_key(client, sum_number):
            raise BadShare(f"the opened key of client {client} is not the advertised one")
        peers = self._neighbours[owner]
        survivors = self._ids[peers[self._survived[peers]]].tolist()
        label = self.exchange.label
        publics = (self._mask_key(peer, sum_number) for peer in survivors)
        for peer, agreed in zip(survivors, keys.agree(private, publics), strict=True):
            seed = keys.mask_seed(
                *(label, agreed, self.terms.run, sum_number, client, peer, self.asked)
            )
            # The survivor added the mask if its id is the lower one; undo what it did.
            (subtract if peer < client else add).append(seed)

    def _mask_key(self, client: int, sum_number: int) -> bytes:
        start = (sum_number - 1) * KEY_BYTES
        return self._advertised[client].mask_keys[start : start + KEY_BYTES]

    def _places_of(self, clients: set[int]) -> NDArray[np.bool_]:
        found = np.zeros(len(self._ids), np.bool_)
        found[[self._place_of[client] for client in clients]] = True
        return found
