"""The work of `privirec client up`: check a client's folder, or stay connected to its server."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from contextlib import closing
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from privirec.data.catalogue import read_catalogue
from privirec.errors import DataError, FederationError, UsageError
from privirec.privacy.policy import Policy
from privirec.runtime.carriers import carrier_of
from privirec.runtime.enrolment.folders import ClientFolder, check_address, is_https
from privirec.runtime.enrolment.identities import fingerprint
from privirec.runtime.health import Level, authorities, reached
from privirec.runtime.https.connection import trusting
from privirec.runtime.https.limits import TITLES_FILE

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
        _ask(folder, address)
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
    if unknown and not found.n_interactions:
        raise DataError(
            f"{folder}: none of the {unknown:,} interactions is with an item of catalogue.txt, so "
            "this client would contribute nothing; add the history again with privirec device "
            "import, which matches titles"
        )


def join(folder: Path, link: str, history: Path | None) -> None:
    """Enrol a client with an invitation link, and import a file of histories."""
    from privirec.runtime.enrolment.invitations import (  # noqa: PLC0415 - not for `client up`
        Invitation,
        in_lines,
    )
    from privirec.runtime.https.joining import Joining  # noqa: PLC0415

    invitation = Invitation.parse(link)
    if history is not None and not history.is_file():
        raise UsageError(f"{history}: no such file")
    for line in in_lines(invitation):
        _say(line)
    home = ClientFolder(folder)
    number = Joining(invitation, home, _say).join()
    members = home.members
    _say(
        f"Client {number} of {len(members.roster())}, roster {members.number}; "
        f"own fingerprint {fingerprint(home.identity.public.hex())}"
    )
    if (titles := folder / TITLES_FILE).exists():
        _take_titles(titles, folder / home.settings.histories)
    if history is not None:
        _import(history, folder / home.settings.histories)


def _import(source: Path, store: Path) -> None:
    """Add the histories in a file to a store, as `privirec device import` does."""
    from privirec.app.importing import ImportOptions, import_file  # noqa: PLC0415
    from privirec.data.columns import TableOptions  # noqa: PLC0415 - not for `client up`

    for sentence in import_file(source, store, TableOptions(), ImportOptions()).sentences:
        _say(sentence)


def _take_titles(titles: Path, store: Path) -> None:
    """Add the titles that came with the catalogue to a store."""
    from privirec.device.store import Store  # noqa: PLC0415 - not for `client up`
    from privirec.device.titles import read_titles_and_links  # noqa: PLC0415

    with Store(store, create=True) as opened:
        opened.set_titles(*read_titles_and_links(titles))


def become(folder: Path) -> NoReturn:
    """Replace this process by `privirec client up`, which needs far less memory."""
    sys.stdout.flush()
    command = [sys.executable, "-P", "-m", "privirec", "client", "up", str(folder)]
    os.execv(sys.executable, command)  # noqa: S606


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
    for found in authorities(trusting(folder / "ca.crt"), folder / "ca.crt"):
        if found.level is not Level.OK:
            _warn(f"{found.said}. Ask the operator for the next ca.crt.")


def _ask(folder: Path, address: str) -> None:
    """Connect to an HTTPS server as in a run, and print what was found."""
    if not is_https(address):
        return
    parts = urlsplit(address)
    host = str(parts.hostname)
    try:
        found = reached(host, parts.port or 443, trusting(folder / "ca.crt"), host)
    except FederationError as error:
        _warn(f"Its server cannot be used now: {error}")
        return
    for each in found:
        (_say if each.level is Level.OK else _warn)(f"Its server: {each.said}")


def _joining(folder: Path) -> str:
    """Return the command that tells a client the address of its server."""
    where = shlex.quote(str(folder))
    return f"privirec client roster {where} --file ROSTER --server https://HOST:PORT"


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
