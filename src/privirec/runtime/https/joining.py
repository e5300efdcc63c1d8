"""A client's enrolment by an invitation link, which may be interrupted anywhere and repeated.

1. Create keys, unless the folder has some.
2. Fetch the certificates of the server's authority, and compare them with the link.
3. Apply over TLS that trusts only them: card, and the proof that this client knows the code.
4. Once approved, fetch catalogue and roster as every client does; check the roster's signature.
"""

from __future__ import annotations

import hashlib
import shutil
import ssl
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
from pydantic import ValidationError

from privirec.data.catalogue import read_catalogue
from privirec.device.titles import read_titles
from privirec.durable import write_whole
from privirec.errors import FederationError, UsageError
from privirec.runtime.enrolment.folders import ClientFolder
from privirec.runtime.enrolment.identities import fingerprint
from privirec.runtime.enrolment.invitations import (
    Admitted,
    Application,
    Invitation,
    NotEnrolled,
    Why,
)
from privirec.runtime.enrolment.roster import RosterDifference, RosterFile
from privirec.runtime.https.connection import (
    LONGEST_PAUSE,
    ROSTERS,
    TIMEOUT,
    Connection,
    Unreachable,
    trusting,
    why_not_reached,
)
from privirec.runtime.https.limits import PIECE, TITLES_FILE

JOIN, CATALOGUE, TITLES = "/v1/join", "/v1/catalogue", "/v1/titles"
TRIES = 5
"""Attempts to reach a server before joining is given up for now."""

Say = Callable[[str], None]


class OtherServer(FederationError):
    """A server that is not the one of the invitation."""


class Joining:
    """One client's way into a federation."""

    def __init__(
        self,
        invitation: Invitation,
        home: ClientFolder,
        say: Say,
        *,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._invited = invitation
        self._home = home
        self._say = say
        self._transport = transport
        self._sleep = sleep

    def join(self) -> int:
        """Enrol, and return this client's number; a client that has joined stays as it is."""
        if self._home.has_joined:
            if self._home.settings.operator != self._invited.operator:
                raise UsageError(
                    f"{self._home.folder} is a client of another operator: choose another folder"
                )
            return self._home.settings.client
        is_new = not self._home.folder.exists()
        ClientFolder.create(self._home.folder)
        try:
            self._fetch_authority()
            admitted = self._admitted()
        except (NotEnrolled, OtherServer):
            if is_new:  # its keys are of no use to anybody
                shutil.rmtree(self._home.folder)
            raise
        with closing(self._connection(admitted)) as connection:
            found = self._roster(self._download(connection, f"{ROSTERS}?since=0") or b"")
            if (catalogue := self._download(connection, CATALOGUE)) is None:
                raise _not_now("the server has no catalogue yet (SERVER/catalogue.txt)")
            self._take("catalogue.txt", catalogue, read_catalogue)
            if (titles := self._download(connection, TITLES)) is not None:
                self._take(TITLES_FILE, titles, read_titles)
        return self._home.join(found, server=self._invited.address)

    def _fetch_authority(self) -> None:
        """Write ca.crt, whose fingerprint is in the link: so anybody may have sent it."""
        path = self._home.folder / "ca.crt"
        unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
        reply = self._ask("GET", unchecked)
        if reply.status_code != 200 or not self._is_authority(reply.content):
            raise OtherServer(
                f"the server at {self._invited.address} is not the one that the link names, or "
                "somebody on the way answers in its place"
            )
        write_whole(path, reply.content)

    def _is_authority(self, content: bytes) -> bool:
        return hashlib.sha256(content).hexdigest() == self._invited.authority

    def _admitted(self) -> Admitted:
        """Apply until the operator has approved this client."""
        application = self._application()
        waits = False
        while True:
            tls = trusting(self._home.folder / "ca.crt")
            reply = self._ask("POST", tls, application.model_dump_json().encode())
            if reply.status_code == 200:
                try:
                    return Admitted.model_validate_json(reply.content)
                except ValidationError:
                    raise FederationError("the server's reply cannot be read") from None
            if reply.status_code == 403 and reply.text in [*Why]:
                raise NotEnrolled(Why(reply.text))
            if reply.status_code != 202:
                raise FederationError(f"the server cannot enrol now ({reply.status_code})")
            if not waits:
                waits = True
                own = fingerprint(self._home.identity.public.hex())
                self._say(f"Waiting for the operator's approval. Own fingerprint: {own}")
            self._sleep(_pause(reply))

    def _application(self) -> Application:
        return self._invited.application(self._home.identity, self._home.node_key)

    def _connection(self, admitted: Admitted) -> Connection:
        def never(_message: bytes) -> bytes:
            raise Unreachable("a client that has not joined answers nothing")

        return Connection(
            self._invited.address,
            admitted.client,
            self._home.identity,
            bytes.fromhex(admitted.server),
            trusting(self._home.folder / "ca.crt"),
            never,
            transport=self._transport,
        )

    def _download(self, connection: Connection, target: str) -> bytes | None:
        for tries in range(TRIES):
            try:
                return connection.download(target)
            except Unreachable as error:
                if tries == TRIES - 1:
                    raise _not_now(str(error)) from None
                self._sleep(connection.back_off(error))
        raise AssertionError

    def _roster(self, content: bytes) -> RosterFile:
        nothing = RosterFile(operator=self._invited.operator)
        found = nothing.continued(RosterDifference.parse(content))
        self._home.check_is_in(found)
        if not found.server:
            raise UsageError("the server shows a roster that names no server")
        return found

    def _take(self, name: str, content: bytes, read: Callable[[Path], object]) -> None:
        """Write a file that came from the server, if it can be read."""
        path = self._home.folder / name
        fresh = path.with_name(f".new.{name}")
        try:
            write_whole(fresh, content)
            read(fresh)
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)

    def _ask(self, method: str, tls: ssl.SSLContext, content: bytes = b"") -> httpx.Response:
        """Make one request; try again while the server is busy or cannot be reached."""
        for tries in range(TRIES):
            try:
                reply = self._once(method, tls, content)
            except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
                if tries == TRIES - 1 or isinstance(error.__cause__, ssl.SSLError):
                    raise _not_now(why_not_reached(error)) from None
                self._sleep(2.0**tries)
                continue
            if reply.status_code not in (429, 502, 503, 504) or tries == TRIES - 1:
                return reply
            self._sleep(_pause(reply))
        raise AssertionError

    def _once(self, method: str, tls: ssl.SSLContext, content: bytes) -> httpx.Response:
        with (
            httpx.Client(
                base_url=self._invited.address,
                verify=tls,
                transport=self._transport,
                timeout=TIMEOUT,
                trust_env=False,
                follow_redirects=False,
                headers={"Accept-Encoding": "identity", "User-Agent": "privirec"},
            ) as http,
            http.stream(method, JOIN, content=content) as reply,
        ):
            found = bytearray()
            for part in reply.iter_raw():
                found += part
                if len(found) > PIECE:
                    raise ValueError("the server sends more than one piece")
            return httpx.Response(reply.status_code, headers=reply.headers, content=bytes(found))


def _pause(reply: httpx.Response) -> float:
    told = reply.headers.get("retry-after", "")
    return min(float(told[:6]), LONGEST_PAUSE) if told.isdecimal() else 5.0


def _not_now(why: str) -> FederationError:
    return FederationError(f"{why}; the same command goes on where it stopped")
