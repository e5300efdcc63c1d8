"""`privirec keys`: identities, the roster, and certificates for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from privirec.durable import write_whole
from privirec.errors import UsageError
from privirec.report.rows import print_table, say
from privirec.runtime.network.enrolment.certificates import make_certificates
from privirec.runtime.network.enrolment.folders import ClientFolder, OperatorFolder
from privirec.runtime.network.enrolment.identities import make_identity, make_node_key
from privirec.runtime.network.messages import one_line

app = typer.Typer(
    help="Who takes part: identities, the roster, certificates.",
    no_args_is_help=True,
    add_completion=False,
)

Folder = Annotated[Path, typer.Argument(help="The operator's folder.", metavar="SERVER")]
Own = Annotated[Path, typer.Argument(help="The client's folder.", metavar="CLIENT")]
Number = Annotated[int, typer.Argument(help="Number of the client in the roster.", min=0)]


class Card(BaseModel):
    """What a client gives to the operator: public keys and a name."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, AfterValidator(one_line)] = Field(min_length=1, max_length=100)
    key: str = Field(pattern="^[0-9a-f]{64}$")
    node: str = Field(pattern=r"^ecdsa-sha2-\S+ \S+")

    @classmethod
    def read(cls, path: Path) -> Card:
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError:
            raise UsageError(f"{path}: not a card made by: privirec keys new") from None


@app.command()
def operator(folder: Folder) -> None:
    """Make an operator's folder, with its signing key and an empty roster."""
    home = OperatorFolder.create(folder)
    say(f"Operator {home.operator.public.hex()} in {folder}")
    say("Tell clients this key by a way that nobody on the network can change.")


@app.command()
def new(
    folder: Own,
    name: Annotated[str, typer.Option(help="Who this client is, for the operator.")],
) -> None:
    """Make a client's folder with its keys, and `card.json` for the operator."""
    home = ClientFolder.create(folder)
    write_whole(folder / "card.json", json.dumps(home.card(name), indent=2).encode())
    say(f"Client key {home.identity.public.hex()}")
    say(f"Send {folder / 'card.json'} to the operator; it holds public keys only.")


@app.command()
def approve(
    folder: Folder,
    cards: Annotated[list[Path], typer.Argument(help="Cards of clients.", metavar="CARD...")],
) -> None:
    """Take clients into the roster."""
    home = OperatorFolder(folder)
    members = home.members
    for path in cards:
        card = Card.read(path)
        members = members.approve(card.name, card.key)
        added = members.members[-1]
        write_whole(folder / f"nodes/{added.client}.pub", card.node.encode() + b"\n")
        say(f"Client {added.client}: {added.name}, key {added.key[:16]}")
    home.save(members)
    say(f"Give {folder / 'roster.json'} to every client: privirec keys join.")


@app.command()
def revoke(folder: Folder, client: Number) -> None:
    """Take a client out of the roster; its number is never given to another."""
    home = OperatorFolder(folder)
    home.save(home.members.revoke(client))
    say(f"Client {client} is revoked. Give the new roster to every client.")


@app.command()
def rotate(
    folder: Folder,
    client: Number,
    card: Annotated[Path, typer.Argument(help="The client's new card.")],
) -> None:
    """Put a client's new keys in place of its old ones."""
    home = OperatorFolder(folder)
    found = Card.read(card)
    home.save(home.members.rotate(client, found.key))
    write_whole(folder / f"nodes/{client}.pub", found.node.encode() + b"\n")
    say(f"Client {client} has key {found.key[:16]} now. Give the new roster to every client.")


@app.command()
def renew(
    folder: Own,
    name: Annotated[str, typer.Option(help="Who this client is, for the operator.")],
) -> None:
    """Make new keys for a client, and a new card; the old ones are gone."""
    home = ClientFolder(folder)
    _ = home.identity
    make_identity(folder / "identity.key")
    make_node_key(folder)
    write_whole(folder / "card.json", json.dumps(home.card(name), indent=2).encode())
    say(f"Client key {home.identity.public.hex()}")
    say(f"Send {folder / 'card.json'} to the operator: privirec keys rotate.")


@app.command()
def join(
    folder: Own,
    roster: Annotated[Path, typer.Option(help="The operator's roster.json.")],
    operator_key: Annotated[
        str | None,
        typer.Option("--operator", help="The operator's key, as you were told it."),
    ] = None,
    server: Annotated[str, typer.Option(help="host:port of the server.")] = "",
    histories: Annotated[
        str | None, typer.Option(help="Store (.db) or file with the histories, in the folder.")
    ] = None,
) -> None:
    """Take the operator's roster in, the first time and after every change."""
    home = ClientFolder(folder)
    first = not (folder / "client.json").exists()
    if first and operator_key is None:
        raise UsageError("the first time, give the operator's key: --operator KEY")
    number = home.join(roster, operator=operator_key, server=server)
    if histories is not None:
        home.write(home.settings.model_copy(update={"histories": histories}))
    say(f"Client {number} of operator {home.settings.operator[:16]}")


@app.command("list")
def list_(folder: Folder) -> None:
    """Show the roster."""
    home = OperatorFolder(folder)
    rows: list[dict[str, Any]] = [
        {
            "client": member.client,
            "name": member.name,
            "key": member.key[:16],
            "state": "revoked" if member.revoked else "approved",
        }
        for member in home.members.members
    ]
    columns = [(key, key) for key in ("client", "name", "key", "state")]
    print_table(f"Operator {home.operator.public.hex()}", columns, rows)


@app.command()
def certificates(
    folder: Folder,
    names: Annotated[
        list[str], typer.Option("--name", help="Host name or address of the server.")
    ] = ["localhost", "127.0.0.1"],  # noqa: B006 - typer copies it
    days: Annotated[int, typer.Option(min=1, help="How long they are valid.")] = 90,
    replace: Annotated[
        bool, typer.Option("--replace", help="In place of the ones that are there.")
    ] = False,
) -> None:
    """Make certificates for tests; in production the operator's own authority makes them."""
    OperatorFolder(folder).check()
    if (folder / "tls/server.key").exists() and not replace:
        raise UsageError(
            f"{folder / 'tls'} has certificates; --replace makes new ones, under an authority that "
            "clients do not know yet"
        )
    make_certificates(folder / "tls", names, days=days)
    say(f"Server certificate for {', '.join(names)} in {folder / 'tls'}, valid {days} days.")
    say(f"Give {folder / 'tls' / 'ca.crt'} to every client as ca.crt.")
