"""Tests of seeded runs against servers that lie in every known way, combined with drop-outs.

A server never gets both secrets of a client, or a sum over fewer honest clients than promised. Runs
without lies finish.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

import numpy as np
import pytest

from privirec.secagg import ServerModel, Statement
from privirec.secagg.parameters import least_honest
from secagg.testing.lying_server import LyingServer, Setting

View = frozenset[int]
Views = dict[int, View]


@dataclass
class Attack:
    """One run, and the information that a lie may depend on."""

    server: LyingServer
    chance: random.Random
    arrived: View
    """Clients whose vectors have arrived."""

    @property
    def clients(self) -> int:
        return self.server.setting.clients

    def arc(self, size: int) -> list[int]:
        """Return this number of consecutive clients of the ring."""
        ring = self.server.ring()
        start = self.chance.randrange(len(ring))
        return [ring[(start + step) % len(ring)] for step in range(size)]


def the_truth(attack: Attack) -> Views:
    return dict.fromkeys(attack.arrived, attack.arrived)


def two_stories_about_one(attack: Attack) -> Views:
    victim = attack.chance.choice(sorted(attack.arrived))
    near = attack.server.neighbours(victim)
    deceived = set(attack.chance.sample(near, attack.chance.randrange(len(near) + 1)))
    without = attack.arrived - {victim}
    return {one: without if one in deceived else attack.arrived for one in without}


def arcs_called_late(attack: Attack) -> Views:
    late = attack.chance.randrange(1, attack.server.parameters.neighbours // 2 + 1)
    size = attack.chance.randrange(1, attack.clients // 2)
    arc = attack.arc(min(attack.clients, 2 * late + size))
    view = attack.arrived - set(arc[:late]) - set(arc[-late:])
    return dict.fromkeys(view, view)


def two_lists_for_two_halves(attack: Attack) -> Views:
    half = set(attack.arc(attack.chance.randrange(1, attack.clients)))
    one, other = (
        attack.arrived - set(attack.chance.sample(sorted(attack.arrived), 1)) for _ in range(2)
    )
    return {client: one if client in half else other for client in attack.arrived}


def a_list_for_each(attack: Attack) -> Views:
    return {
        client: attack.arrived
        - set(attack.chance.sample(sorted(attack.arrived - {client}), attack.chance.randrange(3)))
        for client in attack.arrived
    }


def one_is_not_asked(attack: Attack) -> Views:
    """Treat one client as gone after its vector, and tell all others the truth."""
    absent = attack.chance.choice(sorted(attack.arrived))
    return dict.fromkeys(attack.arrived - {absent}, attack.arrived)


LIES: dict[str, Callable[[Attack], Views]] = {
    "the truth": the_truth,
    "two stories about one": two_stories_about_one,
    "arcs called late": arcs_called_late,
    "two lists for two halves": two_lists_for_two_halves,
    "a list for each": a_list_for_each,
    "one is not asked": one_is_not_asked,
}


@dataclass(frozen=True)
class Ending:
    lie: str
    told_the_truth: bool
    groups: tuple[int, ...]
    """Number of honest clients in each sum that the server has obtained."""
    refusals: Counter[str]


def lying_run(seed: int, model: ServerModel = ServerModel.ACTIVE) -> Ending:
    """Run a federation with drop-outs and lies, all from a seed, and check the promises.

    Every fourth server tells the truth.
    """
    chance = random.Random(seed)
    clients = chance.randrange(12, 41)
    shares = chance.choice([(0.05, 0.1), (0.05, 0.2), (0.1, 0.1)])
    statement = Statement.of(clients, *shares, server=model, correctness_bits=10)
    setting = Setting(
        clients,
        shares,
        model,
        protocol=chance.choice(["secagg+", "secagg+", "secagg"]),
        corrupt=frozenset(chance.sample(range(clients), statement.corrupt)),
        correctness_bits=10,
        seed=seed,
    )
    server = LyingServer(setting)
    honest = sorted(set(range(clients)) - setting.corrupt)
    gone = frozenset(chance.sample(honest, chance.randrange(statement.dropped + 1)))
    truth = seed % 4 == 0
    keeps_back = not truth and chance.random() < 0.3

    def kept_back() -> Mapping[int, Set[int]]:
        """Return, for some clients, the neighbours whose shares are withheld from them."""
        if not keeps_back:
            return {}
        most = server.parameters.neighbours - server.parameters.threshold
        return {
            one: set(chance.sample(server.neighbours(one), chance.randrange(most + 1)))
            for one in chance.sample(honest, len(honest) // 3)
        }

    server.gather(gone, kept_back)
    lie = "the truth" if truth else chance.choice(list(LIES))
    attack = Attack(server, chance, frozenset(server.masked))
    views = LIES[lie](attack)
    server.tell(views)
    if not truth:
        # A server that failed by lying must not succeed by another lie or by the truth.
        server.tell(LIES[chance.choice(list(LIES))](attack))
    check(server, statement, f"seed {seed}, {lie}")
    groups = tuple(len(group) for group in server.groups())
    return Ending(lie, truth, groups, server.loot.refusals)


def check(server: LyingServer, statement: Statement, where: str) -> None:
    assert not server.opened_seeds() & server.opened_keys(), where
    least = least_honest(statement)
    for group in server.groups():
        assert len(group) >= least, (where, len(group), least)
        expected = np.sum([server.vector(one) for one in group], axis=0)
        assert server.opened_sum(group).tolist() == expected.tolist(), where


def lying_runs(seeds: range) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Count the endings of runs without lies, of runs with lies, and the refusals."""
    honest: Counter[str] = Counter()
    lying: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    for seed in seeds:
        ending = lying_run(seed)
        counts = honest if ending.told_the_truth else lying
        counts["finished" if ending.groups else "nothing opened"] += 1
        refusals += ending.refusals
        if ending.told_the_truth:
            assert len(ending.groups) <= 1, seed
    return honest, lying, refusals


@pytest.mark.check
def test_forty_runs_with_lying_servers() -> None:
    honest, lying, refusals = lying_runs(range(40))
    assert honest == {"finished": 10}
    assert lying["nothing opened"] >= 15
    assert refusals["Unconfirmed"] > 10
    assert refusals["BadSignature"] > 10


@pytest.mark.long
@pytest.mark.parametrize("start", range(0, 1000, 250))
def test_a_thousand_runs_with_lying_servers(start: int) -> None:
    honest, lying, refusals = lying_runs(range(start, start + 250))
    print(f"honest: {dict(honest)}; lying: {dict(lying)}; refusals: {dict(refusals)}")
    assert sum(honest.values()) + sum(lying.values()) == 250
    assert honest["finished"] >= 60
    assert lying["nothing opened"] > 100
    assert {"Unconfirmed", "BadSignature", "TooManyDropped", "SecondSurvivorSet"} <= refusals.keys()


@pytest.mark.check
def test_the_same_runs_show_single_clients_where_the_server_is_trusted() -> None:
    """Test that the checks can fail: some lies succeed against clients that expect none."""
    caught = 0
    for seed in range(40):
        try:
            lying_run(seed, ServerModel.SEMI_HONEST)
        except AssertionError:
            caught += 1
    assert caught >= 5
