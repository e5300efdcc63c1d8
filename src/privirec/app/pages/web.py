"""A small web server for this machine: that of the standard library, behind a guard.

Every response closes its connection, forbids caching, and allows the browser to load nothing but
our own files: no inline script or style, no other host, no frame.
"""

from __future__ import annotations

import logging
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from socket import socket
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from privirec.app.pages.guard import Guard, PageRefused, Session
from privirec.errors import DataWarning, PrivirecError, UsageError
from privirec.rows import say

log = logging.getLogger("privirec.page")

LARGEST_FORM = 64 * 1024
"""Most bytes of a form."""
LARGEST_UPLOAD = 64 * 1024 * 1024
"""Most bytes of a form with a file, which only some addresses accept."""
MOST_FIELDS = 200
MOST_AT_ONCE = 16
"""Most concurrent requests; further ones are rejected."""
SILENCE = 10
"""Timeout of an idle connection, in seconds."""

_POLICY = (
    "default-src 'none'; style-src 'self'; {script}img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not "no-referrer": browsers would then hide the origin of our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), interest-cohort=()",
}
_TYPES = {"css": "text/css", "svg": "image/svg+xml", "js": "text/javascript"}


@dataclass(frozen=True)
class PageRequest:
    """A request that was accepted by the guard."""

    path: str
    """Path below the room, without a leading slash."""
    query: Mapping[str, list[str]]
    form: Mapping[str, list[str]]
    session: Session
    files: Mapping[str, tuple[str, bytes]] = field(default_factory=dict)
    """Name and content of uploaded files, by the name of their field."""

    def asked(self, name: str, default: str = "") -> str:
        """Return one value of the query."""
        return self.query.get(name, [default])[0]

    def given(self, name: str, default: str = "") -> str:
        """Return one value of the form."""
        return self.form.get(name, [default])[0]


@dataclass(frozen=True)
class Response:
    body: bytes = b""
    kind: str = "text/html"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


def see(path: str) -> Response:
    """Redirect to another page. Every change responds so, and a reload does not repeat it."""
    return Response(status=303, headers={"Location": path or "./"})


Action = Callable[[PageRequest], Response]


class Site:
    """Routes of a page: pages to view (GET) and changes to make (POST), one at a time."""

    script: str | None = None
    """The only script that its pages may run."""
    uploads: frozenset[str] = frozenset()
    """Addresses of changes that accept a file."""
    has_viewers = False
    """True if a second address is offered, for looking only."""

    def __init__(self) -> None:
        self.pages: dict[str, Action] = {}
        self.changes: dict[str, Action] = {}
        self._one_at_a_time = threading.Lock()

    @property
    def content_policy(self) -> str:
        return _POLICY.format(
            script="script-src 'self'; connect-src 'self'; " if self.script else ""
        )

    def failed(self, request: PageRequest, status: int, sentence: str) -> Response:
        """Return a page that describes an error."""
        return _plain(status, sentence)

    def answer(self, request: PageRequest, *, changes: bool) -> Response:
        """Return the response to a request, an error page if the request fails."""
        if not changes and request.path in ("page.css", "page.svg", self.script):
            return Response(static(request.path), _TYPES[request.path.rpartition(".")[2]])
        here, elsewhere = (self.changes, self.pages) if changes else (self.pages, self.changes)
        action = here.get(request.path)
        try:
            with self._one_at_a_time, _warnings_shown_to(request.session):
                if action is None and request.path in elsewhere:
                    return self.failed(request, 405, "This address cannot be used in this way.")
                if action is None:
                    return self.failed(request, 404, "There is no such page.")
                try:
                    return action(request)
                except PrivirecError as error:
                    return self.failed(request, 400, _sentence(error))
        except Exception:
            log.exception("the page failed")
            return _plain(500, "This page failed; the terminal says how.")


@contextmanager
def _warnings_shown_to(session: Session) -> Iterator[None]:
    """Show warnings on the page, because its user does not see the terminal.

    It changes global state, so only one request at a time may be here.
    """
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        sentence = _sentence(message)
        if not issubclass(category, DataWarning):
            usual(message, category, *where, **more)
        elif sentence not in session.warned:
            session.warned.append(sentence)

    with warnings.catch_warnings():
        warnings.simplefilter("always", DataWarning)
        warnings.showwarning = show
        yield


class PageServer(ThreadingHTTPServer):
    """HTTP server that listens on 127.0.0.1."""

    daemon_threads = True

    def __init__(self, site: Site, port: int = 0) -> None:
        """Listen on a port; 0 chooses any free one."""
        self.site = site
        self._places = threading.BoundedSemaphore(MOST_AT_ONCE)
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise UsageError(f"port {port}: {error.strerror}") from None
        self.guard = Guard(self.server_port)

    def process_request(self, request: socket | Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: socket | Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of connections that the browser has closed."""


def serve(site: Site, port: int = 0) -> None:
    """Print the address and serve until interrupted."""
    with PageServer(site, port) as server:
        say(f"Open {server.guard.address}")
        if site.has_viewers:
            say(f"To look only, without changes: {server.guard.address_to_look}")
        say("Anyone who has this address can use the page, on this machine only. Ctrl-C ends it.")
        server.serve_forever()


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version, sys_version = "privirec", ""
    timeout = SILENCE

    def do_GET(self) -> None:
        self._answer(self._look)

    def do_HEAD(self) -> None:
        self._answer(self._look)

    def do_POST(self) -> None:
        self._answer(self._change)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer requests that the standard library rejects: unknown methods and malformed ones."""
        self._send(_plain(code, message or "This cannot be answered."))

    def log_message(self, format: str, *values: Any) -> None:
        """Log nothing: addresses hold the token, and page views are private."""

    # --- internal ---------------------------------------------------------------------------------

    def _answer(self, act: Callable[[], Response]) -> None:
        try:
            self.server.guard.check_host(self._headers)
            response = act()
        except PageRefused as error:
            response = _plain(error.status, str(error))
        self._send(response)

    def _look(self) -> Response:
        guard, where = self.server.guard, self._where
        query = _fields(where.query)
        if where.path == "/":
            cookie = guard.enter(query.get("token", [""])[0])
            return Response(status=303, headers={"Location": guard.room, "Set-Cookie": cookie})
        guard.check_site(self._headers)
        request = PageRequest(self._below(where.path), query, {}, guard.session(self._headers))
        return self.server.site.answer(request, changes=False)

    def _change(self) -> Response:
        guard, where = self.server.guard, self._where
        guard.check_site(self._headers)
        guard.check_origin(self._headers)
        path, session = self._below(where.path), guard.session(self._headers)
        form, files = self._form(path)
        guard.check_form(session, form.get("csrf", [""])[0])
        request = PageRequest(path, _fields(where.query), form, session, files)
        return self.server.site.answer(request, changes=True)

    @property
    def _where(self) -> SplitResult:
        try:
            return urlsplit(self.path)
        except ValueError:  # unbalanced brackets
            raise PageRefused(400, "This address is not valid.") from None

    def _below(self, path: str) -> str:
        room = self.server.guard.room
        if not path.startswith(room):
            raise PageRefused(404, "There is no such page.")
        return path.removeprefix(room)

    def _form(self, path: str) -> tuple[Mapping[str, list[str]], Mapping[str, tuple[str, bytes]]]:
        """Return the fields and the files of a form."""
        kind = self.headers.get_content_type()
        with_file = kind == "multipart/form-data" and path in self.server.site.uploads
        if kind != "application/x-www-form-urlencoded" and not with_file:
            raise PageRefused(415, "Only forms of this page are accepted.")
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or "Transfer-Encoding" in self.headers:
            raise PageRefused(411, "The length of the form is missing.")
        if len(length) > 9 or int(length) > (LARGEST_UPLOAD if with_file else LARGEST_FORM):
            raise PageRefused(413, "This form is too large.")
        body = self.rfile.read(int(length))
        if with_file:
            return _parts(body, self.headers.get_boundary())
        try:
            return _fields(body.decode("ascii")), {}
        except UnicodeDecodeError:
            raise PageRefused(400, "This form is not valid.") from None

    @property
    def _headers(self) -> Mapping[str, str]:
        """Headers for the guard; repeated ones, which no browser sends, are joined."""
        return {
            name: ", ".join(self.headers.get_all(name, []))
            for name in ("Host", "Origin", "Cookie", "Sec-Fetch-Site")
            if name in self.headers
        }

    def _send(self, response: Response) -> None:
        self.send_response(response.status)
        text = f"{response.kind}; charset=utf-8"
        self.send_header("Content-Type", text)
        self.send_header("Content-Length", str(len(response.body)))
        self.send_header("Content-Security-Policy", self.server.site.content_policy)
        for name, value in {**_HEADERS, **response.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)


def _fields(text: str) -> dict[str, list[str]]:
    try:
        return parse_qs(
            text,
            keep_blank_values=True,
            max_num_fields=MOST_FIELDS,
            errors="strict",
        )
    except ValueError:  # too many fields, or bytes that are not text
        raise PageRefused(400, "This form is not valid.") from None


_FIELD = re.compile(rb'form-data; name="([^"\r\n]*)"(?:; filename="([^"\r\n]*)")?', re.IGNORECASE)


def _parts(
    body: bytes, boundary: object
) -> tuple[dict[str, list[str]], dict[str, tuple[str, bytes]]]:
    """Return the fields and the files of a form in parts (RFC 7578)."""
    fields: dict[str, list[str]] = {}
    files: dict[str, tuple[str, bytes]] = {}
    try:
        mark = b"\r\n--" + str(boundary).encode("ascii")
        first, *parts, last = (b"\r\n" + body).split(mark, MOST_FIELDS)
        if first or not boundary or not last.startswith(b"--"):
            raise ValueError
        for part in parts:
            head, _, content = part.partition(b"\r\n\r\n")
            found = _FIELD.search(head)
            if found is None:
                raise ValueError
            name = found[1].decode()
            if found[2] is None:
                fields.setdefault(name, []).append(content.decode())
            else:
                files[name] = found[2].decode("utf-8", "replace"), content
    except ValueError:
        raise PageRefused(400, "This form is not valid.") from None
    return fields, files


def _plain(status: int, sentence: str) -> Response:
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>PriviRec</title></head>'
        f"<body><main><h1>PriviRec</h1><p>{escape(sentence)}</p></main></body></html>\n"
    )
    return Response(page.encode(), status=status)


def _sentence(error: Exception | str) -> str:
    text = str(error)
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def static(name: str) -> bytes:
    """Return the content of a file in `pages/static`."""
    return files("privirec.app.pages").joinpath("static", name).read_bytes()
