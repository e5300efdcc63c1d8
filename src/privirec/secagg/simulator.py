"""A whole run over a bad network, from one seed: delays, reordering, duplicates, losses, clients
that die or restart at any moment, and a server that lies. The same seed gives the same run.

Every client's first entry is a bit of its own, so an opened sum names its summands: a client that
is lost or counted twice shows.
"""

from __future__ import annotations

import heapq
import io
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
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
from privirec.secagg.messages import (
    Advertise,
    Announce,
    Deliver,
    Message,
    Neighbours,
    Survivors,
    decode,
    encode,
)
from privirec.secagg.parameters import Statement
from privirec.secagg.protocol import (
    ClientPolicy,
    ClientSession,
    Phase,
    ServerSession,
    ServerSettings,
    protocol,
)
from privirec.secagg.randomness import InsecureSeededBytes
from privirec.secagg.ring import VectorShape

PATIENCE = 10.0
"""How long the server waits for the messages of a stage; an ordinary message takes about 1."""


@dataclass(frozen=True)
class Weather:
    """How bad things are; chances are per message unless they say otherwise."""

    late: float = 0.003
    """Chance that a message comes after the server's patience is over."""
    lost: float = 0.003
    duplicated: float = 0.1
    dies: float = 0.01
    """Chance that a client is gone for good before it answers, or between two of its blocks."""
    restarts: float = 0.1
    """Chance that a client is a new process with the stored state of the old one."""
    lies: float = 0.0
    """Chance that the server says something else than it should."""


CALM = Weather(late=0, lost=0, duplicated=0, dies=0, restarts=0)


@dataclass(frozen=True)
class Scenario:
    """A federation and the weather it lives in."""

    protocol: str = "secagg+"
    clients: int = 12
    rounds: int = 2
    length: int = 21
    block_entries: int = 8
    corrupt_share: float = 0.1
    dropped_share: float = 0.25
    min_cohort: int = 3
    weather: Weather = field(default_factory=Weather)


@dataclass
class Outcome:
    """What came of it, and all that was said."""

    seed: int
    scenario: Scenario
    sums: list[NDArray[np.int64]] = field(default_factory=list)
    expected: list[NDArray[np.int64]] = field(default_factory=list)
    survivors: list[tuple[int, ...]] = field(default_factory=list)
    error: ProtocolError | None = None
    refusals: Counter[str] = field(default_factory=Counter)
    """Names of the errors raised by clients and by the server at single messages."""
    lies_told: int = 0
    lies_believed: list[str] = field(default_factory=list)
    transcript: list[tuple[str, int, bytes]] = field(default_factory=list)
    """(direction, client, message) of everything that arrived, in order."""


class SimulationFailure(AssertionError):
    """A run that broke a promise; the message holds the seed that replays it."""


class Simulation:
    """One run. `run` gives its outcome; see `simulate`."""

    def __init__(self, seed: int, scenario: Scenario) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - a simulation, not a secret
        self._random_bytes = InsecureSeededBytes(seed)
        self._scenario = scenario
        self._protocol = protocol(scenario.protocol)
        self._policy = ClientPolicy(
            min_cohort=scenario.min_cohort, corrupt_share=scenario.corrupt_share
        )
        self._identities = [Identity.generate(self._random_bytes) for _ in range(scenario.clients)]
        self._roster = Roster(
            {number: identity.public for number, identity in enumerate(self._identities)}
        )
        bound = 1 << (scenario.clients - 1)
        shape = VectorShape(scenario.length, 1, bound, signed=True).narrowest(scenario.clients)
        self._shapes = [shape] * scenario.rounds
        self._clients: list[ClientSession | None] = [
            self._protocol.client(number, identity, self._roster, self._policy, self._random_bytes)
            for number, identity in enumerate(self._identities)
        ]
        self._server: ServerSession = self._protocol.server(
            self._roster,
            Statement.of(
                scenario.clients,
                scenario.corrupt_share,
                scenario.dropped_share,
                rounds=scenario.rounds,
            ),
            self._shapes,
            ServerSettings(
                min_cohort=scenario.min_cohort,
                block_entries=scenario.block_entries,
                spool=io.BytesIO,
            ),
            self._random_bytes,
        )
        self._now = 0.0
        self._queue: list[tuple[float, int, str, int, bytes, bool]] = []
        self._order = count()
        self._history: list[bytes] = []
        self.outcome = Outcome(seed, scenario)

    def run(self) -> Outcome:
        try:
            self._run()
        except ProtocolError as error:
            self.outcome.error = error
        return self.outcome

    def contribution(self, client: int, round_number: int) -> NDArray[np.int64]:
        """A vector that no other client or round has: a bit of its own, then noise."""
        values = np.random.default_rng([client, round_number])
        bound = self._shapes[0].bound
        vector = values.integers(-bound, bound, self._scenario.length, endpoint=True)
        vector[0] = 1 << client
        return vector

    def _run(self) -> None:
        server, outcome = self._server, self.outcome
        everybody = [(client, server.announcement) for client in range(self._scenario.clients)]
        self._send_down(iter(everybody))
        while server.phase is Phase.SETUP:
            self._wait()
            self._send_down(server.advance())
        for number, shape in enumerate(self._shapes, start=1):
            self._wait()  # for shares to be delivered, or for stragglers of the last round
            for client in sorted(server.waiting_for()):
                self._post("begin", client, bytes([number]))
            self._wait()
            self._send_down(server.advance())
            self._wait()
            survivors = server.survivors
            total = server.open_sum()
            outcome.sums.append(shape.ring.decode_signed(total))
            outcome.survivors.append(survivors)
            outcome.expected.append(
                np.sum([self.contribution(client, number) for client in survivors], axis=0)
            )

    # --- the network ------------------------------------------------------------------------------

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def _post(self, direction: str, client: int, message: bytes, lie: bool = False) -> None:
        weather = self._scenario.weather
        copies = 1 + self._chance(weather.duplicated)
        if self._chance(weather.lost):
            copies -= 1
        for _ in range(copies):
            delay = min(self._rng.expovariate(1.0), 0.9 * PATIENCE)
            if self._chance(weather.late):
                delay += PATIENCE
            event = (self._now + delay, next(self._order), direction, client, message, lie)
            heapq.heappush(self._queue, event)

    def _wait(self) -> None:
        """Let messages arrive until the server's patience is over."""
        until = self._now + PATIENCE
        while self._queue and self._queue[0][0] <= until:
            self._now, _, direction, client, message, lie = heapq.heappop(self._queue)
            self._arrive(direction, client, message, lie)
        self._now = until

    def _arrive(self, direction: str, client: int, message: bytes, lie: bool) -> None:
        try:
            if direction == "up":
                self._server.receive(client, message)
            else:
                self._wake(client, direction, message)
        except ProtocolError as error:
            self.outcome.refusals[type(error).__name__] += 1
            if error.fatal and direction != "up":
                self._clients[client] = None
        else:
            if direction != "begin":
                self.outcome.transcript.append((direction, client, message))
            if lie:
                self.outcome.lies_believed.append(type(decode(message)).__name__)

    def _wake(self, client: int, direction: str, message: bytes) -> None:
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
        if direction == "begin":
            self._contribute(session, message[0])
            return
        reply = session.receive(message)
        if reply is not None:
            self._post("up", client, reply)

    def _contribute(self, session: ClientSession, number: int) -> None:
        values = self.contribution(session.client, number)
        cut = self._rng.randrange(len(values) + 1)
        delivered = self._now
        for message in session.contribute(number, [values[:cut], values[cut:]]):
            if self._chance(self._scenario.weather.dies / 2):
                self._clients[session.client] = None
                return
            # Blocks of one vector travel in order, as on a connection; all else may overtake.
            if self._chance(self._scenario.weather.lost):
                return
            delivered += self._rng.random()
            event = (delivered, next(self._order), "up", session.client, message, False)
            heapq.heappush(self._queue, event)
            if self._chance(self._scenario.weather.duplicated):
                again = (delivered + 1, next(self._order), "up", session.client, message, False)
                heapq.heappush(self._queue, again)

    # --- the server, and its lies -----------------------------------------------------------------

    def _send_down(self, outgoing: Iterator[tuple[int, bytes]]) -> None:
        for client, message in outgoing:
            self._history.append(message)
            if self._chance(self._scenario.weather.lies):
                lie = self._lie(decode(message))
                if lie is not None:
                    self.outcome.lies_told += 1
                    self._post("down", client, lie, lie=True)
                    continue
            self._post("down", client, message)

    def _lie(self, message: Message) -> bytes | None:
        """Something else instead of this message that no client may answer."""
        damage: list[Callable[[bytes], bytes]] = [
            lambda raw: raw[: self._rng.randrange(len(raw))],
            lambda raw: raw + b"\0",
            lambda raw: bytes([raw[0] + 1]) + raw[1:],
        ]
        if isinstance(message, Announce) or self._chance(0.2):
            return self._rng.choice(damage)(encode(message))
        if isinstance(message, Neighbours):
            return encode(self._lie_about_neighbours(message))
        if isinstance(message, Deliver) and message.shares:
            victim = self._rng.randrange(len(message.shares))
            shares = list(message.shares)
            sealed = shares[victim].sealed
            shares[victim] = replace(shares[victim], sealed=sealed[:-1] + bytes([sealed[-1] ^ 1]))
            return encode(replace(message, shares=tuple(shares)))
        if isinstance(message, Survivors):
            return encode(self._lie_about_survivors(message))
        return None

    def _lie_about_neighbours(self, message: Neighbours) -> Neighbours:
        victim = self._rng.randrange(len(message.keys))
        keys = list(message.keys)
        lie = self._rng.randrange(5)
        if lie == 0:
            return replace(message, threshold=message.threshold - 1)
        if lie == 1:
            return replace(message, neighbours=message.neighbours - 1, keys=tuple(keys[1:]))
        if lie == 2:
            # A key of the server's own, to sit between the two.
            keys[victim] = replace(keys[victim], sealing_key=self._random_bytes(32))
            return replace(message, keys=tuple(keys))
        if lie == 3:
            place = self._roster.place(message.client)
            present = bytearray(message.participants)
            present[place // 8] &= ~(1 << place % 8)
            return replace(message, participants=bytes(present))
        return replace(message, keys=tuple(_without(keys, victim)))

    def _lie_about_survivors(self, message: Survivors) -> Survivors:
        lie = self._rng.randrange(4)
        if lie == 0 and message.survivors:
            both = tuple(sorted({*message.dropped, message.survivors[0]}))
            return replace(message, dropped=both)
        if lie == 1 and message.survivors:
            return replace(message, survivors=message.survivors[1:])
        if lie == 2:
            stranger = tuple(sorted({*message.survivors, message.client}))
            return replace(message, survivors=stranger)
        return replace(message, cohort=1)


class _Gone(ProtocolError):
    """A message to a client that has died."""


def _without(keys: list[Advertise], victim: int) -> list[Advertise]:
    return keys[:victim] + keys[victim + 1 :]


def simulate(seed: int, scenario: Scenario | None = None) -> Outcome:
    """Run a scenario from a seed and check every promise; SimulationFailure names the seed."""
    scenario = scenario or Scenario()
    outcome = Simulation(seed, scenario).run()
    try:
        check(outcome)
    except AssertionError as broken:
        raise SimulationFailure(f"{broken}; replay with simulate({seed}, {scenario!r})") from None
    return outcome


def check(outcome: Outcome) -> None:
    """Raise AssertionError unless sums are exact, errors are the right ones and lies failed."""
    for number, (got, expected) in enumerate(
        zip(outcome.sums, outcome.expected, strict=True), start=1
    ):
        _promise(np.array_equal(got, expected), f"the sum of round {number} is wrong")
        named = sum(1 << client for client in outcome.survivors[number - 1])
        _promise(int(got[0]) == named, f"round {number} does not sum the clients it names")
        _promise(
            outcome.survivors[number - 1] == outcome.survivors[0],
            f"round {number} sums another cohort than the first",
        )
    rounds = outcome.scenario.rounds
    if outcome.error is None:
        _promise(len(outcome.sums) == rounds, "a run without an error did not finish")
    else:
        _promise(len(outcome.sums) < rounds, "a finished run ended with an error")
        expected_errors = (CohortTooSmall, TooManyDropped, BelowThreshold, CohortChanged)
        _promise(isinstance(outcome.error, expected_errors), f"it ended with {outcome.error!r}")
        if isinstance(outcome.error, CohortChanged):
            _promise(bool(outcome.sums), "the cohort cannot change before the first sum")
    _promise(not outcome.lies_believed, f"a lie was believed: {outcome.lies_believed}")


def _promise(kept: bool, message: str) -> None:
    if not kept:
        raise AssertionError(message)
