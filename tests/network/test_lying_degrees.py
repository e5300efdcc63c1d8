"""Tests of servers that lie about public inputs: no client objects, so the server learns nothing.

Without the guard each attack reads who has an item, or a whole history. With it the server sees
only what it would have seen anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import numpy as np
import pytest

from privirec.device.installed import Installed
from privirec.errors import FederationError
from privirec.federated import wire
from privirec.federated.contributions import ClientContext, ItemDegrees
from privirec.federated.fixed_point import FixedPoint
from privirec.federated.programs import (
    HeadGramSettings,
    PrivirecKSettings,
    PrivirecSettings,
    ProgramSettings,
)
from privirec.filters.normalize import most_popular
from privirec.runtime import envelope
from privirec.runtime.coordinator import Stage
from privirec.runtime.messages import ARTIFACT_FILES, Received, Refused, Vector
from privirec.runtime.node import steps
from privirec.runtime.refusals import Code

from .chaos import EXACT, Federation, small_policy
from .silos import Silos, run
from .test_guards import hand_out
from .test_node import Talk, asked, refused, remembered, said_in

ITEMS = 24
RARE = ITEMS - 1
HEAD = ITEMS - 4
HOLDER = 2
"""The only client that has the rare item."""


def people() -> list[np.ndarray]:
    """Return the histories of seven clients with one person each."""
    rng = np.random.default_rng(11)
    touched = rng.random((7, ITEMS)) < 0.4
    touched[:, 0] = True
    touched[:, RARE] = False
    touched[HOLDER, RARE] = True
    return [touched[person : person + 1] for person in range(7)]


POLICY = small_policy(computations=(*EXACT, "head-item-item", "item-item"))


def silos(folder: Path, settings: ProgramSettings | None = None) -> Silos:
    chosen = settings or PrivirecKSettings(rank=3, rounds=2)
    return Silos(folder, people(), POLICY, program=chosen)


@contextmanager
def lying(lie: Callable[[np.ndarray], np.ndarray]) -> Iterator[None]:
    """Let the server announce other item degrees than it has summed."""
    collect = ItemDegrees.collect
    with mock.patch.object(ItemDegrees, "collect", lambda ask, blocks: lie(collect(ask, blocks))):
        yield


def nobody_has_the_rare_one(degrees: np.ndarray) -> np.ndarray:
    return np.where(np.arange(ITEMS) == RARE, 0, degrees)


def objecting(_: ClientContext, claim: str) -> NoReturn:
    raise FederationError(claim)


def said_to_the_lie(folder: Path) -> tuple[list[Any], Talk]:
    """Return each client's reply to the claim that nobody has the rare item."""
    federation = silos(folder)
    talk = Talk(federation)
    with lying(nobody_has_the_rare_one):
        talk.until("input", 2)
        return [said_in(federation.node(c).answer(talk.message_for(c))) for c in range(7)], talk


# --- objections -----------------------------------------------------------------------------------


def test_whoever_objects_to_degrees_has_the_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as off:
        off.setattr(ClientContext, "contradict", objecting)
        said, _ = said_to_the_lie(tmp_path / "off")
    assert [client for client in range(7) if isinstance(said[client], Refused)] == [HOLDER]

    caplog.clear()
    said, talk = said_to_the_lie(tmp_path / "on")
    assert all(one == said[0] for one in said)
    assert isinstance(said[0], Vector)
    assert [line.count("cannot be") for line in caplog.messages].count(1) == 1  # for its owner
    run_number = talk.server.run
    claims = [remembered(talk.federation, client).spoilt() for client in range(7)]
    assert claims.pop(HOLDER) == {run_number: "item degrees below this client's own"}
    assert not any(claims)


def with_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make clients send zeros once a claim contradicts their own data."""
    note, answer = steps._note_contradictions, steps.answer
    now: list[bool] = []

    def noting(state: Any, context: Any) -> None:
        note(state, context)
        now[:] = [bool(state.spoilt)]

    def zeroed(*asked: Any) -> Iterator[np.ndarray]:
        for block in answer(*asked):
            yield block * 0 if now == [True] else block

    monkeypatch.setattr(steps, "_note_contradictions", noting)
    monkeypatch.setattr(steps, "answer", zeroed)


def difference_made_by_the_lie(folder: Path) -> np.ndarray:
    """Return the difference in P' of the head between an honest and a lying run."""
    federation = silos(folder, HeadGramSettings(head=HEAD))
    sums = []
    for name, lie in (("honest", lambda degrees: degrees), ("lying", nobody_has_the_rare_one)):
        with lying(lie):
            seen, talk = run(federation, name)
        assert talk.server.stage is Stage.COMPUTED
        ask, total = seen[1]
        whole = np.zeros((ITEMS, ITEMS), np.int64)
        whole[np.ix_(ask.items, ask.items)] = total.toarray()
        sums.append(whole)
    return sums[0] - sums[1]


def test_zeros_in_place_of_an_objection_would_give_a_whole_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros are missing from the sum, and the difference to an honest sum is the holder's history.

    Therefore clients send the vector they would have sent anyway: the lie changes no sum.
    """
    with monkeypatch.context() as off:
        with_zeros(off)
        shown = difference_made_by_the_lie(tmp_path / "zeros")
    head = most_popular(np.concatenate(people()).sum(axis=0), HEAD)
    read, history = np.flatnonzero(shown.diagonal()), np.flatnonzero(people()[HOLDER][0])
    assert read.tolist() == np.intersect1d(history, head).tolist()
    assert len(read) > len(history) / 2

    assert not difference_made_by_the_lie(tmp_path / "on").any()


# --- vectors that exceed the claimed bound --------------------------------------------------------


def smallest_claim(federation: Federation) -> Talk:
    """Go to the sum of the item-item matrix, whose scale follows from the largest item degree."""
    federation.policy = POLICY
    spec = federation.spec.model_copy(update={"program": PrivirecSettings(rank=2, rounds=2)})
    talk = Talk(federation, spec=spec)
    talk.until("input", 2)
    return talk


def test_a_vector_that_is_too_large_for_a_lie_does_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four people share an item, but the server claims that nobody has any."""
    federation = Federation(tmp_path / "off")
    talk = smallest_claim(federation)
    honest = wire.decode(bytes(envelope.peek(talk.message_for(0), "to-client").parts[-1]))
    lie = replace(honest, largest_degree=0)  # type: ignore[type-var]
    with monkeypatch.context() as off:
        off.setattr(FixedPoint, "wrapped", lambda _, values: values)
        refused(asked(talk, lie), "exceeds the announced bound", Code.PROTOCOL, final=True)

    federation = Federation(tmp_path / "on")
    talk = smallest_claim(federation)
    assert isinstance(said_in(asked(talk, lie)), Vector)
    assert remembered(federation, 0).spoilt()


# --- the model of a spoilt run --------------------------------------------------------------------


def handed_out(folder: Path) -> tuple[Federation, Talk, list[Any]]:
    """Run with a server that lies to the end; return the clients' replies to its model."""
    federation = silos(folder)
    talk = Talk(federation)
    with lying(nobody_has_the_rare_one):
        talk.until(Stage.COMPUTED)
    assert talk.server.components is not None
    model = federation.artifact(talk.server.components)
    return federation, talk, [said_in(hand_out(talk, model, client)) for client in range(7)]


def test_the_model_of_a_spoilt_run_is_left_out_and_the_server_does_not_hear_it(
    tmp_path: Path,
) -> None:
    federation, talk, said = handed_out(tmp_path)
    size = sum((tmp_path / "artifact" / name).stat().st_size for name in ARTIFACT_FILES)
    assert said == [Received(offset=size, installed=True)] * 7
    installed = [bool(Installed(tmp_path / f"client-{c}/model").versions()) for c in range(7)]
    assert installed == [client != HOLDER for client in range(7)]
    assert federation.node(HOLDER).memory.spoilt() == {
        talk.server.run: "item degrees below this client's own"
    }
    assert said_in(hand_out(talk, tmp_path / "artifact", HOLDER)) == said[0]  # a repeated message
    Talk(federation, name="next").until(Stage.COMPUTED)
    assert talk.server.run in federation.node(HOLDER).memory.spoilt()  # permanently


def test_a_model_that_is_none_is_refused_by_all_alike(tmp_path: Path) -> None:
    federation = silos(tmp_path)
    talk = Talk(federation)
    with lying(nobody_has_the_rare_one):
        talk.until(Stage.COMPUTED)
    assert talk.server.components is not None
    model = federation.artifact(talk.server.components)
    damaged = bytearray((model / ARTIFACT_FILES[0]).read_bytes())
    damaged[-1] ^= 1
    (model / ARTIFACT_FILES[0]).write_bytes(damaged)
    said = [said_in(hand_out(talk, model, client)) for client in range(7)]
    assert {(one.code, one.final) for one in said} == {(Code.BAD_ARTIFACT, False)}


def test_entries_of_64_bits_are_refused_by_everybody_alike(tmp_path: Path) -> None:
    """A 64-bit unsigned word has no signed type in which a value could wrap around.

    A vector that a lie made too large would be refused, and the refusal would reveal it.
    """
    federation = silos(tmp_path)
    settings = PrivirecSettings(rank=2, rounds=2, ring_bits=64)
    federation.spec = federation.spec.model_copy(update={"program": settings})
    talk = Talk(federation)
    talk.until("advertise")
    said = [
        said_in(federation.node(client).answer(talk.message_for(client))) for client in range(7)
    ]
    assert {(one.code, one.final) for one in said} == {(Code.BAD_PLAN, True)}
