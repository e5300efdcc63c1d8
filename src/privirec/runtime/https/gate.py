"""Authentication and rate limits for requests: clients on the roster only, without replays."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.enrolment.roster import Member
from privirec.runtime.https.limits import Allowance, Limits
from privirec.runtime.https.signing import (
    CLOCK,
    REVOKED,
    NotSigned,
    Request,
    StampsTaken,
    Word,
    check_signature,
    read_request,
)
from privirec.secagg.keys import Identity


class Refused(Exception):
    """A request that is not served."""

    def __init__(
        self,
        status: int,
        why: str = "",
        *,
        code: str = "",
        headers: Mapping[str, str] | None = None,
        known: bool = False,
    ) -> None:
        """Initialise a refusal.

        `why` goes to the log, `code` to the client. `known` is True if the client has proven its
        identity.
        """
        super().__init__(why)
        self.status, self.why, self.code, self.known = status, why, code, known
        self.headers = dict(headers or {})


class Gate:
    """Check of requests by their headers alone, before their content is read."""

    def __init__(
        self,
        home: OperatorFolder,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        stamps: StampsTaken | None = None,
    ) -> None:
        self._home = home
        self._limits = limits
        self._clock = clock
        self._stamps = stamps or StampsTaken()
        self._nobody = Identity.generate(os.urandom).public
        """Public key without an owner, used to check signatures of unknown clients."""
        self._members: dict[int, Member] = {}
        self._server_key = b""
        self._read_at: tuple[int, ...] = ()
        self._allowances: dict[int, Allowance] = {}
        self._together = 0
        self.read_roster()

    @property
    def approved(self) -> int:
        return sum(not member.revoked for member in self._members.values())

    def read_roster(self) -> None:
        """Read the roster and the server's key again if either file has changed."""
        # A new key of the server may be written after the roster that names it.
        changed = _changed(self._home.folder / "roster.json", self._home.folder / "run.key")
        if changed != self._read_at:
            try:
                found = self._home.members
            except OSError:
                raise  # a problem of this machine that may be temporary, so try again
            except Exception:
                self._read_at = changed  # do not read an invalid file again
                raise
            self._read_at = changed
            self._members = {member.client: member for member in found.members}
            self._server_key = bytes.fromhex(found.server)
            self._server = self._home.server

    def admit(self, method: str, target: str, headers: Mapping[str, str]) -> Request:
        """Return the request; raise Refused unless an approved client signed it."""
        try:
            request, signature = read_request(method, target, headers)
            member = self._members.get(request.client)
            # Unknown clients get the same refusal after the same amount of work.
            key = bytes.fromhex(member.key) if member else self._nobody
            check_signature(request, signature, key, self._server_key)
        except NotSigned as error:
            raise Refused(401, str(error)) from None
        if member is None:
            raise Refused(401, "not signed by the key of the client that it names")
        name = f"client {member.client} ({member.name})"
        if member.revoked:
            word = self._word(REVOKED, request)
            raise Refused(403, f"{name}: it is revoked", code=REVOKED, headers=word)
        if not self._stamps.take(request.client, request.stamp):
            word = self._word(CLOCK, request)
            why = f"{name}: a request that came before, or a clock that is wrong"
            raise Refused(401, why, code=CLOCK, headers=word, known=True)
        return request

    def _word(self, code: str, request: Request) -> dict[str, str]:
        last = self._stamps.last(request.client)
        return Word(code, self._stamps.now(), last).signed(request, self._server)

    @contextmanager
    def turn(self, request: Request) -> Iterator[None]:
        """Count a request while it is served; raise Refused if there are too many."""
        client = request.client
        own = self._allowances.setdefault(client, Allowance(self._limits, self._clock))
        if own.at_once >= self._limits.at_once:
            raise _later(429, 1.0, f"client {client}: too many requests at once")
        if self._together >= self._limits.together:
            raise _later(503, 2.0, "")  # not the client's fault, so its rate is not charged
        if wait := own.seconds_to_wait():
            raise _later(429, wait, f"client {client}: too many requests")
        own.at_once += 1
        self._together += 1
        try:
            yield
        finally:
            own.at_once -= 1
            self._together -= 1


def _changed(*paths: Path) -> tuple[int, ...]:
    return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)


def _later(status: int, seconds: float, why: str) -> Refused:
    after = str(max(1, round(seconds)))
    return Refused(status, why, headers={"Retry-After": after}, known=True)
