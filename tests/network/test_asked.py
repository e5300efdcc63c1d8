"""Tests of servers that ask one client for its history and all others for nothing.

Each attack reads the history of one person without the guard, and gets only noise with it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privirec.errors import FederationError, PrivirecError
from privirec.federated import wire
from privirec.federated.contributions import Contribution
from privirec.federated.contributions.power_step import PowerStep, SeededStep
from privirec.federated.programs import PrivirecKSettings
from privirec.privacy.policy import allowing
from privirec.runtime import envelope
from privirec.runtime.envelope import Envelope
from privirec.runtime.messages import Exchange, Refused
from privirec.runtime.node import steps
from privirec.runtime.run_plan import RunPlan, asked_digest
from privirec.secagg.keys import NOTHING_ASKED

from .chaos import EXACT
from .silos import Silos, sums_opened
from .test_node import Talk

VICTIM = 0
ITEMS = 200
UNUSED = slice(150, ITEMS)
"""Items that only the victim has."""

Lie = Callable[[int, Contribution], Contribution]


class Liar(Talk):
    """Server that changes the ask of individual clients in transit."""

    lie: Lie | None = None
    plan_for_victim: Callable[[RunPlan], RunPlan] | None = None

    def step(self, skip: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        self.server.connected(set(self.federation.roster))
        for address, message in list(self.server.outgoing()):
            client = int(str(address))
            changed = self._changed(client, envelope.peek(message, "to-client"))
            sealed = changed.seal(self.federation.operator, "to-client") if changed else message
            answer = self.federation.node(client).answer(sealed)
            if isinstance(envelope.peek(answer, "to-server").message, Refused):
                raise FederationError("a client does not take part any more")
            self.server.receive(address, answer)
        self.server.tick()

    def _changed(self, client: int, told: Envelope) -> Envelope | None:
        if not isinstance(told.message, Exchange) or len(told.parts) != 2:
            return None
        first, second = map(bytes, told.parts)
        if told.message.step == 0:
            if self.plan_for_victim is None or client != VICTIM:
                return None
            second = self.plan_for_victim(RunPlan.parse(second)).text
        elif self.lie is not None:
            with suppress(PrivirecError):  # not an ask
                second = wire.encode(self.lie(client, wire.decode(second)))
        return Envelope(told.run, client, told.message, (first, second))


def sums_of(federation: Silos, name: str, lie: Lie, **more: Any) -> list[tuple[Contribution, Any]]:
    """Return the sums this server learns before its own lies stop the run."""
    talk = Liar(federation, name=name)
    talk.lie = lie
    for key, value in more.items():
        setattr(talk, key, value)
    with sums_opened() as seen, suppress(PrivirecError, ValueError, np.linalg.LinAlgError):
        for _ in range(60):
            talk.step()
    return seen


def zeros_for_others(client: int, ask: Contribution) -> Contribution:
    if client == VICTIM or not isinstance(ask, PowerStep):
        return ask
    return replace(ask, block=np.zeros_like(ask.block))


def items_of_nobody_for_others(client: int, ask: Contribution) -> Contribution:
    """Ask others for unused items: an orthonormal block, and degrees that no client can refute."""
    if client == VICTIM or not hasattr(ask, "item_degrees"):
        return ask
    degrees = ask.item_degrees.copy()
    degrees[UNUSED] = np.maximum(degrees[UNUSED], 1)
    if not isinstance(ask, PowerStep):
        return replace(ask, item_degrees=degrees)  # type: ignore[type-var]
    block = np.zeros(ask.block.shape)
    rows = UNUSED.stop - UNUSED.start
    draw = np.random.default_rng(3).normal(size=(rows, ask.columns))
    block[UNUSED] = np.linalg.qr(draw)[0]
    return PowerStep.of(block, degrees, ask.width)


@pytest.fixture
def federation(tmp_path: Path) -> Silos:
    """Return a federation with one person at client 0 and several at each of eleven others."""
    rng = np.random.default_rng(1)
    parts = [rng.random((1 if client == VICTIM else 4, ITEMS)) < 0.08 for client in range(12)]
    for part in parts[1:]:
        part[:, UNUSED] = False
    return Silos(tmp_path, parts, allowing(EXACT), program=PrivirecKSettings(rank=8, rounds=2))


def unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "asked_digest", lambda _plan, _ask: NOTHING_ASKED)


def history_in(total: Any) -> list[int]:
    return np.flatnonzero(np.any(np.asarray(total) != 0, axis=1)).tolist()


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("lie", [zeros_for_others, items_of_nobody_for_others])
def test_one_client_is_asked_for_its_history_and_all_others_for_nothing(
    federation: Silos, lie: Lie, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guarded:
        unguarded(monkeypatch)
    seen = sums_of(federation, "server", lie)
    total = next(total for ask, total in seen if isinstance(ask, PowerStep))
    history = np.flatnonzero(federation.parts[VICTIM][0]).tolist()
    assert (history_in(total) == history) != guarded
    if guarded:
        assert len(history_in(total)) == ITEMS


@pytest.mark.parametrize("guarded", [True, False])
def test_one_client_is_told_another_plan_and_two_runs_are_subtracted(
    federation: Silos, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start block follows from the plan's seed: another seed gives the victim another sum."""
    if not guarded:
        unguarded(monkeypatch)
    other: list[RunPlan] = []

    def with_another_seed(plan: RunPlan) -> RunPlan:
        settings = plan.spec.program.model_copy(update={"seed": 99})
        spec = plan.spec.model_copy(update={"program": settings})
        other.append(plan.model_copy(update={"spec": spec}))
        return other[-1]

    def its_seed(client: int, ask: Contribution) -> Contribution:
        if client == VICTIM and isinstance(ask, SeededStep):
            return replace(ask, seed=other[-1].sums[1].fixed["seed"])
        return ask

    def start_block(seen: list[tuple[Contribution, Any]]) -> Any:
        return next(total for ask, total in seen if isinstance(ask, SeededStep))

    honest = sums_of(federation, "one", lambda _client, ask: ask)
    lied = sums_of(federation, "two", its_seed, plan_for_victim=with_another_seed)
    difference = start_block(lied) - start_block(honest)
    history = np.flatnonzero(federation.parts[VICTIM][0]).tolist()
    assert (history_in(difference) == history) != guarded
    if guarded:
        (_, degrees), *_ = lied
        assert np.count_nonzero(degrees == federation.degrees(*range(12))) < 10
        assert len(history_in(difference)) > ITEMS // 2


def test_the_digest_is_of_plan_and_ask() -> None:
    texts = {asked_digest(plan, ask) for plan in (b"a", b"ab") for ask in (b"b", b"", b"bb")}
    assert len(texts) == 6
    assert {len(text) for text in texts} == {len(NOTHING_ASKED)}
