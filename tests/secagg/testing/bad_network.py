"""Simulation of a whole run over a bad network, reproducible from one seed.

It simulates delays, reordering, duplicates, losses, clients that die or restart at any moment, and
a server that lies.

The first entry of every client's vector is a distinct power of two, so an opened sum identifies its
summands: a client that is lost or counted twice is detected. The simulation works with any
protocol. It follows the protocol's schedule, and `testing.lies` contains the lies of its server.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

from privirec.secagg.errors import (
    BelowThreshold,
    CohortChanged,
    CohortTooSmall,
    ProtocolError,
    TooManyDropped,
)
from privirec.secagg.keys import Identity, Roster
from privirec.secagg.parameters import ServerModel, Statement
from privirec.secagg.protocol import (
    ClientPolicy,
    ClientSession,
    Phase,
    ServerSession,
    ServerSettings,
    Step,
)
from privirec.secagg.registry import protocol
from privirec.secagg.ring import VectorShape
from secagg.testing.lies import damaged, lie_of
from secagg.testing.randomness import InsecureSeededBytes

PATIENCE = 10.0
"""Time that the server waits for the messages of a step; a normal message takes about 1."""

TOLERATED_DEVIATIONS = 7.0
"""Maximum error of an entry in standard deviations, if a protocol leaves noise in it."""


@dataclass(frozen=True)
class Weather:
    """Failure rates of a simulation; probabilities are per message unless stated otherwise."""

    late: float = 0.003
    """Probability that a message arrives after the server has stopped waiting."""
    lost: float = 0.003
    duplicated: float = 0.1
    dies: float = 0.01
    """Probability that a client dies before it answers.

    Half of it is the probability that a client dies between two of its blocks.
    """
    restarts: float = 0.1
    """Probability that a client restarts from its stored state."""
    lies: float = 0.0
    """Probability that the server sends a false message."""


CALM = Weather(late=0, lost=0, duplicated=0, dies=0, restarts=0)


@dataclass(frozen=True)
class Scenario:
    """A federation and the failure rates of its simulation."""

    protocol: str = "secagg+"
    clients: int = 12
    sums: int = 2
    length: int = 21
    block_entries: int = 8
    corrupt_share: float = 0.1
    dropped_share: float = 0.25
    min_cohort: int = 3
    server: ServerModel = ServerModel.SEMI_HONEST
    weather: Weather = field(default_factory=Weather)

    @property
    def statement(self) -> Statement:
        return Statement.of(
            *(self.clients, self.corrupt_share, self.dropped_share),
            rounds=self.sums,
            server=self.server,
        )

    @property
    def shape(self) -> VectorShape:
        """Shape of every sum; the bound allows one bit per client."""
        bound = 1 << (self.clients - 1)
        return VectorShape(self.length, 1, bound, signed=True).narrowest(self.clients)


@dataclass
class Outcome:
    """Results of a simulated run, with a transcript of its messages."""

    seed: int
    scenario: Scenario
    sums: list[NDArray[np.int64]] = field(default_factory=list)
    expected: list[NDArray[np.int64]] = field(default_factory=list)
    survivors: list[tuple[int, ...]] = field(default_factory=list)
    error: ProtocolError | None = None
    refusals: Counter[str] = field(default_factory=Counter)
    """Names of the errors that clients and the server raised for single messages."""
    lies_told: int = 0
    lies_believed: list[str] = field(default_factory=list)
    """Names of the steps in which a client accepted a lie."""
    transcript: list[tuple[str, int, bytes]] = field(default_factory=list)
    """(direction, client, message) of every accepted message, in order of arrival."""


class SimulationFailure(AssertionError):
    """A run that violated a guarantee; the message contains the seed that replays it."""


@dataclass(order=True)
class _Event:
    """Arrival of a message; `order` breaks ties."""

    at: float
    order: int
    direction: str = field(compare=False)
    """"down" or "up"; "begin" tells a client to send its vector."""
    client: int = field(compare=False)
    message: bytes = field(compare=False)
    step: Step = field(compare=False)
    lie: bool = field(compare=False, default=False)


class RunOverBadNetwork:
    """One simulated run; see `simulate`."""

    def __init__(self, seed: int, scenario: Scenario) -> None:
        self._rng = random.Random(seed)
        self._random_bytes = InsecureSeededBytes(seed)
        self._scenario = scenario
        self._protocol = protocol(scenario.protocol)
        self._policy = ClientPolicy(
            min_cohort=scenario.min_cohort,
            corrupt_share=scenario.corrupt_share,
            server=scenario.server,
        )
        self._identities = [Identity.generate(self._random_bytes) for _ in range(scenario.clients)]
        self._roster = Roster(
            {number: identity.public for number, identity in enumerate(self._identities)}
        )
        self._clients: list[ClientSession | None] = [
            self._protocol.client(number, identity, self._roster, self._policy, self._random_bytes)
            for number, identity in enumerate(self._identities)
        ]
        self._server: ServerSession = self._protocol.server(
            self._roster,
            scenario.statement,
            [scenario.shape] * scenario.sums,
            ServerSettings(
                min_cohort=scenario.min_cohort,
                block_entries=scenario.block_entries,
            ),
            self._random_bytes,
        )
        self._lie = lie_of(scenario.protocol)
        self._now = 0.0
        self._queue: list[_Event] = []
        self._order = count()
        self.outcome = Outcome(seed, scenario)

    def run(self) -> Outcome:
        try:
            while (step := self._server.step) is not None:
                self._take_step(step)
        except ProtocolError as error:
            self.outcome.error = error
        return self.outcome

    def vector(self, client: int, sum_number: int) -> NDArray[np.int64]:
        """Return a vector unique to this client and sum: a bit of its own, then random values."""
        values = np.random.default_rng([client, sum_number])
        bound = self._scenario.shape.bound
        vector = values.integers(-bound, bound, self._scenario.length, endpoint=True)
        vector[0] = 1 << client
        return vector

    def _take_step(self, step: Step) -> None:
        self._send_down(step)
        self._wait()
        if step.phase is Phase.INPUT:
            for client in sorted(self._server.waiting_for()):
                self._post("begin", client, b"", step)
            self._wait()
        if not step.opens_sum:
            self._server.advance()
            return
        total = self._server.open_sum()
        survivors, outcome = self._server.survivors, self.outcome
        shape = self._protocol.opened_shape(self._scenario.shape, self._scenario.statement)
        outcome.sums.append(shape.ring.decode_signed(total))
        outcome.survivors.append(survivors)
        outcome.expected.append(
            np.sum([self.vector(client, step.sum_number) for client in survivors], axis=0)
        )

    # --- network ----------------------------------------------------------------------------------

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def _push(
        self, at: float, direction: str, client: int, message: bytes, step: Step, lie: bool = False
    ) -> None:
        event = _Event(at, next(self._order), direction, client, message, step, lie)
        heapq.heappush(self._queue, event)

    def _post(
        self, direction: str, client: int, message: bytes, step: Step, lie: bool = False
    ) -> None:
        weather = self._scenario.weather
        copies = 1 + self._chance(weather.duplicated)
        if self._chance(weather.lost):
            copies -= 1
        for _ in range(copies):
            delay = min(self._rng.expovariate(1.0), 0.9 * PATIENCE)
            if self._chance(weather.late):
                delay += PATIENCE
            self._push(self._now + delay, direction, client, message, step, lie)

    def _wait(self) -> None:
        """Deliver messages until the server stops waiting."""
        until = self._now + PATIENCE
        while self._queue and self._queue[0].at <= until:
            event = heapq.heappop(self._queue)
            self._now = event.at
            self._arrive(event)
        self._now = until

    def _arrive(self, event: _Event) -> None:
        try:
            if event.direction == "up":
                self._server.receive(event.client, event.message)
            elif event.direction == "vector":
                number = event.step.sum_number
                self._server.add_vector(event.client, number, event.message)
            else:
                self._wake(event)
        except ProtocolError as error:
            self.outcome.refusals[type(error).__name__] += 1
            if error.fatal and event.direction in ("down", "begin"):
                self._clients[event.client] = None
        else:
            if event.direction != "begin":
                self.outcome.transcript.append((event.direction, event.client, event.message))
            if event.lie:
                self.outcome.lies_believed.append(event.step.name)

    def _wake(self, event: _Event) -> None:
        client = event.client
        if self._chance(self._scenario.weather.dies):
            self._clients[client] = None
        session = self._clients[client]
        if session is None:
            raise _Gone("nobody is there")
        if self._chance(self._scenario.weather.restarts):
            session = self._clients[client] = self._protocol.load_client(
                session.dump(),
                self._identities[client],
                self._roster,
                self._policy,
                self._random_bytes,
            )
        if event.direction == "begin":
            self._contribute(session, event.step)
            return
        reply = session.receive(event.message)
        if reply is not None:
            self._post("up", client, reply, event.step)

    def _contribute(self, session: ClientSession, step: Step) -> None:
        values = self.vector(session.client, step.sum_number)
        cut = self._rng.randrange(len(values) + 1)
        blocks = []
        for block in session.contribute(step.sum_number, [values[:cut], values[cut:]]):
            if self._chance(self._scenario.weather.dies / 2):
                self._clients[session.client] = None
                return
            blocks.append(block)
        self._post("vector", session.client, b"".join(blocks), step)

    def _send_down(self, step: Step) -> None:
        """Send the server's messages of this step, some of them replaced by lies."""
        for client, message in self._server.outgoing():
            if not message:
                continue
            said = None
            if self._chance(self._scenario.weather.lies):
                said = self._something_else(step, message)
            if said is None:
                self._post("down", client, message, step)
            else:
                self.outcome.lies_told += 1
                self._post("down", client, said, step, lie=True)

    def _something_else(self, step: Step, message: bytes) -> bytes | None:
        first = step.name == self._protocol.schedule.names[0]
        if first or self._chance(0.2):
            return damaged(message, self._rng)
        return self._lie(message, self._rng, self._roster)


class _Gone(ProtocolError):
    """A message to a client that has died."""


def simulate(seed: int, scenario: Scenario | None = None) -> Outcome:
    """Run a scenario from a seed and check its outcome; SimulationFailure reports the seed."""
    scenario = scenario or Scenario()
    outcome = RunOverBadNetwork(seed, scenario).run()
    try:
        check(outcome)
    except AssertionError as broken:
        raise SimulationFailure(f"{broken}; replay with simulate({seed}, {scenario!r})") from None
    return outcome


def check(outcome: Outcome) -> None:
    """Raise AssertionError unless sums and errors are as expected and no lie was accepted.

    Sums must be exact unless the protocol states a deviation; then the error of every entry must be
    within TOLERATED_DEVIATIONS times that deviation.
    """
    scenario = outcome.scenario
    deviation = protocol(scenario.protocol).deviation(scenario.shape, scenario.statement)
    for number, (got, expected) in enumerate(
        zip(outcome.sums, outcome.expected, strict=True), start=1
    ):
        wrong = np.abs(got - expected).max()
        _promise(wrong <= TOLERATED_DEVIATIONS * deviation, f"sum {number} is wrong by {wrong}")
        named = sum(1 << client for client in outcome.survivors[number - 1])
        exact = deviation > 0 or int(got[0]) == named
        _promise(exact, f"sum {number} does not sum the clients it names")
        _promise(
            outcome.survivors[number - 1] == outcome.survivors[0],
            f"sum {number} has another cohort than the first",
        )
    if outcome.error is None:
        _promise(len(outcome.sums) == scenario.sums, "a run without an error did not finish")
    else:
        _promise(len(outcome.sums) < scenario.sums, "a finished run ended with an error")
        expected_errors = (CohortTooSmall, TooManyDropped, BelowThreshold, CohortChanged)
        _promise(isinstance(outcome.error, expected_errors), f"it ended with {outcome.error!r}")
        if isinstance(outcome.error, CohortChanged):
            _promise(bool(outcome.sums), "the cohort cannot change before the first sum")
    _promise(not outcome.lies_believed, f"a lie was believed: {outcome.lies_believed}")


def _promise(kept: bool, message: str) -> None:
    if not kept:
        raise AssertionError(message)
