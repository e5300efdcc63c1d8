"""Whether a server is up in an operator's folder, and which carrier it has.

SERVER/carrier                      the one that it had last, and the options that were given
SERVER/flower/.lock, https/.lock    held by `privirec server up` while it is up
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from privirec.durable import is_taken, write_whole
from privirec.errors import FederationError
from privirec.runtime.network.enrolment.folders import OperatorFolder

FLOWER, HTTPS = "flower", "https"
CARRIERS = (FLOWER, HTTPS)


def remember(home: OperatorFolder, carrier: str, given: Sequence[str] = ()) -> None:
    """So that whoever finds the server down can be told how to start it. `given`: the options of
    `privirec server up`, as words."""
    write_whole(home.folder / "carrier", f"{carrier}\n{shlex.join(given)}".encode())


def carrier_up(home: OperatorFolder) -> str | None:
    """Of the server that is up; None if nobody listens."""
    return next((name for name in CARRIERS if is_taken(home.folder / name)), None)


def last_carrier(home: OperatorFolder) -> str:
    """Of the server that is up, or was last."""
    if up := carrier_up(home):
        return up
    told, _ = _remembered(home)
    if told in CARRIERS:
        return told
    had = [name for name in CARRIERS if (home.folder / name).is_dir()]
    return HTTPS if had == [HTTPS] else FLOWER


def how_to_start(home: OperatorFolder) -> str:
    """The command that brings the server up as it was last."""
    told, given = _remembered(home)
    carrier = last_carrier(home)
    if carrier != told or (carrier == HTTPS) != ("--carrier" in given):
        given = ["--carrier", HTTPS] if carrier == HTTPS else []
    return shlex.join(["privirec", "server", "up", str(home.folder), *given])


def _remembered(home: OperatorFolder) -> tuple[str, list[str]]:
    """The carrier that a server had last, and the options that it was given."""
    try:
        told = (home.folder / "carrier").read_text(encoding="utf-8", errors="replace")
    except OSError:  # of a version that did not write it down
        return "", []
    carrier, _, options = told.partition("\n")
    try:
        return carrier, shlex.split(options)
    except ValueError:
        return carrier, []


def check_up(home: OperatorFolder) -> str:
    """The carrier of the server that is up; refuses where there is none."""
    carrier = carrier_up(home)
    if carrier is None:
        raise FederationError(f"nobody listens: {how_to_start(home)}")
    return carrier
