"""Bell, Bonawitz, Gascon, Lepoint, Raykova: "Secure single-server aggregation with
(poly)logarithmic overhead", CCS 2020, for a server and clients that keep to the protocol.

Bonawitz et al., CCS 2017, is the same with the complete graph.

A client adds to its vector a mask from a seed of its own, and for every neighbour a mask they both
can compute, which one adds and the other subtracts. Both secrets, the seed and the key behind the
common masks, are shared among the neighbours. For a client whose vector arrived the neighbours
open the seed, for one whose vector did not they open the key. No neighbour opens both: that is what
every check in `BellClient._unmask` is for.

Keys and shares are fresh for each round and are all dealt in one set-up. The clients summed in the
first round are the cohort; later rounds must have the same, because the difference of two sums
over two cohorts is a sum over the few who left.
"""

from __future__ import annotations

import hashlib
import os
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from privirec.errors import UsageError
from privirec.secagg import keys
from privirec.secagg.errors import (
    BadContribution,
    BadDump,
    BadKey,
    BadShare,
    BelowThreshold,
    BrokenUpload,
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
from privirec.secagg.graph import (
    check_neighbourhood,
    graph_seed,
    ranks_among_neighbours,
    read_participants,
    ring_graph,
    write_participants,
)
from privirec.secagg.keys import KEY_BYTES, NONCE_BYTES, TAG_BYTES, Identity, Roster, Secret
from privirec.secagg.messages import (
    MAX_BLOCK_ENTRIES,
    MAX_ROUNDS,
    RUN_BYTES,
    Advertise,
    Announce,
    Deliver,
    Masked,
    Message,
    Neighbours,
    SealedShares,
    Shares,
    Survivors,
    Unmask,
    decode,
    encode,
)
from privirec.secagg.parameters import (
    PPM,
    Parameters,
    Statement,
    complete_parameters,
    is_secure,
    is_steadfast,
    sparse_parameters,
)
from privirec.secagg.prg import SEED_BYTES, MaskGenerator
from privirec.secagg.protocol import (
    ClientPolicy,
    ClientSession,
    Phase,
    Protocol,
    ServerSession,
    ServerSettings,
    zeros,
)
from privirec.secagg.randomness import RandomBytes
from privirec.secagg.ring import BLOCK_ALIGNMENT, VectorShape, Words, rechunked
from privirec.secagg.shamir import SHARE_BYTES, check_consistent, combine, split

# A round's shares of one client: of its seed, then of its mask key.
_PAIR_BYTES = 2 * SHARE_BYTES
# The last byte counts changes of what is stored.
_DUMP_MARK = b"privirec-secagg-client" + bytes([keys.VERSION, 2])
_STAGES: dict[type, int] = {Announce: 0, Neighbours: 1, Deliver: 2, Survivors: 3}


@dataclass(slots=True)
class _ClientState:
    """All that a client remembers, in fields that can be written down."""

    client: int
    stage: int = 0
    """Index of the message it waits for, see _STAGES."""
    round_number: int = 1
    input_begun: int = 0
    input_sent: int = 0
    participants: int = 0
    nobody_may_drop: int = 0
    """The participants are those of the last run, and must all be in the sum."""
    degree: int = 0
    """Neighbours in the graph, whether they sent shares or not."""
    threshold: int = 0
    cohort: int = 0
    """Number of clients in the round that was answered last."""
    announcement: bytes = b""
    """The message itself."""
    peers: array[int] = field(default_factory=lambda: array("I"))
    """Neighbours, ascending; once shares are delivered, those who sent them."""
    active: array[int] = field(default_factory=lambda: array("I"))
    """Peers with masks in this round: those who sent shares, then those who survived."""
    peer_mask_keys: bytes = b""
    """All rounds' public keys of the first peer, of the second ..."""
    answered: bytes = b""
    """Digests of the survivor messages answered so far."""
    sealing_private: Secret = field(default_factory=lambda: Secret(b""))
    mask_privates: Secret = field(default_factory=lambda: Secret(b""))
    seeds: Secret = field(default_factory=lambda: Secret(b""))
    opening_keys: Secret = field(default_factory=lambda: Secret(b""))
    """Keys for the shares that each peer will send."""
    held_shares: Secret = field(default_factory=lambda: Secret(b""))
    """Round by round, peer by peer."""

    def wipe(self) -> None:
        for name in ("sealing_private", "mask_privates", "seeds", "opening_keys", "held_shares"):
            getattr(self, name).wipe()

    def dump(self, code: int) -> bytes:
        """All fields, after a mark of what they are and before a digest against damage."""
        parts = [_DUMP_MARK, bytes([code])]
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, int):
                raw = struct.pack(">Q", value)
            elif isinstance(value, array):
                raw = struct.pack(f">{len(value)}I", *value)
            elif isinstance(value, Secret):
                raw = struct.pack(">Q", value.wiped) + value.stored()
            else:
                raw = value
            parts += (struct.pack(">Q", len(raw)), raw)
        data = b"".join(parts)
        return data + hashlib.sha256(data).digest()

    @classmethod
    def load(cls, dumped: bytes, code: int) -> _ClientState:
        """Inverse of `dump`; BadDump for anything that it did not give."""
        data, digest = dumped[:-32], dumped[-32:]
        mark = _DUMP_MARK + bytes([code])
        if hashlib.sha256(data).digest() != digest or not data.startswith(mark):
            raise BadDump("stored state is damaged, or of another version or protocol")
        state = cls(0)
        position = len(mark)
        for entry in fields(cls):
            size = int.from_bytes(data[position : position + 8], "big")
            raw = data[position + 8 : position + 8 + size]
            position += 8 + size
            value = getattr(state, entry.name)
            if isinstance(value, int):
                setattr(state, entry.name, int.from_bytes(raw, "big"))
            elif isinstance(value, array):
                setattr(state, entry.name, array("I", struct.unpack(f">{size // 4}I", raw)))
            elif isinstance(value, Secret):
                setattr(state, entry.name, Secret(raw[8:], int.from_bytes(raw[:8], "big")))
            else:
                setattr(state, entry.name, raw)
        return state


@dataclass(frozen=True)
class Scheme:
    """What tells the two protocols of this file apart: which graph a statement asks for."""

    name: str
    code: int
    parameters: Callable[[Statement], Parameters]
    complete: bool


class BellClient(ClientSession):
    """A client that checks what it can see alone; docs/secagg-wire.md says what it cannot."""

    def __init__(
        self,
        scheme: Scheme,
        state: _ClientState,
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

    def _expected_neighbours(self, message: Neighbours) -> list[int]:
        """This client's neighbours in the public graph, once cohort and parameters will do."""
        announce = self._announce
        participants = read_participants(message.participants, self._roster)
        size = len(participants)
        self._check_cohort(size, max(announce.min_cohort, least_participants(announce.statement)))
        place = int(np.searchsorted(participants, self.client))
        if place == size or participants[place] != self.client:
            raise NotInGraph(f"client {self.client} is missing from the graph")
        policy = self._policy
        terms = announce.statement.with_clients(size)
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
        self._state.participants = size
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
            if len(opened) != rounds * _PAIR_BYTES:
                raise BadShare(f"client {share.sender} has not dealt two shares for each round")
            plain.append(opened)
            size = rounds * KEY_BYTES
            mask_keys.append(state.peer_mask_keys[size * number : size * (number + 1)])
        state.held_shares = Secret(
            b"".join(
                shares[start : start + _PAIR_BYTES]
                for start in range(0, rounds * _PAIR_BYTES, _PAIR_BYTES)
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
        start = (number - 1) * len(state.peers) * _PAIR_BYTES
        stop = number * len(state.peers) * _PAIR_BYTES
        held = state.held_shares.reveal(start, stop)
        at = [index[peer] * _PAIR_BYTES for peer in message.survivors]
        seed_shares = tuple(held[place : place + SHARE_BYTES] for place in at)
        at = [index[peer] * _PAIR_BYTES + SHARE_BYTES for peer in message.dropped]
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
            raise CohortChanged(_COHORT_CHANGED)
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


_COHORT_CHANGED = (
    "the cohort changed after the first round: the sums of two rounds would differ by the "
    "clients that left, and would show them"
)


class BellServer(ServerSession):
    """A server that sees masked vectors and, of each client, one of its two secrets."""

    def __init__(
        self,
        scheme: Scheme,
        *,
        roster: Roster,
        statement: Statement,
        shapes: Sequence[VectorShape],
        settings: ServerSettings,
        random_bytes: RandomBytes,
    ) -> None:
        check_settings(roster, statement, shapes, settings)
        scheme.parameters(statement)  # refuse what cannot work before anybody is asked
        self._scheme = scheme
        self._roster = roster
        self._statement = statement
        self._shapes = tuple(shapes)
        self._settings = settings
        self._run = random_bytes(RUN_BYTES)
        self.announcement = encode(
            Announce(
                self._run,
                scheme.code,
                statement,
                settings.min_cohort,
                settings.block_entries,
                roster.digest,
                self._shapes,
            )
        )
        self._digest = hashlib.sha256(self.announcement).digest()
        self.phase = Phase.SETUP
        self.round_number = 1
        self._advertised: dict[int, Advertise] = {}
        # Filled when the advertising stage ends. From then on a client is its place in `_ids`.
        self._ids: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._places: dict[int, int] = {}
        self._parameters = Parameters(0, 0)
        self._neighbours: NDArray[np.int64] = np.empty((0, 0), np.int64)
        self._ranks: NDArray[np.int64] = np.empty((0, 0), np.int64)
        self._shares: dict[int, tuple[bytes, bytes]] = {}
        self._active: NDArray[np.bool_] = np.empty(0, np.bool_)
        self._survived: NDArray[np.bool_] = np.empty(0, np.bool_)
        # Of the round that is being summed.
        self._sum: Words = np.empty(0, np.uint8)
        self._uploads: dict[int, _Upload] = {}
        self._arrived: set[int] = set()
        self._answered: set[int] = set()
        self._collected: dict[int, list[tuple[int, bytes]]] = {}

    def __repr__(self) -> str:
        return f"<{self._scheme.name} server, {self.phase.value}, round {self.round_number}>"

    @property
    def parameters(self) -> Parameters:
        return self._parameters

    @property
    def survivors(self) -> tuple[int, ...]:
        return tuple(self._ids[self._survived].tolist())

    def waiting_for(self) -> set[int]:
        if self.phase is Phase.SETUP:
            if not len(self._ids):
                return set(self._roster) - self._advertised.keys()
            return self._clients(set(range(len(self._ids))) - self._shares.keys())
        if self.phase is Phase.INPUT:
            return self._clients(set(np.flatnonzero(self._active).tolist()) - self._arrived)
        if self.phase is Phase.UNMASK:
            return self._clients(set(np.flatnonzero(self._survived).tolist()) - self._answered)
        return set()

    def receive(self, client: int, message: bytes) -> None:
        received = decode(message)
        if received.run != self._run:
            raise WrongRun("a message of another run")
        if received.client != client:
            raise WrongRun(f"client {client} sends a message of client {received.client}")
        if isinstance(received, Advertise):
            self._take_keys(received)
        elif isinstance(received, Shares):
            self._take_shares(received)
        elif isinstance(received, Masked):
            self._take_block(received)
        elif isinstance(received, Unmask):
            self._take_answer(received)
        else:
            raise OutOfOrder(f"{type(received).__name__} is not for the server")

    def advance(self) -> Iterator[tuple[int, bytes]]:
        if self.phase is Phase.SETUP:
            return self._form_graph() if not len(self._ids) else self._forward_shares()
        if self.phase is Phase.INPUT:
            return self._fix_survivors()
        raise OutOfOrder(f"there is nothing to send in the phase {self.phase.value!r}")

    def open_sum(self) -> Words:
        total = self._sum
        for _ in self.open_blocks():
            pass
        return total

    # --- set-up -----------------------------------------------------------------------------------

    def _take_keys(self, message: Advertise) -> None:
        client = message.client
        if client in self._advertised:
            raise ReplayedMessage(f"client {client} has advertised its keys")
        if self.phase is not Phase.SETUP or len(self._ids):
            raise OutOfOrder(f"client {client} advertises its keys too late")
        if client not in self._roster:
            raise Stranger(f"client {client} is not in the roster")
        if len(message.mask_keys) != self._statement.rounds * KEY_BYTES:
            raise BadKey(f"client {client} has not got one key for each round")
        keys.check_publics(message.sealing_key + message.mask_keys, client)
        signed = keys.advertised_bytes(self._digest, client, message.sealing_key, message.mask_keys)
        keys.verify(self._roster[client], message.signature, signed, client)
        self._advertised[client] = message

    def _form_graph(self) -> Iterator[tuple[int, bytes]]:
        size = len(self._advertised)
        least = max(self._settings.min_cohort, least_participants(self._statement))
        if size < least:
            self._abort(CohortTooSmall(f"{size} clients answered, {least} are needed"))
        try:
            self._parameters = self._scheme.parameters(self._statement.with_clients(size))
        except ProtocolError as error:
            self._abort(error)
        self._ids = np.array(sorted(self._advertised), np.uint32)
        self._places = {client: place for place, client in enumerate(self._ids.tolist())}
        participants = write_participants(self._places, self._roster)
        seed = graph_seed(self._digest, participants)
        graph = ring_graph(size, self._parameters.neighbours, seed)
        self._neighbours = graph.all_neighbours()
        self._ranks = ranks_among_neighbours(self._neighbours)
        return self._neighbour_messages(participants)

    def _neighbour_messages(self, participants: bytes) -> Iterator[tuple[int, bytes]]:
        for client, place in self._places.items():
            peers = self._ids[self._neighbours[place]].tolist()
            message = Neighbours(
                self._run,
                client,
                self._parameters.neighbours,
                self._parameters.threshold,
                participants,
                tuple(self._advertised[peer] for peer in peers),
            )
            yield client, encode(message)

    def _take_shares(self, message: Shares) -> None:
        place = self._place(message.client)
        if place in self._shares or (self.phase is not Phase.SETUP and self._active[place]):
            raise ReplayedMessage(f"client {message.client} has sent its shares")
        if self.phase is not Phase.SETUP:
            raise OutOfOrder(f"client {message.client} sends its shares too late")
        size = self._statement.rounds * _PAIR_BYTES + TAG_BYTES
        if [len(sealed) for sealed in message.sealed] != [size] * self._parameters.neighbours:
            raise BadShare(f"client {message.client} has not sent shares for all its neighbours")
        # One string a client: thousands of small objects each would fill the memory.
        self._shares[place] = (message.nonce, b"".join(message.sealed))

    def _forward_shares(self) -> Iterator[tuple[int, bytes]]:
        self._active = np.zeros(len(self._ids), np.bool_)
        self._active[list(self._shares)] = True
        self._check_enough(int(self._active.sum()))
        shares, self._shares = self._shares, {}
        self._begin_round()
        return self._share_messages(shares)

    def _share_messages(
        self, shares: dict[int, tuple[bytes, bytes]]
    ) -> Iterator[tuple[int, bytes]]:
        size = self._statement.rounds * _PAIR_BYTES + TAG_BYTES
        for place in np.flatnonzero(self._active).tolist():
            delivered = []
            ranks = self._ranks[place].tolist()
            for peer, rank in zip(self._neighbours[place].tolist(), ranks, strict=True):
                if peer in shares:
                    nonce, sealed = shares[peer]
                    part = sealed[size * rank : size * (rank + 1)]
                    delivered.append(SealedShares(int(self._ids[peer]), nonce, part))
            client = int(self._ids[place])
            yield client, encode(Deliver(self._run, client, tuple(delivered)))

    # --- rounds -----------------------------------------------------------------------------------

    def _begin_round(self) -> None:
        self.phase = Phase.INPUT
        shape = self._shapes[self.round_number - 1]
        self._sum = (self._settings.accumulator or zeros)(self.round_number, shape)
        if self._sum.shape != (shape.length,) or self._sum.dtype != shape.ring.dtype:
            raise UsageError(f"the accumulator must hold {shape.length} {shape.ring.dtype} words")
        self._uploads.clear()
        self._arrived.clear()
        self._answered.clear()
        self._collected.clear()

    def _take_block(self, message: Masked) -> None:
        place = self._in_round(message, Phase.INPUT, self._arrived)
        shape = self._shapes[self.round_number - 1]
        upload = self._uploads.get(place)
        begun = upload.received if upload else 0
        if message.offset < begun:
            raise ReplayedMessage(f"client {message.client} has sent this block")
        if message.offset > begun:
            raise OutOfOrder(f"client {message.client} has not sent the block before")
        count = min(self._settings.block_entries, shape.length - begun)
        block = shape.ring.unpack(message.packed, count)
        last = begun + count == shape.length
        if upload is None and not last:
            spool = self._settings.spool() if self._settings.spool else None
            upload = self._uploads[place] = _Upload(spool)
        if upload is None or upload.spool is None:
            self._add(begun, block)
        else:
            upload.spool.write(message.packed)
        if upload:
            upload.received += count
        if last:
            if upload and upload.spool:
                self._add_spooled(upload.spool)
            self._uploads.pop(place, None)
            self._arrived.add(place)

    def _add(self, offset: int, block: Words) -> None:
        part = self._sum[offset : offset + len(block)]
        np.add(part, block, out=part)

    def _add_spooled(self, spool: BinaryIO) -> None:
        shape = self._shapes[self.round_number - 1]
        spool.seek(0)
        for offset in range(0, shape.length, self._settings.block_entries):
            count = min(self._settings.block_entries, shape.length - offset)
            packed = spool.read(shape.ring.packed_bytes(count))
            self._add(offset, shape.ring.unpack(packed, count))
        spool.close()

    def _fix_survivors(self) -> Iterator[tuple[int, bytes]]:
        if any(upload.spool is None for upload in self._uploads.values()):
            self._abort(
                BrokenUpload(
                    "a client stopped in the middle of its upload, which was added as it came: "
                    "give the server a spool to survive that"
                )
            )
        survived = np.zeros(len(self._ids), np.bool_)
        survived[list(self._arrived)] = True
        lost = int(self._active.sum()) - len(self._arrived)
        if self.round_number > 1 and lost and not self._settings.allow_cohort_change:
            self._abort(
                CohortChanged(
                    f"{lost} clients are missing in round {self.round_number}: " + _COHORT_CHANGED
                )
            )
        self._check_enough(len(self._arrived))
        self._survived = survived
        self.phase = Phase.UNMASK
        return self._survivor_messages()

    def _survivor_messages(self) -> Iterator[tuple[int, bytes]]:
        cohort = len(self._arrived)
        for place in np.flatnonzero(self._survived).tolist():
            survivors, dropped = self._lists(place)
            client = int(self._ids[place])
            message = Survivors(
                self._run,
                self.round_number,
                client,
                cohort,
                tuple(self._ids[survivors].tolist()),
                tuple(self._ids[dropped].tolist()),
            )
            yield client, encode(message)

    def _lists(self, place: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Neighbours of a client whose inputs arrived, and those whose inputs did not."""
        peers = self._neighbours[place]
        survived = self._survived[peers]
        return peers[survived], peers[self._active[peers] & ~survived]

    def _take_answer(self, message: Unmask) -> None:
        place = self._in_round(message, Phase.UNMASK, self._answered)
        if not self._survived[place]:
            raise Stranger(f"client {message.client} is not in the sum of this round")
        survivors, dropped = self._lists(place)
        if len(message.seed_shares) != len(survivors) or len(message.key_shares) != len(dropped):
            raise BadShare(f"client {message.client} has not answered for all its neighbours")
        self._answered.add(place)
        rank_at = dict(
            zip(self._neighbours[place].tolist(), self._ranks[place].tolist(), strict=True)
        )
        owners = survivors.tolist() + dropped.tolist()
        shares = message.seed_shares + message.key_shares
        for owner, share in zip(owners, shares, strict=True):
            collected = self._collected.setdefault(owner, [])
            # One more than needed, to see whether they fit together.
            if len(collected) <= self._parameters.threshold:
                collected.append((rank_at[owner] + 1, share))

    def open_blocks(self) -> Iterator[Words]:
        if self.phase is not Phase.UNMASK:
            raise OutOfOrder(f"there is nothing to open in the phase {self.phase.value!r}")
        add, subtract = self._seeds_to_remove()
        total, shape = self._sum, self._shapes[self.round_number - 1]
        self._active = self._survived.copy()
        self._collected.clear()
        if self.round_number == len(self._shapes):
            self.phase = Phase.DONE
            self._sum = np.empty(0, np.uint8)
        else:
            self.round_number += 1
            self._begin_round()
        return self._unmasked_blocks(total, shape, add, subtract)

    def _unmasked_blocks(
        self, total: Words, shape: VectorShape, add: list[bytes], subtract: list[bytes]
    ) -> Iterator[Words]:
        generator = MaskGenerator()
        step = self._settings.block_entries
        for offset in range(0, shape.length, step):
            block = total[offset : offset + step]
            generator.add(block, offset, add)
            generator.subtract(block, offset, subtract)
            yield shape.ring.reduce(block)

    def _seeds_to_remove(self) -> tuple[list[bytes], list[bytes]]:
        """Seeds of the masks that are left in the sum: (to add, to subtract)."""
        needed = self._parameters.threshold
        add: list[bytes] = []
        subtract: list[bytes] = []
        for owner in np.flatnonzero(self._active).tolist():
            shares = self._collected.get(owner, [])
            if not self._survived[owner] and not self._survived[self._neighbours[owner]].any():
                continue  # nobody in the sum has a mask with this client
            if len(shares) < needed:
                self._abort(
                    BelowThreshold(
                        f"{len(shares)} shares of a secret of client {self._ids[owner]} are left "
                        f"and {needed} are needed: no sum is opened"
                    )
                )
            try:
                if len(shares) > needed:
                    check_consistent(shares)
                (secret,) = combine(shares[:needed])
            except BadShare as error:
                self._abort(error)
            if self._survived[owner]:
                subtract.append(secret)
            else:
                self._remove_pairs(owner, secret, add, subtract)
        return add, subtract

    def _remove_pairs(
        self, owner: int, private: bytes, add: list[bytes], subtract: list[bytes]
    ) -> None:
        """Masks that the survivors made with one who dropped."""
        number, client = self.round_number, int(self._ids[owner])
        if keys.public_key(private) != self._mask_key(client):
            self._abort(BadShare(f"the opened key of client {client} is not the advertised one"))
        peers = self._neighbours[owner]
        survivors = self._ids[peers[self._survived[peers]]].tolist()
        publics = (self._mask_key(peer) for peer in survivors)
        for peer, agreed in zip(survivors, keys.agree(private, publics), strict=True):
            seed = keys.mask_seed(agreed, self._run, number, client, peer)
            # The survivor added it if it is the lower of the two; take back what it did.
            (subtract if peer < client else add).append(seed)

    # --- helpers ----------------------------------------------------------------------------------

    def _mask_key(self, client: int) -> bytes:
        start = (self.round_number - 1) * KEY_BYTES
        return self._advertised[client].mask_keys[start : start + KEY_BYTES]

    def _clients(self, places: set[int]) -> set[int]:
        return set(self._ids[sorted(places)].tolist()) if places else set()

    def _place(self, client: int) -> int:
        if client not in self._places:
            raise OutOfOrder(f"client {client} takes no part in this run")
        return self._places[client]

    def _in_round(self, message: Masked | Unmask, phase: Phase, done: set[int]) -> int:
        """Place of the sender, if this is the round and the phase for its message."""
        place = self._place(message.client)
        if message.round_number != self.round_number or phase is not self.phase:
            raise OutOfOrder(f"client {message.client} is in another round or phase")
        if place in done:
            raise ReplayedMessage(f"client {message.client} has sent this message")
        if not self._active[place]:
            raise Stranger(f"client {message.client} dropped out of this run")
        return place

    def _check_enough(self, left: int) -> None:
        least = self._settings.min_cohort
        if left < least:
            self._abort(CohortTooSmall(f"{left} clients are left, {least} are needed"))
        size = len(self._ids)
        allowed = self._statement.with_clients(size).dropped
        if left < size - allowed:
            self._abort(TooManyDropped(f"{size - left} of {size} clients dropped, {allowed} may"))

    def _abort(self, error: ProtocolError) -> NoReturn:
        self.phase = Phase.ABORTED
        self._sum = np.empty(0, np.uint8)
        self._collected.clear()
        self._shares.clear()
        self._uploads.clear()
        raise error


@dataclass(slots=True)
class _Upload:
    """A vector that is still arriving."""

    spool: BinaryIO | None
    received: int = 0


def least_participants(statement: Statement) -> int:
    """Clients that must advertise; the corrupt ones among fewer could be too large a part."""
    return statement.clients - statement.dropped


def check_settings(
    roster: Roster, statement: Statement, shapes: Sequence[VectorShape], settings: ServerSettings
) -> None:
    """Refuse a run that no client should accept, before it is announced."""
    if not 1 <= len(shapes) <= MAX_ROUNDS or statement.rounds != len(shapes):
        raise UsageError(f"{statement.rounds} rounds are stated and {len(shapes)} described")
    if statement.clients != len(roster):
        raise UsageError(f"{statement.clients} clients are stated, the roster has {len(roster)}")
    entries = settings.block_entries
    if not 0 < entries <= MAX_BLOCK_ENTRIES or entries % BLOCK_ALIGNMENT:
        raise UsageError(f"blocks have a multiple of {BLOCK_ALIGNMENT} entries, not {entries}")
    for shape in shapes:
        if not shape.holds(len(roster)):
            raise RingTooNarrow(
                f"{len(roster)} entries of magnitude {shape.bound} can overflow {shape.width} bits"
            )


def _protocol(scheme: Scheme) -> Protocol:
    def client(
        number: int,
        identity: Identity,
        roster: Roster,
        policy: ClientPolicy,
        random_bytes: RandomBytes = os.urandom,
    ) -> BellClient:
        return BellClient(
            scheme,
            _ClientState(number),
            identity=identity,
            roster=roster,
            policy=policy,
            random_bytes=random_bytes,
        )

    def load_client(
        dumped: bytes,
        identity: Identity,
        roster: Roster,
        policy: ClientPolicy,
        random_bytes: RandomBytes = os.urandom,
    ) -> BellClient:
        return BellClient(
            scheme,
            _ClientState.load(dumped, scheme.code),
            identity=identity,
            roster=roster,
            policy=policy,
            random_bytes=random_bytes,
        )

    def server(
        roster: Roster,
        statement: Statement,
        shapes: Sequence[VectorShape],
        settings: ServerSettings,
        random_bytes: RandomBytes = os.urandom,
    ) -> BellServer:
        return BellServer(
            scheme,
            roster=roster,
            statement=statement,
            shapes=shapes,
            settings=settings,
            random_bytes=random_bytes,
        )

    return Protocol(scheme.name, scheme.code, scheme.parameters, client, load_client, server)


SECAGG_PLUS = _protocol(Scheme("secagg+", 1, sparse_parameters, complete=False))
SECAGG = _protocol(Scheme("secagg", 2, complete_parameters, complete=True))
