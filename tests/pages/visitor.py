"""HTTP client that acts as a browser: headers, cookies and forms."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from urllib.parse import urlencode

from privirec.app.pages.web import PageServer, Site


@dataclass
class Answer:
    status: int
    text: str
    headers: Mapping[str, str]

    @property
    def words(self) -> str:
        """Visible text of the page, in one line."""
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", self.text)).split())


@dataclass
class Visitor:
    """Client of a page, with or without a session."""

    server: PageServer
    cookie: str = ""
    host: str = ""
    room: str = ""
    csrf: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        self.host = self.host or f"127.0.0.1:{self.server.server_port}"
        self.room = self.room or self.server.guard.room

    def enter(self) -> Visitor:
        """Open the page with the address that the terminal shows."""
        answer = self.ask("GET", self.server.guard.address.partition(self.host)[2])
        assert answer.status == 303, answer
        self.cookie = answer.headers["Set-Cookie"].partition(";")[0]
        self.look()
        return self

    def look(self, path: str = "", **headers: str) -> Answer:
        answer = self.ask("GET", self.room + path, headers=headers)
        if found := re.search(r'name="csrf" value="([^"]+)"', answer.text):
            self.csrf = found[1]
        return answer

    def change(self, path: str, *, headers: Mapping[str, str] = {}, **form: object) -> Answer:
        """Send a form as a browser does, and follow it to the next page."""
        body = urlencode({"csrf": self.csrf} | form, doseq=True)
        own = {
            "Origin": f"http://{self.host}",
            "Sec-Fetch-Site": "same-origin",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        sent = {name: value for name, value in {**own, **headers}.items() if value}
        answer = self.ask("POST", self.room + path, body.encode(), sent)
        if answer.status == 303:
            return self.look(answer.headers["Location"].removeprefix("./"))
        return answer

    def upload(self, path: str, name: str, content: bytes, **form: str) -> Answer:
        """Send a form with a file as a browser does, and follow it to the next page."""
        mark = "----boundary-of-the-test"
        parts = [
            f'--{mark}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
            for key, value in ({"csrf": self.csrf} | form).items()
        ]
        head = f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        parts.append(head.encode() + b"Content-Type: application/json\r\n\r\n" + content)
        sent = {
            "Origin": f"http://{self.host}",
            "Sec-Fetch-Site": "same-origin",
            "Content-Type": f"multipart/form-data; boundary={mark}",
        }
        body = b"".join(parts) + f"\r\n--{mark}--\r\n".encode()
        answer = self.ask("POST", self.room + path, body, sent)
        if answer.status == 303:
            return self.look(answer.headers["Location"].removeprefix("./"))
        return answer

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] = {},
    ) -> Answer:
        """Send one request unchanged."""
        line = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=20)
        try:
            line.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            known = {"Host": self.host, "Cookie": self.cookie}
            if body is not None:
                known["Content-Length"] = str(len(body))
            for name, value in {**known, **headers}.items():
                if value:
                    line.putheader(name, value)
            line.endheaders(body)
            found = line.getresponse()
            return Answer(found.status, found.read().decode(), dict(found.getheaders()))
        finally:
            line.close()


@contextmanager
def serving(site: Site) -> Iterator[PageServer]:
    """Serve the page in a separate thread."""
    with PageServer(site) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
