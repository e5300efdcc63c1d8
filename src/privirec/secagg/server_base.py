"""Server behaviour common to all protocols: schedule, remaining clients, sums of vectors.

The server of a protocol subclasses `BaseServer`. It defines the messages of a step (`messages`),
the handling of answers (`take_answer`), the end of a step (`step_over`) and how to open a sum
(`masks_to_remove`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from privirec.secagg.announcing import Announcement, announce
from privirec.secagg.errors import (
    CohortChanged,
    CohortTooSmall,
    OutOfOrder,
    ProtocolError,
    ReplayedMessage,
    Stranger,
    TooManyDropped,
    WrongRun,
)
from privirec.secagg.keys import NOTHING_ASKED, RandomBytes, Roster
from privirec.secagg.messages import Announce, ProtocolMessage
from privirec.secagg.parameters import Statement
from privirec.secagg.participants import COHORT_CHANGED, least_participants
from privirec.secagg.protocol import MessageOrder, Phase, ServerSession, ServerSettings, Step
from privirec.secagg.ring import VectorShape, Words
from privirec.secagg.uploads import ChangeBlock, Uploads


class BaseServer(ServerSession):
    """The server in one run; base class of the servers of all protocols.

    A step involves the clients in `active`. Clients that have not answered when it ends are
    removed, except clients whose vectors are in the sum: they remain even if they do not help to
    open it. The clients in the first sum are the cohort of all later sums.
    """

    exchange: MessageOrder

    def __init__(
        self,
        exchange: MessageOrder,
        roster: Roster,
        statement: Statement,
        shapes: Sequence[VectorShape],
        settings: ServerSettings,
        random_bytes: RandomBytes,
    ) -> None:
        self.exchange = exchange
        terms = announce(exchange, roster, statement, shapes, settings, random_bytes)
        announcement = Announcement.of(self.announced(terms))
        self.announcement = announcement.raw
        self.terms = announcement.terms
        self.digest = announcement.digest
        self.roster = roster
        self.settings = settings
        self.active = set(roster)
        """Remaining clients."""
        self.participants: tuple[int, ...] = ()
        """Clients that answered the announcement, ascending."""
        self.answered: set[int] = set()
        """Clients that have answered in this step."""
        self.aborted = False
        self.asked = NOTHING_ASKED
        self._length: int | None = None
        """Length of the current sum; None for the announced one."""
        self._steps = exchange.schedule_for(statement).steps(len(shapes))
        self._index_of = {
            (step.name, step.sum_number): place for place, step in enumerate(self._steps)
        }
        self._at = 0
        self.step: Step | None = self._steps[0]
        self._asked = False
        self._survivors: tuple[int, ...] = ()
        self._uploads: Uploads | None = None

    def __repr__(self) -> str:
        return f"<{self.exchange.name} server, {self._where}>"

    # --- for subclasses ---------------------------------------------------------------------------

    @abstractmethod
    def messages(self, step: Step) -> Iterator[tuple[int, bytes]]:
        """Return an iterator over (client, message) of a later step, for all in `active`."""

    @abstractmethod
    def take_answer(self, message: ProtocolMessage) -> None:
        """Check and store the first answer of an active client in this step.

        If the answer is invalid, raise a ProtocolError and change nothing.
        """

    @abstractmethod
    def step_over(self, step: Step) -> None:
        """Handle the end of a step that opens no sum.

        `active` and `answered` tell which clients completed it. A ProtocolError ends the run.
        """

    @abstractmethod
    def masks_to_remove(self, sum_number: int) -> ChangeBlock:
        """Return a function that removes the masks from the blocks of the total.

        Implementations derive all secrets before they return. A ProtocolError ends the run, and
        nothing is opened.
        """

    @abstractmethod
    def sum_over(self) -> None:
        """Discard the data of a sum that was opened, skipped or aborted."""

    def announced(self, terms: Announce) -> Announce:
        """Return the announcement with the protocol's additions, of the first type in `told`."""
        return terms

    def shape(self, sum_number: int) -> VectorShape:
        """Return the shape of a sum: the announced one, or shorter if the current sum is."""
        announced = self.terms.shapes[sum_number - 1]
        current = self.step is not None and self.step.sum_number == sum_number
        return announced.shortened(self._length if current else None)

    def wire_shape(self, sum_number: int) -> VectorShape:
        """Return the shape of the vectors on the wire and of their total."""
        return self.shape(sum_number)

    def new_uploads(self, sum_number: int) -> Uploads:
        """Return the object that receives and adds the vectors of a sum."""
        return Uploads(sum_number, self.wire_shape(sum_number), self.settings)

    # --- session interface ------------------------------------------------------------------------

    @property
    def survivors(self) -> tuple[int, ...]:
        return self._survivors

    def ask(self, asked: bytes, length: int | None = None) -> None:
        step = self._current()
        if self._asked or step.phase not in (Phase.PREPARATION, Phase.INPUT):
            raise OutOfOrder(f"what a sum asks for is decided before it, not in {self._where}")
        self.terms.shapes[step.sum_number - 1].shortened(length)  # raises if it is too long
        self.asked, self._length = asked, length

    def waiting_for(self) -> set[int]:
        return self.active - self._done() if self.step else set()

    def outgoing(self) -> Iterator[tuple[int, bytes]]:
        step = self._current()
        if self._asked:
            raise OutOfOrder(f"the messages of the step {step.name!r} were asked for before")
        self._asked = True
        first = ((client, self.announcement) for client in self.roster)
        return self._while_current(step, self.messages(step) if self._at else first)

    def receive(self, client: int, message: bytes) -> None:
        received = self.exchange.decode(message)
        if received.run != self.terms.run:
            raise WrongRun("a message of another run")
        if received.client != client:
            raise WrongRun(f"client {client} sends a message of client {received.client}")
        name = self.exchange.answers.get(type(received))
        if name is None:
            raise OutOfOrder(f"{type(received).__name__} is not for the server")
        self._check_turn(name, received.sum_number, client)
        self.take_answer(received)
        self.answered.add(client)

    def add_vector(self, client: int, sum_number: int, packed: bytes | memoryview) -> None:
        self._check_turn("input", sum_number, client)
        self.uploads.take(client, packed)

    def advance(self) -> None:
        step = self._current()
        if step.opens_sum:
            raise OutOfOrder(f"the step {step.name!r} ends with the opening of the sum")
        with self._aborting():
            self._settle(step)
            self.step_over(step)
        self._go_to(self._at + 1)

    def open_blocks(self) -> Iterator[Words]:
        step = self._current()
        if not step.opens_sum:
            raise OutOfOrder(f"there is no sum to open in the step {step.name!r}")
        with self._aborting():
            if step.phase is Phase.INPUT:
                self._settle(step)
            unmask = self.masks_to_remove(step.sum_number)
        uploads = self.uploads
        self._end_sum()
        return uploads.opened_blocks(unmask)

    def open_sum(self) -> Words:
        """Return the whole sum at once, in its accumulator."""
        total = self._uploads.total if self._uploads else np.empty(0, np.uint8)
        for _ in self.open_blocks():
            pass
        return total

    def skip_sum(self, survivors: Iterable[int]) -> None:
        step = self._current()
        if step.phase is Phase.SETUP:
            raise OutOfOrder(f"no sum is under way in the step {step.name!r}")
        known = set(survivors)
        with self._aborting():
            if not known <= self.active:
                raise Stranger(f"client {min(known - self.active)} is not in this run any more")
            if step.phase is Phase.RECOVERY and known != self.active:
                raise CohortChanged(f"other clients are in sum {step.sum_number}")
            self._keep(step, known)
        self._survivors = tuple(sorted(known))
        self._end_sum()

    # --- rules for remaining clients --------------------------------------------------------------

    def check_enough(self, left: int) -> None:
        """Raise a ProtocolError if `left` clients are too few or too many have dropped out."""
        least = self.settings.min_cohort
        if left < least:
            raise CohortTooSmall(f"{left} clients are left, {least} are needed")
        size = len(self.participants)
        allowed = self.terms.statement.with_clients(size).dropped
        if left < size - allowed:
            raise TooManyDropped(f"{size - left} of {size} clients dropped, {allowed} may")

    def _settle(self, step: Step) -> None:
        """Remove the clients that have not completed the step."""
        done = self._done()
        if self._at == 0:
            least = max(self.settings.min_cohort, least_participants(self.terms.statement))
            if len(done) < least:
                raise CohortTooSmall(f"{len(done)} clients take part, {least} are needed")
            self.active = set(done)
            self.participants = tuple(sorted(done))
        elif step.phase is not Phase.RECOVERY:
            self._keep(step, done)
            if step.phase is Phase.INPUT:
                self._survivors = tuple(sorted(done))

    def _keep(self, step: Step, clients: set[int]) -> None:
        lost = len(self.active) - len(clients)
        if step.sum_number > 1 and lost:
            raise CohortChanged(
                f"{lost} clients are missing in sum {step.sum_number}: " + COHORT_CHANGED
            )
        self.check_enough(len(clients))
        self.active = set(clients)

    # --- position in the schedule -----------------------------------------------------------------

    @property
    def _where(self) -> str:
        if self.step is None:
            return "aborted" if self.aborted else "done"
        return f"{self.step.name} of sum {self.step.sum_number}"

    def _current(self) -> Step:
        if self.step is None:
            raise OutOfOrder(f"the run is {self._where}")
        return self.step

    @property
    def uploads(self) -> Uploads:
        """Uploads of the current sum, once its length is decided."""
        if self._uploads is None:
            step = self._current()
            if step.phase is not Phase.INPUT:
                raise OutOfOrder("no vectors are being added up")
            self._uploads = self.new_uploads(step.sum_number)
        return self._uploads

    def _done(self) -> set[int]:
        """Return the clients that have completed the current step."""
        step = self._current()
        return self.uploads.arrived if step.phase is Phase.INPUT else self.answered

    def _check_turn(self, name: str, sum_number: int, client: int) -> None:
        """Raise a ProtocolError unless this is the current step and the client is in it."""
        # For an unknown step, use the place after the last one.
        place = self._index_of.get((name, sum_number), len(self._steps))
        if place < self._at and client in self.active:
            raise ReplayedMessage(f"client {client} is past the step {name!r}")
        if place != self._at or self.step is None:
            raise OutOfOrder(f"client {client} is in another step than {self._where}")
        if client in self.answered:
            raise ReplayedMessage(f"client {client} has sent this message")
        if client not in self.active:
            raise Stranger(f"client {client} has left this run, or was never in it")

    def _go_to(self, place: int) -> None:
        step = self._steps[place] if place < len(self._steps) else None
        self._at, self.step = place, step
        self._asked = False
        self.answered = set()

    def _end_sum(self) -> None:
        self._uploads = None
        self._length = None
        self.sum_over()
        last_step = self.exchange.schedule.names[-1]
        self._go_to(self._index_of[last_step, self._current().sum_number] + 1)

    def _while_current(
        self, step: Step, messages: Iterator[tuple[int, bytes]]
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the messages of a step; raise OutOfOrder once the step has ended."""
        for message in messages:
            if self.step is not step:
                raise OutOfOrder(f"the step {step.name!r} is over: its messages are of no use")
            yield message

    @contextmanager
    def _aborting(self) -> Iterator[None]:
        """Abort the run if the body raises a ProtocolError."""
        try:
            yield
        except ProtocolError:
            self.aborted = True
            self.step = None
            self._uploads = None
            self.sum_over()
            raise
