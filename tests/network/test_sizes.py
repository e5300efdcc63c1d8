"""Tests of protected runs whose later sums are decided during the run, through real clients."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privirec.federated import wire
from privirec.federated.contributions import Histories, NoisyPairs
from privirec.federated.dp.loss import Loss
from privirec.federated.programs import ProtectedSettings, protected
from privirec.federated.programs.protected_ways import Gram, Power, Released, Way, Wishes
from privirec.federated.randomness import ClientRandomness, ClientStream
from privirec.runtime import envelope
from privirec.runtime.coordinator import Stage
from privirec.runtime.node.budget import Budget
from privirec.runtime.refusals import Code
from privirec.runtime.spec import RunSpec

from .silos import refusals, run, sums_opened
from .test_budget import Devices
from .test_node import Talk, refused


def spec(clients: int, contributors: int, drop_share: float = 0.0, **changes: Any) -> RunSpec:
    given = {"clients": clients, "contributors": contributors, "corrupt": 1, "upload_limit": 500}
    return RunSpec(program=ProtectedSettings(**(given | changes)), drop_share=drop_share)


def by_curve(released: Released, wishes: Wishes) -> Way:
    """Choose by the released curve alone."""
    head = 3 + int(released.popularity[0] > released.popularity.mean())
    if released.popularity[1] > np.median(released.popularity):
        return Gram(released.n_items, released.n_users, head)
    return Power(released.n_items, released.n_users, head, (0.3, 0.3, 0.4), columns=2, pairs=2)


@pytest.mark.parametrize("choice", [None, by_curve])
def test_a_run_over_messages_gives_the_bits_of_a_simulation(
    tmp_path: Path, choice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test each sum, with the noise that the clients drew, and that the run keeps its plan."""
    if choice is not None:
        monkeypatch.setattr(protected, "choose", choice)
    devices = Devices(tmp_path)
    devices.spec = spec(3, 2)
    seen, talk = run(devices, "one")
    assert talk.server.stage is Stage.COMPUTED, refusals(talk)
    plan = talk.server.plan
    assert 2 <= len(seen) <= len(plan.sums)
    everybody = Histories(devices.train.matrix)
    for number, (ask, total) in enumerate(seen, 1):
        streams = []
        for client, users in plan.users.items():
            state = devices.node(client).memory.load(talk.server.run)
            assert state is not None
            stream = ClientRandomness(state.noise_seed).stream(number, ask.name)
            streams.append(ClientStream(plan.first_user(client), users, stream))
        np.testing.assert_array_equal(total, ask.total(everybody, streams))
    rows = talk.server.ledger.as_rows()
    assert [row["entries"] for row in rows[: len(seen)]] == [ask.length for ask, _ in seen]
    spent = devices.account().noisy
    assert spent.fits(plan.program.promise.cap)
    assert spent.mu > 0.98 * plan.program.promise.mu
    assert sum(ask.encoding.payload_bytes(ask.length) for ask, _ in seen) <= 500


def test_a_client_checks_every_ask_against_the_bounds_of_its_plan(tmp_path: Path) -> None:
    """Test bad asks one by one, and that each of them ends the client's part."""
    devices = Devices(tmp_path, clients=12)
    devices.spec = spec(12, 11, way="gram", head=4, upload_limit=None)
    talk = Talk(devices)
    talk.until("input", 2)
    honest = envelope.peek(talk.message_for(0), "to-client")
    ask: Any = wire.decode(bytes(honest.parts[1]))
    weights = {"items": np.arange(5), "weights": np.ones(5, np.int64)}
    pairs = NoisyPairs.planned(ask.n_items, ask.n_users, ask.share, 4, 1, ask.ring_bits).ask(
        items=ask.items, first=np.array([0]), second=np.array([1])
    )
    popularity: Any = talk.server.plan.sums[0].ask()
    lies = (
        (pairs, "not the noisy-head-gram of the plan"),
        (popularity, "not the noisy-head-gram of the plan"),
        (replace(ask, **weights), "15 entries, where the plan allows 1 to 10"),
        (replace(ask, ring_bits=ask.ring_bits + 1), "another ring"),
        (replace(ask, ring_bits=1), "another ring"),
        (replace(ask, n_users=ask.n_users - 1), "number of users"),
        (replace(ask, deviation=ask.deviation * 9 // 10), "less than what is left"),
        (replace(ask, fraction_bits=ask.fraction_bits + 1), "less than what is left"),
        (replace(ask, contributors=1), "less than what is left"),
        (replace(ask, contributors=12), "can be counted on"),
        (replace(ask, contributors=13), "impossible"),
        (replace(ask, deviation=1 << 60), "impossible"),
    )
    for client, (lie, said) in enumerate(lies):
        reply = talk.forged(client, honest.message, bytes(honest.parts[0]), wire.encode(lie))
        code = Code.BUDGET if "counted" in said else Code.BAD_ASK
        refused(reply, said, code, final=True)


def without_two(folder: Path, monkeypatch: pytest.MonkeyPatch, lies: bool) -> tuple[Any, Talk]:
    """Run ten clients of which two leave before the first sum, and one may be corrupt.

    A server that lies asks for as little noise as if nobody had left.
    """
    devices = Devices(folder, clients=10)
    devices.spec = spec(10, 7, drop_share=0.2, way="gram", head=4, upload_limit=None)
    clock = itertools.count(step=4)
    talk = Talk(devices, clock=lambda: float(next(clock)))
    talk.until("input", 1)
    honest = ProtectedSettings.confirmed
    if lies:
        monkeypatch.setattr(
            *(ProtectedSettings, "confirmed"),
            lambda self, n_users, _: honest(self, n_users, self.clients),
        )
    with sums_opened() as seen:
        for _ in range(60):
            if talk.server.stage in (Stage.COMPUTED, Stage.STOPPED):
                break
            talk.step(skip={4, 5})
    return seen, talk


def secret_loss(seen: Any) -> Loss:
    """Return the loss with the noise of the seven clients that were there and honest."""
    least = (replace(ask, contributors=7).protected for ask, _ in seen)
    return Loss.together(one.loss for one in least if one)


def test_noise_of_later_sums_covers_the_confirmed_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, talk = without_two(tmp_path, monkeypatch, lies=False)
    assert talk.server.stage is Stage.COMPUTED, refusals(talk)
    assert [(ask.clients, ask.contributors) for ask, _ in seen] == [(10, 7), (8, 7)]
    assert secret_loss(seen).fits(talk.server.plan.program.promise.cap)


def test_a_server_that_claims_more_survivors_than_there_are_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, talk = without_two(tmp_path / "on", monkeypatch, lies=True)
    assert talk.server.stage is Stage.STOPPED
    assert len(seen) == 1
    assert any("7 can be counted on: 8 are in the sum" in each for each in refusals(talk))
    monkeypatch.undo()
    monkeypatch.setattr(Budget, "check_noise", lambda *_: None)
    seen, talk = without_two(tmp_path / "off", monkeypatch, lies=True)
    assert talk.server.stage is Stage.COMPUTED, refusals(talk)
    assert [(ask.clients, ask.contributors) for ask, _ in seen] == [(10, 7), (10, 9)]
    assert not secret_loss(seen).fits(talk.server.plan.program.promise.cap)
