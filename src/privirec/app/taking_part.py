"""The work of `privirec client up`: check a client's folder, or stay connected to its server."""

from __future__ import annotations

import logging
import shlex
import sys
from contextlib import closing
from pathlib import Path

from privirec.data.catalogue import read_catalogue
from privirec.errors import UsageError
from privirec.privacy.policy import Policy
from privirec.runtime.carriers import carrier_of
from privirec.runtime.enrolment.folders import ClientFolder, check_address
from privirec.runtime.https.connection import trusting

log = logging.getLogger("privirec.client")


def check(folder: Path, server: str | None = None) -> None:
    """Check keys, roster, policy and histories, and print what the owner should know."""
    home = ClientFolder(folder)
    with closing(home.node()) as node:
        client, memory = node.client, node.memory
        opened, spoilt = memory.opened_share(), memory.spoilt()
    _check_certificate(folder)
    if address := server or home.settings.server:
        check_address(address)
        _say(f"Its server is {address}. To connect to it, give the command without --check.")
    else:
        _warn(f"No server is known yet: {_joining(folder)}")
    found, unknown = home.histories().preview(read_catalogue(folder / "catalogue.txt"))
    _say(f"Client {client}: {found.n_users:,} users, {found.n_interactions:,} interactions")
    if unknown:
        _warn(f"Left out: {unknown:,} interactions with items that catalogue.txt does not have.")
    allowed = Policy.load(folder / "policy.toml")
    if not allowed.takes_part:
        _warn("policy.toml says takes_part = false: this client takes part in nothing.")
    elif not allowed.computations:
        _warn("policy.toml names no computations: this client takes part in no exact run.")
    _say(
        f"Opened by sums so far: {opened:.3f} of the item-item matrix; "
        f"its policy allows {allowed.largest_opened_share}"
    )
    for run, claim in spoilt.items():
        _warn(
            f"Run {run[:8]} is spoilt: the server claimed {claim}, which cannot be. Its model "
            "was not installed. The server does not know; talk to the operator, or leave."
        )


def stay(folder: Path, server: str | None = None) -> None:
    """Stay connected and answer the requests that the policy allows, until interrupted."""
    home = ClientFolder(folder)
    address = server or home.settings.server
    _check_certificate(folder)
    if not address:
        raise UsageError(f"no server is known: {_joining(folder)}")
    check_address(address)
    carrier_of(address).stay(folder, address, _tell)


def _check_certificate(folder: Path) -> None:
    if not (folder / "ca.crt").is_file():
        raise UsageError(f"{folder / 'ca.crt'}: no certificate to know the server by")
    trusting(folder / "ca.crt")


def _joining(folder: Path) -> str:
    """Return the command that tells a client the address of its server."""
    where = shlex.quote(str(folder))
    return f"privirec client join {where} --roster ROSTER --server https://HOST:PORT"


def _tell(line: str) -> None:
    _say(line)
    log.info("%s", line)


def _say(line: str) -> None:
    """Print a line to standard output; `privirec.rows` would import rich on a device."""
    print(line, flush=True)


def _warn(line: str) -> None:
    """Print a line to standard error, in yellow on a terminal."""
    yellow = f"\x1b[33m{line}\x1b[0m" if sys.stderr.isatty() else line
    print(yellow, file=sys.stderr, flush=True)
