"""Tests of the HTTPS carrier: admission, limits, ranges, and replies that a client accepts."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from privirec.errors import UsageError
from privirec.runtime import envelope
from privirec.runtime.enrolment.folders import check_address, is_https
from privirec.runtime.https import connection as connection_module
from privirec.runtime.https import gate as gate_module
from privirec.runtime.https import signing as signing_module
from privirec.runtime.https.connection import (
    LONGEST_BACK_OFF,
    LONGEST_PAUSE,
    ClientRevoked,
    NotLetIn,
    Unreachable,
)
from privirec.runtime.https.limits import Limits
from privirec.runtime.https.mailbox import BadRange, HttpsCarrier, Mailbox
from privirec.runtime.https.signing import (
    AHEAD,
    BEHIND,
    CLOCK,
    REVOKED,
    SERVER_WORD,
    NotSigned,
    Request,
    Stamps,
    StampsTaken,
    Word,
    message_number,
)
from privirec.secagg.keys import Identity

from .chaos import Federation
from .https_chaos import LIMITS, URL, HttpsServer, in_small_pieces, put, sealed, spooled

T = TypeVar("T")
SERVER = bytes(32)


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path, clients=3)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "REFUSED_AFTER", 0.0)


def done(coroutine: Awaitable[T]) -> T:
    async def run() -> T:
        return await coroutine

    return asyncio.run(run())


def echo(message: bytes) -> bytes:
    return b"answer to " + message


async def ask(
    server: HttpsServer,
    federation: Federation,
    target: str = "/v1/next",
    method: str = "GET",
    content: bytes = b"",
    client: int = 0,
    stamp: int | None = None,
    **changes: Any,
) -> httpx.Response:
    """Send one request, signed correctly unless something is changed.

    An upload is a range of the sealed message `answer`, by default all of it.
    """
    identity = changes.pop("identity", None) or federation.identities[client]
    server_key = changes.pop("server_key", federation.operator.public)
    if method == "PATCH":
        seal = envelope.seal_of(changes.pop("answer", content))
        request = Request(client, method, target, 0, *seal)
    else:
        request = Request(client, method, target, Stamps().next() if stamp is None else stamp)
        request = request.signed(identity, server_key)
    headers = request.headers()
    sent_to = changes.pop("sent_to", (method, target))
    async with httpx.AsyncClient(transport=server.transport, base_url=URL) as http:
        return await http.request(
            *sent_to, headers=headers | changes.pop("headers", {}), content=content
        )


# --- admission ------------------------------------------------------------------------------------


def lower(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def test_a_signed_request_says_by_whom_for_whom_what_and_when() -> None:
    identity = Identity(b"1" * 32)
    request = Request(7, "GET", "/v1/messages/ab?x=0", 12345).signed(identity, SERVER)
    headers = lower(request.headers())
    read = Request.read("GET", "/v1/messages/ab?x=0", headers)
    assert read == request
    read.check(identity.public, SERVER)
    changed = [
        replace(request, client=8),
        replace(request, stamp=12346),
        replace(request, method="HEAD"),
        replace(request, target=request.target + "1"),
        replace(request, method="PATCH"),
    ]
    for other in changed:
        with pytest.raises(NotSigned):
            other.check(identity.public, SERVER)
    with pytest.raises(NotSigned):
        request.check(identity.public, bytes([1]) * 32)
    with pytest.raises(NotSigned):
        Request.read("GET", request.target, headers | {"authorization": "PriviRec client=1"})


def test_an_upload_has_the_signature_of_its_answer_alone() -> None:
    identity = Identity(b"1" * 32)
    digest, signature = envelope.seal_of(sealed(b"answer", identity))
    request = Request(7, "PATCH", "/v1/answers/ab", 0, digest, signature)
    headers = lower(request.headers())
    assert Request.read("PATCH", "/v1/answers/ab", headers) == request
    request.check(identity.public, SERVER)
    for other in (replace(request, digest=bytes(32)), replace(request, signature=bytes(64))):
        with pytest.raises(NotSigned):
            other.check(identity.public, SERVER)
    with pytest.raises(NotSigned):
        request.check(Identity(b"2" * 32).public, SERVER)
    with pytest.raises(NotSigned, match="another kind"):  # nothing is read with it
        Request.read("GET", "/v1/next", headers)
    asked = Request(7, "GET", "/v1/next", 5).signed(identity, SERVER)
    with pytest.raises(NotSigned, match="another kind"):
        Request.read("PATCH", "/v1/next", lower(asked.headers()))


def test_a_request_counts_once(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy cannot replay a recorded request; without the guard it could."""
    server = HttpsServer(federation)
    stamp = Stamps().next()
    assert done(ask(server, federation, stamp=stamp)).status_code == 204
    again = done(ask(server, federation, stamp=stamp))
    assert (again.status_code, again.text) == (401, "clock")
    assert done(ask(server, federation, stamp=stamp - 1)).status_code == 401
    assert done(ask(server, federation, stamp=stamp + 1)).status_code == 204
    monkeypatch.setattr(StampsTaken, "take", lambda *_: True)
    assert done(ask(server, federation, stamp=stamp)).status_code == 204


def test_stamps_of_before_the_server_was_started_do_not_count() -> None:
    now = [10**18]
    before = StampsTaken(lambda: now[0], began=0)
    assert before.take(1, now[0] + AHEAD)  # a client whose clock is ahead
    taken = StampsTaken(lambda: now[0])
    assert not taken.take(1, 10**18 - 1)
    assert not taken.take(1, 10**18 + AHEAD)  # refused by the server's next process
    now[0] += BEHIND * 2
    assert not taken.take(1, now[0] + AHEAD + 1)
    assert not taken.take(1, now[0] - BEHIND - 1)
    assert taken.take(1, now[0] - BEHIND + 1)
    assert taken.take(1, now[0])
    assert taken.take(2, now[0] + AHEAD)
    assert not taken.take(1, now[0])


@pytest.mark.parametrize("wrong", [-(10**18), -10 * BEHIND, 0, AHEAD + 10**9, 10**18])
def test_a_wrong_clock_is_put_right_by_the_server(federation: Federation, wrong: int) -> None:
    """Test also the first seconds of a server process, in which no client's stamp is accepted."""
    server = HttpsServer(federation)
    server.gate._stamps = StampsTaken()
    stamps = Stamps(lambda: time.time_ns() + wrong)
    device = server.device(federation, 0, echo, stamps=stamps)
    for _ in range(3):
        assert device.turn() >= 0
    assert device.requests == 4
    again = server.device(federation, 0, echo, stamps=Stamps(lambda: time.time_ns() - AHEAD // 2))
    assert again.turn() >= 0  # a new process of the client, with its clock set back


def test_nobody_but_the_server_moves_a_clients_clock(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that terminates TLS claims a time in a year, to record what is signed then."""
    in_a_year = time.time_ns() + 365 * 86400 * 10**9
    kept: list[int] = []

    def proxy(http: httpx.Request) -> httpx.Response:
        request = Request.read(http.method, http.url.raw_path.decode(), http.headers)
        kept.append(request.stamp)
        word = Word(CLOCK, in_a_year, 0).signed(request, Identity(b"p" * 32))
        return httpx.Response(401, headers=word, stream=httpx.ByteStream(b""))

    device = HttpsServer(federation).device(federation, 0, echo, httpx.MockTransport(proxy))
    with pytest.raises(NotLetIn):
        device.turn()
    assert len(kept) == 1
    assert kept[0] < time.time_ns()
    monkeypatch.setattr(signing_module, "verify", lambda *_: None)  # without the guard
    with pytest.raises(NotLetIn):
        device.turn()
    assert kept[-1] >= in_a_year


def test_the_servers_word_is_about_one_request() -> None:
    server = Identity(b"s" * 32)
    request = Request(7, "GET", "/v1/next", 12345, b"", bytes(64))
    word = Word(CLOCK, 5, 6)
    headers = word.signed(request, server)
    assert Word.read(headers, request, server.public) == word
    for other in (replace(request, client=8), replace(request, signature=b"x" * 64)):
        assert Word.read(headers, other, server.public) is None
    assert Word.read(headers, request, Identity(b"x" * 32).public) is None
    text = headers[SERVER_WORD]
    for a, b in ((CLOCK, REVOKED), ("now=5", "now=9"), ("last=6", "last=9"), ("now=5", "now=x")):
        assert Word.read({SERVER_WORD: text.replace(a, b)}, request, server.public) is None
    assert Word.read({}, request, server.public) is None


def test_time_does_not_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose clock is set back an hour keeps working."""
    now = signing_module.steady_time()
    before = now()
    monkeypatch.setattr(signing_module.time, "time_ns", lambda: 0)
    assert before <= now() <= before + 10 * 10**9


@pytest.mark.parametrize(
    "changes",
    [
        {"identity": Identity(b"x" * 32)},
        {"server_key": b"x" * 32},
        {"sent_to": ("GET", "/v1/messages/" + "0" * 32)},
        {"client": 99, "identity": Identity(b"x" * 32)},
        {"headers": {"Authorization": ""}},
    ],
    ids=["another key", "another server", "another path", "nobody", "unsigned"],
)
def test_strangers_hear_a_number_and_nothing_else(
    federation: Federation, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = HttpsServer(federation)
    server.mailbox.send(0, b"secret")
    reply = done(ask(server, federation, **changes))
    assert (reply.status_code, reply.content) == (401, b"")
    if "identity" in changes and "client" not in changes:  # without the guard it succeeds
        monkeypatch.setattr(Request, "check", lambda *_: None)
        assert done(ask(server, federation, **changes)).content == b"secret"


def test_nothing_of_a_strangers_content_is_read(federation: Federation) -> None:
    server = HttpsServer(federation)
    read: list[bytes] = []

    async def push() -> int:
        sent: list[Any] = []
        seal = envelope.seal_of(sealed(b"evil", Identity(b"x" * 32)))
        headers = Request(0, "PATCH", "/v1/answers/1", 0, *seal).headers()
        scope = {
            "type": "http",
            "method": "PATCH",
            "path": "/v1/answers/1",
            "raw_path": b"/v1/answers/1",
            "query_string": b"",
            "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
        }

        async def receive() -> Any:
            read.append(b"")
            return {"type": "http.request", "body": b"x", "more_body": True}

        async def send(event: Any) -> None:
            sent.append(event)

        await server.gate.application(scope, receive, send)
        return int(sent[0]["status"])

    assert done(push()) == 401
    assert not read


def test_a_revoked_client_hears_that(federation: Federation) -> None:
    server = HttpsServer(federation, revoked=[1])
    with pytest.raises(ClientRevoked, match="revoked"):
        server.device(federation, 1, echo).turn()
    assert server.device(federation, 0, echo).turn() >= 0
    stranger = server.device(federation, 0, echo, identity=Identity(b"x" * 32))
    with pytest.raises(NotLetIn, match="approved"):
        stranger.turn()


def test_keys_that_were_changed_are_used(federation: Federation) -> None:
    """A running client reads its keys again once the server rejects the old ones."""
    server, own = HttpsServer(federation), federation.identities[0]
    former = Identity(b"x" * 32)
    now = [former]

    def keys() -> tuple[Identity, bytes]:
        return now[0], federation.operator.public

    device = server.device(federation, 0, echo, identity=former, keys=keys)
    with pytest.raises(NotLetIn, match="privirec client roster"):
        device.turn()
    now[0] = own
    assert device.turn() >= 0


def test_a_proxy_revokes_nobody(federation: Federation) -> None:
    """Only the server can end a client by revoking it; a refusal by a proxy cannot."""
    device = HttpsServer(federation).device(federation, 0, echo, lying(403, b"revoked"))
    with pytest.raises(Unreachable, match="403"):
        device.turn()


def test_content_that_was_not_signed_is_refused(federation: Federation) -> None:
    server = HttpsServer(federation)
    server.mailbox.send(0, b"question")
    own = sealed(b"mine", federation.identities[0])
    target = f"/v1/answers/{message_number(b'question')}?total={len(own)}&offset=0"
    for evil in (b"evil" + own[4:], own[:-1] + bytes([own[-1] ^ 1])):
        forged = done(ask(server, federation, target, "PATCH", evil, answer=own))
        assert forged.status_code == 422
    assert not server.answers()
    other = sealed(b"evil", Identity(b"x" * 32))
    assert done(ask(server, federation, target, "PATCH", other)).status_code == 401
    assert done(ask(server, federation, target, "PATCH", own)).status_code == 204
    assert server.answers() == [(0, b"mine")]


# --- ranges ---------------------------------------------------------------------------------------


def test_messages_and_answers_travel_in_pieces(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_pieces(monkeypatch, 100)
    server = HttpsServer(federation)
    question = random.Random(1).randbytes(1234)
    server.mailbox.send(0, question)
    device = server.device(federation, 0, lambda message: message[::-1])
    device.turn()
    assert server.answers() == [(0, question[::-1])]
    assert device.requests == 13 + 13
    assert server.mailbox.is_idle()


def test_what_was_interrupted_is_taken_up(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupt every third request: no byte is resent, and the answer is computed once."""
    in_small_pieces(monkeypatch, 100)
    server = HttpsServer(federation)
    question = random.Random(2).randbytes(950)
    server.mailbox.send(0, question)
    carried, computed = [], []

    class Breaking(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            carried.append(request)
            if len(carried) % 3 == 0:
                raise httpx.ReadError("broken")
            return await server.transport.handle_async_request(request)

    def answer(message: bytes) -> bytes:
        computed.append(message)
        return message * 2

    device = server.device(federation, 0, answer, Breaking())
    for _ in range(100):
        try:
            device.turn()
            break
        except Unreachable:
            pass
    assert server.answers() == [(0, question * 2)]
    assert computed == [question]
    assert device.bytes_up == 2 * len(question) + 64


def test_a_range_that_does_not_follow_is_told_where_to_go_on(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path, LIMITS)
    mailbox.send(1, b"question")
    number, whole = message_number(b"question"), b"abcdef" + bytes(64)
    digest = envelope.seal_of(whole)[0]
    assert mailbox.received(1, number, digest) == 0
    put(mailbox, 1, number, whole, 70, 0, b"abc")
    assert mailbox.received(1, number, digest) == 3
    for offset, part in ((0, b"abc"), (4, b"ef"), (3, bytes(68))):
        with pytest.raises(BadRange) as refused:
            put(mailbox, 1, number, whole, 70, offset, part)
        assert refused.value.received == 3
    other = b"other" + bytes(64)
    assert mailbox.received(1, number, envelope.seal_of(other)[0]) == 0  # another begins anew
    put(mailbox, 1, number, other, 69, 0, other)
    assert list(mailbox.answers()) == [(1, other)]
    assert put(mailbox, 1, number, whole, 70, 3, b"def") is None


def test_answers_lie_on_the_disk_and_go_with_the_run(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path, Limits(in_memory=10))
    for client in range(3):
        mailbox.send(client, b"question")
    number = message_number(b"question")
    for client in range(3):
        content = bytes([client]) * 9
        put(mailbox, client, number, content, 9, 0, content)
    assert len(list(tmp_path.iterdir())) == 2
    found = sorted((client, bytes(whole)) for client, whole in mailbox.answers())
    assert found == [(n, bytes([n]) * 9) for n in range(3)]
    assert not list(tmp_path.iterdir())
    mailbox.send(0, b"question")
    put(mailbox, 0, number, b"x" * 20, 20, 0, b"x")
    assert list(tmp_path.iterdir())
    mailbox.end()
    assert not list(tmp_path.iterdir())
    assert mailbox.first(0) is None


def test_a_message_that_nobody_answers_is_given_up(tmp_path: Path) -> None:
    now = [0.0]
    mailbox = Mailbox(tmp_path, LIMITS, lambda: now[0])
    carrier = HttpsCarrier(mailbox, 5.0)
    mailbox.seen(4)
    assert set(carrier.connected()) == {4}
    assert carrier.send(4, b"question")
    assert carrier.send(4, b"question")  # the same message, already on its way
    assert not carrier.is_idle()
    assert list(carrier.arrivals()) == []
    now[0] = 6.0
    carrier._looked = -10.0
    assert list(carrier.arrivals()) == [(4, None)]
    assert carrier.is_idle()
    now[0] = 1e6
    assert not carrier.connected()


# --- limits ---------------------------------------------------------------------------------------


def limited(federation: Federation, **limits: Any) -> HttpsServer:
    return HttpsServer(federation, Limits(**limits), clock=lambda: 0.0)


def test_a_client_that_asks_too_often_is_told_to_wait(federation: Federation) -> None:
    server = limited(federation, rate=0.5, burst=2)
    found = [done(ask(server, federation)) for _ in range(3)]
    assert [reply.status_code for reply in found] == [204, 204, 429]
    assert found[2].headers["retry-after"] == "2"
    assert done(ask(server, federation, client=1)).status_code == 204  # limits are per client


@pytest.mark.parametrize(("limits", "status"), [({"at_once": 1}, 429), ({"together": 1}, 503)])
def test_requests_at_a_time_are_limited(
    federation: Federation, limits: dict[str, int], status: int
) -> None:
    server = limited(federation, **limits)
    request = Request(0, "GET", "/", 1)
    with server.gate.turn(request):
        reply = done(ask(server, federation))
        assert reply.status_code == status
        assert int(reply.headers["retry-after"]) >= 1
    assert done(ask(server, federation)).status_code == 204


def test_what_is_too_large_is_refused(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_pieces(monkeypatch, 100)
    server = limited(federation, largest_answer=150)
    server.mailbox.send(0, b"question")
    number = message_number(b"question")
    place = f"/v1/answers/{number}"
    own = sealed(b"x" * 86, federation.identities[0])

    def upload(query: str, content: bytes) -> int:
        target = f"{place}?{query}"
        return done(ask(server, federation, target, "PATCH", content, answer=own)).status_code

    assert upload("total=151&offset=0", b"x") == 413
    assert upload("total=150&offset=0", b"x" * 101) == 413
    for wrong in ("", "total=x&offset=0", "total=5&offset=-1", "total=5"):
        assert upload(wrong, b"x") == 400
    assert done(ask(server, federation, f"{place}?digest=0", "HEAD")).status_code == 400
    assert not spooled(federation)
    device = server.device(federation, 0, lambda _: b"x" * 151)
    assert device.turn() > 0  # the client continues with the next message
    assert server.mailbox.received(0, number, bytes(32)) == 0


def test_a_request_that_stops_in_the_middle_is_given_up(federation: Federation) -> None:
    server = limited(federation, silence=0.05)
    server.mailbox.send(0, b"question")
    number = message_number(b"question")

    async def slow() -> int:
        target = f"/v1/answers/{number}?total=10&offset=0"
        seal = envelope.seal_of(sealed(b"x", federation.identities[0]))
        headers = Request(0, "PATCH", target, 0, *seal).headers()
        path, query = target.split("?")
        scope = {
            "type": "http",
            "method": "PATCH",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
        }
        sent: list[Any] = []
        events = [{"type": "http.request", "body": b"x", "more_body": True}]

        async def receive() -> Any:
            if events:
                return events.pop()
            return await asyncio.sleep(60)

        async def send(event: Any) -> None:
            sent.append(event)

        await server.gate.application(scope, receive, send)
        return int(sent[0]["status"])

    assert done(slow()) == 408


def test_the_more_clients_the_longer_each_waits() -> None:
    limits = Limits()
    assert limits.pause(3, running=True) == limits.busy_pause
    assert limits.pause(3, running=False) == limits.idle_pause
    for running in (True, False):
        assert limits.pause(100_000, running=running) == 100_000 / limits.polls
    pauses = [limits.pause(3, waited, running=True) for waited in (0, 10, 20, 1e9)]
    assert pauses == [limits.busy_pause, 5, 10, limits.idle_pause]


# --- replies that a client accepts ----------------------------------------------------------------


def lying(status: int, content: bytes = b"", **headers: str) -> httpx.AsyncBaseTransport:
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.MockTransport(
        lambda _: httpx.Response(status, headers=headers, stream=httpx.ByteStream(content))
    )


ETAG = f'"{message_number(b"abc")}"'


@pytest.mark.parametrize(
    "server",
    [
        lying(200, b"abc"),
        lying(200, b"", etag=ETAG),
        lying(200, b"abd", etag=ETAG),
        lying(500),
        lying(302, location="https://elsewhere"),
        lying(206, b"abc", etag=ETAG, content_range="bytes 1-3/9"),
        lying(206, b"abc", etag=ETAG, content_range="bytes 0-4/9"),
        lying(206, b"abc", etag=ETAG, content_range="bytes 0-2/999999999999"),
        lying(206, b"abc", etag=ETAG, content_range="bytes 0-2/2"),
        lying(200, b"x" * (connection_module.PIECE + 1), etag=ETAG),
        lying(503, retry_after="7"),
    ],
)
def test_a_server_that_does_not_keep_to_it_is_not_believed(
    federation: Federation, server: httpx.AsyncBaseTransport
) -> None:
    asked: list[bytes] = []

    def answer(message: bytes) -> bytes:
        asked.append(message)
        return message

    device = HttpsServer(federation).device(federation, 0, answer, server)
    with pytest.raises(Unreachable):
        device.turn()
    assert not asked


def test_a_server_cannot_make_a_client_wait_for_ever(federation: Federation) -> None:
    for told in ("999999999", "nan", "-5", "1e9"):
        device = HttpsServer(federation).device(federation, 0, echo, lying(204, retry_after=told))
        assert 0 <= device.turn() <= 1.2 * LONGEST_PAUSE


def test_the_longer_a_server_is_gone_the_seldomer_it_is_asked(federation: Federation) -> None:
    def gone(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("nobody there")

    device = HttpsServer(federation).device(federation, 0, echo, httpx.MockTransport(gone))
    pauses = []
    for _ in range(15):
        with pytest.raises(Unreachable, match="cannot be reached") as away:
            device.turn()
        pauses.append(device.back_off(away.value))
    assert pauses[0] <= 1
    assert LONGEST_BACK_OFF / 2 <= pauses[-1] <= LONGEST_BACK_OFF
    assert device.back_off(Unreachable("busy", after=400.0)) == 400.0


def test_what_is_told_when_the_connection_comes_and_goes(federation: Federation) -> None:
    server = HttpsServer(federation, Limits(idle_pause=0.0, busy_pause=0.0))
    up = [False, False, True]

    async def handle(request: httpx.Request) -> httpx.Response:
        if up and not up.pop(0):
            raise httpx.ConnectError("nobody there")
        return await server.transport.handle_async_request(request)

    told: list[str] = []
    device = server.device(federation, 0, echo, httpx.MockTransport(handle))
    device.back_off = lambda error: 0.0  # type: ignore[method-assign]

    class Enough(Exception):
        pass

    def tell(line: str) -> None:
        told.append(line)
        if line == "Connected":
            raise Enough

    with pytest.raises(Enough):
        device.stay(tell)
    assert told[0].startswith("Not connected: the server cannot be reached")
    assert told[1:] == ["Connected"]


# --- monitoring -----------------------------------------------------------------------------------


def test_health_and_metrics(federation: Federation) -> None:
    server = HttpsServer(federation)
    server.mailbox.send(0, b"question")
    server.device(federation, 0, echo).turn()

    async def look(application: Any, path: str) -> httpx.Response:
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url=URL) as http:
            return await http.get(path)

    assert done(look(server.gate.application, "/health")).text == "ok\n"
    assert done(look(server.gate.application, "/metrics")).status_code == 404
    found = done(look(server.gate.watched, "/metrics")).text
    assert 'privirec_requests_total{status="200",what="next"} 1.0' in found
    assert f"privirec_received_bytes_total {len(echo(b'question')) + 64:.1f}" in found
    assert "name-0" not in found


@pytest.mark.parametrize(
    ("address", "https"),
    [
        ("https://a.example", True),
        ("https://a:9443", True),
        ("https://[::1]:9/", True),
        ("a:9", False),
    ],
)
def test_the_address_says_which_carrier(address: str, https: bool) -> None:
    check_address(address)
    assert is_https(address) is https


@pytest.mark.parametrize(
    "address",
    [
        *("http://a:1", "https://", "https://a/path", "https://u@a", "a", "ftp://a:1", ""),
        *("https://a:x", "https://a..b", "https://[::1", "https://.", "https://" + 64 * "a"),
        "https://\x01",
    ],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError):
        check_address(address)
