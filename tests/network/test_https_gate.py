"""Tests of the gate of the HTTPS carrier: refusals, and the cost of refused requests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from privirec.runtime.https import gate as gate_module
from privirec.runtime.https.signing import CLOCK, REVOKED, Request, Stamps, Word
from privirec.secagg.keys import Identity

from .chaos import Federation
from .https_chaos import HttpsServer, operator_of
from .test_https import ask, done, limited

STRANGER = Identity(b"x" * 32)


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path, clients=3)


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the delays of refused requests instead of waiting."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(gate_module.asyncio, "sleep", sleep)
    return found


def turn_of(client: int) -> Request:
    return Request(client, "GET", "/", 1)


# --- strangers ------------------------------------------------------------------------------------


def test_who_is_in_the_roster_does_not_show_by_the_work(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a signature also for a number without a client."""
    checked: list[int] = []
    check = Request.check

    def counted(request: Request, *more: Any) -> None:
        checked.append(request.client)
        check(request, *more)

    monkeypatch.setattr(Request, "check", counted)
    server = HttpsServer(federation)
    for client in (1, 99):
        assert done(ask(server, federation, client=client, identity=STRANGER)).status_code == 401
    assert checked == [1, 99]


def test_who_is_revoked_is_told_to_nobody_else(federation: Federation, slept: list[float]) -> None:
    server = HttpsServer(federation, revoked=[1])
    heard = [done(ask(server, federation, client=n, identity=STRANGER)) for n in (1, 2, 99)]
    assert {(reply.status_code, reply.content) for reply in heard} == {(401, b"")}
    assert len({tuple(sorted(reply.headers)) for reply in heard}) == 1
    own = done(ask(server, federation, client=1))
    assert (own.status_code, own.text) == (403, REVOKED)
    assert slept == [gate_module.REFUSED_AFTER] * 4


def test_a_stranger_uses_up_nothing_of_a_clients(federation: Federation) -> None:
    """Use up neither the client's stamps nor its turns."""
    server = limited(federation, rate=0.5, burst=1)
    server.gate._stamps.now = lambda: 10**18
    server.gate._stamps._began = 0
    stamp = 10**18
    stranger = done(ask(server, federation, stamp=stamp, identity=STRANGER))
    assert stranger.status_code == 401
    assert done(ask(server, federation, stamp=stamp)).status_code == 204


def test_who_is_late_hears_the_time_from_the_server(
    federation: Federation, slept: list[float]
) -> None:
    server = HttpsServer(federation)
    request = Request(0, "GET", "/v1/next", 1)
    request = request.signed(federation.identities[0], federation.operator.public)
    reply = done(ask(server, federation, stamp=1))
    assert (reply.status_code, reply.text) == (401, CLOCK)
    word = Word.read(reply.headers, request, federation.operator.public)
    assert word is not None
    assert word.code == CLOCK
    assert abs(word.now - Stamps().next()) < 60 * 10**9
    assert not slept  # this client is known


# --- the roster -----------------------------------------------------------------------------------


def test_a_roster_that_cannot_be_read_is_tried_once(federation: Federation) -> None:
    """The last valid roster stays in force until there is a new one."""
    tried: list[int] = []

    class Broken:
        folder = federation.folder

        @property
        def members(self) -> Any:
            tried.append(1)
            raise ValueError("not a roster")

    server = HttpsServer(federation)
    server.gate._home = Broken()  # type: ignore[assignment]
    os.utime(federation.folder / "roster.json", ns=(1, 1))
    with pytest.raises(ValueError, match="not a roster"):
        server.gate.read_roster()
    server.gate.read_roster()
    assert len(tried) == 1
    assert done(ask(server, federation)).status_code == 204


def test_a_machine_that_cannot_read_tries_again(federation: Federation) -> None:
    """After an error such as too many open files, a revoked client is refused a second later."""
    server = HttpsServer(federation)
    revoking = operator_of(federation, revoked=[1])

    class Busy:
        folder = federation.folder

        @property
        def members(self) -> Any:
            raise OSError(24, "Too many open files")

    server.gate._home = Busy()  # type: ignore[assignment]
    os.utime(federation.folder / "roster.json", ns=(1, 1))
    with pytest.raises(OSError, match="Too many"):
        server.gate.read_roster()
    server.gate._home = revoking
    server.gate.read_roster()
    assert server.gate.approved == 2


def test_another_key_of_the_server_counts_once_the_roster_names_it(federation: Federation) -> None:
    server = HttpsServer(federation)
    former, federation.operator = federation.operator, Identity(b"s" * 32)
    server.gate._home = operator_of(federation)
    os.utime(federation.folder / "roster.json", ns=(1, 1))
    server.gate.read_roster()
    assert done(ask(server, federation)).status_code == 204
    assert done(ask(server, federation, server_key=former.public)).status_code == 401
    request = Request(0, "GET", "/v1/next", 1)
    request = request.signed(federation.identities[0], federation.operator.public)
    late = done(ask(server, federation, stamp=1))
    assert Word.read(late.headers, request, federation.operator.public) is not None


def test_a_key_of_the_server_that_comes_after_its_roster_is_read(federation: Federation) -> None:
    """Roster and key arrive as two files; revoked clients are refused at once."""
    server = HttpsServer(federation)
    former, federation.operator = federation.operator, Identity(b"s" * 32)
    arrived = operator_of(federation, revoked=[1])

    class Half:
        folder, members = arrived.folder, arrived.members

        @property
        def server(self) -> Identity:
            raise ValueError("not the key that the roster names")

    server.gate._home = Half()  # type: ignore[assignment]
    os.utime(federation.folder / "roster.json", ns=(1, 1))
    with pytest.raises(ValueError, match="not the key"):
        server.gate.read_roster()
    assert server.gate.approved == 2
    server.gate._home = arrived
    (federation.folder / "run.key").touch()
    server.gate.read_roster()
    assert server.gate._server.public == federation.operator.public != former.public


def test_those_who_are_revoked_are_not_counted(federation: Federation) -> None:
    assert HttpsServer(federation).gate.approved == 3
    assert HttpsServer(federation, revoked=[1]).gate.approved == 2


# --- turns ----------------------------------------------------------------------------------------


def test_a_client_that_is_busy_keeps_no_other_from_its_turn(federation: Federation) -> None:
    server = limited(federation, at_once=1)
    with server.gate.turn(turn_of(0)):
        assert done(ask(server, federation, client=1)).status_code == 204
        assert done(ask(server, federation, client=0)).status_code == 429


@pytest.mark.parametrize("limits", [{"at_once": 1}, {"together": 1}])
def test_a_turn_is_given_back_however_it_ends(
    federation: Federation, limits: dict[str, int]
) -> None:
    server = limited(federation, **limits)
    with pytest.raises(KeyError), server.gate.turn(turn_of(0)):
        raise KeyError
    assert done(ask(server, federation)).status_code == 204


@pytest.mark.parametrize(("rate", "after"), [(20.0, "1"), (0.1, "10"), (0.001, "1000")])
def test_who_asks_too_often_hears_when_to_come_back(
    federation: Federation, rate: float, after: str, slept: list[float]
) -> None:
    """The delay is in whole seconds and at least one; a known client's refusal is not delayed."""
    server = limited(federation, rate=rate, burst=1)
    assert done(ask(server, federation)).status_code == 204
    reply = done(ask(server, federation))
    assert (reply.status_code, reply.headers["retry-after"]) == (429, after)
    assert not slept


def test_a_server_that_is_busy_takes_no_turn_of_a_clients(federation: Federation) -> None:
    server = limited(federation, together=1, burst=1, rate=0.001)
    with server.gate.turn(turn_of(1)):
        for _ in range(3):
            assert done(ask(server, federation)).status_code == 503
    assert done(ask(server, federation)).status_code == 204
