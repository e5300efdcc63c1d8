"""Who may ask a page that listens on this machine: whoever was given its address, and no website.

Any program on the machine can connect to a port of it, and any website can make a browser send
requests there. So:

- the address that is printed holds a *token*. It is exchanged for a cookie (HttpOnly,
  SameSite=Strict) and taken out of the address at once;
- everything stands below a path that nobody can guess, the *room*, and the cookie is for that path
  only: browsers send cookies to every port of a machine, so another program's port would get it
  otherwise;
- the Host header must name this machine and port. A website whose name was made to point here
  (DNS rebinding) is refused;
- a request that a browser says to come from another site or port is refused;
- what changes something is a POST with our own Origin and with a second secret, which stands in our
  forms and which another site cannot read.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

MOST_SESSIONS = 8
"""Browsers that are in at a time; the first one has to come again when another is too many."""


class Refused(Exception):
    """A request that is not answered, in one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass
class Session:
    """One browser that has shown the token."""

    number: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """Stands in every form."""
    warned: list[str] = field(default_factory=list)
    """What was handled on the way and should be known, to be shown beside the notice."""
    notice: str = ""
    """What the next page says first."""

    def take_notice(self) -> str:
        found, self.notice = "\n".join(filter(None, [self.notice, *self.warned])), ""
        self.warned.clear()
        return found


class Guard:
    """The doorkeeper of one page, for as long as its process lives."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._token = secrets.token_urlsafe(32)
        self.room = f"/{secrets.token_hex(8)}/"
        self._sessions: list[Session] = []

    @property
    def address(self) -> str:
        """For whoever started the page."""
        return f"http://127.0.0.1:{self._port}/?token={self._token}"

    # --- every request ----------------------------------------------------------------------------

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Refuse a name that is not this machine's own."""
        if headers.get("Host", "") not in self._hosts:
            raise Refused(421, "This page answers under its own address only.")

    def check_site(self, headers: Mapping[str, str]) -> None:
        """Refuse what a browser says to come from another site, or from another port."""
        if headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise Refused(403, "A request from another site.")

    def session(self, headers: Mapping[str, str]) -> Session:
        """The session that the cookie names."""
        shown = _cookie(headers.get("Cookie", ""), self._cookie_name)
        for session in self._sessions:
            if _same(session.number, shown):
                return session
        raise Refused(403, "This page is locked. Open the address that the terminal shows.")

    # --- entering ---------------------------------------------------------------------------------

    def enter(self, token: str) -> str:
        """A new session for whoever has the token: the value of the Set-Cookie header."""
        if not _same(self._token, token):
            raise Refused(403, "This page is locked. Open the address that the terminal shows.")
        session = Session()
        self._sessions = [*self._sessions, session][-MOST_SESSIONS:]
        return f"{self._cookie_name}={session.number}; Path={self.room}; HttpOnly; SameSite=Strict"

    # --- changing something -----------------------------------------------------------------------

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Refuse a change that another site asks for. Every browser names the origin of a POST."""
        if headers.get("Origin", "") != f"http://{headers.get('Host', '')}":
            raise Refused(403, "A change that another site asks for.")

    def check_form(self, session: Session, shown: str) -> None:
        """Refuse a form that is not one of ours."""
        if not _same(session.csrf, shown):
            raise Refused(403, "This form is too old or not from here. Go back and reload.")

    @property
    def _hosts(self) -> tuple[str, str]:
        return f"127.0.0.1:{self._port}", f"localhost:{self._port}"

    @property
    def _cookie_name(self) -> str:
        return f"privirec-{self._port}"


def _same(secret: str, shown: str) -> bool:
    """In a time that does not tell how much of it is right."""
    return hmac.compare_digest(secret.encode(), shown.encode())


def _cookie(header: str, name: str) -> str:
    """The value of one cookie. The others are of whoever else uses this machine's address, and may
    look like anything."""
    for pair in header.split(";"):
        key, _, value = pair.strip().partition("=")
        if key == name:
            return value
    return ""
