"""Client behaviour common to all protocols: message order, one contribution per sum, storage.

The client of a protocol subclasses `BaseClient`. It defines its answers (`join`, `answer`), its
masks (`masks`) and its check of the clients in a sum (`check_summed`).
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

from privirec.secagg.announcing import Announcement, check_announcement
from privirec.secagg.errors import (
    BadContribution,
    BadDump,
    MalformedMessage,
    OutOfOrder,
    ProtocolError,
    ReplayedMessage,
    SecondInput,
    SecondSurvivorSet,
    SecondUnmask,
    SessionClosed,
    WrongRun,
)
from privirec.secagg.keys import NOTHING_ASKED, Identity, RandomBytes, Roster
from privirec.secagg.messages import Announce, ProtocolMessage
from privirec.secagg.participants import read_participants
from privirec.secagg.protocol import ClientPolicy, ClientSession, MessageOrder
from privirec.secagg.ring import VectorShape, rechunked
from privirec.secagg.stored import StoredState
from privirec.secagg.uploads import ChangeBlock

State = TypeVar("State", bound=StoredState)
_DIGEST_BYTES = 32


class BaseClient(ClientSession, Generic[State]):
    """One client in one run; base class of the clients of all protocols."""

    exchange: MessageOrder

    def __init__(
        self,
        exchange: MessageOrder,
        state: State,
        identity: Identity,
        roster: Roster,
        policy: ClientPolicy,
        random_bytes: RandomBytes,
    ) -> None:
        self.client = state.client
        self.exchange = exchange
        self.state = state
        self.identity = identity
        self.roster = roster
        self.policy = policy
        self.random = random_bytes
        self._closed = False
        self._announcement: Announcement | None = None
        if state.announcement:
            self._announcement = self._stored_announcement()

    def __repr__(self) -> str:
        return f"<{self.exchange.name} client {self.client}, secrets <redacted>>"

    # --- for subclasses ---------------------------------------------------------------------------

    @abstractmethod
    def join(self) -> bytes:
        """Return the answer to an announcement that passed all checks; see `announcement`."""

    @abstractmethod
    def answer(self, message: ProtocolMessage, raw: bytes) -> bytes | None:
        """Check a message that arrives in order, update `state`, and return the answer.

        `raw` is the encoded message. Implementations set `state.stage` to the index of the next
        expected message.
        """

    @abstractmethod
    def masks(self, sum_number: int, asked: bytes) -> ChangeBlock:
        """Return a function that masks the blocks of this sum's vector.

        The sum can be opened only if all its clients have the same `asked` digest. Implementations
        derive all secrets before they return.
        """

    @property
    @abstractmethod
    def ready(self) -> bool:
        """True if the client has all it needs to mask the vector of sum `state.sum_number`."""

    def shape(self, sum_number: int, length: int | None = None) -> VectorShape:
        """Return the shape of a sum: the announced one, or one that is shorter."""
        return self.announcement.terms.shapes[sum_number - 1].shortened(length)

    def wire_shape(self, sum_number: int, length: int | None = None) -> VectorShape:
        """Return the shape of the vectors on the wire."""
        return self.shape(sum_number, length)

    def input_complete(self) -> None:
        """Record that the last block was made.

        The server sends another message before the next sum. Protocols without a recovery step
        override this method.
        """
        self.state.input_sent = 1

    def check_turn(self, message: ProtocolMessage) -> None:
        """Raise a ProtocolError unless this is the next message in `exchange.told`."""
        kind, order, stage = type(message), self.exchange.told, self.state.stage
        if kind not in order or order.index(kind) > stage:
            raise OutOfOrder(f"{kind.__name__} comes too early or from a client")
        if order.index(kind) < stage:
            raise ReplayedMessage(f"{kind.__name__} was answered before")

    # --- session interface ------------------------------------------------------------------------

    @property
    def announcement(self) -> Announcement:
        """The announcement of the run that this client has joined."""
        if self._announcement is None:
            raise OutOfOrder("no run was announced")
        return self._announcement

    @property
    def participants(self) -> frozenset[int]:
        if not self.state.participants:
            return frozenset()
        return frozenset(read_participants(self.state.participants, self.roster).tolist())

    def receive(self, message: bytes) -> bytes | None:
        self.check_open()
        try:
            return self._receive(self.exchange.decode(message), message)
        except ProtocolError as error:
            if error.fatal:
                self.close()
            raise

    def contribute(
        self,
        sum_number: int,
        blocks: Iterable[NDArray[Any]],
        asked: bytes = NOTHING_ASKED,
        length: int | None = None,
    ) -> Iterator[bytes]:
        self.check_open()
        if len(asked) != len(NOTHING_ASKED):
            raise ValueError(f"`asked` has {len(asked)} bytes, not {len(NOTHING_ASKED)}")
        state = self.state
        sums = self.announcement.terms.statement.rounds
        if not 1 <= sum_number <= sums:
            raise OutOfOrder(f"the run has no sum {sum_number}")
        if sum_number > state.sum_number or (sum_number == state.sum_number and not self.ready):
            raise OutOfOrder(f"client {self.client} is not ready for sum {sum_number}")
        if sum_number < state.sum_number or state.input_begun:
            raise SecondInput(f"sum {sum_number} already has its contribution: masks are used once")
        shape = self.wire_shape(sum_number, length)
        state.input_begun = 1
        # Derive the masks now. By the time the first block is requested, the secrets may be wiped.
        try:
            hide = self.masks(sum_number, asked)
        except ProtocolError:
            self.close()
            raise
        return self._packed(shape, blocks, hide)

    def vector_bytes(self, sum_number: int, length: int | None = None) -> int:
        return self.wire_shape(sum_number, length).packed_bytes

    def dump(self) -> bytes:
        self.check_open()
        return self.state.dump(self.exchange.label)

    def close(self) -> None:
        self._closed = True
        self.state.wipe()

    def check_open(self) -> None:
        if self._closed:
            raise SessionClosed(f"client {self.client} has left this run")

    # --- helpers for sums -------------------------------------------------------------------------

    def check_unanswered(self, message: ProtocolMessage, raw: bytes) -> None:
        """Raise a ProtocolError if the sum was opened before or its vector was not sent yet."""
        state, number = self.state, message.sum_number
        if number < state.sum_number:
            place = _DIGEST_BYTES * (number - 1)
            if hashlib.sha256(raw).digest() == state.answered[place : place + _DIGEST_BYTES]:
                raise SecondUnmask(f"sum {number} was unmasked before")
            raise SecondSurvivorSet(f"another set of survivors for sum {number}")
        if number > state.sum_number or not state.input_sent:
            raise OutOfOrder(f"no input was sent for sum {number}")

    def finish_sum(self, raw: bytes = b"") -> None:
        """Go on to the next sum, after this client answered `raw` so that the sum can be opened."""
        state = self.state
        state.answered += hashlib.sha256(raw).digest()
        state.sum_number += 1
        state.input_begun = state.input_sent = 0

    # --- private helpers --------------------------------------------------------------------------

    def _receive(self, message: ProtocolMessage, raw: bytes) -> bytes | None:
        state = self.state
        if self._announcement and message.run != self._announcement.terms.run:
            raise WrongRun("a message of another run")
        if not message.to_all and message.client != self.client:
            raise WrongRun(f"a message for client {message.client}, not {self.client}")
        self.check_turn(message)
        if not isinstance(message, Announce):
            return self.answer(message, raw)
        check_announcement(message, self.exchange, self.client, self.roster, self.policy)
        self._announcement = Announcement.read(raw, self.exchange)
        state.announcement = raw
        state.stage = 1
        return self.join()

    def _packed(
        self, shape: VectorShape, blocks: Iterable[NDArray[Any]], hide: ChangeBlock
    ) -> Iterator[bytes]:
        """Yield the vector, masked and packed, block by block; input blocks have any sizes.

        Raise BadContribution, before the last block, unless the entries are as announced.
        """
        offset = 0
        try:
            for block in rechunked(blocks, shape, self.announcement.terms.block_entries):
                self.check_open()
                hide(offset, block)
                offset += len(block)
                if offset == shape.length:
                    self.input_complete()
                yield shape.ring.pack(block)
        except BadContribution:
            self.close()
            raise

    def _stored_announcement(self) -> Announcement:
        client = self.client
        try:
            found = Announcement.read(self.state.announcement, self.exchange)
        except MalformedMessage as error:
            raise BadDump("stored state without an announcement") from error
        if found.terms.roster != self.roster.digest:
            raise BadDump("stored state of a run with another roster")
        if self.roster[client] != self.identity.public:
            raise BadDump(f"stored state of client {client}, which has another identity")
        return found
