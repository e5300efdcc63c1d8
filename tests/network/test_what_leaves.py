"""Tests of refusals as the server sees them: a code, and one sentence for all clients."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privirec.device import Store
from privirec.privacy.policy import Policy
from privirec.runtime import envelope
from privirec.runtime.coordinator import Stage
from privirec.runtime.histories import FromFile
from privirec.runtime.messages import Refused, Vector
from privirec.runtime.node import Node
from privirec.runtime.node import node as node_module
from privirec.runtime.refusals import Code, for_the_server

from .chaos import Federation
from .silos import Silos, run
from .test_budget import protected
from .test_node import Talk, said_in
from .test_people import histories


def _forget(federation: Federation, client: int) -> None:
    with Store(federation.folder / f"client-{client}" / "history.db") as store:
        store.forget_user(str(federation.rows(client).user_ids[0]))


def _reply_after_forgetting(federation: Federation) -> Refused:
    talk = Talk(federation)
    talk.until("input", 1)
    message = talk.message_for(0)
    _forget(federation, 0)
    said = envelope.peek(federation.node(0).answer(message), "to-server").message
    assert isinstance(said, Refused)
    return said


def test_that_something_was_forgotten_is_nobodys_business(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = _reply_after_forgetting(Federation(tmp_path))
    assert (said.code, said.reason) == (
        Code.OWN_PROBLEM,
        "client 0 has a problem of its own; its log says which",
    )
    assert not said.final  # as after a full disk
    assert "forgotten" in caplog.text  # in its own log


def test_without_the_guard_the_server_would_hear_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []

    def unguarded(client: int, code: Code, reason: str) -> tuple[Code, str]:
        heard.append(f"{code} {reason}")
        return for_the_server(client, code, reason)

    monkeypatch.setattr(node_module, "for_the_server", unguarded)
    _reply_after_forgetting(Federation(tmp_path))
    assert "forgotten" in heard[-1]
    assert str(tmp_path) in heard[-1]


@pytest.mark.parametrize("code", list(Code))
def test_only_words_about_the_question_are_passed_on(code: Code) -> None:
    about_the_question = {
        *("bad-message", "unknown-run", "replayed-run", "other-version", "other-catalogue"),
        *("other-roster", "too-early", "answered-before", "no-upload", "bad-plan", "policy"),
        *("protocol", "bad-pledge", "too-few-people", "cohort", "opened-too-much", "aimed-block"),
        "budget",
    }
    sent, words = for_the_server(7, code, "/home/ada/history.db: item 4711 was forgotten")
    assert ("4711" in words) == (code.value in about_the_question)
    assert sent is code or sent is Code.OWN_PROBLEM
    assert sent is not Code.HISTORIES_CHANGED


# --- protected runs -------------------------------------------------------------------------------

ITEMS = 24
HISTORIES = {
    "nothing": np.zeros((2, ITEMS), bool),
    "one item": np.eye(2, ITEMS, dtype=bool),
    "everything": np.ones((2, ITEMS), bool),
}


def repeatable(seed: str) -> Callable[[int], bytes]:
    """Return a source of bytes that are the same for the same seed and calls."""
    calls = count()
    return lambda size: hashlib.shake_256(f"{seed} {next(calls)}".encode()).digest(size)


def two_people(folder: Path, history: np.ndarray) -> Silos:
    """Return clients of two people each; these are the histories of client 0."""
    rng = np.random.default_rng(1)
    others = [rng.random((2, ITEMS)) < 0.5 for _ in range(2)]
    silos = Silos(folder, [history, *others], Policy())
    silos.spec = protected(3)
    with silos.store(0) as store:  # people of the client, whatever is in the catalogue
        store.add([(f"user-0-{user}", "elsewhere") for user in range(2)])
    return silos


def test_nothing_but_the_noisy_vectors_depends_on_a_history(tmp_path: Path) -> None:
    """Test clients that differ only in their histories and are sent the same messages by a server:
    all that they answer is the same, byte for byte, but for vectors, and these are as long."""
    twins = {name: two_people(tmp_path / name, rows) for name, rows in HISTORIES.items()}
    talk = Talk(twins["one item"])
    random: dict[str, Any] = {name: repeatable("client 0") for name in twins}
    compared = {"same": 0, "vectors": 0}
    while talk.server.stage is not Stage.COMPUTED:
        talk.server.connected({0, 1, 2})
        for address, message in list(talk.server.outgoing()):
            client = int(str(address))
            if client:
                talk.server.receive(address, twins["one item"].node(client).answer(message))
                continue
            said = {
                name: twin.node(0, random_bytes=random[name]).answer(message)
                for name, twin in twins.items()
            }
            if isinstance(said_in(said["one item"]), Vector):
                assert len({len(one) for one in said.values()}) == 1
                assert len(set(said.values())) > 1
                compared["vectors"] += 1
            else:
                assert len(set(said.values())) == 1
                compared["same"] += 1
            talk.server.receive(address, said["one item"])
        talk.server.tick()
    assert compared["vectors"] == 2
    assert compared["same"] >= 5


def test_pledges_of_a_protected_run_do_not_depend_on_histories(tmp_path: Path) -> None:
    """Test that everybody counts where noise protects: people with nothing in the catalogue, and
    the owner of a device that has no history at all."""
    silos = Silos(tmp_path, histories(3, 0, 1, 0), Policy())
    silos.spec = protected(4, 2)
    with silos.store(1) as store:
        store.add((f"idle-{user}", "elsewhere") for user in range(2))
    talk = Talk(silos)
    talk.until("advertise")
    assert [talk.server.plan.users[client] for client in range(4)] == [3, 2, 1, 1]
    seen, talk = run(silos, "all of it")
    assert talk.server.stage is Stage.COMPUTED
    assert len(seen) == 2


class WithAFile(Silos):
    """Clients of which the first reads a file."""

    def node(self, client: int, **changes: Any) -> Node:
        given = {} if client else {"histories": FromFile(self.folder / "history.csv")}
        return super().node(client, **(given | changes))

    def write(self, *rows: str) -> None:
        (self.folder / "history.csv").write_text("\n".join(["user,item", *rows]))


@pytest.mark.parametrize(
    ("changed", "answer"),
    [
        (["a,item-3", "a,item-4", "b,elsewhere"], Vector),
        (["a,item-1", "b,item-2", "c,item-3"], Refused),
        (["a,item-1"], Refused),
    ],
)
def test_a_protected_run_goes_on_when_a_history_changes(
    tmp_path: Path, changed: list[str], answer: type
) -> None:
    """Test a file that changes within a run. Leaving the run would show it; noise protects whatever
    history is in a sum. Only other people than were pledged end it."""
    silos = WithAFile(tmp_path, histories(1, 2, 2), Policy())
    silos.spec = protected(3)
    silos.write("a,item-1", "b,item-2")
    talk = Talk(silos)
    talk.until("input", 1)
    assert talk.server.plan.users[0] == 2
    silos.write(*changed)
    assert isinstance(said_in(silos.node(0).answer(talk.message_for(0))), answer)
