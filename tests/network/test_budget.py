"""Tests of a client's privacy budget.

Spending is recorded before a vector leaves and refused beyond the budget. The record never shows
less than was spent, whatever the server does and wherever a client crashes.
"""

from __future__ import annotations

import inspect
import itertools
import os
import shutil
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from privirec.federated.contributions import (
    ItemDegrees,
    NoiseShare,
    NoisyPopularity,
    PlannedSum,
)
from privirec.federated.dp.gaussian import epsilon_of
from privirec.federated.dp.loss import Loss, of_noise
from privirec.federated.programs import Protected, ProtectedSettings
from privirec.privacy.accountant import Account
from privirec.privacy.cohorts import PolicyRefusal
from privirec.privacy.policy import Policy, allowing
from privirec.runtime.coordinator import Stage
from privirec.runtime.envelope import Envelope
from privirec.runtime.messages import Refused
from privirec.runtime.node import Node
from privirec.runtime.node.budget import Budget
from privirec.runtime.node.record import COLUMNS
from privirec.runtime.node.steps import contributors_of
from privirec.runtime.refusals import Code
from privirec.runtime.spec import Assumptions, RunSpec
from privirec.secagg import Statement
from privirec.secagg.keys import Identity

from .chaos import EXACT
from .silos import Silos, refusals, run
from .test_node import Talk, said_in
from .test_people import codes

ITEMS = 12
BEGIN = datetime(2026, 11, 2, 12, tzinfo=UTC)


def protected(clients: int = 3, contributors: int = 2, **changes: Any) -> RunSpec:
    """Return a protected run of two sums for which two of three clients suffice."""
    settings = ProtectedSettings(
        way="gram", head=4, clients=clients, contributors=contributors, **changes
    )
    return RunSpec(program=settings, drop_share=0.0)


class Devices(Silos):
    """Clients with a clock that tests can set."""

    time = BEGIN

    def __init__(self, folder: Path, policy: Policy | None = None, clients: int = 3) -> None:
        rng = np.random.default_rng(1)
        parts = [rng.random((2, ITEMS)) < 0.5 for _ in range(clients)]
        for part in parts:
            part[:, 0] = True
        super().__init__(folder, parts, policy or Policy())
        self.spec = protected(clients)

    def node(self, client: int, **changes: Any) -> Node:
        return super().node(client, **({"clock": lambda: self.time} | changes))

    def account(self, client: int = 0) -> Account:
        return self.node(client).budget.account()


def test_a_default_client_takes_part_where_noise_protects_and_counts_it(tmp_path: Path) -> None:
    devices = Devices(tmp_path)
    seen, talk = run(devices, "one")
    assert talk.server.stage is Stage.COMPUTED, refusals(talk)
    assert [ask.name for ask, _ in seen] == ["noisy-popularity", "noisy-head-gram"]
    account = devices.account()
    assert [one.computation for one in account.sums] == [ask.name for ask, _ in seen]
    assert {one.run for one in account.sums} == {talk.server.run}
    assert {one.server for one in account.sums} == {devices.operator.public.hex()}
    assert account.exact == 0
    assert 1.9 < account.epsilon(1e-6) <= 2.0
    assert devices.node(0).memory.opened_share() == 0


def test_bytes_of_every_run_are_kept_for_its_owner(tmp_path: Path) -> None:
    devices = Devices(tmp_path, Policy(most_epsilon_per_year=20.0))
    for name in ("one", "two"):
        assert run(devices, name)[1].server.stage is Stage.COMPUTED
    first, second = devices.node(0).memory.taken_part()
    sums = {one.run for one in devices.account().sums}
    assert {first.run, second.run} == sums
    assert min(first.bytes_up, first.bytes_down, second.bytes_up, second.bytes_down) > 500
    assert devices.node(0).memory.load(first.run) is None  # and nothing else of the first


def test_a_memory_from_before_bytes_were_kept_is_taken_over(tmp_path: Path) -> None:
    devices = Devices(tmp_path)
    run(devices, "one")
    with sqlite3.connect(tmp_path / "client-0/runs/memory.db") as database:
        database.execute("DROP TABLE taken")
    database.close()
    assert devices.node(0).memory.taken_part() == []
    assert len(devices.account().sums) == 2


def test_a_client_that_is_switched_off_says_so_and_sends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = Devices(tmp_path, Policy(takes_part=False))
    seen, talk = run(devices, "one")
    assert seen == []
    said = refusals(talk)
    assert said
    assert all("this client's policy says takes_part = false" in each for each in said)
    assert devices.node(0).memory.taken_part() == []
    monkeypatch.setattr(Policy, "check_takes_part", lambda _: None)
    assert run(devices, "two")[1].server.stage is Stage.COMPUTED


def test_who_switches_off_in_the_middle_of_a_run_leaves_it(tmp_path: Path) -> None:
    devices = Devices(tmp_path)
    talk = Talk(devices)
    talk.until("input", 2)
    message = talk.message_for(0)
    devices.policy = Policy(takes_part=False)
    said = said_in(devices.node(0).answer(message))
    assert isinstance(said, Refused)
    assert said.final
    assert len(devices.account().sums) == 1
    (taken,) = devices.node(0).memory.taken_part()
    assert taken.part == "left"
    devices.policy = Policy()
    assert isinstance(said_in(devices.node(0).answer(message)), Refused)  # permanently


def test_what_costs_more_than_is_left_is_refused_in_words(tmp_path: Path) -> None:
    devices = Devices(tmp_path, Policy(most_epsilon_per_year=5.0))
    devices.spec = protected(epsilon=3.5)
    assert run(devices, "one")[1].server.stage is Stage.COMPUTED
    spent = devices.account()
    assert run(devices, "two")[0] == []
    talk = Talk(devices, name="three")
    said = said_in(devices.node(0).answer(talk.greeting()))
    assert isinstance(said, Refused)
    assert said.code is Code.BUDGET
    for words in ("cost epsilon 3.5", "3.5 were spent within 365 days", "most_epsilon_per_year"):
        assert words in said.reason
    assert "it has room for epsilon 3.26 now, and for this run from 2027-11-03 on" in said.reason
    assert said.room is not None
    assert Loss.together((spent.noisy, Loss(said.room))).fits(Loss.allowed(5.0, 1e-6))
    assert said.returns == "2027-11-03"
    assert devices.account() == spent


def test_a_plan_that_costs_more_than_the_greeting_said_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = Devices(tmp_path, Policy(most_epsilon_per_year=1.0))
    with monkeypatch.context() as lie:
        lie.setattr(Protected, "level", 0.0)
        talk = Talk(devices)
    talk.until("advertise")
    assert codes(devices, talk) == {Code.BUDGET}


def test_a_client_tells_its_room_only_if_its_policy_says_so(tmp_path: Path) -> None:
    for tells in (True, False):
        policy = Policy(most_epsilon_per_year=1.0, tells_room=tells)
        talk = Talk(Devices(tmp_path / str(tells), policy))
        said = said_in(talk.federation.node(0).answer(talk.greeting()))
        assert isinstance(said, Refused)
        assert (said.room is not None) is tells
        assert ("has room for" in said.reason) is tells


def test_a_run_that_nobody_can_pay_ends_before_anybody_waits(tmp_path: Path) -> None:
    """Clients say at the greeting what they could pay, and the server says so to the operator."""
    devices = Devices(tmp_path, Policy(most_epsilon_per_year=2.5))
    assert run(devices, "one")[1].server.stage is Stage.COMPUTED
    talk = Talk(devices, name="two")
    talk.step()
    talk.step()
    assert talk.server.stage is Stage.STOPPED
    assert "3 of them have too little left of their privacy budget" in talk.server.reason
    assert "all can pay epsilon 1.37" in talk.server.reason
    assert "what this run costs from 2027-11-03 on" in talk.server.reason
    assert not devices.node(0).memory.knows(talk.server.run)
    devices.spec = protected(epsilon=1.37)
    assert run(devices, "three")[1].server.stage is Stage.COMPUTED


def test_the_others_go_on_at_once_without_those_who_cannot_pay(tmp_path: Path) -> None:
    devices = Devices(tmp_path, clients=10)
    devices.spec = protected(10, 7).model_copy(update={"drop_share": 0.2})
    talk = Talk(devices)
    usual = devices.policy
    talk.server.connected(set(devices.roster))
    for address, message in list(talk.server.outgoing()):
        devices.policy = Policy(most_epsilon=1.0) if address == 9 else usual
        talk.server.receive(address, devices.node(int(str(address))).answer(message))
    devices.policy = usual
    talk.server.tick()  # no time has passed
    assert talk.server.stage is Stage.SUMMING
    assert 9 not in talk.server.plan.users


def test_with_the_guard_off_the_second_run_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = Devices(tmp_path, Policy(most_epsilon_per_year=5.0))
    devices.spec = protected(epsilon=3.5)
    monkeypatch.setattr(Budget, "check_loss", lambda *_: None)
    for name in ("one", "two"):
        assert run(devices, name)[1].server.stage is Stage.COMPUTED
    assert devices.account().epsilon(1e-6) > 5.0  # and it still counts as spent


def test_a_budget_that_shrinks_in_the_middle_of_a_run_ends_it(tmp_path: Path) -> None:
    devices = Devices(tmp_path)
    talk = Talk(devices)
    talk.until("input", 2)
    devices.policy = Policy(most_epsilon=1.0)
    said = said_in(devices.node(0).answer(talk.message_for(0)))
    assert isinstance(said, Refused)
    assert said.code is Code.BUDGET
    assert len(devices.account().sums) == 1


def test_a_year_passes_and_a_life_does_not(tmp_path: Path) -> None:
    devices = Devices(tmp_path, Policy(most_epsilon_per_year=4.0, most_epsilon=5.5))
    devices.spec = protected(epsilon=3.5)
    assert run(devices, "one")[1].server.stage is Stage.COMPUTED
    devices.time = BEGIN + timedelta(days=364)
    assert run(devices, "two")[0] == []
    devices.time = BEGIN + timedelta(days=366)
    assert run(devices, "three")[1].server.stage is Stage.COMPUTED
    devices.time = BEGIN + timedelta(days=5000)
    talk = Talk(devices, name="four")
    said = said_in(devices.node(0).answer(talk.greeting()))
    assert isinstance(said, Refused)
    assert "in the life of this client" in said.reason


def test_a_clock_that_is_set_back_brings_nothing_back(tmp_path: Path) -> None:
    devices = Devices(tmp_path, Policy(most_epsilon_per_year=4.0))
    devices.spec = protected(epsilon=3.5)
    assert run(devices, "one")[1].server.stage is Stage.COMPUTED
    for away in (timedelta(days=-900), timedelta(days=-1)):
        devices.time = BEGIN + away
        assert run(devices, f"at {away.days}")[0] == []
    # Spending under a clock that was set back does not count as spending of long ago.
    devices.policy = Policy(most_epsilon_per_year=6.0)
    devices.time = BEGIN - timedelta(days=900)
    assert run(devices, "two")[1].server.stage is Stage.COMPUTED
    devices.time = BEGIN + timedelta(days=1)
    assert run(devices, "three")[0] == []


@pytest.mark.parametrize("sums", [1, 2])
def test_a_sum_is_in_the_record_before_its_vector_leaves(tmp_path: Path, sums: int) -> None:
    """Repeated asks, and asks under another name, only add to the record."""
    devices = Devices(tmp_path)
    talk = Talk(devices)
    talk.until("input", sums)
    asked = talk.message_for(0)
    devices.node(0).answer(asked)
    first = devices.account()
    assert len(first.sums) == sums
    for _ in range(2):
        devices.node(0).answer(asked)
        assert devices.account() == first
    Talk(devices, name="renamed").step()  # the run is abandoned for another one
    assert devices.account() == first


def test_a_record_from_a_backup_begins_no_run(tmp_path: Path) -> None:
    devices = Devices(tmp_path)
    runs = tmp_path / "client-0/runs"
    talk = Talk(devices)
    talk.until("advertise")
    shutil.copy(runs / "memory.db", tmp_path / "backup.db")
    talk.until(Stage.COMPUTED)
    shutil.copy(tmp_path / "backup.db", runs / "memory.db")
    assert codes(devices, Talk(devices, name="next")) == {Code.STATE_RESTORED}


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE spent SET mu = mu / 2 WHERE number = 1",
        "UPDATE spent SET gap = 0",
        "UPDATE spent SET at = '2020-01-01T00:00:00+00:00' WHERE number = 2",
        "UPDATE spent SET mu = NULL, gap = NULL",
        "UPDATE spent SET computation = 'noisy-popularity', sum = 3 - sum",
        "UPDATE spent SET run = 'another'",
        "DELETE FROM spent WHERE number = 1",
        "DELETE FROM spent WHERE number = 2",
        "DELETE FROM spent",
        "UPDATE spent SET number = number + 5 WHERE number = 1",
    ],
)
def test_a_record_that_was_changed_answers_nothing(tmp_path: Path, change: str) -> None:
    devices = Devices(tmp_path, Policy(most_epsilon_per_year=60, most_epsilon=60))
    assert run(devices, "one")[1].server.stage is Stage.COMPUTED
    with sqlite3.connect(tmp_path / "client-0/runs/memory.db") as database:
        database.execute(change)
    talk = Talk(devices, name="next")
    for _ in range(3):
        talk.step()
    assert not devices.node(0).memory.knows(talk.server.run) or talk.server.clients[0].gone
    assert talk.server.stage in (Stage.GATHERING, Stage.STOPPED)


def test_lines_of_another_client_are_none_of_this_one(tmp_path: Path) -> None:
    devices = Devices(tmp_path)
    assert run(devices, "one")[1].server.stage is Stage.COMPUTED
    rows = devices.node(1).memory.spent()
    with sqlite3.connect(tmp_path / "client-0/runs/memory.db") as database:
        database.execute("DELETE FROM spent")
        for row in rows:
            places = ", ".join("?" * len(row))
            insert = f"INSERT INTO spent ({COLUMNS}) VALUES ({places})"  # noqa: S608
            database.execute(insert, row)
    assert run(devices, "two")[0] == []


# --- cohorts that change --------------------------------------------------------------------------


def replaced(devices: Devices) -> None:
    """Replace client 2 by a new client with the same number."""
    devices.identities[2] = Identity(b"n" * 32)
    devices.use_roster(range(3))
    shutil.rmtree(devices.folder / "client-2")
    devices.fill(2)


def test_with_noise_a_client_of_three_may_be_replaced(tmp_path: Path) -> None:
    devices = Devices(tmp_path, Policy(most_epsilon_per_year=20))
    assert run(devices, "one")[1].server.stage is Stage.COMPUTED
    replaced(devices)
    seen, talk = run(devices, "two")
    assert talk.server.stage is Stage.COMPUTED
    assert len(devices.account().sums) == 2 * len(seen)
    assert len(devices.account(2).sums) == len(seen)


def test_without_noise_it_may_not_and_the_refusal_says_what_to_do(tmp_path: Path) -> None:
    lax = allowing(EXACT, fewest_other_people=1, smallest_change=2, largest_opened_share=1000)
    devices = Devices(tmp_path, lax)
    exact = Silos(tmp_path / "any", devices.parts, lax).spec
    devices.spec = exact
    assert run(devices, "one")[1].server.stage is Stage.COMPUTED
    replaced(devices)
    seen, talk = run(devices, "two")
    assert seen == []
    assert any("noise" in said for said in refusals(talk))
    devices.spec = protected()
    assert run(devices, "three")[1].server.stage is Stage.COMPUTED


def test_exact_sums_are_in_the_record_and_have_no_epsilon(tmp_path: Path) -> None:
    lax = allowing(EXACT, fewest_other_people=1, smallest_change=2, largest_opened_share=1000)
    devices = Devices(tmp_path, lax)
    devices.spec = Silos(tmp_path / "any", devices.parts, lax).spec
    assert run(devices, "one")[1].server.stage is Stage.COMPUTED
    account = devices.account()
    assert account.exact == len(account.sums) > 0
    assert account.epsilon(1e-6) == np.inf
    assert account.noisy.epsilon(1e-6) == 0


def test_changes_of_a_history_need_not_wait_where_noise_covers_them(tmp_path: Path) -> None:
    devices = Devices(tmp_path, Policy(most_epsilon_per_year=20))
    assert run(devices, "one")[1].server.stage is Stage.COMPUTED
    with devices.store(0) as store:
        store.add([("user-0-0", f"item-{item}") for item in range(ITEMS)])
    assert run(devices, "two")[1].server.stage is Stage.COMPUTED


# --- missing noise --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clients", "contributors", "aggregator"), [(3, 3, "secagg+"), (3, 2, "none")]
)
def test_noise_that_cannot_be_counted_on_is_refused(
    tmp_path: Path,
    clients: int,
    contributors: int,
    aggregator: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of three clients may be corrupt; without masks a client has only its own noise."""
    devices = Devices(tmp_path, Policy(aggregators=("secagg+", "none")))
    spec = protected(clients, contributors)
    devices.spec = spec.model_copy(update={"aggregator": aggregator})
    with monkeypatch.context() as off:
        off.setattr(Budget, "check_noise", lambda *_: None)
        assert run(devices, "off")[1].server.stage is Stage.COMPUTED
    shutil.rmtree(tmp_path)
    devices = Devices(tmp_path, Policy(aggregators=("secagg+", "none")))
    devices.spec = spec.model_copy(update={"aggregator": aggregator})
    talk = Talk(devices)
    talk.until("advertise")
    assert codes(devices, talk) == {Code.BUDGET}


def test_the_noise_of_all_others_is_never_counted_on(tmp_path: Path) -> None:
    """No client is declared corrupt, but each can subtract its own noise from the model."""
    for contributors, stage in ((2, Stage.COMPUTED), (3, Stage.STOPPED)):
        devices = Devices(tmp_path / str(contributors), Policy(corrupt_share=0.0))
        spec = protected(3, contributors)
        devices.spec = spec.model_copy(update={"corrupt_share": 0.0})
        _, talk = run(devices, "one")
        assert talk.server.stage is stage, refusals(talk)
    for clients, counted in ((1, 1), (2, 1), (3, 2), (100, 99)):
        assert Assumptions(corrupt_share=0.0, drop_share=0.0).contributors(clients) == counted


def test_the_seed_of_noise_is_the_systems_randomness_and_nobody_elses(tmp_path: Path) -> None:
    """Each run draws a new seed from nothing that a server knows or can reproduce."""
    assert inspect.signature(Node).parameters["random_bytes"].default is os.urandom
    devices, drawn = Devices(tmp_path), []

    def noting(size: int) -> bytes:
        drawn.append(os.urandom(size))
        return drawn[-1]

    talk = Talk(devices)
    for client in range(3):
        node = devices.node(client, random_bytes=noting)
        for _ in range(2):
            said = Envelope(talk.server.run, client, talk.hello())
            node.answer(said.seal(devices.operator, "to-client"))
        state = node.memory.load(talk.server.run)
        assert state is not None
        assert [state.noise_seed] == drawn
        assert len(state.noise_seed) == 32
        drawn.clear()


def test_the_sum_that_needs_most_noise_decides_and_ones_own_is_always_there(tmp_path: Path) -> None:
    budget = Devices(tmp_path).node(0).budget

    def plan(*contributors: int) -> Any:
        shares = [NoiseShare(1000, 9, few, 12) for few in contributors]
        return SimpleNamespace(
            sums=[NoisyPopularity.planned(ITEMS, 9, share) for share in shares],
            statement=SimpleNamespace(corrupt=2),
            spec=SimpleNamespace(aggregator="secagg+"),
        )

    for contributors, clients in (((1, 3), 5), ((3, 1), 5), ((1,), 1), ((1, 1), 2)):
        made = plan(*contributors)
        budget.check_noise(made, clients, contributors_of(made.sums))
    for contributors, clients in (((1, 3), 4), ((3, 1), 4), ((2,), 1), ((2,), 3)):
        made = plan(*contributors)
        with pytest.raises(PolicyRefusal, match="can be counted on"):
            budget.check_noise(made, clients, contributors_of(made.sums))


def loss_of(sums: list[PlannedSum]) -> Loss:
    return Loss.together(one.protection.loss for one in sums if one.protection)


def test_a_limit_is_a_limit_also_beside_exact_sums(tmp_path: Path) -> None:
    noisy = NoisyPopularity.planned(ITEMS, 9, NoiseShare(4000, 3, 2, 12))
    exact = PlannedSum(ItemDegrees, ItemDegrees(ITEMS, 9).shape)
    assert noisy.protection is not None
    cost = noisy.protection.loss.epsilon(1e-6)
    cost *= 1 + 1e-6
    devices = Devices(tmp_path, Policy(most_epsilon=cost, most_epsilon_per_year=cost))
    for sums in ([noisy], [noisy, exact], [exact]):
        devices.node(0).budget.check(loss_of(sums))
    for setting in ("most_epsilon", "most_epsilon_per_year"):
        wide = {"most_epsilon": 60.0, "most_epsilon_per_year": 60.0}
        devices.policy = Policy(**(wide | {setting: cost * 0.9999}))
        for sums in ([noisy], [noisy, exact], [exact, noisy]):
            with pytest.raises(PolicyRefusal, match=setting):
                devices.node(0).budget.check(loss_of(sums))


def test_noise_of_clients_that_dropped_out_is_missed(tmp_path: Path) -> None:
    """Ten clients, of which one may be corrupt and two drop out.

    Noise may count on seven clients, so a sum of eight is opened. If it counts on eight, the sum is
    not opened.
    """
    for contributors, stage in ((7, Stage.COMPUTED), (8, Stage.STOPPED)):
        devices = Devices(tmp_path / str(contributors), clients=10)
        spec = protected(10, contributors)
        devices.spec = spec.model_copy(update={"drop_share": 0.2})
        clock = itertools.count(step=4)
        talk = Talk(devices, clock=lambda clock=clock: float(next(clock)))
        talk.until("input", 1)
        for _ in range(40):
            if talk.server.stage in (Stage.COMPUTED, Stage.STOPPED):
                break
            talk.step(skip={4, 5})
        assert talk.server.stage is stage, refusals(talk)


def test_a_failure_of_secure_aggregation_has_its_part_of_delta(tmp_path: Path) -> None:
    """Test one run and a life of runs, and that shown figures are of what is left of delta."""
    devices = Devices(tmp_path, Policy(security_bits=20))
    for bits in (40, 27):
        devices.spec = protected().model_copy(update={"security_bits": bits})
        talk = run(devices, f"with-{bits}")[1]
        assert (talk.server.stage is Stage.COMPUTED) == (bits == 40)
        said = refusals(talk)
        assert not said or any("of 27 bits in 1 run(s)" in each for each in said)
    plan = SimpleNamespace(
        run="f" * 32,
        statement=Statement.of(3, 0.05, 0.0, security_bits=28),
        program=SimpleNamespace(delta=1e-4),
        spec=SimpleNamespace(security_bits=28),
    )
    devices.policy = Policy(delta=1e-6)
    with pytest.raises(PolicyRefusal, match=r"in 2 run\(s\): too little for a delta of 1e-06"):
        devices.node(0).budget.check_failure(plan)  # type: ignore[arg-type]
    devices.policy = Policy(delta=2e-6)
    devices.node(0).budget.check_failure(plan)  # type: ignore[arg-type]
    assert of_noise(1e-6) < 0.99e-6
    assert Loss(1.0).epsilon(1e-6) == epsilon_of(1.0, of_noise(1e-6))


def test_a_run_that_was_begun_for_noise_has_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run starts without the checks that exact sums need, then gets a plan of exact sums."""
    lax = allowing(EXACT, fewest_other_people=1, smallest_change=2, largest_opened_share=1000)

    def lied(folder: Path) -> Talk:
        devices = Devices(folder, lax)
        devices.spec = Silos(folder / "any", devices.parts, lax).spec
        with monkeypatch.context() as lie:
            lie.setattr(RunSpec, "protected", True)
            talk = Talk(devices)
        return talk

    talk = lied(tmp_path / "on")
    talk.until("advertise")
    assert codes(talk.federation, talk) == {Code.BAD_PLAN}
