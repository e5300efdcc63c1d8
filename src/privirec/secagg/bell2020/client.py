"""The client: every check it makes before it answers."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privirec.secagg import keys
from privirec.secagg.bell2020.shared import COHORT_CHANGED, PAIR_BYTES, Scheme, least_participants
from privirec.secagg.bell2020.state import ClientState
from privirec.secagg.errors import (
    BadContribution,
    BadDump,
    BadKey,
    BadShare,
    BelowThreshold,
    CohortChanged,
    CohortDiffers,
    CohortTooSmall,
    IncompleteLists,
    ListsOverlap,
    NotInGraph,
    OutOfOrder,
    ProtocolError,
    ReplayedMessage,
    RingTooNarrow,
    RosterMismatch,
    SecondInput,
    SecondSurvivorSet,
    SecondUnmask,
    SessionClosed,
    Stranger,
    TooManyDropped,
    WeakParameters,
    WrongProtocol,
    WrongRun,
)
from privirec.secagg.graph import check_neighbourhood, graph_seed, read_participants, ring_graph
from privirec.secagg.keys import KEY_BYTES, NONCE_BYTES, Identity, Roster, Secret
from privirec.secagg.messages import (
    Advertise,
    Announce,
    Deliver,
    Masked,
    Message,
    Neighbours,
    Shares,
    Survivors,
    Unmask,
    decode,
    encode,
)
from privirec.secagg.parameters import PPM, Parameters, is_secure, is_steadfast
from privirec.secagg.prg import SEED_BYTES, MaskGenerator
from privirec.secagg.protocol import ClientPolicy, ClientSession
from privirec.secagg.randomness import RandomBytes
from privirec.secagg.ring import rechunked
from privirec.secagg.shamir import SHARE_BYTES, split

_STAGES: dict[type, int] = {Announce: 0, Neighbours: 1, Deliver: 2, Survivors: 3}


class BellClient(ClientSession):
    """A client that checks what it can see alone; docs/secagg-wire.md says what it cannot."""

    def __init__(
        self,
        scheme: Scheme,
        state: ClientState,
        *,
        identity: Identity,
        roster: Roster,
        policy: ClientPolicy,
        random_bytes: RandomBytes,
    ) -> None:
        self.client = state.client
        self._scheme = scheme
        self._state = state
        self._identity = identity
        self._roster = roster
        self._policy = policy
        self._random = random_bytes
        self._closed = False
        self._announced: Announce | None = None
        self._digest = b""
        if state.announcement:
            announced = decode(state.announcement)
            if not isinstance(announced, Announce) or announced.roster != roster.digest:
                raise BadDump("stored state of a run with another roster")
            if roster[state.client] != identity.public:
                raise BadDump(f"stored state of client {state.client}, which has another identity")
            self._remember(announced)

    def __repr__(self) -> str:
        return f"<{self._scheme.name} client {self.client}, secrets <redacted>>"

    def dump(self) -> bytes:
        self._check_open()
        return self._state.dump(self._scheme.code)

    def close(self) -> None:
        self._closed = True
        self._state.wipe()

    def receive(self, message: bytes) -> bytes | None:
        self._check_open()
        try:
            return self._receive(decode(message), message)
        except ProtocolError as error:
            if error.fatal:
                self.close()
            raise

    def contribute(self, round_number: int, blocks: Iterable[NDArray[Any]]) -> Iterator[bytes]:
        self._check_open()
        state = self._state
        if state.stage < _STAGES[Survivors] or round_number > state.round_number:
            raise OutOfOrder(f"client {self.client} is not ready for round {round_number}")
        if round_number > self._announce.statement.rounds:
            raise OutOfOrder(f"the run has no round {round_number}")
        if round_number < state.round_number or state.input_begun:
            raise SecondInput(f"round {round_number} has had its contribution: masks serve once")
        state.input_begun = 1
        # Now and not when the first block is asked for: the secrets may be gone by then.
        try:
            add, subtract = self._mask_seeds()
        except ProtocolError:
            self.close()
            raise
        return self._masked_blocks(blocks, add, subtract)

    # --- set-up -----------------------------------------------------------------------------------

    def _receive(self, message: Message, raw: bytes) -> bytes | None:
        state = self._state
        if self._announced and message.run != self._announced.run:
            raise WrongRun("a message of another run")
        if not isinstance(message, Announce) and message.client != self.client:
            raise WrongRun(f"a message for client {message.client}, not {self.client}")
        expected = _STAGES.get(type(message))
        if expected is None or expected > state.stage:
            raise OutOfOrder(f"{type(message).__name__} comes too early or from a client")
        if expected < state.stage:
            raise ReplayedMessage(f"{type(message).__name__} was answered before")
        if isinstance(message, Announce):
            return self._advertise(message, raw)
        if isinstance(message, Neighbours):
            return self._share(message)
        if isinstance(message, Deliver):
            self._store(message)
            return None
        assert isinstance(message, Survivors)  # noqa: S101 - the last of _STAGES
        return self._unmask(message, raw)

    def _remember(self, announced: Announce) -> None:
        self._announced = announced
        self._digest = hashlib.sha256(self._state.announcement).digest()

    @property
    def _announce(self) -> Announce:
        if self._announced is None:
            raise OutOfOrder("no run was announced")
        return self._announced

    def _advertise(self, message: Announce, raw: bytes) -> bytes:
        """Check the terms; answer with fresh keys for all rounds, signed."""
        terms = message.statement
        if message.protocol != self._scheme.code:
            raise WrongProtocol(f"protocol {message.protocol} is not {self._scheme.name}")
        if message.roster != self._roster.digest or terms.clients != len(self._roster):
            raise RosterMismatch("the announced roster is not the one this client knows")
        if self.client not in self._roster:
            raise NotInGraph(f"client {self.client} is not in the roster")
        self._check_cohort(terms.clients, message.min_cohort)
        if terms.dropped_ppm > round(self._policy.max_dropped_share * PPM):
            raise WeakParameters(
                f"{terms.dropped_ppm} of a million clients may drop out, where this client "
                f"accepts {round(self._policy.max_dropped_share * PPM)}"
            )
        for shape in message.shapes:
            if shape.bounds_sum and not self._policy.proven_sums:
                raise RingTooNarrow("a bound on the sum that this client has no proof of")
            if not shape.holds(terms.clients):
                raise RingTooNarrow(
                    f"{terms.clients} entries of magnitude {shape.bound} can overflow "
                    f"{shape.width} bits"
                )
        state = self._state
        state.announcement = raw
        self._remember(message)
        secrets = self._random(KEY_BYTES + terms.rounds * (KEY_BYTES + SEED_BYTES))
        middle = KEY_BYTES * (1 + terms.rounds)
        state.sealing_private = Secret(secrets[:KEY_BYTES])
        state.mask_privates = Secret(secrets[KEY_BYTES:middle])
        state.seeds = Secret(secrets[middle:])
        sealing = keys.public_key(secrets[:KEY_BYTES])
        masks = b"".join(
            keys.public_key(secrets[start : start + KEY_BYTES])
            for start in range(KEY_BYTES, middle, KEY_BYTES)
        )
        signed = keys.advertised_bytes(self._digest, self.client, sealing, masks)
        state.stage = _STAGES[Neighbours]
        return encode(
            Advertise(message.run, self.client, sealing, masks, self._identity.sign(signed))
        )

    def _check_cohort(self, clients: int, announced_minimum: int) -> None:
        least = max(self._policy.min_cohort, announced_minimum)
        if clients < least:
            raise CohortTooSmall(f"a cohort of {clients} where at least {least} are asked for")

    def _share(self, message: Neighbours) -> bytes:
        """Check graph, parameters and keys; answer with sealed shares of all rounds' secrets."""
        announce, state = self._announce, self._state
        listed = [key.client for key in message.keys]
        expected = self._expected_neighbours(message)
        check_neighbourhood(self.client, listed, message.neighbours, expected)
        rounds = announce.statement.rounds
        for key in message.keys:
            if len(key.mask_keys) != rounds * KEY_BYTES:
                raise BadKey(f"client {key.client} has not got one key for each round")
            keys.check_publics(key.sealing_key + key.mask_keys, key.client)
            signed = keys.advertised_bytes(self._digest, key.client, key.sealing_key, key.mask_keys)
            keys.verify(self._roster[key.client], key.signature, signed, key.client)

        privates, seeds = state.mask_privates.reveal(), state.seeds.reveal()
        secrets = []
        for start in range(0, rounds * KEY_BYTES, KEY_BYTES):
            secrets += [seeds[start : start + SEED_BYTES], privates[start : start + KEY_BYTES]]
        dealt = split(secrets, message.neighbours, message.threshold, self._random)
        nonce = self._random(NONCE_BYTES)
        agreed = keys.agree(
            state.sealing_private.reveal(), (key.sealing_key for key in message.keys)
        )
        sealed, opening = [], bytearray()
        for peer, secret, shares in zip(listed, agreed, dealt, strict=True):
            key_out = keys.sealing_key(secret, announce.run, self.client, peer)
            context = keys.shares_context(self._digest, self.client, peer)
            sealed.append(keys.seal(key_out, nonce, shares, context))
            opening += keys.sealing_key(secret, announce.run, peer, self.client)
        state.sealing_private.wipe()
        state.opening_keys = Secret(opening)
        state.peers = array("I", listed)
        state.peer_mask_keys = b"".join(key.mask_keys for key in message.keys)
        state.degree, state.threshold = message.neighbours, message.threshold
        state.stage = _STAGES[Deliver]
        return encode(Shares(announce.run, self.client, nonce, tuple(sealed)))

    def _read_cohort(self, message: Neighbours) -> tuple[NDArray[np.uint32], int]:
        """Who takes part, and this client's place among them, if they are enough."""
        announce = self._announce
        participants = read_participants(message.participants, self._roster)
        size = len(participants)
        self._check_cohort(size, max(announce.min_cohort, least_participants(announce.statement)))
        place = int(np.searchsorted(participants, self.client))
        if place == size or participants[place] != self.client:
            raise NotInGraph(f"client {self.client} is missing from the graph")
        self._state.participants = size
        return participants, place

    def _expected_neighbours(self, message: Neighbours) -> list[int]:
        """This client's neighbours in the public graph, once cohort and parameters will do."""
        participants, place = self._read_cohort(message)
        size, policy = len(participants), self._policy
        terms = self._announce.statement.with_clients(size)
        terms = replace(
            terms,
            corrupt_ppm=max(terms.corrupt_ppm, round(policy.corrupt_share * PPM)),
            dropped_ppm=max(terms.dropped_ppm, round(policy.dropped_share * PPM)),
            security_bits=max(terms.security_bits, policy.security_bits),
        )
        own = self._scheme.parameters(terms)
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
        split = self._scheme.complete and not is_steadfast(terms, given)
        if split and not policy.allow_split_views:
            raise WeakParameters(
                f"threshold {given.threshold} of {given.neighbours}: a server that tells clients "
                "different stories could open both secrets of one"
            )
        self._check_difference(participants)
        graph = ring_graph(size, given.neighbours, graph_seed(self._digest, message.participants))
        return participants[graph.neighbours(place)].tolist()

    def _check_difference(self, participants: NDArray[np.uint32]) -> None:
        """Two runs over almost the same clients give away the few that differ."""
        policy = self._policy
        if policy.previous_participants is None or not policy.min_difference:
            return
        difference = len(policy.previous_participants.symmetric_difference(participants.tolist()))
        # As many may still drop, and bring this run nearer to the last one.
        least = policy.min_difference + self._allowed_to_drop()
        if 0 < difference < least:
            raise CohortDiffers(
                f"{difference} clients are not the same as in the last run: none, or {least}, "
                "would hide each other"
            )
        self._state.nobody_may_drop = int(difference == 0)

    def _store(self, message: Deliver) -> None:
        """Open the neighbours' shares; those who sent none are out of the run."""
        state, rounds = self._state, self._announce.statement.rounds
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
            context = keys.shares_context(self._digest, share.sender, self.client)
            opened = keys.unseal(key, share.nonce, share.sealed, context)
            if len(opened) != rounds * PAIR_BYTES:
                raise BadShare(f"client {share.sender} has not dealt two shares for each round")
            plain.append(opened)
            size = rounds * KEY_BYTES
            mask_keys.append(state.peer_mask_keys[size * number : size * (number + 1)])
        state.held_shares = Secret(
            b"".join(
                shares[start : start + PAIR_BYTES]
                for start in range(0, rounds * PAIR_BYTES, PAIR_BYTES)
                for shares in plain
            )
        )
        state.opening_keys.wipe()
        state.peers = array("I", senders)
        state.active = array("I", senders)
        state.peer_mask_keys = b"".join(mask_keys)
        state.stage = _STAGES[Survivors]

    # --- rounds -----------------------------------------------------------------------------------

    def _mask_seeds(self) -> tuple[list[bytes], list[bytes]]:
        """Seeds of this round's masks: (to add, to subtract)."""
        state, announce = self._state, self._announce
        number = state.round_number
        stride = announce.statement.rounds * KEY_BYTES
        start = (number - 1) * KEY_BYTES
        private = state.mask_privates.reveal(start, start + KEY_BYTES)
        index = {peer: place for place, peer in enumerate(state.peers)}
        at = [stride * index[peer] + start for peer in state.active]
        publics = (state.peer_mask_keys[place : place + KEY_BYTES] for place in at)
        add = [state.seeds.reveal(start, start + SEED_BYTES)]
        subtract: list[bytes] = []
        for peer, agreed in zip(state.active, keys.agree(private, publics), strict=True):
            seed = keys.mask_seed(agreed, announce.run, number, self.client, peer)
            (add if self.client < peer else subtract).append(seed)
        return add, subtract

    def _masked_blocks(
        self, blocks: Iterable[NDArray[Any]], add: list[bytes], subtract: list[bytes]
    ) -> Iterator[bytes]:
        state, announce = self._state, self._announce
        number = state.round_number
        shape = announce.shapes[number - 1]
        generator = MaskGenerator()
        offset = 0
        try:
            for block in rechunked(blocks, shape, announce.block_entries):
                self._check_open()
                generator.add(block, offset, add)
                generator.subtract(block, offset, subtract)
                packed = shape.ring.pack(block)
                message = Masked(announce.run, number, self.client, offset, packed)
                offset += len(block)
                state.input_sent = int(offset == shape.length)
                yield encode(message)
        except BadContribution:
            self.close()
            raise

    def _unmask(self, message: Survivors, raw: bytes) -> bytes:
        """Open one secret of every peer: the seed of a survivor, the key of one who dropped."""
        state, announce = self._state, self._announce
        number, digest = message.round_number, hashlib.sha256(raw).digest()
        if number < state.round_number:
            if digest == state.answered[32 * (number - 1) : 32 * number]:
                raise SecondUnmask(f"round {number} was unmasked before")
            raise SecondSurvivorSet(f"another set of survivors for round {number}")
        if number > state.round_number or not state.input_sent:
            raise OutOfOrder(f"no input was sent for round {number}")
        self._check_lists(message)
        self._check_survivors(message)

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
        state.cohort = message.cohort
        state.answered += digest
        state.round_number += 1
        state.input_begun = state.input_sent = 0
        return encode(Unmask(announce.run, number, self.client, seed_shares, key_shares))

    def _check_lists(self, message: Survivors) -> None:
        """The two lists must divide the peers of this round between them."""
        survivors, dropped = set(message.survivors), set(message.dropped)
        if survivors & dropped:
            raise ListsOverlap(
                f"client {min(survivors & dropped)} is named as a survivor and as dropped"
            )
        active = set(self._state.active)
        if not active >= survivors | dropped:
            raise Stranger("the lists name a client without secrets in this round")
        if survivors | dropped != active:
            raise IncompleteLists("a client with secrets in this round is on neither list")

    def _check_survivors(self, message: Survivors) -> None:
        """Enough clients must be left, and after the first round all the same ones."""
        state, announce = self._state, self._announce
        changed = bool(message.dropped) or message.cohort != state.cohort
        if state.round_number > 1 and changed and not self._policy.allow_cohort_change:
            raise CohortChanged(COHORT_CHANGED)
        if state.nobody_may_drop and message.cohort != state.participants:
            raise CohortDiffers(
                f"{state.participants - message.cohort} clients of the last run are missing: the "
                "difference of the two sums would show them"
            )
        # Neighbours that are gone are not in the sum: in the complete graph this leaves one number.
        gone = state.degree - len(message.survivors)
        if not len(message.survivors) < message.cohort <= state.participants - gone:
            raise RosterMismatch(f"a sum over {message.cohort} clients cannot be")
        self._check_cohort(message.cohort, announce.min_cohort)
        allowed = self._allowed_to_drop()
        if message.cohort < state.participants - allowed:
            raise TooManyDropped(
                f"{state.participants - message.cohort} clients dropped, {allowed} may"
            )
        if len(message.survivors) < state.threshold:
            raise BelowThreshold(
                f"{len(message.survivors)} neighbours survive, fewer than the threshold"
            )

    def _allowed_to_drop(self) -> int:
        return self._announce.statement.with_clients(self._state.participants).dropped

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosed(f"client {self.client} has left this run")
