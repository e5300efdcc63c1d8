"""The client: every check it makes before it answers."""

from __future__ import annotations

from array import array
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from privirec.secagg import keys
from privirec.secagg.bell2020.messages import (
    Advertise,
    Deliver,
    Neighbours,
    Shares,
    Survivors,
    Unmask,
)
from privirec.secagg.bell2020.shared import PAIR_BYTES, Scheme
from privirec.secagg.bell2020.state import BellState
from privirec.secagg.client_base import BaseClient
from privirec.secagg.errors import (
    BadKey,
    BadShare,
    BelowThreshold,
    CohortChanged,
    IncompleteLists,
    ListsOverlap,
    OutOfOrder,
    RosterMismatch,
    Stranger,
    TooManyDropped,
    WeakParameters,
)
from privirec.secagg.graph import check_neighbourhood, graph_seed, ring_graph
from privirec.secagg.keys import KEY_BYTES, NONCE_BYTES, Secret
from privirec.secagg.messages import Message, encode
from privirec.secagg.parameters import PPM, Parameters, is_secure, is_steadfast
from privirec.secagg.participants import COHORT_CHANGED, accepted_participants, check_cohort
from privirec.secagg.prg import SEED_BYTES, MaskGenerator
from privirec.secagg.ring import Words
from privirec.secagg.shamir import SHARE_BYTES, split
from privirec.secagg.uploads import ChangeBlock

# Indices in `Scheme.told` of what a client waits for.
_DELIVER, _SURVIVORS = 2, 3


class BellClient(BaseClient[BellState]):
    """A client that checks what it can see alone; docs/secagg-wire.md says what it cannot.

    `none` is the same exchange without masks: it has its own `deal_shares` and `mask_seeds`.
    """

    exchange: Scheme

    @property
    def ready(self) -> bool:
        return self.state.stage == _SURVIVORS

    def answer(self, message: Message, raw: bytes) -> bytes | None:
        if isinstance(message, Neighbours):
            return self._share(message)
        if isinstance(message, Deliver):
            self._store(message)
            return None
        if isinstance(message, Survivors):
            return self._unmask(message, raw)
        raise OutOfOrder(f"{type(message).__name__} is not for a client")

    def check_summed(self, clients: frozenset[int]) -> None:
        state = self.state
        if state.sum_number == 1:
            raise OutOfOrder("no sum was opened yet")
        if (
            self.client not in clients
            or len(clients) != state.summed
            or not clients.issuperset(state.active)
            or not clients <= self.participants
            or not clients.isdisjoint(state.gone)
        ):
            raise CohortChanged("the list of clients in the sum does not fit the sum")

    # --- set-up -----------------------------------------------------------------------------------

    def join(self) -> bytes:
        """Fresh keys for all sums, signed."""
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
        signed = keys.advertised_bytes(announcement.digest, self.client, sealing, masks)
        signature = self.identity.sign(signed)
        return encode(Advertise(announcement.terms.run, self.client, sealing, masks, signature))

    def _share(self, message: Neighbours) -> bytes:
        """Check who takes part; answer with sealed shares of all sums' secrets."""
        state = self.state
        participants = accepted_participants(
            message.participants, self.client, self.announcement.terms, self.roster, self.policy
        )
        state.participants = message.participants
        state.cohort_size = len(participants)
        shares = self.deal_shares(message, participants)
        state.stage = _DELIVER
        return encode(shares)

    def deal_shares(self, message: Neighbours, participants: NDArray[np.uint32]) -> Shares:
        """Check graph, parameters and keys; share all sums' secrets among the neighbours."""
        announcement, state = self.announcement, self.state
        run, digest = announcement.terms.run, announcement.digest
        listed = [key.client for key in message.keys]
        expected = self._expected_neighbours(message, participants)
        check_neighbourhood(self.client, listed, message.neighbours, expected)
        sums = announcement.terms.statement.rounds
        for key in message.keys:
            if len(key.mask_keys) != sums * KEY_BYTES:
                raise BadKey(f"client {key.client} has not got one key for each sum")
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
        sealed, opening = [], bytearray()
        for peer, secret, shares in zip(listed, agreed, dealt, strict=True):
            key_out = keys.sealing_key(secret, run, self.client, peer)
            context = keys.shares_context(digest, self.client, peer)
            sealed.append(keys.seal(key_out, nonce, shares, context))
            opening += keys.sealing_key(secret, run, peer, self.client)
        state.sealing_private.wipe()
        state.opening_keys = Secret(opening)
        state.peers = array("I", listed)
        state.peer_mask_keys = b"".join(key.mask_keys for key in message.keys)
        state.degree, state.threshold = message.neighbours, message.threshold
        return Shares(run, self.client, nonce, tuple(sealed))

    def _expected_neighbours(
        self, message: Neighbours, participants: NDArray[np.uint32]
    ) -> list[int]:
        """This client's neighbours in the public graph, once its parameters will do."""
        size, policy = len(participants), self.policy
        terms = self.announcement.terms.statement.with_clients(size)
        terms = replace(
            terms,
            corrupt_ppm=max(terms.corrupt_ppm, round(policy.corrupt_share * PPM)),
            dropped_ppm=max(terms.dropped_ppm, round(policy.dropped_share * PPM)),
            security_bits=max(terms.security_bits, policy.security_bits),
        )
        own = self.exchange.parameters(terms)
        given = Parameters(message.neighbours, message.threshold)
        if (
            given.neighbours < own.neighbours
            or given.threshold < own.threshold
            # More neighbours, but a smaller part of them opens a secret.
            or given.threshold * own.neighbours < own.threshold * given.neighbours
            or not is_secure(terms, given)
        ):
            raise WeakParameters(
                f"{given.neighbours} neighbours and threshold {given.threshold}, where this "
                f"client computes {own.neighbours} and {own.threshold}"
            )
        if self.exchange.complete and not is_steadfast(terms, given):
            raise WeakParameters(
                f"threshold {given.threshold} of {given.neighbours}: a server that tells clients "
                "different stories could open both secrets of one"
            )
        seed = graph_seed(self.announcement.digest, message.participants)
        graph = ring_graph(size, given.neighbours, seed)
        place = int(np.searchsorted(participants, self.client))
        return participants[graph.neighbours(place)].tolist()

    def _store(self, message: Deliver) -> None:
        """Open the neighbours' shares; those who sent none are out of the run."""
        state, sums = self.state, self.announcement.terms.statement.rounds
        index = {peer: number for number, peer in enumerate(state.peers)}
        senders = [share.sender for share in message.shares]
        if not index.keys() >= set(senders):
            raise Stranger("shares from a client that is not a neighbour")
        if len(senders) < state.threshold:
            raise BelowThreshold(f"shares of {len(senders)} neighbours, fewer than the threshold")
        # A server that keeps shares back chooses whose masks hide this client's vector.
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

    def masks(self, sum_number: int) -> ChangeBlock:
        add, subtract = self.mask_seeds(sum_number)
        generator = MaskGenerator()

        def hide(offset: int, block: Words) -> None:
            generator.add(block, offset, add)
            generator.subtract(block, offset, subtract)

        return hide

    def mask_seeds(self, sum_number: int) -> tuple[list[bytes], list[bytes]]:
        """Seeds of this sum's masks: (to add, to subtract)."""
        state, terms = self.state, self.announcement.terms
        stride = terms.statement.rounds * KEY_BYTES
        start = (sum_number - 1) * KEY_BYTES
        private = state.mask_privates.reveal(start, start + KEY_BYTES)
        index = {peer: place for place, peer in enumerate(state.peers)}
        at = [stride * index[peer] + start for peer in state.active]
        publics = (state.peer_mask_keys[place : place + KEY_BYTES] for place in at)
        add = [state.seeds.reveal(start, start + SEED_BYTES)]
        subtract: list[bytes] = []
        for peer, agreed in zip(state.active, keys.agree(private, publics), strict=True):
            seed = keys.mask_seed(agreed, terms.run, sum_number, self.client, peer)
            (add if self.client < peer else subtract).append(seed)
        return add, subtract

    def _unmask(self, message: Survivors, raw: bytes) -> bytes:
        """Open one secret of every peer: the seed of a survivor, the key of one who dropped."""
        self.check_unanswered(message, raw)
        self.check_lists(message)
        self.check_survivors(message)
        state, number = self.state, message.round_number
        index = {peer: place for place, peer in enumerate(state.peers)}
        start = (number - 1) * len(state.peers) * PAIR_BYTES
        stop = number * len(state.peers) * PAIR_BYTES
        held = state.held_shares.reveal(start, stop)
        at = [index[peer] * PAIR_BYTES for peer in message.survivors]
        seed_shares = tuple(held[place : place + SHARE_BYTES] for place in at)
        at = [index[peer] * PAIR_BYTES + SHARE_BYTES for peer in message.dropped]
        key_shares = tuple(held[place : place + SHARE_BYTES] for place in at)

        state.held_shares.wipe(stop)
        state.seeds.wipe(number * SEED_BYTES)
        state.mask_privates.wipe(number * KEY_BYTES)
        state.active = array("I", message.survivors)
        state.gone = array("I", sorted({*state.gone, *message.dropped}))
        state.summed = message.cohort
        self.finish_sum(raw)
        return encode(Unmask(message.run, number, self.client, seed_shares, key_shares))

    def check_lists(self, message: Survivors) -> None:
        """The two lists must divide the peers of this sum between them."""
        survivors, dropped = set(message.survivors), set(message.dropped)
        if survivors & dropped:
            raise ListsOverlap(
                f"client {min(survivors & dropped)} is named as a survivor and as dropped"
            )
        active = set(self.state.active)
        if not active >= survivors | dropped:
            raise Stranger("the lists name a client without secrets in this sum")
        if survivors | dropped != active:
            raise IncompleteLists("a client with secrets in this sum is on neither list")

    def check_survivors(self, message: Survivors) -> None:
        """Enough clients must be left, and after the first sum all the same ones."""
        state, size = self.state, self.state.cohort_size
        if state.sum_number > 1 and (message.dropped or message.cohort != state.summed):
            raise CohortChanged(COHORT_CHANGED)
        # Neighbours that are gone are not in the sum: in the complete graph this leaves one number.
        gone = state.degree - len(message.survivors)
        if not len(message.survivors) < message.cohort <= size - gone:
            raise RosterMismatch(f"a sum over {message.cohort} clients cannot be")
        check_cohort(message.cohort, self.policy, self.announcement.terms.min_cohort)
        allowed = self._allowed_to_drop()
        if message.cohort < size - allowed:
            raise TooManyDropped(f"{size - message.cohort} clients dropped, {allowed} may")
        if len(message.survivors) < state.threshold:
            raise BelowThreshold(
                f"{len(message.survivors)} neighbours survive, fewer than the threshold"
            )

    def _allowed_to_drop(self) -> int:
        return self.announcement.terms.statement.with_clients(self.state.cohort_size).dropped
