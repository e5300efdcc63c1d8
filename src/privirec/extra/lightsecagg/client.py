"""The client: every check it makes before it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privirec.extra.lightsecagg.code import MaskCode
from privirec.extra.lightsecagg.field import ElementShape
from privirec.extra.lightsecagg.messages import (
    Deal,
    LightAdvertise,
    LightAnswer,
    LightConfirm,
    LightSurvivors,
    Open,
    Pieces,
    SignedKey,
)
from privirec.extra.lightsecagg.shared import (
    check_sizes,
    code_of,
    pieces_context,
    survivors_statement,
)
from privirec.extra.lightsecagg.thresholds import Thresholds, thresholds
from privirec.secagg import keys
from privirec.secagg.client_base import BaseClient
from privirec.secagg.errors import (
    BadKey,
    BadShare,
    BelowThreshold,
    CohortChanged,
    MalformedMessage,
    NotInGraph,
    OtherAsk,
    OutOfOrder,
    ReplayedMessage,
    SecondSurvivorSet,
    Stranger,
    TooManyDropped,
    WeakParameters,
)
from privirec.secagg.keys import KEY_BYTES, NONCE_BYTES, NOTHING_ASKED, TAG_BYTES, Secret
from privirec.secagg.messages import Announce, ProtocolMessage, encode
from privirec.secagg.parameters import PPM
from privirec.secagg.participants import (
    COHORT_CHANGED,
    accepted_participants,
    check_cohort,
    read_participants,
)
from privirec.secagg.prg import SEED_BYTES
from privirec.secagg.ring import VectorShape, Words, rechunked
from privirec.secagg.stored import StoredState
from privirec.secagg.uploads import ChangeBlock


@dataclass(slots=True)
class LightState(StoredState):
    """State of one client: its keys and one seed, whatever the length of the vectors."""

    private: int = 0
    needed: int = 0
    cohort: bytes = b""
    """Bit map of the survivors of the first sum, once this client has confirmed them."""
    confirmed: int = 0
    """Number of the last sum whose survivors this client has confirmed."""
    sealing_private: Secret = field(default_factory=lambda: Secret(b""))
    sealing_keys: Secret = field(default_factory=lambda: Secret(b""))
    """Keys for pieces to and from each participant, ascending by participant.

    The entries of the client itself are zeros.
    """
    asked: bytes = b""
    """Digest of what this sum asks for, as announced when its pieces were dealt."""
    length: int = 0
    """Entries of this sum's vectors, as announced when its pieces were dealt."""
    seed: Secret = field(default_factory=lambda: Secret(b""))
    """Seed of this sum's mask."""
    own_piece: Secret = field(default_factory=lambda: Secret(b""))
    """The piece of the client's own mask that it keeps for itself, packed."""


# Indices in `EXCHANGE.told` of the message that a client waits for.
_DEAL, _SURVIVORS, _OPEN = 1, 2, 3


class LightClient(BaseClient[LightState]):
    """A client that answers for one set of survivors, which a quorum of clients has confirmed."""

    @property
    def ready(self) -> bool:
        return self.state.stage == _SURVIVORS

    def check_turn(self, message: ProtocolMessage) -> None:
        """Raise a ProtocolError unless this is the next message; steps repeat with every sum."""
        state, order = self.state, self.exchange.told
        kind, number = type(message), message.sum_number
        if isinstance(message, Announce) or kind not in order or not state.stage:
            super().check_turn(message)
            return
        if isinstance(message, LightSurvivors) and number <= state.confirmed:
            if message.survivors != state.cohort:
                raise SecondSurvivorSet(f"another set of survivors for sum {number}")
            raise ReplayedMessage(f"the survivors of sum {number} were confirmed before")
        place, now = (number, order.index(kind)), (state.sum_number, state.stage)
        if place < now:
            raise ReplayedMessage(f"{kind.__name__} of sum {number} was answered before")
        if place > now:
            raise OutOfOrder(f"{kind.__name__} of sum {number} comes too early")

    def answer(self, message: ProtocolMessage, raw: bytes) -> bytes | None:
        if isinstance(message, Deal):
            return self._deal(message)
        if isinstance(message, LightSurvivors):
            return self._confirm(message)
        if isinstance(message, Open):
            return self._open(message, raw)
        raise OutOfOrder(f"{type(message).__name__} is not for a client")

    def check_summed(self, clients: frozenset[int]) -> None:
        if not self.state.cohort:
            raise OutOfOrder("it is not known yet who is in the sum")
        if clients != frozenset(read_participants(self.state.cohort, self.roster).tolist()):
            raise CohortChanged("the list of clients in the sum does not fit the sum")

    # --- set-up -----------------------------------------------------------------------------------

    def join(self) -> bytes:
        """Return a fresh key for pieces, signed."""
        terms = self.announcement.terms
        for shape in terms.shapes:
            ElementShape(shape)  # raise ParametersInfeasible if entries are too wide
        thresholds(terms.statement)
        private = self.random(KEY_BYTES)
        self.state.sealing_private = Secret(private)
        public = keys.public_key(private)
        signed = keys.advertised_bytes(self.announcement.digest, self.client, public, b"")
        return encode(
            LightAdvertise(terms.run, self.client, SignedKey(public, self.identity.sign(signed)))
        )

    # --- pieces -----------------------------------------------------------------------------------

    def _deal(self, message: Deal) -> bytes:
        """Draw a mask for this sum and seal a piece of it for every other client."""
        if message.sum_number == 1:
            receivers = self._accept_participants(message)
        else:
            receivers = self._accept_cohort(message)
        state, number = self.state, message.sum_number
        state.length = self.shape(number, message.length).length  # raises if it is too long
        drawn = self.random(SEED_BYTES + NONCE_BYTES)
        seed, nonce = drawn[:SEED_BYTES], drawn[SEED_BYTES:]
        code = self._code(number)
        pieces = code.encode(seed, [self.roster.place(client) for client in receivers])
        state.asked = message.asked
        context = self._pieces_context(number, message.receivers)
        key_to = self._sealing_keys(receiving=False)
        sealed = []
        for receiver, piece in zip(receivers, pieces, strict=True):
            packed = code.field.pack(piece)
            if receiver == self.client:
                state.own_piece = Secret(packed)
                continue
            bound_to = keys.shares_context(context, self.client, receiver)
            sealed.append(keys.seal(key_to(receiver), nonce, packed, bound_to))
        state.seed = Secret(seed)
        state.stage = _SURVIVORS
        return encode(
            Pieces(message.run, number, self.client, nonce, len(sealed), b"".join(sealed))
        )

    def _accept_participants(self, message: Deal) -> list[int]:
        """Check participants, thresholds and keys; agree on a key with every participant."""
        terms, state = self.announcement.terms, self.state
        participants = accepted_participants(
            message.receivers, self.client, terms, self.roster, self.policy
        ).tolist()
        found = self._accepted_thresholds(message, len(participants))
        check_sizes(terms.shapes, len(self.roster), found)
        if len(message.keys) != len(participants):
            raise BadKey(f"{len(message.keys)} keys of {len(participants)} clients")
        private = state.sealing_private.reveal()
        for client, key in zip(participants, message.keys, strict=True):
            keys.check_publics(key.sealing_key, client)
            signed = keys.advertised_bytes(self.announcement.digest, client, key.sealing_key, b"")
            keys.verify(self.roster[client], key.signature, signed, client)
            if client == self.client and key.sealing_key != keys.public_key(private):
                raise BadKey(f"the key of client {client} is not the one it has advertised")
        agreed = keys.agree(private, (key.sealing_key for key in message.keys))
        label, sealing_keys = self.exchange.label, bytearray()
        for client, secret in zip(participants, agreed, strict=True):
            if client == self.client:
                sealing_keys += bytes(2 * KEY_BYTES)
                continue
            sealing_keys += keys.sealing_key(label, secret, terms.run, self.client, client)
            sealing_keys += keys.sealing_key(label, secret, terms.run, client, self.client)
        state.sealing_private.wipe()
        state.sealing_keys = Secret(sealing_keys)
        state.participants = message.receivers
        state.private, state.needed = message.private, message.needed
        return participants

    def _accepted_thresholds(self, message: Deal, participants: int) -> Thresholds:
        """Return T and U, after a check that they equal what this client computes itself.

        The client computes them from the announcement and its own policy.
        """
        announced = self.announcement.terms.statement.with_clients(participants)
        share = round(self.policy.corrupt_share * PPM)
        own = thresholds(replace(announced, corrupt_ppm=max(announced.corrupt_ppm, share)))
        if (message.private, message.needed) != (own.private, own.needed):
            raise WeakParameters(
                f"{message.private} pieces that say nothing and {message.needed} that open a sum, "
                f"where this client computes {own.private} and {own.needed}"
            )
        return own

    def _accept_cohort(self, message: Deal) -> list[int]:
        """Return the clients of the first sum; raise a ProtocolError if anything else is new."""
        state = self.state
        if message.receivers != state.cohort:
            raise CohortChanged(COHORT_CHANGED)
        if message.keys:
            raise BadKey("keys were exchanged before the first sum")
        if (message.private, message.needed) != (state.private, state.needed):
            raise WeakParameters("other thresholds than in the first sum")
        return read_participants(state.cohort, self.roster).tolist()

    # --- vectors ----------------------------------------------------------------------------------

    def wire_shape(self, sum_number: int, length: int | None = None) -> VectorShape:
        return ElementShape(self.shape(sum_number, length)).carried

    def contribute(
        self,
        sum_number: int,
        blocks: Iterable[NDArray[Any]],
        asked: bytes = NOTHING_ASKED,
        length: int | None = None,
    ) -> Iterator[bytes]:
        joined = self._joined(sum_number, blocks, length)
        return super().contribute(sum_number, joined, asked, length)

    def _joined(
        self, sum_number: int, blocks: Iterable[NDArray[Any]], length: int | None
    ) -> Iterator[NDArray[np.uint64]]:
        """Yield the entries as field elements, in blocks of the announced size."""
        shape = self.shape(sum_number, length)
        if shape.length != self.state.length:
            raise OtherAsk(f"sum {sum_number} is longer or shorter than its pieces")
        elements = ElementShape(shape)
        size = self.announcement.terms.block_entries * elements.per_element
        for words in rechunked(blocks, elements.entries, size):
            yield elements.join(words)

    def masks(self, sum_number: int, asked: bytes) -> ChangeBlock:
        # The pieces of this mask were sealed for clients with the same digest.
        if asked != self.state.asked:
            raise OtherAsk(f"sum {sum_number} is about something else than its pieces were for")
        seed, code = self.state.seed.reveal(), self._code(sum_number)

        def hide(offset: int, block: Words) -> None:
            code.field.add(block, code.mask(seed, offset, len(block)))

        return hide

    # --- opening ----------------------------------------------------------------------------------

    def _confirm(self, message: LightSurvivors) -> bytes:
        """Check the survivors and sign them once, so that no client answers for another set."""
        state, number = self.state, message.sum_number
        if not state.input_sent:
            raise OutOfOrder(f"no input was sent for sum {number}")
        signature = b""
        if number == 1:
            self._check_survivors(message.survivors)
            state.cohort = message.survivors
            signature = self.identity.sign(self._statement())
        elif message.survivors != state.cohort:
            raise CohortChanged(COHORT_CHANGED)
        state.confirmed = number
        state.stage = _OPEN
        # The mask is used up; only the client's own piece is still needed.
        state.seed.wipe()
        return encode(LightConfirm(message.run, number, self.client, signature))

    def _check_survivors(self, bitmap: bytes) -> None:
        terms, participants = self.announcement.terms, self.participants
        survivors = set(read_participants(bitmap, self.roster).tolist())
        if not survivors <= participants:
            raise Stranger("the survivors include a client that takes no part")
        if self.client not in survivors:
            raise NotInGraph(f"client {self.client} is missing from the sum it is to open")
        check_cohort(len(survivors), self.policy, terms.min_cohort)
        lost = len(participants) - len(survivors)
        allowed = terms.statement.with_clients(len(participants)).dropped
        if lost > allowed:
            raise TooManyDropped(f"{lost} clients dropped, {allowed} may")

    def _open(self, message: Open, raw: bytes) -> bytes:
        """Add up the survivors' pieces for this client."""
        state, number = self.state, message.sum_number
        survivors = read_participants(state.cohort, self.roster).tolist()
        if number == 1:
            self._check_confirmed(message, set(survivors))
        elif message.signers:
            raise MalformedMessage("signatures where there is nothing to agree on")
        others = [client for client in survivors if client != self.client]
        code = self._code(number)
        size = NONCE_BYTES + code.piece_bytes + TAG_BYTES
        if message.count != len(others) or len(message.pieces) != size * len(others):
            raise BadShare(f"not one piece of {size} bytes from each of {len(others)} clients")
        receivers = state.participants if number == 1 else state.cohort
        context = self._pieces_context(number, receivers)
        total = code.field.unpack(state.own_piece.reveal(), code.columns)
        key_from = self._sealing_keys(receiving=True)
        cuts = pairwise(range(0, len(message.pieces) + 1, size))
        for sender, (start, stop) in zip(others, cuts, strict=True):
            bound_to = keys.shares_context(context, sender, self.client)
            piece = keys.unseal(
                key_from(sender),
                message.pieces[start : start + NONCE_BYTES],
                message.pieces[start + NONCE_BYTES : stop],
                bound_to,
            )
            try:
                code.field.add(total, code.field.unpack(piece, code.columns))
            except MalformedMessage:
                raise BadShare(f"client {sender} has dealt something else than pieces") from None
        state.own_piece.wipe()
        if number == self.announcement.terms.statement.rounds:
            state.sealing_keys.wipe()
        self.finish_sum(raw)
        state.stage = _DEAL
        return encode(LightAnswer(message.run, number, self.client, code.field.pack(total)))

    def _check_confirmed(self, message: Open, survivors: set[int]) -> None:
        """Raise a ProtocolError unless a quorum of clients has signed the same survivors.

        No two different sets of survivors can both have a quorum of signatures.
        """
        signers = read_participants(message.signers, self.roster).tolist()
        if not survivors.issuperset(signers):
            raise Stranger("a signature of somebody who is not in the sum")
        if len(signers) != len(message.signatures):
            raise MalformedMessage(f"{len(message.signatures)} signatures of {len(signers)}")
        quorum = self._thresholds.quorum
        if len(signers) < quorum:
            raise BelowThreshold(f"{len(signers)} clients confirm the survivors, not {quorum}")
        statement = self._statement()
        for signer, signature in zip(signers, message.signatures, strict=True):
            keys.verify(self.roster[signer], signature, statement, signer)

    # --- helpers ----------------------------------------------------------------------------------

    def _pieces_context(self, sum_number: int, receivers: bytes) -> bytes:
        digest, asked = self.announcement.digest, self.state.asked
        return pieces_context(digest, sum_number, asked, receivers)

    def _statement(self) -> bytes:
        state = self.state
        return survivors_statement(self.announcement.digest, state.participants, state.cohort)

    @property
    def _thresholds(self) -> Thresholds:
        return Thresholds(len(self.participants), self.state.private, self.state.needed)

    def _code(self, sum_number: int) -> MaskCode:
        shape = self.shape(sum_number, self.state.length)
        return code_of(shape, len(self.roster), self._thresholds)

    def _sealing_keys(self, *, receiving: bool) -> Callable[[int], bytes]:
        """Return a function that maps a client to the key for pieces to it, or from it."""
        participants = read_participants(self.state.participants, self.roster).tolist()
        start_of = {
            client: KEY_BYTES * (2 * place + receiving) for place, client in enumerate(participants)
        }
        held = self.state.sealing_keys
        return lambda client: held.reveal(start_of[client], start_of[client] + KEY_BYTES)
