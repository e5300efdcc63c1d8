"""`privirec client`: take part in an operator's federation, and see what left the client."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from privirec.app import taking_part
from privirec.app.cli import options
from privirec.app.cli.options import Yes, agree
from privirec.app.cli.roster import show_changes
from privirec.durable import write_whole
from privirec.errors import UsageError
from privirec.privacy.policy import Policy
from privirec.rows import print_table, say, warn, write_json_lines
from privirec.runtime.enrolment.delivery import waiting_roster
from privirec.runtime.enrolment.folders import ClientFolder, check_address, is_https
from privirec.runtime.enrolment.identities import fingerprint

app = typer.Typer(
    help="Take part in a federation: keys, policy, privacy budget.",
    no_args_is_help=True,
    add_completion=False,
)

Folder = Annotated[Path, typer.Argument(help="The client's folder.", metavar="CLIENT")]

_BUDGET_COLUMNS = [
    ("at", "when"),
    ("run", "run"),
    ("computed", "computed"),
    ("sums", "sums"),
    ("bytes_up", "sent"),
    ("bytes_down", "received"),
    ("epsilon", "epsilon"),
    ("epsilon_replacing", "for replacing"),
    ("server", "server's key"),
]


@app.command()
def new(
    folder: Folder,
    name: Annotated[str, typer.Option(help="Name of this client, for the operator.")],
) -> None:
    """Create a client's folder with its keys, and `card.json` for the operator."""
    if (folder / "identity.key").exists():
        raise UsageError(
            f"{folder} has keys already, and their card is {folder / 'card.json'}: choose another "
            "folder; new keys for the same client are made by: privirec client rotate"
        )
    home = ClientFolder.create(folder)
    card = home.card(name)
    write_whole(folder / "card.json", card.as_file())
    say(f"Client key {card.key}")
    say(f"Fingerprint {fingerprint(card.key)}")
    say(f"Send {folder / 'card.json'} to the operator; it holds public keys only.")
    say("The operator will ask you to read the fingerprint out.")


@app.command()
def rotate(folder: Folder) -> None:
    """Create new keys, and `rotation.json` for the operator; the old keys stay in use until then.

    The old key signs the new one, so that no one else, not even the operator, can replace your key.
    """
    rotation = ClientFolder(folder).rotate()
    write_whole(folder / "rotation.json", rotation.as_file())
    say(f"New fingerprint {fingerprint(rotation.card.key)}")
    say(f"Send {folder / 'rotation.json'} to the operator: privirec server accept.")
    say("The new keys are used as soon as a roster has them.")


@app.command()
def join(
    link: Annotated[str, typer.Argument(help="The operator's invitation: privirec server invite.")],
    folder: Annotated[
        Path, typer.Argument(help="Folder for this client.", metavar="[CLIENT]")
    ] = Path("client"),
    history: Annotated[
        Path | None, typer.Option(help="Also import this file into the client's store.")
    ] = None,
    start: Annotated[
        bool, typer.Option("--up", help="Then stay connected, like: privirec client up.")
    ] = False,
) -> None:
    """Enrol with an invitation link: create keys, get approved, fetch roster and catalogue.

    The link tells this client how to recognise the server and the operator, so send or compare it
    by a way that nobody else can change. If anything interrupts it, the same command goes on.

    Examples:

      privirec client join LINK

      privirec client join LINK lyon --history purchases.csv --up
    """
    taking_part.join(folder, link, history)
    if start:
        taking_part.become(folder)
    where = shlex.quote(str(folder))
    if not ClientFolder(folder).histories_exist:
        say(f"Next: privirec device import FILE --store {where}/history.db")
    say(f"Take part: privirec client up {where}")


@app.command()
def roster(
    folder: Folder,
    file: Annotated[
        Path | None,
        typer.Option(help="Roster as a file (default: the one that the server has delivered)."),
    ] = None,
    operator_key: Annotated[
        str | None,
        typer.Option("--operator", help="The operator's key or fingerprint, as told to you."),
    ] = None,
    server: Annotated[
        str, typer.Option(help="Server: https://host[:port], or host:port for Flower.")
    ] = "",
    histories: Annotated[
        str | None, typer.Option(help="Store (.db) or file with the histories, in CLIENT.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Consent to a roster that waits, or install one from a file without an invitation.

    Shows the clients that were approved or revoked, and asks for confirmation. A roster that is
    older than the installed one, or that does not descend from it, is refused. Clients fetch
    rosters themselves; policy.toml says which changes they accept without asking.
    """
    home = ClientFolder(folder)
    home.check()
    if server:
        check_address(server)
    if file is None and (waiting := waiting_roster(home)) is not None:
        found = waiting
    elif file is None:
        show_changes(home.members, None)
        say("No roster waits for your consent.")
        return
    elif not home.has_joined and operator_key is None:
        raise UsageError("the first time, give the operator's key: --operator KEY")
    else:
        found = home.offered(file, operator=operator_key)
    show_changes(found, home.members if home.has_joined else None)
    agree(f"Take part with these {len(found.roster())} clients?", yes=yes)
    is_first = not home.has_joined
    number = home.join(found, server=server)
    if histories is not None:
        home.write(home.settings.model_copy(update={"histories": histories}))
    say(f"Client {number} of operator {home.settings.operator[:16]}, roster {found.number}")
    if not is_first and is_https(home.settings.server):
        say("If it is running, it goes on with this by itself.")
    elif not is_first:
        say(f"If it is running, start it again: privirec client up {shlex.quote(str(folder))}")


@app.command()
def up(
    folder: Folder,
    server: Annotated[
        str | None,
        typer.Option(
            help="Server: https://host[:port], or host:port for Flower (default: the one joined)."
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check keys, roster, policy and histories, then exit.")
    ] = False,
) -> None:
    """Stay connected to the server and answer what the policy allows, until interrupted."""
    if check:
        taking_part.check(folder, server)
    else:
        taking_part.stay(folder, server)


@app.command()
def rollback(folder: Folder, yes: Yes = False) -> None:
    """Use the model before the last one again, on this client alone."""
    from privirec.device.installed import Installed  # noqa: PLC0415 - not for --help

    model = Installed(ClientFolder(folder).folder / "model")
    versions = model.versions()
    if len(versions) < 2:
        raise UsageError(f"{folder}: there is no earlier model here")
    agree(f"Use the model {versions[1][:16]} in place of {versions[0][:16]}?", yes=yes)
    model.go_back()
    say(f"The model {versions[1][:16]} is used again; the next run brings a new one.")


@app.command()
def budget(
    folder: Folder,
    json_file: options.Json = None,
) -> None:
    """Show which data left a client, and how much of the privacy budget is left.

    Each line shows the time, the computation, the server and the bytes. Epsilon bounds what all
    sums with noise together can reveal about a person, to anyone who collects them. It does not add
    up run by run: twelve runs of epsilon 2 are about 8 together. The record belongs to the client;
    each line is sealed with the client's key, and no server can reset it.
    """
    from privirec.app.budget import statement_of  # noqa: PLC0415 - not for --help

    found = statement_of(folder)
    write_json_lines(json_file, [*found.rows, {"total": True, **found.totals}])
    if found.rows:
        print_table(
            f"Client {folder}, at delta {found.totals['delta']:g}", _BUDGET_COLUMNS, found.rows
        )
    for sentence in found.warnings:
        warn(sentence)
    for sentence in found.sentences():
        say(sentence)
    if not found.is_whole:
        raise typer.Exit(1)


@app.command()
def policy(
    folder: Folder,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change NAME=VALUE in policy.toml; may be given several times."),
    ] = None,
) -> None:
    """Explain in plain words what a client agrees to, after applying any changes.

    Examples:

      privirec client policy client --set takes_part=false

      privirec client policy client --set most_epsilon=4 --set 'computations=["item-degrees"]'
    """
    from privirec.app import own_policy  # noqa: PLC0415

    _ = ClientFolder(folder).identity  # raises an error if this is not a client's folder
    changes = {}
    for each in settings or ():
        name, equals, value = each.partition("=")
        if not equals:
            raise UsageError(f"{each!r} is not NAME=VALUE")
        changes[name.strip()] = own_policy.from_text(value.strip())
    if changes:
        for line in own_policy.change(folder, changes) or ["Nothing was changed."]:
            say(line)
    for sentence in own_policy.in_words(Policy.load(folder / own_policy.FILE)):
        say(sentence)
