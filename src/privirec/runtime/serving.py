"""State of the server in an operator's folder: whether it is up, and its carrier.

SERVER/carrier          the last carrier, the options of `privirec server up`, and its version
SERVER/CARRIER/.lock    held by `privirec server up` while the server is up
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import pairwise

from privirec.durable import is_taken, write_whole
from privirec.errors import FederationError
from privirec.runtime.carriers import DEFAULT_CARRIER, carrier_names
from privirec.runtime.enrolment.certificates import certified_host
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.version import __version__

DEFAULT_PORT = 9443
"""Port on which a server listens for clients."""


def remember(home: OperatorFolder, carrier: str, given: Sequence[str] = ()) -> None:
    """Record the carrier and the options of `privirec server up` (`given`).

    Error messages use them to say how to start the server again.
    """
    lines = f"{carrier}\n{shlex.join(given)}\n{__version__}\n"
    write_whole(home.folder / "carrier", lines.encode())


def carrier_up(home: OperatorFolder) -> str | None:
    """Return the carrier of the running server, or None if no server is up."""
    return next((name for name in carrier_names() if is_taken(home.folder / name)), None)


def last_carrier(home: OperatorFolder) -> str:
    """Return the carrier of the running server, or of the last one if none is up."""
    if up := carrier_up(home):
        return up
    told, _ = _remembered(home)
    if told in carrier_names():
        return told
    return DEFAULT_CARRIER


def how_to_start(home: OperatorFolder) -> str:
    """Return the command that starts the server as it was last started."""
    told, given = _remembered(home)
    carrier = last_carrier(home)
    if carrier != told or (carrier != DEFAULT_CARRIER) != ("--carrier" in given):
        given = [] if carrier == DEFAULT_CARRIER else ["--carrier", carrier]
    return shlex.join(["privirec", "server", "up", str(home.folder), *given])


def address(home: OperatorFolder) -> str:
    """Return the server's address: the name in its certificate, and the port it was last up on."""
    port, (_, given) = str(DEFAULT_PORT), _remembered(home)
    for word, value in pairwise(given):
        port = value if word == "--port" else port
    return f"https://{certified_host(home.folder / 'tls' / 'server.crt')}:{port}"


def options_given(home: OperatorFolder) -> dict[str, str]:
    """Return the options of the last `privirec server up`; flags have an empty value."""
    given = _remembered(home)[1]
    return {
        word: following if not following.startswith("--") else ""
        for word, following in zip(given, [*given[1:], ""], strict=True)
        if word.startswith("--")
    }


def running_version(home: OperatorFolder) -> str:
    """Return the version of the server that was last up; empty if there is no record."""
    return _record(home)[2]


def _remembered(home: OperatorFolder) -> tuple[str, list[str]]:
    """Return the recorded carrier and options; empty if there is no record."""
    carrier, options, _ = _record(home)
    try:
        return carrier, shlex.split(options)
    except ValueError:
        return carrier, []


def _record(home: OperatorFolder) -> tuple[str, str, str]:
    try:
        told = (home.folder / "carrier").read_text(encoding="utf-8", errors="replace")
    except OSError:  # no server was up yet
        return "", "", ""
    first, second, third, *_ = [*told.split("\n"), "", "", ""]
    return first, second, third


def check_up(home: OperatorFolder) -> str:
    """Return the carrier of the running server; raise FederationError if no server is up."""
    carrier = carrier_up(home)
    if carrier is None:
        raise FederationError(f"nobody listens: {how_to_start(home)}")
    return carrier
