"""A federation in one process over a carrier with every kind of fault, all drawn from one seed."""

from __future__ import annotations

import logging
import os
import random
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privirec.data import Interactions
from privirec.device import Catalogue, Store
from privirec.durable import Database
from privirec.errors import FederationError
from privirec.federated.programs import PrivirecKSettings, ProgramSettings, program_of
from privirec.filters.components import Components
from privirec.models import GFCF
from privirec.privacy.policy import Aggregator, Policy
from privirec.runtime import envelope
from privirec.runtime.carrier import carry
from privirec.runtime.coordinator import Coordinator, Stage
from privirec.runtime.coordinator.clients import Address
from privirec.runtime.coordinator.journal import RunJournal, StepEnded, SumOpened
from privirec.runtime.execute import execute
from privirec.runtime.histories import FromStore
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.messages import Answer, Vector
from privirec.runtime.node import Node
from privirec.runtime.spec import RunSpec
from privirec.secagg import Phase
from privirec.secagg.keys import Identity, Roster

OPERATOR = bytes(range(32))
PLANTED_ITEM = "planted-item-"
PLANTED_USER = "planted-user-"
# Long enough for most runs to finish despite any fault except a client that is gone for good.
DEADLINES = {"hello": 30.0, "deadline": 400.0, "silence": 8.0, "retry": 1.0}
TERMS = RunSpec(
    program=PrivirecKSettings(rank=3, rounds=2),
    drop_share=0.2,
    block_entries=16,
    part_bytes=120,
)


EXACT = ("item-degrees", "seeded-step", "power-step")
"""Computations of PriviRec-k."""


def small_policy(**changes: Any) -> Policy:
    """Return the policy of a client in a tiny federation.

    The limits are low because there are few people, and because a small rank over only seventeen
    items already opens a large share of their matrix.
    """
    tiny: dict[str, Any] = {
        "computations": EXACT,
        "fewest_other_people": 4,
        "smallest_change": 4,
        "largest_opened_share": 100,
    }
    return Policy(**(tiny | changes))


class Killed(BaseException):
    """Simulated death of a process."""


class Restarted(BaseException):
    """Simulated restart of the server."""


@dataclass
class Trouble:
    """Probability of each fault, per message or per step."""

    kill: float = 0.0
    """A process dies at a write to the disk."""
    drop: float = 0.0
    fail: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    delay: float = 0.0
    restart: float = 0.0
    clock: float = 0.0
    away: float = 0.0
    """A client disappears for good."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Trouble:
        """Draw the probability of each fault; many are zero."""
        return cls(
            kill=rng.choice([0, 0.01, 0.05]),
            drop=rng.choice([0, 0.05]),
            fail=rng.choice([0, 0.05]),
            duplicate=rng.choice([0, 0.2]),
            corrupt=rng.choice([0, 0.05]),
            delay=rng.choice([0, 0.3]),
            restart=rng.choice([0, 0.02]),
            clock=rng.choice([0, 0.05]),
            away=rng.choice([0, 0, 0.004]),
        )


@dataclass
class Outcome:
    """Result of a run, with all messages that were sent."""

    stage: Stage
    reason: str
    components: Components | None
    cohort: frozenset[int]
    messages: list[bytes]
    installed: int
    steps: int
    events: dict[str, int] = field(default_factory=dict)


class Federation:
    """Clients 0 ... n - 1, each with a folder and a store, and a server with a folder."""

    def __init__(
        self, folder: Path, clients: int = 6, seed: int = 1, aggregator: Aggregator = "secagg+"
    ) -> None:
        self.folder = folder
        self.spec = TERMS.model_copy(update={"aggregator": aggregator})
        allowed = ("secagg+", "secagg") if aggregator == "secagg+" else (aggregator,)
        self.policy = small_policy(aggregators=allowed)
        rng = np.random.default_rng(seed)
        items, users = 17, 4 * clients
        self.catalogue = Catalogue(np.array([f"{PLANTED_ITEM}{i:03d}" for i in range(items)]))
        touched = rng.random((users, items)) < 0.35
        touched[:, 0] = True  # a store has no users without items
        names = np.array([f"{PLANTED_USER}{u:03d}" for u in range(users)])
        self.train = Interactions.from_matrix(
            touched.astype(np.float32), names, self.catalogue.item_ids
        )
        self.operator = Identity(OPERATOR)
        self.identities = [Identity(bytes([50 + c]) * 32) for c in range(clients)]
        self.roster = Roster({c: one.public for c, one in enumerate(self.identities)})
        for client in range(clients):
            part = self.rows(client)
            with Store(folder / f"client-{client}" / "history.db", create=True) as store:
                rows, columns = part.matrix.nonzero()
                store.add(
                    (part.user_ids[row], part.item_ids[column])
                    for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
                )

    def rows(self, client: int) -> Interactions:
        return self.train.rows(4 * client, 4 * client + 4)

    def node(self, client: int, **changes: Any) -> Node:
        """Start a new process of a client."""
        home = self.folder / f"client-{client}"
        given: dict[str, Any] = {
            "client": client,
            "identity": self.identities[client],
            "roster": self.roster,
            "server_key": self.operator.public,
            "catalogue": self.catalogue,
            "histories": FromStore(home / "history.db"),
            "policy": self.policy,
        }
        return Node(home, **(given | changes))

    def server(
        self, name: str = "server", clock: Callable[[], float] | None = None, **changes: Any
    ) -> Coordinator:
        """Start a new process of the server on the same folder."""
        given: dict[str, Any] = {
            "server_key": self.operator,
            "roster": self.roster,
            "catalogue": self.catalogue,
            "spec": self.spec.model_copy(update=DEADLINES),
        }
        made = Coordinator(
            self.folder / name, **(given | changes), **({"clock": clock} if clock else {})
        )
        weakref.finalize(made, made._state.close)  # also if a test abandons it midway
        return made

    def simulated(self, cohort: frozenset[int], settings: ProgramSettings) -> Components:
        """Return the expected result: the same program over all histories of the cohort at once."""
        inside = np.concatenate([np.arange(4 * c, 4 * c + 4) for c in sorted(cohort)])
        part = Interactions(
            self.train.matrix[inside], self.train.user_ids[inside], self.train.item_ids
        )
        program = program_of(settings, part.n_users, part.n_items)
        return execute(program.steps(), Simulation(part))[0]

    def artifact(self, components: Components) -> Path:
        key = Ed25519PrivateKey.from_private_bytes(OPERATOR)
        model = GFCF(rank=3).use(components, self.catalogue.item_ids)
        return model.save(self.folder / "artifact", {}, signing_key=key)


@contextmanager
def killing(rng: random.Random, chance: float) -> Iterator[None]:
    """Kill the process with this probability before or after each write that reaches the disk."""

    def deadly(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **more: Any) -> Any:
            if rng.random() < chance:
                raise Killed
            done = call(*args, **more)
            if rng.random() < chance:
                raise Killed
            return done

        return called

    with (
        mock.patch("os.fsync", deadly(os.fsync)),
        mock.patch("os.replace", deadly(os.replace)),
        mock.patch.object(Database, "_commit", deadly(Database._commit)),
    ):
        yield


class ChaosCarrier:
    """Unreliable carrier between one server and its clients."""

    largest_reply = 1 << 40

    def __init__(self, federation: Federation, seed: int, trouble: Trouble | None = None) -> None:
        self.federation = federation
        self.rng = random.Random(seed)
        self.trouble = trouble or Trouble.drawn(self.rng)
        self.time = 0.0
        self.skew = 0.0
        self.messages: list[bytes] = []
        self.events: dict[str, int] = {}
        self.away: set[int] = set()
        self.rounds = 0
        self._queue: list[tuple[float, int, bool, int, bytes | None]] = []
        self._count = 0

    # --- interface of a carrier -------------------------------------------------------------------

    def connected(self) -> Collection[Address]:
        return set(self.federation.roster) - self.away

    def send(self, address: Address, message: bytes) -> bool:
        return self._post(int(str(address)), message, to_server=False)

    def arrivals(self) -> list[tuple[Address, bytes | None]]:
        arrived: list[tuple[Address, bytes | None]] = []
        now = sorted(entry[:4] for entry in self._queue if entry[0] <= self.time)
        contents = {entry[1]: entry[4] for entry in self._queue}
        self._queue = [entry for entry in self._queue if entry[0] > self.time]
        for _, number, to_server, client in now:
            message = contents[number]
            if to_server:
                arrived.append((client, message))
            elif message is not None and client not in self.away:
                self._answer(client, message)
        self._pass_time()
        return arrived

    def is_idle(self) -> bool:
        return True  # messages in transit are delivered eventually: see `run`

    def rest(self) -> None:
        """Advance the clock; each check for arrivals takes time."""

    # --- faults -----------------------------------------------------------------------------------

    def run(self, most_sums: int = 4000) -> Outcome:
        """Drive the run until it succeeds or stops safely, restarting the server as needed."""
        while True:
            server: Coordinator | None = None
            try:
                with killing(self.rng, self.trouble.kill / 4):
                    server = self.federation.server(clock=lambda: self.time + self.skew)
                    carry(server, self, self._publish, clock=lambda: self.time)
            except Killed:
                self._note("server killed")
            except Restarted:
                pass
            finally:
                if server is not None:
                    server.close()
            assert self.rounds < most_sums, f"the run does not end: {server} {self.events}"
            if server is not None and server.finished:
                self._deliver_rest()
                return self._outcome(server)

    def _publish(self, server: Coordinator) -> Path:
        assert server.components is not None
        return self.federation.artifact(server.components)

    def _pass_time(self) -> None:
        self.rounds += 1
        self.time += 0.5
        if self._happens("clock"):
            self.skew += self.rng.choice([-1e6, -30, 30, 1e6])
        if self._happens("away"):
            self.away.add(self.rng.randrange(len(self.federation.roster)))
        if self._happens("restart"):
            raise Restarted

    def _answer(self, client: int, message: bytes) -> None:
        try:
            with killing(self.rng, self.trouble.kill):
                node = self.federation.node(client)
                reply = bytes(node.answer(message))
        except Killed:
            self._note("client killed")
            if self.rng.random() < 0.5:
                self._queue_up(client, None, to_server=True)
            return
        self._post(client, reply, to_server=True)

    def _post(self, client: int, message: bytes, *, to_server: bool) -> bool:
        self.messages.append(message)
        if self._happens("drop"):
            return True
        if self._happens("fail"):
            if to_server:
                self._queue_up(client, None, to_server=True)
            return to_server
        for _ in range(2 if self._happens("duplicate") else 1):
            sent = message
            if self._happens("corrupt"):
                place = self.rng.randrange(len(message))
                sent = message[:place] + bytes([message[place] ^ 1 << self.rng.randrange(8)])
                sent += message[place + 1 :]
            self._queue_up(client, sent, to_server=to_server)
        return True

    def _queue_up(self, client: int, message: bytes | None, *, to_server: bool) -> None:
        late = self.rng.expovariate(0.1) if self._happens("delay") else self.rng.random()
        self._count += 1
        self._queue.append((self.time + late, self._count, to_server, client, message))

    def _deliver_rest(self) -> None:
        """Deliver to the clients the messages still in transit when the server is done."""
        for _, _, to_server, client, message in sorted(self._queue, key=lambda entry: entry[:2]):
            if not to_server and client not in self.away and message is not None:
                self.messages.append(self.federation.node(client).answer(message))

    def _outcome(self, server: Coordinator) -> Outcome:
        events = [event for event, _ in RunJournal(self.federation.folder / "server").events()]
        steps = server.plan.steps if server.components else ()
        cohorts = [
            frozenset(event.clients)
            for event in events
            if isinstance(event, StepEnded) and steps and steps[event.step].phase is Phase.INPUT
        ]
        assert len(set(cohorts)) <= 1, "sums over different clients"
        opened = [event.sum_number for event in events if isinstance(event, SumOpened)]
        assert opened == sorted(set(opened)), "a sum was opened twice"
        installed = sum(
            (self.federation.folder / f"client-{client}/model/current").exists()
            for client in self.federation.roster
        )
        return Outcome(
            server.stage,
            server.reason,
            server.components,
            cohorts[0] if cohorts else frozenset(),
            self.messages,
            installed,
            self.rounds,
            self.events,
        )

    def _happens(self, what: str) -> bool:
        happens = self.rng.random() < getattr(self.trouble, what)
        if happens:
            self._note(what)
        return happens

    def _note(self, what: str) -> None:
        self.events[what] = self.events.get(what, 0) + 1


def check_nobody_answered_twice(messages: list[bytes]) -> None:
    """Fail unless each client gave one answer and one upload per step, however often sent."""
    said: dict[tuple[Any, ...], bytes] = {}
    for message in messages:
        try:
            sealed = envelope.peek(message, "to-server")
        except envelope.BadEnvelope:
            continue
        if not isinstance(sealed.message, Answer | Vector):
            continue
        for place, part in enumerate(sealed.parts):
            key = (sealed.run, sealed.client, sealed.message.step, place)
            assert said.setdefault(key, bytes(part)) == bytes(part), key


def check_nothing_leaked(federation: Federation, outcome: Outcome, logs: str) -> None:
    """Fail if items of a history or users leak: in transit, in logs or in the server's folder."""
    item, user = PLANTED_ITEM.encode(), PLANTED_USER.encode()
    for message in outcome.messages:
        assert user not in message
        if (
            b'"kind":"artifact-piece"' not in message[: 1 << 12]
        ):  # the public catalogue is part of the model
            assert item not in message
    for path in (federation.folder / "server").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert item not in content, path
            assert user not in content, path
    assert PLANTED_ITEM not in logs
    assert PLANTED_USER not in logs


def check_same(found: Components, expected: Components) -> None:
    np.testing.assert_array_equal(found.item_degrees, expected.item_degrees)
    for name in ("basis", "eigenvalues"):
        np.testing.assert_array_equal(
            getattr(found.item_item, name), getattr(expected.item_item, name)
        )


def one_run(
    folder: Path,
    seed: int,
    logs: Callable[[], str],
    aggregator: Aggregator = "secagg+",
    carrier: type[ChaosCarrier] = ChaosCarrier,
) -> Outcome:
    """Run once with this seed, and check the result or the safe stop."""
    federation = Federation(folder, aggregator=aggregator)
    outcome = carrier(federation, seed).run()
    check_nobody_answered_twice(outcome.messages)
    check_nothing_leaked(federation, outcome, logs())
    if outcome.stage is Stage.DONE:
        assert outcome.components is not None
        check_same(outcome.components, federation.simulated(outcome.cohort, TERMS.program))
    else:
        assert outcome.reason
        assert "\n" not in outcome.reason
        with pytest.raises(FederationError) as stopped:  # a stopped run does not resume
            federation.server().raise_if_stopped()
        assert str(stopped.value) == outcome.reason
        assert stopped.value.exit_code == 3
    return outcome


logging.getLogger("privirec").setLevel(logging.DEBUG)
