"""`privirec server check`: is the server well, seen from outside and from its folder?"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from privirec.errors import FederationError, PrivirecError, UsageError
from privirec.runtime import serving
from privirec.runtime.carriers import HTTPS
from privirec.runtime.enrolment.certificates import check_certificate, names_in
from privirec.runtime.enrolment.folders import OperatorFolder, check_address
from privirec.runtime.health import Finding, Level, authorities, disk, reached, until
from privirec.runtime.https.connection import trusting
from privirec.version import __version__


def findings(home: OperatorFolder, address: str | None = None) -> list[Finding]:
    """Return all findings on a server; `address` is what clients connect to."""
    home.check()
    return [
        *_each("roster", _roster(home)),
        *_each("catalogue", _catalogue(home)),
        disk(home.folder),
        *_each("certificate", _certificates(home)),
        *_each("connection", _connection(home, address)),
    ]


def _each(what: str, found: Iterator[Finding]) -> Iterator[Finding]:
    """Yield findings, the last one of them on why there are no more."""
    try:
        yield from found
    except (PrivirecError, OSError) as error:
        yield Finding(what, Level.BAD, str(error))


def _roster(home: OperatorFolder) -> Iterator[Finding]:
    members = home.members
    count = len(members.roster())
    _ = home.server  # raises an error if run.key is not the key that the roster names
    level = Level.OK if count else Level.BAD
    yield Finding("roster", level, f"roster {members.number} approves {count} clients")
    if (home.folder / "operator.key").exists():
        said = "operator.key is on this machine: keep it elsewhere, the server does not need it"
        yield Finding("roster", Level.SOON, said)


def _catalogue(home: OperatorFolder) -> Iterator[Finding]:
    yield Finding("catalogue", Level.OK, f"{len(home.catalogue):,} items")


def _certificates(home: OperatorFolder) -> Iterator[Finding]:
    tls = home.folder / "tls"
    if not (tls / "server.crt").is_file():
        yield Finding("certificate", Level.SOON, f"{tls / 'server.crt'}: none, as with a proxy")
        return
    found = check_certificate(tls / "server.crt", tls / "server.key")
    yield until(found.not_valid_after_utc.timestamp(), str(tls / "server.crt"))
    if (tls / "ca.crt").is_file():
        yield from authorities(trusting(tls / "ca.crt"), tls / "ca.crt")


def _connection(home: OperatorFolder, address: str | None) -> Iterator[Finding]:
    """Connect as a client does: to the given address, or to the server on this machine."""
    if address is None and serving.carrier_up(home) != HTTPS:
        raise FederationError(f"the server is down: {serving.how_to_start(home)}")
    version = serving.running_version(home)
    if address is None and version != __version__:
        said = f"the server runs version {version or 'unknown'}, and this is {__version__}: restart"
        yield Finding("version", Level.SOON, said)
    else:
        yield Finding("version", Level.OK, __version__)
    ca = home.folder / "tls" / "ca.crt"
    if address is not None:
        check_address(address)
        parts = urlsplit(address)
        host = str(parts.hostname)
        yield from reached(host, parts.port or 443, trusting(ca), host)
        return
    given = serving.options_given(home)
    port = int(given.get("--port", serving.DEFAULT_PORT))
    if "--behind-proxy" in given:
        yield from reached("127.0.0.1", port, None, "127.0.0.1")
        return
    host = given.get("--host", "127.0.0.1")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared only
    certificate = check_certificate(home.folder / "tls" / "server.crt")
    if not (names := names_in(certificate)):
        raise UsageError(f"{home.folder / 'tls/server.crt'}: names no host")
    yield from reached(host, port, trusting(ca), names[0])
