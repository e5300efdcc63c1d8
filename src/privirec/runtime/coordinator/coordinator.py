"""The server of a federation, independent of the transport: it emits messages and takes replies.

    FOLDER/journal        events (`run_state`)
    FOLDER/sums/N         opened sums (`computation`)
    FOLDER/status.json    status of the run, for users

A client that is missing before the first sum is opened drops out of the run. A client that is
missing later ends the run, because the difference of two sums would be its history.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from privirec.data.catalogue import Catalogue
from privirec.durable import private_folder
from privirec.errors import FederationError, PrivirecError
from privirec.federated.programs import program_of
from privirec.filters.components import Components
from privirec.filters.earlier import Earlier
from privirec.privacy.accountant import Room
from privirec.privacy.ledger import Ledger
from privirec.runtime.coordinator.arrivals import Arrivals, TurnAway
from privirec.runtime.coordinator.clients import (
    Address,
    ClientState,
    Directory,
    Patience,
    RemoteClient,
)
from privirec.runtime.coordinator.outbox import ArtifactStream, Outbox
from privirec.runtime.coordinator.run_state import ServerRun, Stage
from privirec.runtime.coordinator.status import StatusFile, status_of
from privirec.runtime.envelope import LARGEST, BadEnvelope, Sealed
from privirec.runtime.messages import Abort, SendVector, TurnedAway
from privirec.runtime.pledges import Pledges
from privirec.runtime.run_plan import RunPlan
from privirec.runtime.spec import RunSpec
from privirec.secagg import Phase, ProtocolError
from privirec.secagg.keys import Identity, RandomBytes, Roster
from privirec.version import __version__

log = logging.getLogger("privirec.server")


class Coordinator:
    """The server in one run, which is new or resumed from its folder."""

    def __init__(
        self,
        folder: Path,
        server_key: Identity,
        roster: Roster,
        catalogue: Catalogue,
        spec: RunSpec,
        *,
        clock: Callable[[], float] = time.monotonic,
        random_bytes: RandomBytes = os.urandom,
        on_sum: Callable[[str], None] | None = None,
        earlier: Earlier | None = None,
    ) -> None:
        program_of(spec.program, 1, len(catalogue))  # refuses settings that cannot work
        people = len(roster) if spec.protected else 1  # until the clients say how many they are
        self._expected = program_of(spec.program, people, len(catalogue))
        self.spec = spec
        self._folder = private_folder(folder)
        self._roster = roster
        self._catalogue = catalogue
        self._patience = Patience(clock)
        self._directory = Directory(roster, spec, self._patience)
        self.largest_reply = LARGEST
        """Most bytes of a reply that the carrier takes."""
        self._since = 0.0
        """Time at which the stage or step began."""
        self._messages: dict[int, bytes] = {}
        """Message to each client of the run in this step."""
        self._artifact: ArtifactStream | None = None
        self._notices: list[tuple[Address, bytes]] = []
        self._status = StatusFile(folder)
        self._state = ServerRun(folder, roster, spec, on_sum=on_sum, earlier=earlier)
        self._outbox = Outbox(self._state.begin(random_bytes), server_key, roster)
        self._greeting = self._outbox.greeting(
            catalogue, protected=spec.protected, level=self._expected.level
        )
        self._arrivals = Arrivals(self._directory, self._state, roster)
        self._state.resume(self._entered)
        for number, carried in self._state.traffic.items():
            self.clients[number].bytes_up, self.clients[number].bytes_down = carried
        if self._state.was_resumed and not self.finished:
            log.info("run %s goes on: %s", self.run[:8], self._state.where())
            self._since -= self._status.waited_before(self.status())

    def __repr__(self) -> str:
        return f"<coordinator of run {self.run[:8]}, {self.stage.value}>"

    @property
    def run(self) -> str:
        """Number of the run."""
        return self._state.number

    @property
    def stage(self) -> Stage:
        return self._state.stage

    @property
    def reason(self) -> str:
        """Reason why the run was stopped."""
        return self._state.reason

    # --- the carrier's side -----------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self.stage in (Stage.DONE, Stage.STOPPED)

    def connected(self, addresses: Iterable[Address]) -> None:
        """Update the set of connected addresses; unknown ones are asked to identify themselves."""
        self._directory.connected(addresses)

    def outgoing(self) -> Iterator[tuple[Address, bytes]]:
        """Yield the messages that are due, each to be sent once."""
        now = self._patience.now()
        while self._notices:
            yield self._notices.pop()
        if self.stage is Stage.DONE:
            return
        if self.stage is not Stage.STOPPED:
            for address in self._directory.strangers_to_greet():
                yield address, self._greeting
        for number in sorted(self.waiting_for()):
            client = self.clients[number]
            if client.address is None or not client.is_due(now, self.spec):
                continue
            message = self.message_for(number)
            client.sent_at, client.retry_at = now, None
            client.bytes_down += len(message)
            yield client.address, message

    def failed(self, address: Address) -> None:
        """Record that a message could not be sent or was not answered."""
        self._directory.failed(address)

    def receive(self, address: Address, message: Sealed) -> None:
        """Process a reply; log and drop one that does not belong here."""
        if self.finished:
            return
        try:
            self._arrivals.take(address, message, self.waiting_for)
        except TurnAway as error:
            self._turn_away(address, str(error))
        except (BadEnvelope, ProtocolError) as error:
            if self._directory.may_complain(address):
                log.warning("dropped from %s: %s", address, error)
            self.failed(address)

    def tick(self) -> None:
        """Advance the run as far as the replies and the elapsed time allow."""
        try:
            while not self.finished and self._advance():
                pass
        except ProtocolError as error:
            self._state.stop(str(error), self._refusals())
        except PrivirecError as error:
            self._state.stop(str(error))
        self._status.write(self.status())

    def _refusals(self) -> str:
        """Return the number of refusals and the reason of the first, as the end of a message.

        An operator who reads that too few clients take part needs to know why.
        """
        refused = {n: c.gone for n, c in sorted(self.clients.items()) if c.gone}
        if not refused:
            return ""
        first = min(refused)
        return f": {len(refused)} refused, client {first} with: {refused[first]}"

    def distribute(self, artifact: Path) -> None:
        """Distribute a saved and signed model to the clients, which ends the run."""
        self._artifact = ArtifactStream(artifact, self.spec.part_bytes)
        for client in self.clients.values():
            client.received = 0
        self._state.hand_out()

    def abort(self, reason: str) -> None:
        """Stop the run on request from outside."""
        if not self.finished:
            self._state.stop(reason)
            self._status.write(self.status())

    def close(self) -> None:
        """Close files; the run can be resumed from its folder."""
        self._state.close()

    def raise_if_stopped(self) -> None:
        if self.stage is Stage.STOPPED:
            raise FederationError(self.reason)

    def waiting_for(self) -> set[int]:
        """Return the clients that still owe something at this stage."""
        if self.stage is Stage.STOPPED:
            return {
                number
                for number, client in self.clients.items()
                if client.address is not None and client.state is not ClientState.TOLD
            }
        if self.stage is Stage.HANDING_OUT and self._artifact is not None:
            return {
                number
                for number, client in self.clients.items()
                if client.address is not None and client.received < self._artifact.total
            }
        if self.stage is Stage.SUMMING:
            return {number for number in self._state.missing() if not self.clients[number].gone}
        return set()

    @property
    def clients(self) -> dict[int, RemoteClient]:
        """The server's knowledge of every client of the roster."""
        return self._directory.clients

    @property
    def cohort(self) -> tuple[int, ...]:
        """Clients that the current step relies on; once a sum is open, the clients in it."""
        decided = self._state.in_sum
        return tuple(sorted(self._messages if decided is None else decided))

    @property
    def plan(self) -> RunPlan:
        return self._state.plan

    @property
    def ledger(self) -> Ledger:
        computation = self._state.computation
        return Ledger() if computation is None else computation.ledger

    @property
    def components(self) -> Components | None:
        computation = self._state.computation
        return None if computation is None else computation.components

    @property
    def found(self) -> dict[str, Any]:
        """Results of the program besides components."""
        computation = self._state.computation
        return {} if computation is None else computation.found

    # --- messages ---------------------------------------------------------------------------------

    def message_for(self, number: int) -> bytes:
        client = self.clients[number]
        if self.stage is Stage.STOPPED:
            client.state = ClientState.TOLD
            return self._outbox.seal(Abort(reason=self._state.told), number)
        if self.stage is Stage.HANDING_OUT and self._artifact is not None:
            return self._outbox.piece(self._artifact, client.received)
        computing = self._state.computing
        if computing.step.phase is Phase.INPUT and self._state.in_sum is not None:
            return self._outbox.seal(SendVector(step=computing.position), number)
        return self._messages[number]

    def _turn_away(self, address: Address, reason: str) -> None:
        if self._directory.may_complain(address):
            log.warning("turned away %s: %s", address, reason)
        self._directory.leave_alone(address)
        self._notices.append((address, self._outbox.seal(TurnedAway(reason=reason))))

    # --- progress ---------------------------------------------------------------------------------

    def _advance(self) -> bool:
        """Advance one step if all answers are in or time is up; return True if the run advanced."""
        waited = self._patience.now() - self._since
        if self.stage is Stage.GATHERING:
            here = {n for n, client in self.clients.items() if client.state is ClientState.HERE}
            refusing = len(self._over_budget())
            left = len(self.clients) - refusing
            hopeless = refusing and left < self.spec.least_clients(len(self.clients))
            if len(here) < left and not hopeless and waited < self.spec.hello:
                return False
            self._begin(here)
            return True
        if self.stage is Stage.HANDING_OUT:
            if self.waiting_for() and waited < self.spec.deadline:
                return False
            self._state.handed_out()
            return True
        if self.stage is not Stage.SUMMING:
            return False
        late = waited >= self.spec.deadline
        if self._stopped_without_the_missing(late):
            return True
        if self.waiting_for() and not late:
            return False
        traffic = {n: (c.bytes_up, c.bytes_down) for n, c in self.clients.items()}
        self._state.end_step(set(self._messages), traffic)
        return True

    def _begin(self, here: set[int]) -> None:
        spec, roster = self.spec, len(self.clients)
        least = spec.least_clients(roster)
        if len(here) < least:
            self._state.stop(
                f"{len(here)} of {roster} clients came and {least} are needed (at least "
                f"{spec.smallest_cohort}, and {spec.drop_share:.0%} of the roster may be "
                "missing): see that they run, reach the server and do not refuse, then start again",
                self._budgets(),
            )
            return
        if len(here) < roster:
            log.warning("%d clients of the roster are not here", roster - len(here))
        pledged = {n: client.pledge for n, client in self.clients.items() if client.pledge}
        plan = RunPlan(
            run=self.run,
            version=__version__,
            spec=spec,
            n_items=len(self._catalogue),
            catalogue=self._catalogue.fingerprint,
            roster=self._roster.digest.hex(),
            clients=len(self._roster),
            pledges=Pledges.of({number: pledged[number] for number in sorted(here)}),
        )
        largest = max(shape.packed_bytes for shape in plan.shapes)
        if largest > self.largest_reply:
            self._state.stop(
                f"a vector of this run has {largest:,} bytes and the server takes replies of "
                f"{self.largest_reply:,}: start it with a larger --largest-reply"
            )
            return
        self._state.start(plan)

    def _over_budget(self) -> list[RemoteClient]:
        """Return the clients whose budget does not admit this run."""
        return [
            client
            for client in self.clients.values()
            if client.over_budget and client.state.is_missing
        ]

    def _budgets(self) -> str:
        """Return the largest epsilon that all clients could pay, as the end of a message."""
        refusing = self._over_budget()
        if not refusing:
            return ""
        said = f": {len(refusing)} of them have too little left of their privacy budget"
        told = [client.room for client in refusing if client.room is not None]
        if len(told) < len(refusing):
            return f"{said}, and {len(refusing) - len(told)} do not tell how much"
        epsilon = Room(min(told)).epsilon(self._expected.delta)
        said += f"; all can pay epsilon {epsilon:g}" if epsilon else "; no epsilon is left to all"
        if all(client.returns for client in refusing):
            return f"{said}, and what this run costs from {max(c.returns for c in refusing)} on"
        return f"{said}, and what this run costs never again"

    def _stopped_without_the_missing(self, late: bool) -> bool:
        """Stop the run if a missing client cannot be left out; return True if the run was stopped.

        No client can be left out once the first sum is open or being opened.
        """
        if self._state.may_lose_clients:
            return False
        missing = self._state.missing()
        gone = [number for number in sorted(missing) if self.clients[number].gone]
        words = ""
        if gone:
            why = f"client {gone[0]} left"
            words = f" (client {gone[0]}: {self.clients[gone[0]].gone})"
        elif late and missing:
            names = ", ".join(map(str, sorted(missing)[:5]))
            why = f"{len(missing)} clients did not answer in time ({names})"
        else:
            return False
        number = self._state.computing.step.sum_number
        self._state.stop(
            f"in sum {number} of {self.plan.number_of_sums} {why}, and a sum without "
            "them, beside the earlier ones, would show their histories; no further sum was "
            "opened. Start a new run when the same clients are back",
            words,
        )
        return True

    def _entered(self) -> None:
        """Prepare for a stage, or a step of the sums, that has begun."""
        if self.stage is Stage.SUMMING:
            for number, users in self.plan.users.items():
                self.clients[number].users = users
            self._messages = self._outbox.of_step(self._state.computing)
        self._since = self._patience.now()
        in_run = set(self.cohort) if self._state.computation else None
        self._directory.begin_wait(in_run)

    # --- status -----------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the status of the run as plain values."""
        return status_of(self._state, self.clients, self._patience.now() - self._since)
