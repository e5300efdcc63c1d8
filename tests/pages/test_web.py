"""Tests of the pages' server: access control, requests from other sites, malformed requests."""

from __future__ import annotations

import hmac
import logging
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from privirec.app.pages import web
from privirec.app.pages.frame import Html, Templates, as_html
from privirec.app.pages.guard import MOST_SESSIONS, Guard, PageRefused, Session
from privirec.app.pages.web import PageRequest, PageServer, Response, Site, see
from privirec.errors import DataError, DataWarning, UsageError

from .visitor import Visitor, serving

EVIL = "http://evil.example"


class Counter(Site):
    """Page with a number that a form increases."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.pages |= {"": self._look, "bad": self._bad, "broken": self._broken}
        self.pages |= {"rated": self._rated, "tags": self._tags}
        self.changes |= {"more": self._more}

    def _look(self, request: PageRequest) -> Response:
        form = f'<input name="csrf" value="{request.session.csrf}">'
        return Response(f"{form} count {self.count} {request.asked('q')}".encode())

    def _bad(self, request: PageRequest) -> Response:
        raise DataError("the store is damaged")

    def _tags(self, request: PageRequest) -> Response:
        raise DataError("<b>bold</b>")

    def _rated(self, request: PageRequest) -> Response:
        for _ in range(2):
            warnings.warn("ratings are not looked at", DataWarning, stacklevel=1)
        return Response(request.session.take_notice().encode())

    def _broken(self, request: PageRequest) -> Response:
        raise RuntimeError("secret detail")

    def _more(self, request: PageRequest) -> Response:
        self.count += 1
        return see("")


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving(Counter()) as found:
        yield found


@pytest.fixture
def visitor(server: PageServer) -> Visitor:
    return Visitor(server).enter()


def count(server: PageServer) -> int:
    assert isinstance(server.site, Counter)
    return server.site.count


# --- the token ------------------------------------------------------------------------------------


def test_the_token_becomes_a_cookie_and_leaves_the_address(server: PageServer) -> None:
    stranger = Visitor(server)
    address = server.guard.address.partition(stranger.host)[2]
    answer = stranger.ask("GET", address)
    assert answer.status == 303
    assert answer.headers["Location"] == server.guard.room
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert f"Path={server.guard.room}" in cookie
    assert address.partition("=")[2] not in cookie


@pytest.mark.parametrize("token", ["", "x", "?token=", "?token=wrong", "?token=%C3%A9", "?other=1"])
def test_the_page_is_locked_without_the_token(server: PageServer, token: str) -> None:
    answer = Visitor(server).ask("GET", f"/{token}")
    assert answer.status in (403, 404)
    assert "Set-Cookie" not in answer.headers
    assert server.guard.room not in answer.text


def test_a_page_is_locked_without_the_cookie(server: PageServer, visitor: Visitor) -> None:
    before = count(server)
    name = visitor.cookie.partition("=")[0]
    for cookie in ("", f"{name}=wrong", f"other={visitor.cookie.partition('=')[2]}", f"{name}=é"):
        stranger = Visitor(server, cookie=cookie, csrf=visitor.csrf)
        assert stranger.look().status == 403
        assert stranger.change("more").status == 403
        assert stranger.look("page.css").status == 403
    assert count(server) == before
    odd = Visitor(server, cookie=f'a={{"b": 1}}; =; x; {visitor.cookie}; c="')
    assert odd.look().status == 200  # cookies of other programs on this machine


def test_the_number_of_browser_sessions_is_limited() -> None:
    guard = Guard(1)
    token = guard.address.partition("=")[2]
    cookies = [guard.enter(token).partition(";")[0] for _ in range(MOST_SESSIONS + 1)]
    guard.session({"Cookie": cookies[1]})
    with pytest.raises(Exception, match="locked"):
        guard.session({"Cookie": cookies[0]})


def test_secrets_differ_and_do_not_show(server: PageServer, visitor: Visitor) -> None:
    other = Guard(server.server_port)
    assert (other.address, other.room) != (server.guard.address, server.guard.room)
    session = server.guard.session({"Cookie": visitor.cookie})
    assert session.csrf not in repr(session)
    assert session.number not in repr(session)


# --- other sites ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": EVIL},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_a_change_that_another_site_asks_for_is_refused(
    server: PageServer, visitor: Visitor, headers: dict[str, str]
) -> None:
    before = count(server)
    assert visitor.change("more", headers=headers).status == 403
    assert count(server) == before
    assert visitor.change("more").status == 200
    assert count(server) == before + 1


def test_a_form_without_its_secret_is_refused(server: PageServer, visitor: Visitor) -> None:
    before = count(server)
    other = Visitor(server).enter()
    for shown in ("", "x", other.csrf):
        assert visitor.change("more", csrf=shown).status == 403
    assert count(server) == before


@pytest.mark.parametrize(
    "guard", ["check_site", "check_origin", "check_form"], ids=lambda name: name
)
def test_each_of_these_alone_does_not_let_another_site_in(
    server: PageServer, visitor: Visitor, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    """Test a browser that ignores SameSite and sends the cookie with a form of another site."""
    before = count(server)
    foreign = {"Origin": EVIL, "Sec-Fetch-Site": "cross-site"}
    monkeypatch.setattr(Guard, guard, lambda *_: None)
    assert visitor.change("more", headers=foreign, csrf="").status == 403
    assert count(server) == before


def test_with_all_of_them_off_the_foreign_form_succeeds(
    server: PageServer, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = count(server)
    for guard in ("check_site", "check_origin", "check_form"):
        monkeypatch.setattr(Guard, guard, lambda *_: None)
    path = visitor.room + "more"
    kind = {"Content-Type": "application/x-www-form-urlencoded", "Origin": EVIL}
    assert visitor.ask("POST", path, b"", kind).status == 303
    assert count(server) == before + 1


HOSTS = (
    "evil.example",
    "127.0.0.1.evil.example",
    "127.0.0.1",
    "127.0.0.1:1",
    "localhost",
    "",
    "[::1]",
)


@pytest.mark.parametrize("host", HOSTS)
def test_another_name_for_this_machine_is_refused(
    server: PageServer, visitor: Visitor, host: str
) -> None:
    """Simulate DNS rebinding: a website whose name points to this machine."""
    for path in (visitor.room, server.guard.address.partition(visitor.host)[2]):
        headers = {"Host": host} if host else {}
        stranger = Visitor(server, cookie=visitor.cookie)
        stranger.host = ""
        assert stranger.ask("GET", path, headers=headers).status == 421


def test_with_the_guard_off_a_rebound_name_reads_the_page(
    server: PageServer, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Guard, "check_host", lambda *_: None)
    rebound = Visitor(server, cookie=visitor.cookie, host="evil.example")
    assert "count" in rebound.look().text


def test_localhost_is_a_name_of_this_machine(server: PageServer) -> None:
    visitor = Visitor(server).enter()
    visitor.host = f"localhost:{server.server_port}"
    assert visitor.look().status == 200
    assert visitor.change("more").status == 200


def test_two_headers_are_not_the_first_of_them(server: PageServer, visitor: Visitor) -> None:
    text = f"GET {visitor.room} HTTP/1.1\r\nHost: {visitor.host}\r\nHost: evil.example\r\n"
    assert b" 421 " in _raw(server, f"{text}Cookie: {visitor.cookie}\r\n\r\n".encode())


def test_reading_from_another_site_is_refused(visitor: Visitor) -> None:
    for site in ("cross-site", "same-site"):
        assert visitor.look(**{"Sec-Fetch-Site": site}).status == 403
    for site in ("none", "same-origin"):
        assert visitor.look(**{"Sec-Fetch-Site": site}).status == 200


def test_browsers_are_told_to_allow_nothing_else(visitor: Visitor) -> None:
    for answer in (visitor.look(), visitor.look("nothing"), visitor.ask("GET", "/")):
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "script-src" not in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Referrer-Policy"] == "same-origin"
        assert "form-action 'self'" in policy
        assert "base-uri 'none'" in policy
        assert "Python" not in str(answer.headers)
        assert not any(name.startswith("Access-Control") for name in answer.headers)


# --- malformed requests ---------------------------------------------------------------------------


def test_unknown_paths_and_methods(server: PageServer, visitor: Visitor) -> None:
    for path in ("nothing", "../", "%2e%2e/", "page.css/", "static/page.css", "more"):
        assert visitor.look(path).status in (404, 405), path
    for path in (
        "/favicon.ico",
        "//evil.example/",
        "/0123456789abcdef/",
        "x",
        "*",
        "rated",
        "http://x",
    ):
        assert visitor.ask("GET", path).status == 404, path
    assert visitor.change("nothing").status == 404
    assert visitor.change("").status == 405
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "WHATEVER"):
        assert visitor.ask(method, visitor.room).status == 501
    assert visitor.ask("HEAD", visitor.room).text == ""
    assert visitor.look("page.css").headers["Content-Type"].startswith("text/css")


def test_a_body_has_its_kind_and_its_length(server: PageServer, visitor: Visitor) -> None:
    before = count(server)
    kind = "application/x-www-form-urlencoded"
    origin = {"Origin": f"http://{visitor.host}", "Content-Type": kind}

    def post(body: bytes | None, **changes: str) -> int:
        headers = origin | {name.replace("_", "-"): value for name, value in changes.items()}
        return visitor.ask("POST", f"{visitor.room}more", body, headers).status

    assert post(b"{}", Content_Type="application/json") == 415
    assert post(b"a", Content_Type="multipart/form-data; boundary=x") == 415
    assert post(None) == 411
    for length in ("-1", "x", "1e3", "²"):
        assert post(None, Content_Length=length) == 411
    assert post(None, Content_Length="5", Transfer_Encoding="chunked") == 411
    for length in (web.LARGEST_FORM + 1, 10**8, 10**30):
        assert post(None, Content_Length=str(length)) == 413
    assert post(b"\xff\xfe") == 400
    assert post(b"csrf=%ff") == 400
    assert post(b"&".join(b"a=1" for _ in range(web.MOST_FIELDS + 1))) == 400
    assert post(b"csrf") == 403
    assert count(server) == before


def test_malformed_requests_get_a_line_and_do_no_harm(server: PageServer, visitor: Visitor) -> None:
    for raw in (
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x00\xa5\x01\x00",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
    ):
        answer = _raw(server, raw)
        assert b" 200 " not in answer[:40]
        assert b"Traceback" not in answer
    assert visitor.look().status == 200


def test_too_many_at_once_are_turned_away_and_the_page_recovers(
    server: PageServer, visitor: Visitor
) -> None:
    lines = [
        socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(web.MOST_AT_ONCE)
    ]
    try:
        assert not _answers(visitor, True)
    finally:
        for line in lines:
            line.close()
    assert _answers(visitor, False)


def test_an_error_is_one_sentence(visitor: Visitor, caplog: pytest.LogCaptureFixture) -> None:
    answer = visitor.look("bad")
    assert (answer.status, answer.words) == (400, "PriviRec PriviRec The store is damaged.")
    answer = visitor.look("broken")
    assert answer.status == 500
    assert "secret" not in answer.text
    assert "secret detail" in caplog.text


def test_errors_are_escaped(visitor: Visitor) -> None:
    assert "<b>" not in visitor.look("tags").text
    assert "&lt;b&gt;" in visitor.look("tags").text


def test_addresses_that_cannot_be_read_are_refused(server: PageServer, visitor: Visitor) -> None:
    """Test an unclosed bracket of an IPv6 address."""
    head = f"Host: {visitor.host}\r\nCookie: {visitor.cookie}\r\n\r\n"
    for method in ("GET", "POST"):
        answer = _raw(server, f"{method} http://[ HTTP/1.1\r\n{head}".encode())
        assert b" 400 " in answer[:20]


def test_nothing_of_an_address_is_logged(
    server: PageServer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Log neither the token nor the page's room, however a request ends."""
    caplog.set_level(logging.DEBUG)
    visitor = Visitor(server).enter()
    for path in (visitor.room, visitor.room + "nothing", visitor.room + "broken", "/?token=x"):
        visitor.ask("GET", path)
    visitor.ask("WHATEVER", visitor.room)
    said = "".join([caplog.text, *capfd.readouterr()])
    assert server.guard.room not in said
    assert "token" not in said


def test_it_listens_to_this_machine_only(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_secrets_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    compare = hmac.compare_digest

    def noting(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", noting)
    guard = Guard(1)
    for use in (
        lambda: guard.enter("guess"),
        lambda: guard.check_form(Session(), "guess"),
    ):
        with pytest.raises(PageRefused):
            use()
    guard.enter(guard.address.partition("=")[2])
    with pytest.raises(PageRefused):
        guard.session({"Cookie": "privirec-1=guess"})
    assert compared.count(b"guess") == 4  # the first is compared with both tokens


def test_warnings_are_shown_on_the_page(
    visitor: Visitor, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):  # every time, not only the first
        assert visitor.look("rated").text == "Ratings are not looked at."
    assert "ratings" not in capsys.readouterr().err


def test_a_port_that_is_taken(server: PageServer) -> None:
    with pytest.raises(UsageError, match=f"port {server.server_port}: Address already in use"):
        PageServer(Counter(), server.server_port)


def _answers(visitor: Visitor, now: bool) -> bool:
    """Return True if the page answers as `now` says; wait, because threads take time to change."""
    answers = now
    for _ in range(200):
        try:
            answers = visitor.look().status == 200
        except ConnectionError:
            answers = False
        if answers is not now:
            break
    return answers


def _raw(server: PageServer, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as line:
        line.sendall(request)
        line.shutdown(socket.SHUT_WR)
        found = b""
        try:
            while part := line.recv(4096):
                found += part
        except ConnectionResetError:
            pass
        return found


# --- templates ------------------------------------------------------------------------------------


def test_values_are_text_unless_they_are_html() -> None:
    assert as_html('<a href="x">&\'') == "&lt;a href=&quot;x&quot;&gt;&amp;&#x27;"
    assert as_html([Html("<b>"), "<i>", None, 3]) == "<b>&lt;i&gt;3"
    fill = Templates("frame.html")
    assert fill("sentence", text="<script>") == "<p>&lt;script&gt;</p>\n"
    with pytest.raises(ValueError, match="sentence has"):
        fill("sentence", text="a", more="b")
    with pytest.raises(ValueError, match="sentence has"):
        fill("sentence")


def test_templates_have_no_script_no_style_and_no_other_host() -> None:
    here = Path(web.__file__).parent
    for path in (here / "templates").iterdir():
        text = path.read_text(encoding="utf-8")
        for word in ("onclick", "onload", "style=", "<style", "javascript:", "http", "//"):
            assert word not in text.replace("<!doctype html>", ""), (path, word)
    for path in (here / "static").iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http" not in text
        assert "@import" not in text
