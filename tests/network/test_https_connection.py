"""Tests of a client's connection over HTTPS: trust, keys, retries and abandoned messages."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from privirec.errors import UsageError
from privirec.runtime.enrolment.certificates import make_certificates
from privirec.runtime.https import connection as connection_module
from privirec.runtime.https.connection import (
    LONGEST_PAUSE,
    Connection,
    NotLetIn,
    Unreachable,
    trusting,
)
from privirec.secagg.keys import Identity

from .chaos import Federation
from .https_chaos import HttpsServer, in_small_pieces
from .test_https import ETAG, _no_waiting, echo, federation, lying

__all__ = ["_no_waiting", "federation"]

EMPTY = httpx.ByteStream(b"")


def asking(
    federation: Federation,
    handle: Callable[[httpx.Request], httpx.Response],
    answer: Callable[[bytes], bytes] = echo,
) -> Connection:
    return HttpsServer(federation).device(federation, 0, answer, httpx.MockTransport(handle))


def abc_for(http: httpx.Request) -> httpx.Response | None:
    """Return a message for a GET request, and None for a request that sends an answer."""
    if http.method != "GET":
        return None
    return httpx.Response(200, headers={"etag": ETAG}, stream=httpx.ByteStream(b"abc"))


# --- trust ----------------------------------------------------------------------------------------


def handshake(client: ssl.SSLContext, server: Path, name: str) -> None:
    """Do a TLS handshake with a server that has this folder's certificates; raise if refused."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(server / "server.crt", server / "server.key")
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(back, there, server_hostname=name)
    theirs = tls.wrap_bio(there, back, server_side=True)
    for side in (ours, theirs, ours, theirs):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert ours.version() in ("TLSv1.2", "TLSv1.3")


@pytest.fixture
def two_authorities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return the operator's certificates, and others issued by a CA that the machine trusts."""
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        make_certificates(folder, ["fed.example"])
    monkeypatch.setenv("SSL_CERT_FILE", str(other / "ca.crt"))
    return own, other


def test_only_the_authority_in_the_folder_is_trusted(two_authorities: tuple[Path, Path]) -> None:
    """CAs that the machine trusts, and certificates for another host, are refused."""
    own, other = two_authorities
    handshake(trusting(own / "ca.crt"), own, "fed.example")
    handshake(ssl.create_default_context(), other, "fed.example")  # the machine would trust it
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        handshake(trusting(own / "ca.crt"), other, "fed.example")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(trusting(own / "ca.crt"), own, "elsewhere.example")


@pytest.mark.parametrize("content", [None, b"", b"nonsense"])
def test_what_is_no_certificate_is_refused_in_a_sentence(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "ca.crt").write_bytes(content)
    with pytest.raises(UsageError, match="not a certificate to know the server by"):
        trusting(tmp_path / "ca.crt")


def test_old_versions_of_tls_are_not_spoken(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    assert trusting(tmp_path / "ca.crt").minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_connection_is_made_with_that_trust(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        make_certificates(folder)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(other / "server.crt", other / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def listen() -> None:
            with contextlib.suppress(OSError):  # the client closes the connection
                tls.wrap_socket(listening.accept()[0], server_side=True).close()

        thread = threading.Thread(target=listen)
        thread.start()
        url = f"https://127.0.0.1:{listening.getsockname()[1]}"
        device = Connection(url, 0, Identity(b"1" * 32), bytes(32), trusting(own / "ca.crt"), echo)
        with contextlib.closing(device), pytest.raises(Unreachable, match=r"ca\.crt vouches"):
            device.turn()
        thread.join()


@pytest.fixture
def nobody() -> Iterator[str]:
    """Return an address at which no server listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def test_no_proxy_of_the_environment_is_used(
    tmp_path: Path, nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy would learn which server a person's device connects to."""
    make_certificates(tmp_path)
    monkeypatch.setattr(connection_module, "TIMEOUT", httpx.Timeout(0.2))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        for name in ("https_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        tls = trusting(tmp_path / "ca.crt")
        device = Connection(f"https://{nobody}", 0, Identity(b"1" * 32), bytes(32), tls, echo)
        with contextlib.closing(device), pytest.raises(Unreachable, match="cannot be reached"):
            device.turn()
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()


def test_no_request_waits_for_ever(federation: Federation) -> None:
    waits: list[dict[str, float | None]] = []

    def handle(http: httpx.Request) -> httpx.Response:
        waits.append(http.extensions["timeout"])
        return httpx.Response(204, stream=EMPTY)

    asking(federation, handle).turn()
    assert waits == [{"connect": 10.0, "read": 30.0, "write": 30.0, "pool": 30.0}]


# --- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("changed", [{"identity"}, {"server_key"}, {"identity", "server_key"}])
def test_either_key_that_was_changed_is_used_from_then_on(
    federation: Federation, changed: set[str]
) -> None:
    former: dict[str, Any] = {"identity": Identity(b"x" * 32), "server_key": b"x" * 32}
    now = {"identity": federation.identities[0], "server_key": federation.operator.public}
    asked: list[None] = []

    def keys() -> tuple[Identity, bytes]:
        asked.append(None)
        return now["identity"], now["server_key"]

    given = {name: former[name] for name in changed} | {"keys": keys}
    device = HttpsServer(federation).device(federation, 0, echo, **given)
    for _ in range(2):
        assert device.turn() >= 0
    assert (len(asked), device.requests) == (1, 3)


def test_keys_that_were_not_changed_are_not_tried_again(federation: Federation) -> None:
    stranger = Identity(b"x" * 32)
    given: dict[str, Any] = {
        "identity": stranger,
        "keys": lambda: (stranger, federation.operator.public),
    }
    device = HttpsServer(federation).device(federation, 0, echo, **given)
    with pytest.raises(NotLetIn):
        device.turn()
    assert device.requests == 1


# --- abandoned messages ---------------------------------------------------------------------------


@pytest.mark.parametrize("status", [404, 416])
def test_a_message_that_is_gone_is_forgotten(federation: Federation, status: int) -> None:
    """The server now waits for something else, so the client asks for the next message."""
    asked: list[str] = []

    def handle(http: httpx.Request) -> httpx.Response:
        asked.append(http.url.path)
        if http.url.path != "/v1/next":
            return httpx.Response(status, stream=EMPTY)
        if len(asked) > 1:
            return httpx.Response(204, stream=EMPTY)
        headers = {"etag": ETAG, "content-range": "bytes 0-0/3"}
        return httpx.Response(206, headers=headers, stream=httpx.ByteStream(b"a"))

    device = asking(federation, handle)
    for _ in range(2):
        assert device.turn() > 0
    assert asked == ["/v1/next", f"/v1/messages/{ETAG[1:-1]}", "/v1/next"]


def test_an_answer_that_a_server_never_takes_is_left_for_later(federation: Federation) -> None:
    sent: list[str] = []

    def handle(http: httpx.Request) -> httpx.Response:
        if found := abc_for(http):
            return found
        sent.append(http.method)
        assert len(sent) < 10
        return httpx.Response(409, headers={"upload-offset": "0"}, stream=EMPTY)

    with pytest.raises(Unreachable, match="does not take an answer"):
        asking(federation, handle).turn()


def test_an_answer_arrives_though_each_piece_is_refused_once(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_pieces(monkeypatch, 100)
    answer = random.Random(3).randbytes(1000)
    received, refused = bytearray(), [False]

    def handle(http: httpx.Request) -> httpx.Response:
        if found := abc_for(http):
            return found
        refused[0] = not refused[0]
        if not refused[0]:
            assert http.url.params["offset"] == str(len(received))
            received.extend(http.content)
        headers = {"upload-offset": str(len(received))}
        return httpx.Response(409 if refused[0] else 204, headers=headers, stream=EMPTY)

    asking(federation, handle, lambda _: answer).turn()
    assert received[:-64] == answer


def test_an_answer_is_there_when_the_server_has_taken_it(federation: Federation) -> None:
    """A server that has received all bytes but refuses them has not accepted the answer."""
    replies = [409, 204]

    def handle(http: httpx.Request) -> httpx.Response:
        total = http.url.params.get("total", "")
        headers = {"upload-offset": total}
        return abc_for(http) or httpx.Response(replies.pop(0), headers=headers, stream=EMPTY)

    asking(federation, handle).turn()
    assert not replies


# --- retries --------------------------------------------------------------------------------------


def test_a_busy_server_cannot_make_a_client_wait_for_ever(federation: Federation) -> None:
    server = HttpsServer(federation)
    device = server.device(federation, 0, echo, lying(503, retry_after="999999"))
    with pytest.raises(Unreachable, match="busy") as busy:
        device.turn()
    for told in (busy.value, Unreachable("busy", after=1e9)):
        assert device.back_off(told) <= LONGEST_PAUSE


@pytest.mark.parametrize("messages", [0, 1])
def test_a_server_that_is_there_again_is_asked_as_before(
    federation: Federation, messages: int
) -> None:
    """Test a server with a message and one without."""
    server = HttpsServer(federation)
    device = server.device(federation, 0, echo)
    for _ in range(10):
        longest = device.back_off(Unreachable("gone"))
    assert longest > 100
    for _ in range(messages):
        server.mailbox.send(0, b"question")
    device.turn()
    assert len(list(server.mailbox.answers())) == messages
    assert device.back_off(Unreachable("gone")) <= 1


@pytest.mark.parametrize(
    "server", ["https://256.1.1.1:9443", "https://[v1.x]", "https://\u2603.net"]
)
def test_an_address_that_is_none_is_one_line(server: str, tmp_path: Path) -> None:
    make_certificates(tmp_path)
    with pytest.raises(UsageError, match="not an address of a server"):
        Connection(server, 0, Identity(b"1" * 32), bytes(32), trusting(tmp_path / "ca.crt"), echo)
