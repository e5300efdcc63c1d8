"""Handling of replies at the server: authentication, validation and their effects."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from privirec.privacy.cohorts import Demands
from privirec.runtime import envelope
from privirec.runtime.coordinator.clients import Address, ClientState, Directory, RemoteClient
from privirec.runtime.coordinator.run_state import ServerRun, Stage
from privirec.runtime.envelope import BadEnvelope, Envelope, Sealed
from privirec.runtime.messages import Answer, Here, Received, Refused, Vector
from privirec.runtime.pledges import BadPledge, Pledges, SignedPledge
from privirec.runtime.refusals import Code
from privirec.secagg import Phase, ProtocolError
from privirec.secagg.keys import Identity, Roster

log = logging.getLogger("privirec.server")

Waiting = Callable[[], set[int]]
"""Returns the clients that still owe something."""


class TurnAway(BadEnvelope):
    """A sender that this server refuses to talk to."""


class _NotOnRoster(BadEnvelope):
    """A message whose sender is not in the roster, or that was damaged."""


class Arrivals:
    """Receiver of replies."""

    def __init__(self, directory: Directory, state: ServerRun, roster: Roster) -> None:
        self._directory = directory
        self._state = state
        self._roster = roster
        self._nobody = Identity.generate(os.urandom).public
        """Public key without an owner, used to check senders that are not in the roster."""

    def take(self, address: Address, message: Sealed, waiting_for: Waiting) -> None:
        """Process a reply.

        Raise TurnAway, BadEnvelope or ProtocolError for a reply that does not belong here; it then
        has no effect.
        """
        reply = envelope.peek(message, "to-server")
        try:
            self._check_sender(reply, message)
        except _NotOnRoster as error:
            # On the connection of a known client this is damage; on any other it is a stranger.
            raise TurnAway(str(error)) if self._directory.is_stranger(address) else error from None
        self._directory.clients[reply.client].bytes_up += len(message)
        self._take(address, reply, waiting_for)

    def _check_sender(self, reply: Envelope, message: Sealed) -> None:
        """Check a message's signature and run.

        A sender outside the roster gets the same error, after the same work, as one that signs with
        a wrong key. Nobody can find out in this way who is in the roster.
        """
        try:
            envelope.check(message, self._roster.get(reply.client, self._nobody), "to-server")
        except BadEnvelope:
            raise _NotOnRoster(
                f"a message in the name of client {reply.client}, signed by nobody in the roster"
            ) from None
        if reply.run != self._state.number and not _could_not_read(reply):
            raise BadEnvelope(
                f"client {reply.client} sent a message of another run: a replay, or a late one"
            )

    def _take(self, address: Address, reply: Envelope, waiting_for: Waiting) -> None:
        number, said = reply.client, reply.message
        client = self._directory.clients[number]
        if isinstance(said, Refused):
            self._take_refusal(address, number, said)
            return
        if isinstance(said, Here):
            self._take_here(address, number, said, reply.parts)
            return
        if client.address is None and self._state.stage is not Stage.GATHERING:
            self._directory.bind(client, address)  # signed for this run, so the client is here
        if client.address != address:
            raise BadEnvelope(f"a message of client {number} from another address than its own")
        if number not in waiting_for():
            return  # late or duplicate
        if isinstance(said, Received) and self._state.stage is Stage.HANDING_OUT:
            self._take_receipt(client, said)
        elif isinstance(said, Answer | Vector) and self._state.stage is Stage.SUMMING:
            computing = self._state.computing
            uploads = computing.step.phase is Phase.INPUT
            if said.step != computing.position or isinstance(said, Vector) is not uploads:
                return
            if isinstance(said, Vector):
                self._take_vector(number, reply.parts)
            elif len(reply.parts) == 1:
                self._state.take_answer(number, bytes(reply.parts[0]))
                client.state = ClientState.ANSWERED

    def _take_here(
        self, address: Address, number: int, said: Here, parts: tuple[bytes | memoryview, ...]
    ) -> None:
        client = self._directory.clients[number]
        pledge = self._pledge(number, said, parts)
        if client.address is not None and client.address != address:
            raise TurnAway(f"client {number} is here already: two machines with one identity")
        if self._state.stage is Stage.GATHERING:
            if client.address is None:
                log.info("client %d is here with %d users", number, said.users)
            client.users, client.pledge, client.state = said.users, pledge, ClientState.HERE
        elif self._state.computation and number not in self._state.plan.users:
            raise TurnAway(f"client {number} comes too late for this run")
        self._directory.bind(client, address)

    def _pledge(
        self, number: int, said: Here, parts: tuple[bytes | memoryview, ...]
    ) -> SignedPledge:
        """Return a client's pledge after checking it.

        The server checks pledges too, because every client refuses a plan with a bad one.
        """
        if len(parts) != 2:
            raise BadEnvelope(f"a pledge of client {number} without its sets")
        known, past = (bytes(part) for part in parts)
        signature = bytes.fromhex(said.signature)
        demands = Demands(*said.demands)
        pledge = SignedPledge(said.users, demands, known, past, said.period, signature)
        try:
            pledge.check(self._state.number, number, self._roster)
            Pledges.of({number: pledge}).read(self._roster)
        except BadPledge as error:
            raise BadEnvelope(str(error)) from None
        return pledge

    def _take_refusal(self, address: Address, number: int, said: Refused) -> None:
        client = self._directory.clients[number]
        if said.reason != client.last_refusal:
            log.warning("client %d: %s", number, said.reason)
            client.last_refusal = said.reason
        client.over_budget, client.room = said.code is Code.BUDGET, said.room
        client.returns = said.returns
        known = client.address == address
        if known and said.final:
            client.gone, client.state = client.gone or said.reason, ClientState.REFUSED
        elif known or client.address is None:
            client.state = client.state if known else ClientState.REFUSES
            self._directory.failed(address)

    def _take_vector(self, number: int, parts: tuple[bytes | memoryview, ...]) -> None:
        client = self._directory.clients[number]
        try:
            self._state.take_vector(number, parts[0] if len(parts) == 1 else b"")
        except ProtocolError as error:
            # The client signed this message itself, but it is not its vector.
            log.warning("client %d leaves: %s", number, error)
            client.gone, client.state = str(error), ClientState.REFUSED
            return
        client.state = ClientState.ANSWERED

    def _take_receipt(self, client: RemoteClient, said: Received) -> None:
        if said.offset > client.received:
            client.received = said.offset
            client.ask_at_once()
            client.state = ClientState.INSTALLED if said.installed else ClientState.RECEIVING


def _could_not_read(reply: Envelope) -> bool:
    """Return True if a client refuses a message that it could not read.

    Such a client does not know which run the message belongs to.
    """
    said = reply.message
    unread = isinstance(said, Refused) and said.code is Code.BAD_MESSAGE and not said.final
    return unread and not reply.run
