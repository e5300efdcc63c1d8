"""The server: relays sealed pieces, adds masked vectors, decodes the sum of all masks at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from privirec.extra.lightsecagg.code import MaskCode
from privirec.extra.lightsecagg.field import Elements, ElementShape
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
from privirec.extra.lightsecagg.shared import check_sizes, code_of, survivors_statement
from privirec.extra.lightsecagg.thresholds import Thresholds, thresholds
from privirec.extra.lightsecagg.totals import ElementUploads, PieceRelay
from privirec.secagg import keys
from privirec.secagg.errors import BadShare, BelowThreshold, OutOfOrder
from privirec.secagg.keys import TAG_BYTES, RandomBytes, Roster
from privirec.secagg.messages import ProtocolMessage, addressed, encode
from privirec.secagg.parameters import Parameters, Statement
from privirec.secagg.participants import least_participants, write_participants
from privirec.secagg.protocol import MessageOrder, ServerSession, ServerSettings, Step
from privirec.secagg.ring import VectorShape, Words
from privirec.secagg.server_base import BaseServer
from privirec.secagg.uploads import ChangeBlock


class LightServer(BaseServer):
    """A server that learns the masked vectors and the sum of the masks, but no single mask."""

    def __init__(
        self,
        exchange: MessageOrder,
        roster: Roster,
        statement: Statement,
        shapes: Sequence[VectorShape],
        settings: ServerSettings,
        random_bytes: RandomBytes,
    ) -> None:
        super().__init__(exchange, roster, statement, shapes, settings, random_bytes)
        # Raise early if the pieces are too large, for all clients as well as for the fewest.
        for clients in {len(roster), least_participants(statement)}:
            check_sizes(shapes, len(roster), thresholds(statement.with_clients(clients)))
        self._advertised: dict[int, SignedKey] = {}
        self._map = b""
        """Bit map of the participants."""
        self._thresholds: Thresholds | None = None
        # Data of the current sum.
        self._receivers: tuple[int, ...] = ()
        """Clients that receive pieces, ascending."""
        self._relay: PieceRelay | None = None
        self._signatures: dict[int, bytes] = {}
        self._confirmed: set[int] = set()
        self._answers: dict[int, Elements] = {}

    @property
    def parameters(self) -> Parameters:
        if self._thresholds is None:
            return Parameters(0, 0)
        return Parameters(self._thresholds.clients - 1, self._thresholds.needed)

    def wire_shape(self, sum_number: int) -> VectorShape:
        return self._elements(sum_number).carried

    def new_uploads(self, sum_number: int) -> ElementUploads:
        return ElementUploads(sum_number, self._elements(sum_number), self.settings)

    def waiting_for(self) -> set[int]:
        waiting = super().waiting_for()
        # In the last step, only clients that confirmed the survivors get a message.
        asked_in_last = self.step is not None and self.step.name == "recover"
        return waiting & self._confirmed if asked_in_last else waiting

    def open_sum(self) -> Words:
        return ServerSession.open_sum(self)  # the accumulator holds elements, not entries

    def messages(self, step: Step) -> Iterator[tuple[int, bytes]]:
        if step.name == "share":
            return self._deal_messages(step.sum_number)
        if step.name == "confirm":
            return self._survivor_messages(step.sum_number)
        if step.name == "recover":
            return self._open_messages(step.sum_number)
        return ((client, b"") for client in sorted(self.active))

    def take_answer(self, message: ProtocolMessage) -> None:
        if isinstance(message, LightAdvertise):
            self._take_key(message)
        elif isinstance(message, Pieces):
            self._take_pieces(message)
        elif isinstance(message, LightConfirm):
            self._take_confirmation(message)
        elif isinstance(message, LightAnswer):
            code = self._code(message.sum_number)
            place = self.roster.place(message.client)
            self._answers[place] = code.field.unpack(message.packed, code.columns)
        else:
            raise OutOfOrder(f"{type(message).__name__} is not for the server")

    def step_over(self, step: Step) -> None:
        if step.name == "advertise":
            size = len(self.participants)
            self._thresholds = thresholds(self.terms.statement.with_clients(size))
            self._map = write_participants(self.participants, self.roster)
            self._receivers = self.participants
        elif step.name == "confirm":
            self._check_answers(len(self.answered), "confirm who is in the sum")
            self._confirmed = set(self.answered)

    def sum_over(self) -> None:
        if self._relay:
            self._relay.close()
            self._relay = None
        self._signatures.clear()
        self._confirmed.clear()
        self._answers.clear()
        self._receivers = tuple(sorted(self.active))

    # --- pieces -----------------------------------------------------------------------------------

    def _take_key(self, message: LightAdvertise) -> None:
        client, key = message.client, message.key
        keys.check_publics(key.sealing_key, client)
        signed = keys.advertised_bytes(self.digest, client, key.sealing_key, b"")
        keys.verify(self.roster[client], key.signature, signed, client)
        self._advertised[client] = key

    def _deal_messages(self, sum_number: int) -> Iterator[tuple[int, bytes]]:
        found = self._known_thresholds
        first = sum_number == 1
        signed = tuple(self._advertised[client] for client in self._receivers) if first else ()
        receivers = write_participants(self._receivers, self.roster)
        thresholds = (found.private, found.needed)
        length = self.shape(sum_number).length
        deal = Deal(
            self.terms.run, sum_number, 0, *thresholds, self.asked, length, receivers, signed
        )
        raw = encode(deal)
        return ((client, addressed(raw, client)) for client in self._receivers)

    def _take_pieces(self, message: Pieces) -> None:
        size = self._code(message.sum_number).piece_bytes + TAG_BYTES
        others = len(self._receivers) - 1
        if message.count != others or len(message.sealed) != others * size:
            raise BadShare(f"client {message.client} has not sent pieces for all the others")
        if self._relay is None:
            self._relay = PieceRelay(self.settings.spool, self._receivers)
        self._relay.put(message.client, message.nonce, message.sealed)

    # --- opening ----------------------------------------------------------------------------------

    def _survivor_messages(self, sum_number: int) -> Iterator[tuple[int, bytes]]:
        survivors = write_participants(self.survivors, self.roster)
        raw = encode(LightSurvivors(self.terms.run, sum_number, 0, survivors))
        return ((client, addressed(raw, client)) for client in self.survivors)

    def _take_confirmation(self, message: LightConfirm) -> None:
        client = message.client
        if message.sum_number == 1:
            survivors = write_participants(self.survivors, self.roster)
            statement = survivors_statement(self.digest, self._map, survivors)
            keys.verify(self.roster[client], message.signature, statement, client)
            self._signatures[client] = message.signature

    def _open_messages(self, sum_number: int) -> Iterator[tuple[int, bytes]]:
        if self._relay is None:
            raise OutOfOrder("there are no pieces to relay")
        signers = sorted(self._signatures)[: self._known_thresholds.quorum]
        signatures = tuple(self._signatures[client] for client in signers)
        signed_by = write_participants(signers, self.roster) if signers else b""
        others = len(self.survivors) - 1
        for client, pieces in self._relay.deliveries(sorted(self._confirmed), self.survivors):
            message = Open(
                self.terms.run, sum_number, client, signed_by, signatures, others, pieces
            )
            yield client, encode(message)

    def masks_to_remove(self, sum_number: int) -> ChangeBlock:
        """Remove all masks from the total before any block is opened.

        A wrong answer corrupts the whole sum but may be detected in some columns only.
        """
        self._check_answers(len(self._answers), "have answered")
        uploads = self.uploads
        if not isinstance(uploads, ElementUploads):
            raise TypeError("vectors were not added up as elements")
        uploads.remove_masks(self._code(sum_number), self._answers)
        return lambda _offset, _block: None

    def _check_answers(self, count: int, what: str) -> None:
        needed = self._known_thresholds.needed
        if count < needed:
            raise BelowThreshold(f"{count} clients {what}, {needed} are needed: no sum is opened")

    # --- helpers ----------------------------------------------------------------------------------

    @property
    def _known_thresholds(self) -> Thresholds:
        if self._thresholds is None:
            raise OutOfOrder("it is not known yet who takes part")
        return self._thresholds

    def _elements(self, sum_number: int) -> ElementShape:
        return ElementShape(self.shape(sum_number))

    def _code(self, sum_number: int) -> MaskCode:
        return code_of(self.shape(sum_number), len(self.roster), self._known_thresholds)
