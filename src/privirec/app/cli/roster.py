"""Commands of `privirec server` for the operator: keys, the roster, and test certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from privirec.app.cli.options import Yes, agree
from privirec.errors import UsageError
from privirec.rows import print_table, say, warn
from privirec.runtime import serving
from privirec.runtime.carriers import HTTPS
from privirec.runtime.enrolment.cards import Card, Rotation
from privirec.runtime.enrolment.certificates import make_certificates
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.enrolment.identities import fingerprint, is_told, make_identity, read_identity
from privirec.runtime.enrolment.roster import RosterFile

app = typer.Typer()

Folder = Annotated[Path, typer.Argument(help="The operator's folder.", metavar="SERVER")]
Number = Annotated[int, typer.Argument(help="Number of the client in the roster.", min=0)]
OperatorKey = Annotated[
    Path | None,
    typer.Option(help="Path of the operator's key, if it is not in the folder."),
]


@app.command()
def new(folder: Folder) -> None:
    """Create an operator's folder, with its keys and an empty roster.

    `operator.key` only signs rosters, and need not be on the server; `run.key` is the server's key.
    """
    home = OperatorFolder.create(folder)
    say(f"Operator {home.operator} in {folder}")
    say(f"Fingerprint {fingerprint(home.operator)}")
    say("Tell clients one of them by a way that nobody on the network can change.")
    if (folder / "operator.key").exists():
        say(
            f"The server does not need {folder / 'operator.key'}: move it to where the server "
            "cannot read it, and give --operator-key PATH when the roster changes."
        )


@app.command()
def approve(
    folder: Folder,
    cards: Annotated[list[Path], typer.Argument(help="Cards of clients.", metavar="CARD...")],
    fingerprints: Annotated[
        list[str] | None,
        typer.Option(
            "--fingerprint", help="Fingerprint that the client read out; one per card, in order."
        ),
    ] = None,
    operator_key: OperatorKey = None,
    yes: Yes = False,
) -> None:
    """Add clients to the roster, after comparing their fingerprints.

    Anyone who can change a card in transit can put their own key into it. So ask the client to read
    out the fingerprint that `client new` printed there, for example by telephone.
    """
    home = OperatorFolder(folder)
    before = members = _signable(home, operator_key)
    if fingerprints and len(fingerprints) != len(cards):
        raise UsageError(f"{len(fingerprints)} fingerprints for {len(cards)} cards")
    for place, path in enumerate(cards):
        card = Card.read(path)
        say(f"{path}: {card.name}, fingerprint {fingerprint(card.key)}")
        if not fingerprints:
            agree("Does the client read out the same fingerprint?", yes=yes)
        elif not is_told(card.key, fingerprints[place]):
            raise UsageError(f"{path}: not the fingerprint that was given; nothing was changed")
        members = members.approve(card)
    _save(home, before, members, operator_key, yes=True)


@app.command()
def revoke(
    folder: Folder, client: Number, operator_key: OperatorKey = None, yes: Yes = False
) -> None:
    """Remove a client from the roster; its number and keys are never assigned to another."""
    home = OperatorFolder(folder)
    before = _signable(home, operator_key)
    _save(home, before, before.revoke(client), operator_key, yes=yes)


@app.command()
def accept(
    folder: Folder,
    rotation: Annotated[Path, typer.Argument(help="A client's rotation.json.")],
    operator_key: OperatorKey = None,
    yes: Yes = False,
) -> None:
    """Replace a client's keys by new ones, which its old key has signed (see `client rotate`)."""
    home = OperatorFolder(folder)
    before = _signable(home, operator_key)
    _save(home, before, before.rotate(Rotation.read(rotation)), operator_key, yes=yes)


@app.command("run-key")
def run_key(folder: Folder, operator_key: OperatorKey = None, yes: Yes = False) -> None:
    """Replace the server's key, for example because others may have seen the old one.

    Run this where the operator's key is, then copy run.key and the roster to the server.
    """
    home = OperatorFolder(folder)
    before = _signable(home, operator_key)
    fresh = folder / "run.key.new"
    make_identity(fresh)
    try:
        members = before.name_server(read_identity(fresh).public.hex())
        _save(home, before, members, operator_key, yes=yes)
        fresh.replace(folder / "run.key")
    finally:
        fresh.unlink(missing_ok=True)
    say(f"If the server is elsewhere, bring it {folder / 'run.key'} and the roster: server update.")


@app.command()
def update(
    folder: Folder,
    roster: Annotated[Path, typer.Option(help="Roster that the operator signed elsewhere.")],
    yes: Yes = False,
) -> None:
    """Install a newer roster in a server's folder that has no operator's key."""
    home = OperatorFolder(folder)
    found = home.offered(roster)
    show_changes(found, home.members)
    agree(f"Put roster {found.number} in place?", yes=yes)
    home.install(found)
    try:
        _ = home.server
    except UsageError as error:
        warn(f"{error}: bring the new run.key as well")
    if serving.carrier_up(home) == HTTPS:
        say(f"Roster {found.number} is in place; the server that is up reads it by itself.")
    else:
        say(f"Roster {found.number} is in place. Restart: {serving.how_to_start(home)}")


@app.command()
def clients(folder: Folder) -> None:
    """List the clients on the roster."""
    home = OperatorFolder(folder)
    rows: list[dict[str, Any]] = [
        {
            "client": member.client,
            "name": member.name,
            "fingerprint": fingerprint(member.key),
            "state": "revoked" if member.revoked else "approved",
        }
        for member in home.members.members
    ]
    columns = [(key, key) for key in ("client", "name", "fingerprint", "state")]
    print_table(f"Operator {home.operator}, roster {home.members.number}", columns, rows)


@app.command()
def certificates(
    folder: Folder,
    names: Annotated[
        list[str], typer.Option("--name", help="Host name or address of the server.")
    ] = ["localhost", "127.0.0.1"],  # noqa: B006 - typer copies it
    days: Annotated[int, typer.Option(min=1, help="Days that they are valid.")] = 90,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace existing certificates.")
    ] = False,
) -> None:
    """Create certificates for tests; in production, use the operator's own authority."""
    OperatorFolder(folder).check()
    if (folder / "tls/server.key").exists() and not replace:
        raise UsageError(
            f"{folder / 'tls'} has certificates; --replace makes new ones, under an authority that "
            "clients do not know yet"
        )
    make_certificates(folder / "tls", names, days=days)
    say(f"Server certificate for {', '.join(names)} in {folder / 'tls'}, valid {days} days.")
    say(f"Give {folder / 'tls' / 'ca.crt'} to every client as ca.crt.")


def show_changes(found: RosterFile, before: RosterFile | None) -> None:
    """Print the clients that were approved, changed or revoked between two rosters."""
    rows: list[dict[str, Any]] = [
        {
            "what": what,
            "client": str(member.client) if member else "",
            "name": member.name if member else "",
            "fingerprint": fingerprint(key),
        }
        for what, member, key in found.since(before)
    ]
    title = f"Roster {found.number}" + (f", after roster {before.number}" if before else "")
    if not rows:
        say(f"{title}: nothing has changed")
        return
    columns = [(key, key) for key in ("what", "client", "name", "fingerprint")]
    print_table(title, columns, rows)


def _signable(home: OperatorFolder, operator_key: Path | None) -> RosterFile:
    """Return the roster; raise UsageError if the key to sign the next one is missing.

    Called before anything is shown or asked.
    """
    members = home.members
    try:
        home.signed(members, operator_key)
    except UsageError as error:
        raise UsageError(f"nothing was changed: {error}") from None
    return members


def _save(
    home: OperatorFolder,
    before: RosterFile,
    members: RosterFile,
    operator_key: Path | None,
    *,
    yes: bool,
) -> None:
    """Show the changes, ask for confirmation, and sign the new roster."""
    show_changes(members, before)
    agree(f"Sign roster {members.number}?", yes=yes)
    home.save(members, operator_key)
    say(f"Give {home.folder / 'roster.json'} to every client: privirec client join.")
