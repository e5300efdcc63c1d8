"""Commands of `privirec server` for the operator: keys, the roster, and test certificates."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from privirec.app.cli import options
from privirec.app.cli.options import Yes, agree
from privirec.data.catalogue import read_catalogue
from privirec.device.titles import TITLES_FILE, read_titles
from privirec.durable import write_whole
from privirec.errors import UsageError
from privirec.rows import print_table, say, warn
from privirec.runtime import serving
from privirec.runtime.carriers import HTTPS
from privirec.runtime.enrolment.cards import Card, Rotation
from privirec.runtime.enrolment.certificates import make_certificates
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.enrolment.identities import fingerprint, is_told, make_identity, read_identity
from privirec.runtime.enrolment.invitations import DAYS, Invitation, Invitations
from privirec.runtime.enrolment.roster import RosterFile

app = typer.Typer()

CERTIFICATE_DAYS = 90
"""Days for which certificates for tests are valid."""

Folder = Annotated[Path, typer.Argument(help="The operator's folder.", metavar="SERVER")]
Number = Annotated[int, typer.Argument(help="Number of the client in the roster.", min=0)]
OperatorKey = Annotated[
    Path | None,
    typer.Option(help="Path of the operator's key, if it is not in the folder."),
]


@app.command()
def new(
    folder: Folder,
    catalogue: Annotated[
        Path | None, typer.Option(help="File with one item id per line, in the model's order.")
    ] = None,
    titles: Annotated[
        Path | None, typer.Option(help="Titles for clients: item_id, title and optionally link.")
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--name", help="Also make certificates for this host name or address."),
    ] = None,
) -> None:
    """Create an operator's folder, with its keys and an empty roster.

    `operator.key` only signs rosters, and need not be on the server; `run.key` is the server's key.

    Examples:

      privirec server new server

      privirec server new server --catalogue items.txt --name fed.example.org
    """
    if catalogue is not None:
        read_catalogue(catalogue)
    if titles is not None:
        read_titles(titles)
    home = OperatorFolder.create(folder)
    if catalogue is not None:
        write_whole(folder / "catalogue.txt", catalogue.read_bytes())
    if titles is not None:
        write_whole(folder / TITLES_FILE, titles.read_bytes())
    if names and not (folder / "tls/server.key").exists():
        make_certificates(folder / "tls", names, days=CERTIFICATE_DAYS)
        say(f"Server certificate for {', '.join(names)}, valid {CERTIFICATE_DAYS} days.")
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
    cards: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Cards of clients (default: clients that were invited and wait for approval).",
            metavar="[CARD...]",
        ),
    ] = None,
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
    if not cards:
        waiting = [each.card for each in Invitations(home).waiting() if each.card]
        if not waiting:
            raise UsageError("no invited client waits for approval; name the cards to approve")
        for card in waiting:
            say(f"{card.name} came with its invitation, fingerprint {fingerprint(card.key)}")
            members = members.approve(card)
        _save(home, before, members, operator_key, yes=yes)
        return
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
def invite(
    folder: Folder,
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of the clients.", metavar="[NAME...]")
    ] = None,
    listed: Annotated[
        Path | None,
        typer.Option("--list", help="CSV file with one name per line, or a column `name`."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="CSV file to write names and links to.", callback=options.writable_file),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="https://HOST:PORT for clients (default: name in the certificate)."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days until the links expire.")] = DAYS,
    by_hand: Annotated[
        bool,
        typer.Option("--by-hand", help="Approve the clients yourself: privirec server approve."),
    ] = False,
    withdraw: Annotated[bool, typer.Option(help="Withdraw unused invitations instead.")] = False,
) -> None:
    """Print a link for each client, with which it enrols itself once: privirec client join LINK.

    Whoever has a link can enrol under its name, so send it to one person, by a way that others do
    not read. The server approves a client that comes with a valid link; that needs operator.key in
    its folder. Without the key, or with --by-hand, clients wait for `privirec server approve`.

    Examples:

      privirec server invite server lyon oslo porto

      privirec server invite server --list names.csv --out links.csv
    """
    home = OperatorFolder(folder)
    wanted = [*(names or ()), *(_listed(listed) if listed else ())]
    if not wanted:
        raise UsageError("name at least one client, or give --list FILE")
    invitations = Invitations(home)
    if withdraw:
        for name in wanted:
            invitations.withdraw(name)
        say(f"Withdrawn: {', '.join(wanted)}")
        return
    options.refuse_to_replace([out] if out else [])
    server = address or serving.address(home)
    made = invitations.make(wanted, server, days=days, by_hand=by_hand)
    if out is not None:
        _write_links(out, made)
        say(f"{len(made)} links in {out}; each enrols one client, for {days} days.")
    else:
        for each in made:
            typer.echo(f"{each.name}: privirec client join {each.link}")
    if by_hand or not home.has_operator_key:
        say(f"Approve those who came: privirec server approve {shlex.quote(str(folder))}")


def _write_links(out: Path, made: Iterable[Invitation]) -> None:
    """Write a CSV file with the names and links of invitations."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["name", "link"])
    writer.writerows([each.name, each.link] for each in made)
    write_whole(out, text.getvalue().encode())


def _listed(path: Path) -> list[str]:
    """Return the names in a file: its column `name`, or its first column."""
    try:
        rows = [row for row in csv.reader(path.read_text("utf-8-sig").splitlines()) if any(row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: not a readable list ({error})") from None
    heads = [head.strip().lower() for head in rows[0]] if rows else []
    column = heads.index("name") if "name" in heads else 0
    return [row[column].strip() for row in rows["name" in heads :] if len(row) > column]


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
        key = read_identity(fresh).public.hex()
        # Without the old key, which may be lost, every client asks its owner.
        is_known = home.has_server_key
        members = before.renew_server(home.server, key) if is_known else before.name_server(key)
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
    invitations = Invitations(home)
    rows += [
        {"name": each.name, "state": f"invited until {each.expires:%Y-%m-%d %H:%M}"}
        for each in invitations.open()
    ]
    rows += [
        {
            "name": each.name,
            "fingerprint": fingerprint(each.card.key) if each.card else "",
            "state": "waits for approval",
        }
        for each in invitations.waiting()
    ]
    columns = [(key, key) for key in ("client", "name", "fingerprint", "state")]
    print_table(f"Operator {home.operator}, roster {home.members.number}", columns, rows)


@app.command()
def certificates(
    folder: Folder,
    names: Annotated[
        list[str], typer.Option("--name", help="Host name or address of the server.")
    ] = ["localhost", "127.0.0.1"],  # noqa: B006 - typer copies it
    days: Annotated[int, typer.Option(min=1, help="Days that they are valid.")] = CERTIFICATE_DAYS,
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
    with home.changing():
        if home.members.number != before.number:
            raise UsageError("the roster has changed meanwhile; nothing was changed: start again")
        home.save(members, operator_key)
    say("Clients fetch it from the server that is up; those behind Flower need the file.")
