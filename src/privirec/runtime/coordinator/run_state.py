"""The state of a run on the server, kept in this one place.

Every change is an event in the journal, which is on the disk before it takes effect. A restarted
server applies the same events again. An event decides which clients are in a sum before any client
is asked to open it, so a sum is never opened over two different sets of clients.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path

import numpy as np

from privirec.errors import FederationError, PrivirecError, UsageError
from privirec.filters.earlier import Earlier
from privirec.runtime.coordinator.computation import Computation
from privirec.runtime.coordinator.journal import (
    Answered,
    AnyEvent,
    Asked,
    Began,
    HandedOut,
    Planned,
    RunJournal,
    StepEnded,
    Stopped,
    SumOpened,
)
from privirec.runtime.run_plan import RunPlan
from privirec.runtime.spec import RunSpec
from privirec.secagg import Phase
from privirec.secagg.keys import RandomBytes, Roster

log = logging.getLogger("privirec.server")

Traffic = Mapping[int, tuple[int, int]]
"""Client -> bytes up and down so far."""


class Stage(Enum):
    """Stage of a run."""

    GATHERING = "gathering clients"
    SUMMING = "summing"
    COMPUTED = "computed"
    HANDING_OUT = "handing out the model"
    DONE = "done"
    STOPPED = "stopped"


class ServerRun:
    """A run in its folder, new or resumed. It knows clients by number only."""

    def __init__(
        self,
        folder: Path,
        roster: Roster,
        spec: RunSpec,
        *,
        on_sum: Callable[[str], None] | None = None,
        earlier: Earlier | None = None,
    ) -> None:
        self.number = ""
        self.stage = Stage.GATHERING
        self.reason = ""
        """Reason why the run was stopped, for the operator."""
        self.told = ""
        """Reason why the run was stopped, for clients."""
        self.in_sum: frozenset[int] | None = None
        """Clients in the current sum; None until that is decided."""
        self.computation: Computation | None = None
        self.traffic: Traffic = {}
        """Traffic as the journal recorded it with the last opened sum."""
        self._folder = folder
        self._roster = roster
        self._terms = spec
        self._entered: Callable[[], None] = lambda: None
        self._on_sum = on_sum
        self._earlier = earlier
        self._journal = RunJournal(folder)
        self._events: list[tuple[AnyEvent, bytes]] = []
        self._opened: frozenset[int] = frozenset()
        self._carried = (0.0, 0.0)
        self._resuming = False
        self._postponed: list[tuple[AnyEvent, bytes]] | None = None
        """Events that wait until a restarted server has their vectors again; None if none wait."""

    def begin(self, random_bytes: RandomBytes) -> str:
        """Return the number of the run: a new one, or the one in the journal."""
        self._events = list(self._journal.events())
        spec = self._terms.model_dump_json().encode()
        if not self._events:
            self._event(Began(run=random_bytes(16).hex()), spec)
            return self.number
        if self._events[0][1] != spec:
            raise UsageError(
                f"{self._folder}: holds a run with other settings; give a new run another folder"
            )
        self._apply(*self._events.pop(0))
        return self.number

    def resume(self, entered: Callable[[], None]) -> None:
        """Apply the events in the journal.

        `entered` is called, now and later, whenever a stage or a step of the sums has begun.
        """
        self._entered = entered
        events, self._events = self._events, []
        self._opened = frozenset(e.sum_number for e, _ in events if isinstance(e, SumOpened))
        if events and isinstance(events[-1][0], Stopped):  # a stopped run stays stopped
            events = events[-1:]
        self._resuming = True
        try:
            for event, content in events:
                self._apply(event, content)
        except PrivirecError as error:
            self._resuming = False
            self.stop(str(error))
        self._resuming = False

    @property
    def was_resumed(self) -> bool:
        return self.computation is not None or self.stage is not Stage.GATHERING

    # --- state ------------------------------------------------------------------------------------

    @property
    def computing(self) -> Computation:
        if self.computation is None:
            raise FederationError("this run has no plan yet")
        return self.computation

    @property
    def plan(self) -> RunPlan:
        return self.computing.plan

    @property
    def may_lose_clients(self) -> bool:
        """True if a client that is missing now simply drops out.

        In the recovery phase the clients in the sum are already decided. Otherwise this holds only
        before the first sum: once a sum is open or being opened, the difference of two sums would
        be the missing client's history.
        """
        step = self.computing.step
        return step.phase is Phase.RECOVERY or (step.sum_number <= 1 and self.in_sum is None)

    def missing(self) -> set[int]:
        """Return the clients whose answer in this step has not arrived."""
        missing = self.computing.session.waiting_for() & self.plan.users.keys()
        return missing if self.in_sum is None else missing & self.in_sum

    def where(self) -> str:
        """Return a description of the current stage and step for users."""
        if self.stage is not Stage.SUMMING:
            return self.stage.value
        step = self.computing.step
        if not step.sum_number:
            return f"{step.phase.value}: {step.name}"
        return f"sum {step.sum_number} of {self.plan.number_of_sums}: {step.name}"

    # --- changes ----------------------------------------------------------------------------------

    def start(self, plan: RunPlan) -> None:
        """Record the plan, which decides the participants, and begin the first step."""
        self._event(Planned(), plan.text)

    def take_answer(self, client: int, content: bytes) -> None:
        """Check an answer with the session, then record it, so that it can be applied again."""
        self.computing.session.receive(client, content)
        self._journal.add(Answered(step=self.computing.position, client=client), content)

    def take_vector(self, client: int, packed: bytes | memoryview) -> None:
        computing = self.computing
        computing.session.add_vector(client, computing.step.sum_number, packed)

    def end_step(self, taking_part: set[int], traffic: Traffic) -> None:
        """End the step with the clients that completed it.

        `traffic` is for the ledger of an opened sum.
        """
        step = self.computing.step
        self.traffic = traffic
        if step.phase is Phase.INPUT and self.in_sum is not None:
            self._go_on_with_vectors()
            return
        made_it = taking_part - self.computing.session.waiting_for()
        self._event(StepEnded(step=self.computing.position, clients=tuple(sorted(made_it))))

    def stop(self, reason: str, refusals: str = "") -> None:
        """Stop the run. `refusals` are clients' reasons, which only the operator is told."""
        log.error("run %s is stopped: %s%s", self.number[:8], reason, refusals)
        self._event(Stopped(reason=reason, refusals=refusals))

    def hand_out(self) -> None:
        self._enter(Stage.HANDING_OUT)

    def handed_out(self) -> None:
        self._event(HandedOut())

    def close(self) -> None:
        if self.computation is not None:
            self.computation.close()

    # --- events -----------------------------------------------------------------------------------

    def _event(self, event: AnyEvent, content: bytes = b"") -> None:
        self._journal.add(event, content)
        self._apply(event, content)

    def _apply(self, event: AnyEvent, content: bytes) -> None:
        if self._postponed is not None and isinstance(event, Answered | StepEnded):
            self._postponed.append((event, content))
            return
        match event:
            case Began():
                self.number = event.run
            case Planned():
                plan = RunPlan.parse(content)
                self.computation = Computation(
                    self._folder, self._roster, plan, self._on_sum, self._earlier
                )
                self._enter_step()
            case Answered():
                # Answers of an opened sum are not needed, because it is on the disk.
                if event.step == self.computing.position:
                    self.computing.session.receive(event.client, content)
            case StepEnded():
                self._apply_end(event)
            case Asked():
                self._check_asked(event)
            case SumOpened():
                self._apply_opened(event)
            case Stopped():
                self.told, self.reason = event.reason, event.reason + event.refusals
                self.close()  # uploads that will not be completed
                self._enter(Stage.STOPPED)
            case HandedOut():
                self._enter(Stage.DONE)

    def _apply_end(self, event: StepEnded) -> None:
        step = self.computing.step_at(event.step)
        if self._resuming and step.sum_number in self._opened:
            return  # its sum is on the disk and goes to the program as a whole
        if step.phase is Phase.INPUT:
            self.in_sum = frozenset(event.clients)
            if self.missing():
                self._postponed = []  # after a restart clients must send their vectors again
                return
        self._leave_step()

    def _go_on_with_vectors(self) -> None:
        """Apply the postponed events, now that a restarted server has its vectors again."""
        postponed, self._postponed = self._postponed or [], None
        self._leave_step()
        for event, content in postponed:
            self._apply(event, content)

    def _leave_step(self) -> None:
        """Put the decision about this step into effect: open the sum or go to the next step."""
        computing = self.computing
        if not computing.step.opens_sum:
            computing.advance()
            self._enter_step()
            return
        number = computing.step.sum_number
        computing.open()
        clients = computing.session.survivors
        self._event(SumOpened(sum_number=number, clients=clients, traffic=dict(self.traffic)))

    def _apply_opened(self, event: SumOpened) -> None:
        self.traffic = event.traffic
        self.in_sum = frozenset(event.clients)
        self.computing.go_on(event.sum_number, event.clients, self._carried_since())
        if self.computing.components is None:
            self._enter_step()
        else:
            self._enter(Stage.COMPUTED)

    def _enter_step(self) -> None:
        phase = self.computing.step.phase
        if phase is not Phase.RECOVERY:
            self.in_sum = None
        self._enter(Stage.SUMMING)
        asked = self.computing.asked
        if phase is Phase.INPUT and asked is not None and not self._resuming:
            self._journal.add(Asked(sum_number=asked.number, digest=asked.digest))

    def _enter(self, stage: Stage) -> None:
        self.stage = stage
        log.info("%s", self.where())
        self._entered()

    def _check_asked(self, event: Asked) -> None:
        if event.digest != self.computing.current().digest:
            raise FederationError(
                "after a restart this server computes other numbers than before (another machine, "
                "library or number of threads?), and no client answers two different requests for "
                "one sum. Start a new run"
            )

    def _carried_since(self) -> tuple[float, float]:
        """Return mean bytes up and down since the last sum, over the clients in it.

        The first sum includes the traffic of set-up.
        """
        inside = [self.traffic[client] for client in self.in_sum or ()]
        up, down = np.mean(np.array(inside, float).reshape(-1, 2), axis=0).tolist()
        before, self._carried = self._carried, (up, down)
        return up - before[0], down - before[1]
