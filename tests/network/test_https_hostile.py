"""Tests of the HTTPS carrier against attackers.

Forged records, servers that keep a client busy, and clients that exhaust the disk, the memory, the
log or the connections.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
import threading
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from privirec.runtime import envelope
from privirec.runtime import lines as lines_module
from privirec.runtime.enrolment.certificates import make_certificates
from privirec.runtime.enrolment.folders import ClientFolder, OperatorFolder
from privirec.runtime.https import connection as connection_module
from privirec.runtime.https import gate as gate_module
from privirec.runtime.https import mailbox as mailbox_module
from privirec.runtime.https import server as server_module
from privirec.runtime.https.client import Answering
from privirec.runtime.https.connection import (
    LARGEST_MESSAGE,
    ClientRevoked,
    Connection,
    Unreachable,
    trusting,
)
from privirec.runtime.https.limits import PIECE, Allowance, Limits
from privirec.runtime.https.mailbox import BadAnswer, BadRange, Mailbox, NoRoom
from privirec.runtime.https.signing import (
    CLOCK,
    REVOKED,
    NotSigned,
    Request,
    Stamps,
    Word,
    message_number,
)
from privirec.runtime.lines import HEAD_WITHIN, Lines
from privirec.secagg.keys import MAX_CLIENT_ID, Identity

from .chaos import Federation
from .https_chaos import LIMITS, HttpsServer, operator_of, put, sealed, spooled
from .test_https import ETAG, ask, done, echo, lower, lying

NUMBER = message_number(b"question")


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path, clients=3)


# --- attacks on a client --------------------------------------------------------------------------


def test_a_forged_record_ends_no_client(tmp_path: Path) -> None:
    """Anybody on the network path can send one: it ends the connection, not the client."""
    make_certificates(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def forge() -> None:
            line = tls.wrap_socket(listening.accept()[0], server_side=True)
            line.recv(1 << 16)
            with socket.socket(fileno=line.detach()) as bare:
                bare.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
                bare.recv(100)

        thread = threading.Thread(target=forge)
        thread.start()
        url = f"https://127.0.0.1:{listening.getsockname()[1]}"
        trusted = trusting(tmp_path / "ca.crt")

        device = Connection(url, 0, Identity(b"1" * 32), bytes(32), trusted, echo)
        with contextlib.closing(device), pytest.raises(Unreachable, match="cannot be reached"):
            device.turn()
        thread.join()


@pytest.mark.parametrize("where", ["tel:1", "https://xn--zzzzzzzzzzzz99999/", "https://a:x/"])
def test_a_redirection_ends_no_client(federation: Federation, where: str) -> None:
    """httpx parses the target even though it does not follow redirects."""
    for status in (303, 308):
        lies = lying(status, location=where)
        with pytest.raises(Unreachable):
            HttpsServer(federation).device(federation, 0, echo, lies).turn()


def test_no_cookie_is_kept(federation: Federation) -> None:
    sent: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        headers = {"set-cookie": "a=b; Path=/", "retry-after": "1"}
        return httpx.Response(204, headers=headers, stream=httpx.ByteStream(b""))

    device = HttpsServer(federation).device(federation, 0, echo, httpx.MockTransport(handle))
    for _ in range(2):
        device.turn()
    assert not any("cookie" in each.headers for each in sent)


def test_a_message_that_does_not_fit_is_asked_for_anew(federation: Federation) -> None:
    """A total forged once in transit does not keep the client from the message."""
    server = HttpsServer(federation)
    server.mailbox.send(0, b"abc")
    made_up = [lying(206, b"a", etag=ETAG, content_range="bytes 0-0/999")]

    async def handle(request: httpx.Request) -> httpx.Response:
        carrier = made_up.pop() if made_up else server.transport
        return await carrier.handle_async_request(request)

    device = server.device(federation, 0, echo, httpx.MockTransport(handle))
    with pytest.raises(Unreachable, match="another message"):
        device.turn()
    device.turn()
    assert server.answers() == [(0, echo(b"abc"))]


def test_a_server_cannot_keep_a_client_busy(federation: Federation) -> None:
    """Wait between two requests, whatever the server replies.

    Test a message that is gone as soon as it is asked for, and pauses of length zero.
    """
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        assert len(asked) < 10
        headers = {"retry-after": "0", "etag": ETAG, "content-range": "bytes 0-0/3"}
        status = 206 if request.url.path == "/v1/next" else 404
        return httpx.Response(status, headers=headers, stream=httpx.ByteStream(b"a"))

    device = HttpsServer(federation).device(federation, 0, echo, httpx.MockTransport(handle))
    assert device.turn() > 0
    assert asked == ["/v1/next", f"/v1/messages/{ETAG[1:-1]}"]
    assert device.turn() > 0
    idle = HttpsServer(federation).device(federation, 0, echo, lying(204, retry_after="0"))
    assert idle.turn() > 0


def test_a_message_has_no_more_bytes_than_the_policy_allows(
    federation: Federation, tmp_path: Path
) -> None:
    home = ClientFolder.create(tmp_path / "client")
    policy = home.folder / "policy.toml"
    policy.write_text("most_bytes_down = 100\n", encoding="utf-8")
    answering = Answering(home)
    large = lying(206, b"a", etag=ETAG, content_range="bytes 0-0/101")
    given: dict[str, Any] = {"largest": answering.largest}
    device = HttpsServer(federation).device(federation, 0, echo, large, **given)
    with pytest.raises(Unreachable, match="101 bytes, which is too many"):
        device.turn()
    policy.write_text("nonsense", encoding="utf-8")
    with pytest.raises(Unreachable, match="log"):
        device.turn()
    policy.write_text(f"most_bytes_down = {1 << 40}\n", encoding="utf-8")
    larger = lying(206, b"a", etag=ETAG, content_range=f"bytes 0-0/{LARGEST_MESSAGE + 1}")
    with pytest.raises(Unreachable, match="too many"):
        HttpsServer(federation).device(federation, 0, echo, larger, **given).turn()


# --- attacks on the server: disk and memory -------------------------------------------------------


def test_a_client_has_one_answer_on_the_disk(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path, Limits(in_memory=0))
    messages = [b"one", b"two", b"three"]
    for message in messages:
        mailbox.send(1, message)
    for message in messages:
        put(mailbox, 1, message_number(message), b"answer", 6, 0, b"ans")
    assert len(list(tmp_path.iterdir())) == 1
    put(mailbox, 1, message_number(messages[-1]), b"answer", 6, 3, b"wer")
    assert list(mailbox.answers()) == [(1, b"answer")]
    assert not list(tmp_path.iterdir())


def test_memory_is_set_aside_for_what_was_announced(tmp_path: Path) -> None:
    """Clients announce short answers, send one byte each, then the rest at the same time."""
    mailbox = Mailbox(tmp_path, Limits(in_memory=10))
    for client in range(3):
        mailbox.send(client, b"question")
        put(mailbox, client, NUMBER, b"x" * 5, 5, 0, b"x")
    assert len(list(tmp_path.iterdir())) == 1
    for client in range(3):
        put(mailbox, client, NUMBER, b"x" * 5, 5, 1, b"xxxx")
    assert len(list(mailbox.answers())) == 3
    for message in (b"1", b"2"):  # and the memory is freed, however an answer ends
        mailbox.send(0, message)
        put(mailbox, 0, message_number(message), b"y" * 5, 5, 0, b"y")
    put(mailbox, 0, message_number(b"2"), b"z" * 5, 5, 0, b"z")
    with pytest.raises(BadAnswer):
        put(mailbox, 0, message_number(b"2"), b"z" * 5, 5, 1, b"....")
    mailbox.end()
    assert mailbox._in_memory == 0


def test_a_total_that_changes_begins_anew(tmp_path: Path) -> None:
    """Otherwise a client could announce one byte, then fill the memory."""
    mailbox = Mailbox(tmp_path, Limits(in_memory=10))
    mailbox.send(1, b"question")
    put(mailbox, 1, NUMBER, b"x" * 50, 2, 0, b"x")
    with pytest.raises(BadRange) as refused:
        put(mailbox, 1, NUMBER, b"x" * 50, 50, 1, b"x" * 49)
    assert refused.value.received == 0
    put(mailbox, 1, NUMBER, b"x" * 50, 50, 0, b"x" * 49)
    assert len(list(tmp_path.iterdir())) == 1


def test_strangers_do_not_fill_what_the_server_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn logs a line for each malformed request and for each connection above the limit."""
    told = logging.getLogger("uvicorn.error")
    monkeypatch.setattr(told, "level", logging.WARNING)
    server_module._config(None, {})
    assert not told.isEnabledFor(logging.WARNING)
    assert told.isEnabledFor(logging.ERROR)
    told.setLevel(logging.NOTSET)


def test_answers_leave_room_on_the_disk(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = HttpsServer(federation, Limits(in_memory=0, room=1000))
    server.mailbox.send(0, b"question")
    free = [1002]
    Usage = namedtuple("Usage", "free")
    monkeypatch.setattr(mailbox_module.shutil, "disk_usage", lambda _: Usage(free[0]))
    own = sealed(b"mine", federation.identities[0])
    target = f"/v1/answers/{NUMBER}?total={len(own)}&offset="
    first = done(ask(server, federation, f"{target}0", "PATCH", own[:2], answer=own))
    assert first.status_code == 204
    free[0] = 1001
    refused = done(ask(server, federation, f"{target}2", "PATCH", own[2:4], answer=own))
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "60")
    assert "1001 bytes are free" in caplog.text
    assert not spooled(federation)
    free[0] = 1 << 40
    server.device(federation, 0, lambda _: b"mine").turn()
    assert server.answers() == [(0, b"mine")]


def test_an_answer_that_could_not_be_written_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox = Mailbox(tmp_path, Limits(in_memory=0, room=0))
    mailbox.send(1, b"question")
    put(mailbox, 1, NUMBER, b"answer", 6, 0, b"ans")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(mailbox_module.os, "open", full)
        with pytest.raises(NoRoom, match="No space"):
            put(mailbox, 1, NUMBER, b"answer", 6, 3, b"wer")
    assert mailbox.received(1, NUMBER, envelope.seal_of(b"answer")[0]) == 0
    with pytest.raises(BadRange):
        put(mailbox, 1, NUMBER, b"answer", 6, 3, b"wer")
    put(mailbox, 1, NUMBER, b"answer", 6, 0, b"answer")
    assert list(mailbox.answers()) == [(1, b"answer")]


@pytest.mark.parametrize("in_memory", [0, 100])
def test_an_answer_is_what_was_announced(tmp_path: Path, in_memory: int) -> None:
    mailbox = Mailbox(tmp_path, Limits(in_memory=in_memory))
    mailbox.send(1, b"question")
    with pytest.raises(BadAnswer):
        put(mailbox, 1, NUMBER, b"answer", 6, 0, b"anders")
    assert not list(mailbox.answers())
    assert not list(tmp_path.iterdir())
    put(mailbox, 1, NUMBER, b"answer", 6, 0, b"answer")
    assert list(mailbox.answers()) == [(1, b"answer")]


def test_nobody_reads_or_answers_what_is_for_another(federation: Federation) -> None:
    server = HttpsServer(federation)
    server.mailbox.send(0, b"question")
    own, others = (sealed(b"mine", federation.identities[client]) for client in (0, 1))
    target = f"/v1/answers/{NUMBER}"
    whole = f"{target}?total={len(own)}&offset=0"
    for method, where, content in (
        ("GET", f"/v1/messages/{NUMBER}", b""),
        ("HEAD", f"{target}?digest={'0' * 64}", b""),
        ("PATCH", whole, others),
    ):
        reply = done(ask(server, federation, where, method, content, client=1))
        assert (reply.status_code, reply.content) == (404, b"")
    assert done(ask(server, federation, whole, "PATCH", others)).status_code == 401
    assert not server.answers()
    assert done(ask(server, federation, whole, "PATCH", own)).status_code == 204
    assert server.answers() == [(0, b"mine")]


def test_only_so_many_messages_wait_for_a_client(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path, LIMITS)
    for number in range(mailbox_module.MOST_WAITING + 1):
        mailbox.send(1, bytes([number]))
    assert mailbox.find(1, message_number(b"\x00")) is None
    first = mailbox.first(1)
    assert first is not None
    assert first.content == b"\x01"


# --- attacks on the server: connections, log, paths -----------------------------------------------


class FakeLine:
    """The part of a connection that `Lines` uses."""

    def __init__(self, idle_since: float | None, busy_since: float = 0.0) -> None:
        self.idle_since, self.busy_since = idle_since, busy_since
        self.proven_as: int | None = None
        self.is_cut = False

    def cut(self) -> None:
        self.is_cut = True


def test_a_request_has_its_time() -> None:
    """Close the connection of a client that sends too slowly or does not read its answer."""
    lines, other = Lines(within=300.0), Lines()
    idle, slow, long = FakeLine(0.0), FakeLine(None), FakeLine(None)
    fakes: list[Any] = [idle, slow]
    for line in fakes:
        lines.opened(line)
    other.opened(long)  # type: ignore[arg-type]
    lines.cut_late(HEAD_WITHIN)
    assert not idle.is_cut
    lines.cut_late(HEAD_WITHIN + 1)
    assert idle.is_cut
    lines.cut_late(300.0)
    assert not slow.is_cut
    lines.cut_late(301.0)
    other.cut_late(1e9)
    assert slow.is_cut
    assert not long.is_cut


def test_connections_of_strangers_and_of_each_client_are_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lines_module, "UNPROVEN", 2)
    monkeypatch.setattr(lines_module, "PROVEN", 2)
    lines = Lines()
    strangers: list[Any] = [FakeLine(0.0) for _ in range(3)]
    for line in strangers:
        lines.opened(line)
    assert [line.is_cut for line in strangers] == [True, False, False]
    own: list[Any] = [FakeLine(0.0) for _ in range(3)]
    for line in own:
        lines.opened(line)
        lines.proven(line, 7)
    assert [line.is_cut for line in own] == [True, False, False]
    assert not strangers[2].is_cut


def test_a_run_ends_no_server_by_being_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run's start file is deleted while the server reads it."""
    looks: list[int] = []
    stop = threading.Event()

    class Gone:
        def stat(self) -> Any:
            raise FileNotFoundError

    def glob(_: str) -> list[Any]:
        looks.append(1)
        if len(looks) == 2:
            stop.set()
        return [Gone()] if len(looks) == 1 else []

    monkeypatch.setattr(server_module, "starts", lambda _: SimpleNamespace(glob=glob))
    monkeypatch.setattr(server_module, "LOOK_FOR_RUNS", 0.0)
    home = OperatorFolder.create(tmp_path / "server")
    unused: Any = None  # no run is served, and nobody is asked to go back
    server_module._serve_runs(home, unused, unused, stop)
    assert len(looks) == 2


def test_whoever_is_turned_away_does_not_fill_the_log(
    federation: Federation, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, logger="privirec.server")
    monkeypatch.setattr(gate_module, "MOST_SAID", 5)
    monkeypatch.setattr(gate_module, "REFUSED_AFTER", 0.0)
    server = HttpsServer(federation)

    async def strangers() -> None:
        for number in range(20):  # as many addresses as an attacker has
            transport = httpx.ASGITransport(server.gate.application, client=(f"::{number}", 1))
            async with httpx.AsyncClient(transport=transport, base_url="https://s") as http:
                assert (await http.get("/v1/next")).status_code == 401

    done(strangers())
    assert len(caplog.records) == 5
    caplog.clear()
    server = HttpsServer(federation, Limits(largest_answer=10))
    server.mailbox.send(0, b"question")
    for total in range(11, 15):
        target = f"/v1/answers/{NUMBER}?total={total}&offset=0"
        own = sealed(b"x", federation.identities[0])
        assert done(ask(server, federation, target, "PATCH", own)).status_code == 413
    assert len(caplog.records) == 1


def test_nobody_is_led_to_another_host(federation: Federation) -> None:
    server = HttpsServer(federation)

    async def look(path: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=server.transport, base_url="https://s") as http:
            return await http.get(path, headers={"Host": "evil.example"})

    for path in ("/v1/next/", "/health/", "/v1/messages/x/", "//v1/next", "/v1/../v1/next/"):
        reply = done(look(path))
        assert reply.status_code == 404, path
        assert "location" not in reply.headers


# --- guards whose absence no other test would notice ----------------------------------------------


def test_stamps_grow_where_the_clock_does_not() -> None:
    stamps = Stamps(lambda: 5)
    assert [stamps.next() for _ in range(3)] == [5, 6, 7]


def test_a_client_has_a_number_that_can_be() -> None:
    request = Request(MAX_CLIENT_ID + 1, "GET", "/", 1).signed(Identity(b"1" * 32), bytes(32))
    with pytest.raises(NotSigned):
        Request.read("GET", "/", lower(request.headers()))


def test_a_client_that_is_revoked_while_the_server_is_up_is_turned_away(
    federation: Federation,
) -> None:
    server = HttpsServer(federation)
    device = server.device(federation, 1, echo)
    assert device.turn() > 0
    server.gate._home = operator_of(federation, revoked=[1])
    os.utime(federation.folder / "roster.json", ns=(1, 1))
    server.gate.read_roster()
    with pytest.raises(ClientRevoked):
        device.turn()


def test_turns_are_not_saved_up() -> None:
    now = [0.0]
    allowance = Allowance(Limits(rate=1.0, burst=2.0), lambda: now[0])
    now[0] = 1e6
    assert [allowance.seconds_to_wait() for _ in range(3)] == [0.0, 0.0, 1.0]


def test_strangers_wait(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    server = HttpsServer(federation)
    monkeypatch.setattr(gate_module.asyncio, "sleep", sleep)
    assert done(ask(server, federation, identity=Identity(b"x" * 32))).status_code == 401
    assert slept == [gate_module.REFUSED_AFTER]
    assert done(ask(server, federation)).status_code == 204
    assert done(ask(server, federation, stamp=1)).status_code == 401  # known, but late
    assert len(slept) == 1


def test_ranges_that_are_none_are_refused(federation: Federation) -> None:
    server = HttpsServer(federation)
    server.mailbox.send(0, b"question")
    for asked in ("bytes=8-", "bytes=999999999999-", "bytes=-1", "bytes=0-3", "x", "bytes=1-,2-"):
        reply = done(ask(server, federation, f"/v1/messages/{NUMBER}", headers={"Range": asked}))
        assert (reply.status_code, reply.content) == (416, b""), asked
    last = done(ask(server, federation, f"/v1/messages/{NUMBER}", headers={"Range": "bytes=7-"}))
    assert (last.status_code, last.content) == (206, b"n")


@pytest.mark.parametrize(("status", "code"), [(401, REVOKED), (403, CLOCK)])
def test_a_word_means_what_it_says(federation: Federation, status: int, code: str) -> None:
    asked: list[int] = []

    def handle(http: httpx.Request) -> httpx.Response:
        request = Request.read(http.method, http.url.raw_path.decode(), http.headers)
        asked.append(request.stamp)
        word = Word(code, 5, 6).signed(request, federation.operator)
        return httpx.Response(status, headers=word, stream=httpx.ByteStream(b""))

    device = HttpsServer(federation).device(federation, 0, echo, httpx.MockTransport(handle))
    with pytest.raises(Unreachable):
        device.turn()
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (lying(206, b"abc", etag=ETAG, content_range="bytes 1-3/9"), "range of another message"),
        (lying(206, b"abc", etag=ETAG, content_range="bytes 0-2/2"), "range of another message"),
        (lying(206, b"abc", etag=ETAG, content_range="bytes 0-4/9"), "a range that is none"),
        (lying(206, b"abc", etag=ETAG, content_range="bytes 2-0/9"), "a range that is none"),
        (lying(206, b"", etag=ETAG, content_range="bytes 0--1/9"), "a range that is none"),
        (lying(206, b"", etag=ETAG, content_range="bytes 1-0/9"), "a message that is none"),
        (lying(200, b"", etag=ETAG), "a message that is none"),
        (lying(200, b"x" * (PIECE + 1), etag=ETAG), "more than one piece"),
    ],
)
def test_a_lie_is_noticed_at_once(
    federation: Federation, server: httpx.AsyncBaseTransport, words: str
) -> None:
    """Detect the lie before the digest of the whole message can be checked."""
    device = HttpsServer(federation).device(federation, 0, echo, server)
    with pytest.raises(Unreachable, match=words):
        device.turn()
    assert device.requests == 1


@pytest.mark.parametrize(("seconds", "taken"), [(99.0, True), (101.0, False)])
def test_an_answer_that_drips_for_long_is_given_up(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, seconds: float, taken: bool
) -> None:
    now = 0.0

    def drops() -> Iterator[bytes]:
        nonlocal now
        for _ in range(3):  # 300 seconds in total
            now += seconds
            yield b"x"

    def handle(http: httpx.Request) -> httpx.Response:
        etag = f'"{message_number(b"xxx")}"'
        return httpx.Response(200, headers={"etag": etag}, content=drops())

    monkeypatch.setattr(connection_module.time, "monotonic", lambda: now)
    answered: list[bytes] = []
    transport = httpx.MockTransport(handle)
    device = HttpsServer(federation).device(
        federation, 0, lambda message: answered.append(message) or b"", transport
    )
    with pytest.raises(Unreachable, match="the server answers 200" if taken else "too long"):
        device.turn()
    assert answered == [b"xxx"] * taken


def test_a_redirect_is_not_followed(federation: Federation) -> None:
    asked: list[str] = []

    def handle(http: httpx.Request) -> httpx.Response:
        asked.append(http.url.host)
        headers = {"location": "https://elsewhere/v1/next"}
        return httpx.Response(307, headers=headers, stream=httpx.ByteStream(b""))

    device = HttpsServer(federation).device(federation, 0, echo, httpx.MockTransport(handle))
    with pytest.raises(Unreachable, match="307"):
        device.turn()
    assert asked == ["server"]


@pytest.mark.parametrize("told", ["", "-1", "x", "75", "9" * 30])
def test_an_offset_that_cannot_be_is_not_believed(federation: Federation, told: str) -> None:
    """The server claims to have received more bytes than the answer has."""
    sent: list[str] = []

    def handle(http: httpx.Request) -> httpx.Response:
        if http.method == "GET":
            stream = httpx.ByteStream(b"abc")
            return httpx.Response(200, headers={"etag": ETAG}, stream=stream)
        sent.append(http.method)
        headers = {"upload-offset": told}
        return httpx.Response(204, headers=headers, stream=httpx.ByteStream(b""))

    transport = httpx.MockTransport(handle)
    device = HttpsServer(federation).device(federation, 0, lambda _: b"x" * 10, transport)
    with pytest.raises(Unreachable, match="how much"):
        device.turn()
    assert sent == ["PATCH"]
