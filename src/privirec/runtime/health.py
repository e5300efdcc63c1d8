"""State of a server or a client that its owner should know before something fails."""

from __future__ import annotations

import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from privirec.errors import FederationError

ROOM = 1 << 30
"""Bytes of a disk that answers of clients leave free, since a run has to write as well."""
SOON = 21.0
"""Days before the end of a certificate from which its owner is warned."""
MOST_SKEW = 60.0
"""Difference of two clocks in seconds from which their owners are warned."""
_DAY = 86_400


class Level(StrEnum):
    """Urgency of a finding."""

    OK = "ok"
    SOON = "soon"
    BAD = "bad"


@dataclass(frozen=True)
class Finding:
    """Result of one check."""

    what: str
    level: Level
    said: str

    def as_row(self) -> dict[str, Any]:
        return {"what": self.what, "state": self.level.value, "said": self.said}


def disk(folder: Path) -> Finding:
    """Return the finding on the disk of a folder."""
    free = shutil.disk_usage(folder).free
    said = f"{free / 1e9:,.1f} GB are free where {folder} is"
    if free >= ROOM:
        return Finding("disk", Level.SOON if free < 2 * ROOM else Level.OK, said)
    needed = f"{ROOM / 1e9:,.1f} GB"
    return Finding("disk", Level.BAD, f"the disk is full: {said}, and a run needs {needed}")


def until(ends: float, what: str, *, now: float | None = None) -> Finding:
    """Return the finding on a certificate that ends at this time."""
    days = (ends - (time.time() if now is None else now)) / _DAY
    date = time.strftime("%Y-%m-%d", time.gmtime(ends))
    if days < 0:
        return Finding("certificate", Level.BAD, f"{what} has expired on {date}: renew it")
    level = Level.SOON if days < SOON else Level.OK
    return Finding("certificate", level, f"{what} is valid for {days:.0f} more days, until {date}")


def authorities(tls: ssl.SSLContext, path: Path) -> Iterator[Finding]:
    """Yield a finding on each authority that a TLS context trusts, read from `path`."""
    for found in tls.get_ca_certs():
        yield until(ssl.cert_time_to_seconds(str(found["notAfter"])), str(path))


def reached(
    host: str, port: int, tls: ssl.SSLContext | None, name: str, seconds: float = 10.0
) -> list[Finding]:
    """Connect as a client does, and return findings on the server; `name` is the one asked for.

    Raises FederationError with the reason if the server cannot be reached.
    """
    where = f"{name}:{port}"
    try:
        with closing(HTTPConnection(host, port, timeout=seconds)) as asking:
            asking.sock = socket.create_connection((host, port), seconds)
            findings = [Finding("connection", Level.OK, f"{where} answers")]
            if tls is not None:
                asking.sock = wrapped = tls.wrap_socket(asking.sock, server_hostname=name)
                ends = str((wrapped.getpeercert() or {})["notAfter"])
                said = f"the certificate that {where} shows"
                findings.append(until(ssl.cert_time_to_seconds(ends), said))
            asking.request("GET", "/health", headers={"Host": name})
            reply = asking.getresponse()
            reply.read(1000)
    except ssl.SSLCertVerificationError as error:
        raise FederationError(f"{where}: a client refuses it ({error.verify_message})") from None
    except (OSError, HTTPException) as error:
        raise FederationError(f"{where}: cannot be reached ({_words(error)})") from None
    if reply.status != 200:
        said = f"{where} answers, but is not well (status {reply.status})"
        findings[0] = Finding("connection", Level.BAD, said)
    return [*findings, _clock(reply.getheader("Date"))]


def _clock(date: str | None) -> Finding:
    """Compare the date of an answer with this machine's clock."""
    if date is None:
        return Finding("clock", Level.OK, "the server does not say what time it is")
    ahead = parsedate_to_datetime(date).timestamp() - time.time()
    if abs(ahead) < MOST_SKEW:
        return Finding("clock", Level.OK, "the clocks of the server and this machine agree")
    way = "ahead of" if ahead > 0 else "behind"
    said = f"the server's clock is {abs(ahead):.0f} s {way} this machine's"
    return Finding("clock", Level.BAD, said)


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
