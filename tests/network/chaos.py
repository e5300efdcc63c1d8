"""A federation in one process under a carrier that does everything carriers do, from one seed."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterator
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
from privirec.durable import Journal
from privirec.errors import FederationError
from privirec.federated.programs import FederatedSettings, program
from privirec.filters.components import Components
from privirec.models import GFCF
from privirec.privacy.policy import Aggregator, Policy
from privirec.runtime.execute import execute
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.network import envelope
from privirec.runtime.network.coordinator import Coordinator, Deadlines, Stage
from privirec.runtime.network.histories import FromStore
from privirec.runtime.network.node import Node
from privirec.runtime.network.run_plan import RunTerms
from privirec.secagg.bell2020.messages import Unmask, decode
from privirec.secagg.keys import Identity, Roster
from privirec.secagg.messages import Masked

OPERATOR = bytes(range(32))
PLANTED_ITEM = "planted-item-"
PLANTED_USER = "planted-user-"
TERMS = RunTerms(
    settings=FederatedSettings(method="privirec-k", rank=3, rounds=2),
    dropped_share=0.34,
    block_entries=16,
    part_bytes=120,
)
DEADLINES = Deadlines(hello=30, setup=60, input=90, unmask=60, artifact=60, silence=8, retry=1)


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Trouble:
    """How likely each mishap is, for a message or a step."""

    kill: float = 0.0
    """At a write to the disk."""
    drop: float = 0.0
    fail: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    delay: float = 0.0
    restart: float = 0.0
    clock: float = 0.0
    away: float = 0.0
    """A client is gone for good."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Trouble:
        """Some of everything, often nothing of a kind."""
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
    """How a run ended, and all that was said on the way."""

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
        self.terms = TERMS.model_copy(update={"aggregator": aggregator})
        # Seventeen items are few: a small rank opens many of their numbers.
        allowed = ("secagg+", "secagg") if aggregator == "secagg+" else (aggregator,)
        self.policy = Policy(aggregators=allowed, most_of_item_item=2)
        rng = np.random.default_rng(seed)
        items, users = 17, 4 * clients
        self.catalogue = Catalogue(np.array([f"{PLANTED_ITEM}{i:03d}" for i in range(items)]))
        touched = rng.random((users, items)) < 0.35
        touched[:, 0] = True  # a store does not know of users without items
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
        """A new process of a client."""
        home = self.folder / f"client-{client}"
        given: dict[str, Any] = {
            "client": client,
            "identity": self.identities[client],
            "roster": self.roster,
            "operator": self.operator.public,
            "catalogue": self.catalogue,
            "histories": FromStore(home / "history.db"),
            "policy": self.policy,
        }
        return Node(home, **(given | changes))

    def server(
        self, name: str = "server", clock: Callable[[], float] | None = None, **changes: Any
    ) -> Coordinator:
        """A new process of the server, on the same folder."""
        given: dict[str, Any] = {
            "operator": self.operator,
            "roster": self.roster,
            "catalogue": self.catalogue,
            "terms": self.terms,
            "deadlines": DEADLINES,
        }
        return Coordinator(
            self.folder / name, **(given | changes), **({"clock": clock} if clock else {})
        )

    def simulated(self, cohort: frozenset[int], settings: FederatedSettings) -> Components:
        """What the run must give: the same program over all these histories at once."""
        inside = np.concatenate([np.arange(4 * c, 4 * c + 4) for c in sorted(cohort)])
        part = Interactions(
            self.train.matrix[inside], self.train.user_ids[inside], self.train.item_ids
        )
        steps = program(settings, part.n_users, part.n_items)
        return execute(steps, Simulation(part))[0]

    def artifact(self, components: Components) -> Path:
        key = Ed25519PrivateKey.from_private_bytes(OPERATOR)
        model = GFCF(rank=3).use(components, self.catalogue.item_ids)
        return model.save(self.folder / "artifact", {}, signing_key=key)


@contextmanager
def killing(rng: random.Random, chance: float) -> Iterator[None]:
    """Let the process die, with this chance, around each write that reaches the disk."""

    def deadly(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **more: Any) -> Any:
            if rng.random() < chance:
                raise Killed
            done = call(*args, **more)
            if rng.random() < chance:
                raise Killed
            return done

        return called

    with mock.patch("os.fsync", deadly(os.fsync)), mock.patch("os.replace", deadly(os.replace)):
        yield


class Carrier:
    """Carries messages between one server and its clients, badly."""

    def __init__(self, federation: Federation, seed: int, trouble: Trouble | None = None) -> None:
        self.federation = federation
        self.rng = random.Random(seed)
        self.trouble = trouble or Trouble.drawn(self.rng)
        self.time = 0.0
        self.skew = 0.0
        self.messages: list[bytes] = []
        self.events: dict[str, int] = {}
        self.away: set[int] = set()
        self._queue: list[tuple[float, int, int | None, int, bytes]] = []
        self._count = 0
        self._server: Coordinator | None = None

    def run(self, most_steps: int = 4000) -> Outcome:
        """Until the run has ended, for good or safely."""
        steps = 0
        server = self._restarted()
        while True:
            steps += 1
            assert steps < most_steps, f"the run does not end: {server} {self.events}"
            self.time += 0.5
            if self._happens("clock"):
                self.skew += self.rng.choice([-1e6, -30, 30, 1e6])
            if self._happens("away"):
                self.away.add(self.rng.randrange(len(self.federation.roster)))
            if self._happens("restart"):
                server = self._restarted()
            try:
                with killing(self.rng, self.trouble.kill / 4):
                    self._step(server)
            except Killed:
                self._note("server killed")
                server = self._restarted()
            if server.finished:
                for address, message in server.outgoing():
                    self._push(address, message)
                self._deliver_rest()
                server.close()
                return self._outcome(server, steps)

    def _step(self, server: Coordinator) -> None:
        server.met(set(self.federation.roster) - self.away)
        for address, message in server.outgoing():
            self._push(address, message)
        for to_server, client, message in self._arrived():
            if to_server:
                server.receive(client, message)
            else:
                self._answered(server, client, message)
        server.tick()
        if server.stage is Stage.COMPUTED:
            assert server.components is not None
            server.distribute(self.federation.artifact(server.components))

    def _answered(self, server: Coordinator, client: int, message: bytes) -> None:
        if client in self.away:
            return
        try:
            with killing(self.rng, self.trouble.kill):
                reply = self.federation.node(client).answer(message)
        except Killed:
            self._note("client killed")
            if self.rng.random() < 0.5:
                server.failed(client)
            return
        self._send(client, reply, to_server=True)

    def _push(self, address: Any, message: bytes) -> None:
        self._send(address, message, to_server=False)

    def _send(self, client: int, message: bytes, *, to_server: bool) -> None:
        self.messages.append(message)
        if self._happens("drop"):
            return
        if self._happens("fail") and self._server is not None:
            self._server.failed(client)
            return
        for _ in range(2 if self._happens("duplicate") else 1):
            sent = message
            if self._happens("corrupt"):
                place = self.rng.randrange(len(message))
                sent = message[:place] + bytes([message[place] ^ 1 << self.rng.randrange(8)])
                sent += message[place + 1 :]
            late = self.rng.expovariate(0.1) if self._happens("delay") else self.rng.random()
            self._count += 1
            self._queue.append((self.time + late, self._count, to_server, client, sent))

    def _arrived(self) -> list[tuple[bool, int, bytes]]:
        now = sorted(entry for entry in self._queue if entry[0] <= self.time)
        self._queue = [entry for entry in self._queue if entry[0] > self.time]
        return [(bool(to_server), client, message) for _, _, to_server, client, message in now]

    def _deliver_rest(self) -> None:
        """What is still under way when the server is done reaches the clients at some time."""
        for _, _, to_server, client, message in sorted(self._queue):
            if not to_server and client not in self.away:
                self.messages.append(self.federation.node(client).answer(message))

    def _restarted(self) -> Coordinator:
        if self._server is not None:
            self._server.close()
        while True:
            try:
                with killing(self.rng, self.trouble.kill / 4):
                    self._server = self.federation.server(clock=lambda: self.time + self.skew)
                return self._server
            except Killed:
                self._note("server killed at its start")

    def _outcome(self, server: Coordinator, steps: int) -> Outcome:
        records = [more for more, _ in Journal(self.federation.folder / "server/journal").records()]
        cohorts = [frozenset(more["clients"]) for more in records if more["what"] == "fixed"]
        assert len(set(cohorts)) <= 1, "sums over different clients"
        rounds = [more["round"] for more in records if more["what"] == "opened"]
        assert rounds == sorted(set(rounds)), "a round was opened twice"
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
            steps,
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
    """For each client and round one masked vector and one set of shares, however often sent."""
    said: dict[tuple[Any, ...], bytes] = {}
    for message in messages:
        sealed = envelope.peek(message)
        if sealed.kind not in ("upload", "unmask"):
            continue
        for part in sealed.parts:
            inner = decode(bytes(part))
            assert isinstance(inner, Masked | Unmask)
            offset = inner.offset if isinstance(inner, Masked) else -1
            key = (sealed.run, inner.client, inner.round_number, offset)
            assert said.setdefault(key, bytes(part)) == bytes(part), key


def check_nothing_leaked(federation: Federation, outcome: Outcome, logs: str) -> None:
    """No item of a history, no user: not in transit, not in logs, not in the server's folder."""
    item, user = PLANTED_ITEM.encode(), PLANTED_USER.encode()
    for message in outcome.messages:
        assert user not in message
        if b'"kind":"artifact"' not in message[: 1 << 12]:  # the public catalogue goes with it
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
    folder: Path, seed: int, logs: Callable[[], str], aggregator: Aggregator = "secagg+"
) -> Outcome:
    """One seeded run, checked whichever way it ends."""
    federation = Federation(folder, aggregator=aggregator)
    outcome = Carrier(federation, seed).run()
    check_nobody_answered_twice(outcome.messages)
    check_nothing_leaked(federation, outcome, logs())
    if outcome.stage is Stage.DONE:
        assert outcome.components is not None
        check_same(outcome.components, federation.simulated(outcome.cohort, TERMS.settings))
    else:
        assert outcome.reason
        assert "\n" not in outcome.reason
        with pytest.raises(FederationError) as stopped:  # and does not come back to life
            federation.server().raise_if_stopped()
        assert str(stopped.value) == outcome.reason
        assert stopped.value.exit_code == 3
    return outcome


logging.getLogger("privirec").setLevel(logging.DEBUG)
