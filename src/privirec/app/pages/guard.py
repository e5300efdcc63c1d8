"""Access control of a page that listens on this machine: only holders of its address get in.

Any program on the machine can connect to its ports, and any website can make a browser send
requests to them. Therefore:

- the printed address holds a *token*. It is exchanged for a cookie (HttpOnly, SameSite=Strict) and
  removed from the address at once;
- everything is below a path that cannot be guessed, the *room*, and the cookie is valid for that
  path only. Browsers send cookies to every port of a machine, so another program's port would
  receive it otherwise;
- the Host header must name this machine and port. A website whose name was made to point here
  (DNS rebinding) is refused;
- a request is refused if the browser says that it comes from another site or port;
- a second token opens sessions that look and change nothing;
- a change is a POST with our own Origin and with a second secret, which is in our forms and which
  another site cannot read.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_SESSIONS = 8
"""Browsers with a session at a time; a further one ends the oldest session."""


class PageRefused(Exception):
    """A refused request, with the reason in one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass
class Session:
    """Session of one browser that has shown the token."""

    number: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """Secret in every form."""
    may_change: bool = True
    """False if the browser has shown the token for looking only."""
    warned: list[str] = field(default_factory=list)
    """Warnings raised while handling requests, shown with the notice."""
    notice: str = ""
    """Message at the top of the next page."""
    undo: dict[str, Any] = field(default_factory=dict, repr=False)
    """Last change that can be undone; empty if there is none."""
    unsure: list[tuple[str, tuple[str, ...]]] = field(default_factory=list, repr=False)
    """Titles of the last import and the items that each may be."""

    def take_notice(self) -> str:
        found, self.notice = "\n".join(filter(None, [self.notice, *self.warned])), ""
        self.warned.clear()
        return found


class Guard:
    """Access control of one page, for the lifetime of its process."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._token = secrets.token_urlsafe(32)
        self._token_to_look = secrets.token_urlsafe(32)
        self.room = f"/{secrets.token_hex(8)}/"
        self._sessions: list[Session] = []

    @property
    def address(self) -> str:
        """Address with the token, for the user who started the page."""
        return f"http://127.0.0.1:{self._port}/?token={self._token}"

    @property
    def address_to_look(self) -> str:
        """Address with the token of sessions that change nothing."""
        return f"http://127.0.0.1:{self._port}/?token={self._token_to_look}"

    # --- every request ----------------------------------------------------------------------------

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Refuse a Host header that does not name this machine and port."""
        if headers.get("Host", "") not in self._hosts:
            raise PageRefused(421, "This page answers under its own address only.")

    def check_site(self, headers: Mapping[str, str]) -> None:
        """Refuse a request that the browser says comes from another site or port."""
        if headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise PageRefused(403, "A request from another site.")

    def session(self, headers: Mapping[str, str]) -> Session:
        """Return the session of the cookie."""
        shown = _cookie(headers.get("Cookie", ""), self._cookie_name)
        for session in self._sessions:
            if _same(session.number, shown):
                return session
        raise PageRefused(403, "This page is locked. Open the address that the terminal shows.")

    # --- sign-in ----------------------------------------------------------------------------------

    def enter(self, token: str) -> str:
        """Open a session for a holder of the token; return the value of the Set-Cookie header."""
        may_change = _same(self._token, token)
        if not may_change and not _same(self._token_to_look, token):
            raise PageRefused(403, "This page is locked. Open the address that the terminal shows.")
        session = Session(may_change=may_change)
        self._sessions = [*self._sessions, session][-MOST_SESSIONS:]
        return f"{self._cookie_name}={session.number}; Path={self.room}; HttpOnly; SameSite=Strict"

    # --- changes ----------------------------------------------------------------------------------

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Refuse a change requested by another site. Every browser sends the Origin of a POST."""
        if headers.get("Origin", "") != f"http://{headers.get('Host', '')}":
            raise PageRefused(403, "A change that another site asks for.")

    def check_form(self, session: Session, shown: str) -> None:
        """Refuse a form without the secret of our forms, and every form of those who only look."""
        if not session.may_change:
            raise PageRefused(403, "This address is for looking only; nothing was changed.")
        if not _same(session.csrf, shown):
            raise PageRefused(403, "This form is too old or not from here. Go back and reload.")

    @property
    def _hosts(self) -> tuple[str, str]:
        return f"127.0.0.1:{self._port}", f"localhost:{self._port}"

    @property
    def _cookie_name(self) -> str:
        return f"privirec-{self._port}"


def _same(secret: str, shown: str) -> bool:
    """Compare in constant time, so that timing reveals nothing about the secret."""
    return hmac.compare_digest(secret.encode(), shown.encode())


def _cookie(header: str, name: str) -> str:
    """Return the value of one cookie.

    The other cookies belong to other programs on this machine and may be malformed.
    """
    for pair in header.split(";"):
        key, _, value = pair.strip().partition("=")
        if key == name:
            return value
    return ""
