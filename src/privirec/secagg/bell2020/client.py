"""The client: every check it makes before it answers."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from privirec.secagg import keys
from privirec.secagg.bell2020.messages import (
    Advertise,
    Confirm,
    Confirmed,
    Deliver,
    Neighbours,
    Shares,
    Survivors,
    Unmask,
)
from privirec.secagg.bell2020.shared import PAIR_BYTES, Scheme, survivors_statement
from privirec.secagg.client_base import BaseClient
from privirec.secagg.errors import (
    BadKey,
    BadShare,
    BelowThreshold,
    CohortChanged,
    NotInGraph,
    OutOfOrder,
    ReplayedMessage,
    SecondSurvivorSet,
    Stranger,
    TooManyDropped,
    Unconfirmed,
    WeakParameters,
)
from privirec.secagg.graph import check_neighbourhood, graph_seed, ring_graph
from privirec.secagg.key_tree import check_path, key_leaf
from privirec.secagg.keys import KEY_BYTES, NONCE_BYTES, Secret
from privirec.secagg.messages import ProtocolMessage, encode
from privirec.secagg.parameters import (
    PPM,
    Parameters,
    Statement,
    is_secure,
    is_steadfast,
)
from privirec.secagg.participants import (
    COHORT_CHANGED,
    accepted_participants,
    check_cohort,
    check_map,
    is_in,
    is_subset,
    mapped,
    one_copy,
    read_participants,
)
from privirec.secagg.prg import SEED_BYTES, MaskGenerator
from privirec.secagg.ring import Words
from privirec.secagg.shamir import SHARE_BYTES, split
from privirec.secagg.stored import StoredState
from privirec.secagg.uploads import ChangeBlock

# Indices in `Scheme.told` of the message that a client waits for.
_DELIVER, _SURVIVORS, _CONFIRMED = 2, 3, 4


@dataclass(slots=True)
class BellState(StoredState):
    """State of one client."""

    cohort_size: int = 0
    """Number of participants."""
    degree: int = 0
    """Number of neighbours in the graph, including those that sent no shares."""
    threshold: int = 0
    leaf: bytes = b""
    """The client's own leaf in the tree of keys."""
    graph: bytes = b""
    """Seed of the graph."""
    cohort: bytes = b""
    """Bit map of the clients in the first sum, once accepted; later sums have the same."""
    peers: array[int] = field(default_factory=lambda: array("I"))
    """Neighbours, ascending; once shares are delivered, only those that sent shares."""
    active: array[int] = field(default_factory=lambda: array("I"))
    """Peers with common masks in this sum: those that sent shares, later those that survived."""
    gone: array[int] = field(default_factory=lambda: array("I"))
    """Neighbours that sent no shares."""
    peer_mask_keys: bytes = b""
    """Public mask keys for all sums, of the first peer, then of the second, and so on."""
    sealing_private: Secret = field(default_factory=lambda: Secret(b""))
    mask_privates: Secret = field(default_factory=lambda: Secret(b""))
    seeds: Secret = field(default_factory=lambda: Secret(b""))
    opening_keys: Secret = field(default_factory=lambda: Secret(b""))
    """Keys that open the shares from each peer."""
    held_shares: Secret = field(default_factory=lambda: Secret(b""))
    """Shares from the peers, ordered by sum, then by peer."""


class BellClient(BaseClient[BellState]):
    """A client of Bell et al.

    It checks everything that it can see by itself. Against an active server, it opens nothing
    before its neighbours have confirmed that they received the same list of survivors. `none` uses
    the same exchange without masks and overrides `deal_shares` and `mask_seeds`.
    """

    exchange: Scheme

    @property
    def ready(self) -> bool:
        return self.state.stage >= _SURVIVORS

    @property
    def confirms(self) -> bool:
        """True if clients confirm the first sum's survivors, because the server may be lying."""
        statement = self.announcement.terms.statement
        return bool(self.exchange.schedule_for(statement).first_recovery)

    def check_turn(self, message: ProtocolMessage) -> None:
        state = self.state
        if isinstance(message, Survivors) and state.stage == _CONFIRMED:
            return  # `_confirm` handles a repeated one
        if isinstance(message, Confirmed) and state.sum_number > 1:
            raise ReplayedMessage("the first sum was unmasked before")
        super().check_turn(message)

    def answer(self, message: ProtocolMessage, raw: bytes) -> bytes | None:
        if isinstance(message, Neighbours):
            return self._share(message)
        if isinstance(message, Deliver):
            self._store(message)
            return None
        if isinstance(message, Survivors):
            if self.confirms and message.sum_number == 1:
                return self._confirm(message)
            return self._unmask(message, raw)
        if isinstance(message, Confirmed):
            self.check_confirmed(message)
            return self._open_shares(1, raw)
        raise OutOfOrder(f"{type(message).__name__} is not for a client")

    def check_summed(self, clients: frozenset[int]) -> None:
        if not self.state.cohort:
            raise OutOfOrder("it is not known yet who is in the sum")
        if clients != self._clients_in(self.state.cohort):
            raise CohortChanged("the list of clients in the sum does not fit the sum")

    # --- set-up -----------------------------------------------------------------------------------

    def join(self) -> bytes:
        """Return fresh keys for all sums, signed."""
        state, announcement = self.state, self.announcement
        sums = announcement.terms.statement.rounds
        secrets = self.random(KEY_BYTES + sums * (KEY_BYTES + SEED_BYTES))
        middle = KEY_BYTES * (1 + sums)
        state.sealing_private = Secret(secrets[:KEY_BYTES])
        state.mask_privates = Secret(secrets[KEY_BYTES:middle])
        state.seeds = Secret(secrets[middle:])
        sealing = keys.public_key(secrets[:KEY_BYTES])
        masks = b"".join(
            keys.public_key(secrets[start : start + KEY_BYTES])
            for start in range(KEY_BYTES, middle, KEY_BYTES)
        )
        state.leaf = key_leaf(self.client, sealing, masks)
        signed = keys.advertised_bytes(announcement.digest, self.client, sealing, masks)
        signature = self.identity.sign(signed)
        return encode(Advertise(announcement.terms.run, self.client, sealing, masks, signature))

    def _share(self, message: Neighbours) -> bytes:
        """Check the participants; return sealed shares of the secrets of all sums."""
        state = self.state
        participants = accepted_participants(
            message.participants, self.client, self.announcement.terms, self.roster, self.policy
        )
        state.participants = one_copy(message.participants)
        state.cohort_size = len(participants)
        shares = self.deal_shares(message, participants)
        state.stage = _DELIVER
        return encode(shares)

    def deal_shares(self, message: Neighbours, participants: NDArray[np.uint32]) -> Shares:
        """Check graph, parameters and keys; share the secrets of all sums among the neighbours."""
        announcement, state = self.announcement, self.state
        run, digest = announcement.terms.run, announcement.digest
        listed = [key.client for key in message.keys]
        expected = self._expected_neighbours(message, participants)
        check_neighbourhood(self.client, listed, message.neighbours, expected)
        sums = announcement.terms.statement.rounds
        for key in message.keys:
            if len(key.mask_keys) != sums * KEY_BYTES:
                raise BadKey(f"client {key.client} does not have one key for each sum")
            keys.check_publics(key.sealing_key + key.mask_keys, key.client)
            signed = keys.advertised_bytes(digest, key.client, key.sealing_key, key.mask_keys)
            keys.verify(self.roster[key.client], key.signature, signed, key.client)

        privates, seeds = state.mask_privates.reveal(), state.seeds.reveal()
        secrets = []
        for start in range(0, sums * KEY_BYTES, KEY_BYTES):
            secrets += [seeds[start : start + SEED_BYTES], privates[start : start + KEY_BYTES]]
        dealt = split(secrets, message.neighbours, message.threshold, self.random)
        nonce = self.random(NONCE_BYTES)
        agreed = keys.agree(
            state.sealing_private.reveal(), (key.sealing_key for key in message.keys)
        )
        label, sealed, opening = self.exchange.label, [], bytearray()
        for peer, secret, shares in zip(listed, agreed, dealt, strict=True):
            key_out = keys.sealing_key(label, secret, run, self.client, peer)
            context = keys.shares_context(digest, self.client, peer)
            sealed.append(keys.seal(key_out, nonce, shares, context))
            opening += keys.sealing_key(label, secret, run, peer, self.client)
        state.sealing_private.wipe()
        state.opening_keys = Secret(opening)
        state.peers = array("I", listed)
        state.peer_mask_keys = b"".join(key.mask_keys for key in message.keys)
        state.degree, state.threshold = message.neighbours, message.threshold
        return Shares(run, self.client, nonce, tuple(sealed))

    def _expected_neighbours(
        self, message: Neighbours, participants: NDArray[np.uint32]
    ) -> list[int]:
        """Return this client's neighbours in the public graph, after a check of the parameters."""
        size, policy = len(participants), self.policy
        terms = self.announcement.terms.statement.with_clients(size)
        terms = replace(
            terms,
            corrupt_ppm=max(terms.corrupt_ppm, round(policy.corrupt_share * PPM)),
            dropped_ppm=max(terms.dropped_ppm, round(policy.dropped_share * PPM)),
            security_bits=max(terms.security_bits, policy.security_bits),
        )
        given = Parameters(message.neighbours, message.threshold)
        self._check_parameters(given, terms)
        place = int(np.searchsorted(participants, self.client))
        check_path(self.state.leaf, place, size, message.path, message.root)
        seed = graph_seed(self.announcement.digest, message.participants, message.root)
        self.state.graph = seed
        graph = ring_graph(size, given.neighbours, seed)
        return participants[graph.neighbours(place)].tolist()

    def _check_parameters(self, given: Parameters, terms: Statement) -> None:
        """Raise WeakParameters if the graph is weaker than the one this client computes itself."""
        own = self.exchange.parameters(terms)
        if self.confirms:
            # The server must not choose parameters, or it could try one graph after the other.
            too_weak = given != own
        else:
            too_weak = (
                given.neighbours < own.neighbours
                or given.threshold < own.threshold
                # With more neighbours, a smaller fraction of them must not suffice to open a
                # secret.
                or given.threshold * own.neighbours < own.threshold * given.neighbours
                or not is_secure(terms, given)
            )
        if too_weak:
            raise WeakParameters(
                f"{given.neighbours} neighbours and threshold {given.threshold}, where this "
                f"client computes {own.neighbours} and {own.threshold}"
            )
        if self.exchange.complete and not self.confirms and not is_steadfast(terms, given):
            raise WeakParameters(
                f"threshold {given.threshold} of {given.neighbours}: a server that tells clients "
                "different stories could open both secrets of one"
            )

    def _store(self, message: Deliver) -> None:
        """Open the neighbours' shares; neighbours that sent none are out of the run."""
        state, sums = self.state, self.announcement.terms.statement.rounds
        index = {peer: number for number, peer in enumerate(state.peers)}
        senders = [share.sender for share in message.shares]
        if not index.keys() >= set(senders):
            raise Stranger("shares from a client that is not a neighbour")
        if len(senders) < state.threshold:
            raise BelowThreshold(f"shares of {len(senders)} neighbours, fewer than the threshold")
        # A server that withholds shares chooses the masks that hide this client's vector.
        if state.degree - len(senders) > self._allowed_to_drop():
            raise TooManyDropped(
                f"{state.degree - len(senders)} neighbours sent no shares, "
                f"{self._allowed_to_drop()} clients may drop"
            )
        plain, mask_keys = [], []
        for share in message.shares:
            number = index[share.sender]
            key = state.opening_keys.reveal(KEY_BYTES * number, KEY_BYTES * (number + 1))
            context = keys.shares_context(self.announcement.digest, share.sender, self.client)
            opened = keys.unseal(key, share.nonce, share.sealed, context)
            if len(opened) != sums * PAIR_BYTES:
                raise BadShare(f"client {share.sender} has not dealt two shares for each sum")
            plain.append(opened)
            size = sums * KEY_BYTES
            mask_keys.append(state.peer_mask_keys[size * number : size * (number + 1)])
        state.held_shares = Secret(
            b"".join(
                shares[start : start + PAIR_BYTES]
                for start in range(0, sums * PAIR_BYTES, PAIR_BYTES)
                for shares in plain
            )
        )
        state.opening_keys.wipe()
        state.gone = array("I", sorted(index.keys() - set(senders)))
        state.peers = array("I", senders)
        state.active = array("I", senders)
        state.peer_mask_keys = b"".join(mask_keys)
        state.stage = _SURVIVORS

    # --- sums -------------------------------------------------------------------------------------

    def masks(self, sum_number: int, asked: bytes) -> ChangeBlock:
        add, subtract = self.mask_seeds(sum_number, asked)
        generator = MaskGenerator()

        def hide(offset: int, block: Words) -> None:
            generator.add(block, offset, add)
            generator.subtract(block, offset, subtract)

        return hide

    def mask_seeds(self, sum_number: int, asked: bytes) -> tuple[list[bytes], list[bytes]]:
        """Return the seeds of this sum's masks: (to add, to subtract)."""
        state, terms = self.state, self.announcement.terms
        stride = terms.statement.rounds * KEY_BYTES
        start = (sum_number - 1) * KEY_BYTES
        private = state.mask_privates.reveal(start, start + KEY_BYTES)
        index = {peer: place for place, peer in enumerate(state.peers)}
        at = [stride * index[peer] + start for peer in state.active]
        publics = (state.peer_mask_keys[place : place + KEY_BYTES] for place in at)
        add = [state.seeds.reveal(start, start + SEED_BYTES)]
        subtract: list[bytes] = []
        label = self.exchange.label
        for peer, agreed in zip(state.active, keys.agree(private, publics), strict=True):
            seed = keys.mask_seed(label, agreed, terms.run, sum_number, self.client, peer, asked)
            (add if self.client < peer else subtract).append(seed)
        return add, subtract

    def _confirm(self, message: Survivors) -> bytes:
        """Check the first sum's survivors and sign them once, so that a second list is refused."""
        state = self.state
        if state.cohort:
            if message.survivors != state.cohort:
                raise SecondSurvivorSet("another set of survivors for sum 1")
            raise ReplayedMessage("the survivors of sum 1 were confirmed before")
        if not state.input_sent:
            raise OutOfOrder("no input was sent for sum 1")
        self.check_survivors(message.survivors)
        state.cohort = one_copy(message.survivors)
        state.stage = _CONFIRMED
        signature = self.identity.sign(self._statement())
        return encode(Confirm(message.run, 1, self.client, signature))

    def check_confirmed(self, message: Confirmed) -> None:
        """Raise a ProtocolError unless all neighbours in the sum signed the same survivors.

        A number that outnumbers any conflicting signatures would suffice to protect both secrets of
        a client. Requiring all of them makes the protection mutual: a client whose vector this
        client's masks hide also hides this client's vector with its own masks.
        """
        survivors, _ = self._lists()
        if len(message.signatures) != len(survivors):
            raise Unconfirmed(
                f"{len(message.signatures)} of {len(survivors)} neighbours in the sum confirm who "
                "is in it"
            )
        statement = self._statement()
        for peer, signature in zip(survivors, message.signatures, strict=True):
            keys.verify(self.roster[peer], signature, statement, peer)

    def _unmask(self, message: Survivors, raw: bytes) -> bytes:
        """Open a sum whose survivors need no confirmation."""
        self.check_unanswered(message, raw)
        self.check_survivors(message.survivors)
        self.state.cohort = one_copy(message.survivors)
        return self._open_shares(message.sum_number, raw)

    def _open_shares(self, number: int, raw: bytes) -> bytes:
        """Open one secret of every peer: the seed of a survivor, the key of a dropped client."""
        state = self.state
        survivors, dropped = self._lists()
        index = {peer: place for place, peer in enumerate(state.peers)}
        start = (number - 1) * len(state.peers) * PAIR_BYTES
        stop = number * len(state.peers) * PAIR_BYTES
        held = state.held_shares.reveal(start, stop)
        at = [index[peer] * PAIR_BYTES for peer in survivors]
        seed_shares = tuple(held[place : place + SHARE_BYTES] for place in at)
        at = [index[peer] * PAIR_BYTES + SHARE_BYTES for peer in dropped]
        key_shares = tuple(held[place : place + SHARE_BYTES] for place in at)

        state.held_shares.wipe(stop)
        state.seeds.wipe(number * SEED_BYTES)
        state.mask_privates.wipe(number * KEY_BYTES)
        state.active = array("I", survivors)
        state.stage = _SURVIVORS
        self.finish_sum(raw)
        run = self.announcement.terms.run
        return encode(Unmask(run, number, self.client, seed_shares, key_shares))

    def check_survivors(self, bitmap: bytes) -> None:
        """Raise a ProtocolError unless the survivors are acceptable.

        They must include this client, consist of known clients, be numerous enough and never
        change.
        """
        state, size = self.state, self.state.cohort_size
        if state.sum_number > 1:
            if bitmap != state.cohort:
                raise CohortChanged(COHORT_CHANGED)
            return
        check_map(bitmap, self.roster)
        if not is_subset(bitmap, state.participants):
            raise Stranger("a client that takes no part is said to be in the sum")
        if self._those_in(bitmap, state.gone):
            raise Stranger("a neighbour whose shares never came is said to be in the sum")
        if not is_in(bitmap, self.client, self.roster):
            raise NotInGraph(f"client {self.client} is missing from the sum it is to open")
        survivors = mapped(bitmap)
        check_cohort(survivors, self.policy, self.announcement.terms.min_cohort)
        allowed = self._allowed_to_drop()
        if survivors < size - allowed:
            raise TooManyDropped(f"{size - survivors} clients dropped, {allowed} may")
        near = len(self._those_in(bitmap, state.active))
        if near < state.threshold:
            raise BelowThreshold(f"{near} neighbours survive, fewer than the threshold")

    # --- helpers ----------------------------------------------------------------------------------

    def _lists(self) -> tuple[list[int], list[int]]:
        """Return the peers that are in this sum, and those that are not."""
        survivors = self._those_in(self.state.cohort, self.state.active)
        inside = set(survivors)
        return survivors, [peer for peer in self.state.active if peer not in inside]

    def _statement(self) -> bytes:
        state = self.state
        given = Parameters(state.degree, state.threshold)
        digest = self.announcement.digest
        return survivors_statement(digest, state.graph, given, state.cohort)

    def _those_in(self, bitmap: bytes, clients: Iterable[int]) -> list[int]:
        """Return the clients that are in a map, in the given order."""
        return [client for client in clients if is_in(bitmap, client, self.roster)]

    def _clients_in(self, bitmap: bytes) -> frozenset[int]:
        return frozenset(read_participants(bitmap, self.roster).tolist())

    def _allowed_to_drop(self) -> int:
        return self.announcement.terms.statement.with_clients(self.state.cohort_size).dropped
