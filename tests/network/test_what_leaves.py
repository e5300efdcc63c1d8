"""Tests of refusals as the server sees them: a code, and one sentence for all clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from privirec.device import Store
from privirec.runtime import envelope
from privirec.runtime.messages import Refused
from privirec.runtime.node import node as node_module
from privirec.runtime.refusals import Code, for_the_server

from .chaos import Federation
from .test_node import Talk


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
