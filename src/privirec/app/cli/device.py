"""`privirec device`: a person's own history, and the page that shows it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from privirec.app.cli import options
from privirec.app.cli.table_options import reads_tables
from privirec.app.history import ONLY_USER, counted, forgetting, only_user, used_by_runs
from privirec.data.columns import TableOptions
from privirec.data.formats import SUFFIXES, read_file
from privirec.device import Device, Store, find_items, load_model
from privirec.device.titles import read_titles
from privirec.errors import DataError, UsageError
from privirec.rows import print_table, say, write_json_lines

app = typer.Typer(
    help="Manage your own history on your own device.",
    no_args_is_help=True,
    add_completion=False,
)

StoreFile = Annotated[Path, typer.Option("--store", help="File with the history.")]
User = Annotated[
    str | None,
    typer.Option(
        "--user", help="User whose history to use, if there are several.", show_default=False
    ),
]


@app.command("import")
@reads_tables
def import_(
    *,
    source: Annotated[
        Path, typer.Argument(help=f"File to read: {', '.join(SUFFIXES)}.", metavar="FILE")
    ],
    store: StoreFile,
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            help="User of all interactions, if the file has no column of users (default: the "
            f"store's only user, or {ONLY_USER}).",
            show_default=False,
        ),
    ] = None,
    table: TableOptions,
) -> None:
    """Add all interactions of a file to a store; the store is created if it is missing.

    In a file without a column of users, for example a person's own export, all rows belong to one
    user.
    """
    alone = user or _user_of(store)
    found = read_file(source, replace(table, only_user=alone))
    if user is not None and found.user_ids.tolist() != [user]:
        raise UsageError(f"{source}: names its users itself, so --user does not go with it")
    if not found.n_interactions:
        raise DataError(f"{source}: users and no items (a line is: user item item ...)")
    with Store(store, create=True) as opened:
        new = opened.add_interactions(found)
    whose = f" of user {alone}" if found.user_ids.tolist() == [alone] else ""
    say(f"{counted(found.n_interactions)}{whose} in {source}, {new:,} of them new in {store}.")


def _user_of(store: Path) -> str:
    """Return the only user of a store, or the default name `ONLY_USER`."""
    if not store.exists():
        return ONLY_USER
    with Store(store) as opened:
        users = opened.users()
    return users[0] if len(users) == 1 else ONLY_USER


@app.command()
def add(
    items: Annotated[list[str], typer.Argument(help="Ids of items.", metavar="ITEM...")],
    store: StoreFile,
    user: User = None,
) -> None:
    """Add items to a history; the store is created if it is missing."""
    with Store(store, create=True) as opened:
        name = only_user(opened, user)
        new = opened.add((name, item) for item in items)
    say(f"{counted(new, 'new ')} of user {name} in {store}.")


@app.command()
def forget(
    store: StoreFile,
    items: Annotated[
        list[str] | None,
        typer.Argument(help="Ids of items (default: all items of the user).", metavar="[ITEM...]"),
    ] = None,
    user: User = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="Forget all users and all titles.")
    ] = False,
) -> None:
    """Forget items, a user or everything: in the file at once, in models with the next run.

    Filters that were computed with the forgotten interactions contain them until the next run. The
    difference between exact sums before and after would reveal what was forgotten. So the client
    takes part again only in the next period of its calendar (days_between_changes in policy.toml).
    """
    if everything and (items or user is not None):
        raise UsageError("--everything goes without items and without --user")
    if not everything and not items and user is None:
        raise UsageError("name items, a user with --user, or --everything")
    with Store(store) as opened:
        for sentence in forgetting(opened, items or (), user, everything=everything):
            say(sentence)


@app.command()
def export(
    target: Annotated[
        Path,
        typer.Argument(help="A .csv or .txt file.", metavar="FILE", callback=options.writable_file),
    ],
    store: StoreFile,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing file.")
    ] = False,
) -> None:
    """Write all histories to a file that only its owner can read."""
    if not overwrite:
        options.refuse_to_replace([target], hint="; --overwrite replaces it")
    with Store(store) as opened:
        count = opened.export(target)
    say(f"{counted(count)} written to {target}.")


@app.command()
def titles(
    source: Annotated[
        Path, typer.Argument(help="A .csv or .tsv file: item_id, title.", metavar="FILE")
    ],
    store: StoreFile,
    item_column: Annotated[
        str | None, typer.Option(help="Column of item ids, if it has an unusual name.")
    ] = None,
    title_column: Annotated[
        str | None, typer.Option(help="Column of titles, if it has an unusual name.")
    ] = None,
) -> None:
    """Import the titles of the catalogue, so that recommendations show them."""
    found = read_titles(source, item_column=item_column, title_column=title_column)
    with Store(store, create=True) as opened:
        count = opened.set_titles(found)
    say(f"{count:,} titles from {source}.")


@app.command()
def search(
    text: Annotated[str, typer.Argument(help="A title, part of it, or an id.")],
    store: StoreFile,
    artifact: Annotated[
        Path | None,
        typer.Option("--artifact", help="Also search the items of this model.", show_default=False),
    ] = None,
    number: Annotated[
        int, typer.Option("-n", "--number", min=1, help="Number of items to list.")
    ] = 20,
) -> None:
    """Find items by title or id, among the titles of the store and the items of a model."""
    with Store(store) as opened:
        known = Device(opened, load_model(artifact)).catalogue.names if artifact else ()
        found = find_items(opened, known, text, number)
    if not found:
        raise DataError(f"nothing is called {text!r}")
    rows = [{"item": each.item, "title": each.title} for each in found]
    print_table(f"Called {text}", [("item", "item"), ("title", "title")], rows)


@app.command()
def show(store: StoreFile, user: User = None, json_file: options.Json = None) -> None:
    """Show the users of the store, or one user's items, and the use of them by runs."""
    with Store(store) as opened:
        summary = opened.summary()
        if user is not None or summary.users == 1:
            name = only_user(opened, user)
            held = opened.items(name)
            if not held:
                raise DataError(f"{store}: no user {name}")
            rows: list[dict[str, Any]] = [
                {"user": name, "item": item, "title": opened.title(item)} for item in held
            ]
            columns = [("item", "item")]
            columns += [("title", "title")] if any(row["title"] for row in rows) else []
            heading = f"History of {name}"
        else:
            degrees = opened.degrees().items()
            rows = [{"user": name, "interactions": count} for name, count in degrees]
            columns = [("user", "user"), ("interactions", "interactions")]
            heading = "Histories"
    write_json_lines(json_file, rows)
    print_table(heading, columns, rows)
    say(f"{counted(summary.interactions)}, users: {summary.users:,}, in {store}.")
    for sentence in used_by_runs(summary):
        say(sentence)


@app.command()
def page(
    client: Annotated[
        Path | None, typer.Argument(help="The client's folder.", metavar="[CLIENT]")
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            "--store", help="Store to use instead; without CLIENT, a page without a federation."
        ),
    ] = None,
    artifact: Annotated[
        Path | None,
        typer.Option("--artifact", help="Model to use instead of the one in the client's folder."),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            "--user", help="User whose history to show, if there are several.", show_default=False
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on this machine; 0 for any free one.")
    ] = 0,
) -> None:
    """Serve your own page on this machine until interrupted.

    The page shows your recommendations with their reasons, your history, the data that left the
    device, the privacy budget and the policy. Open the printed address: it contains a token that
    gives access to you alone. The page needs no server and makes no requests to the network.

    Examples:

      privirec device page client

      privirec device page --store me.db --artifact my-model
    """
    from privirec.app.own_device import OwnDevice  # noqa: PLC0415
    from privirec.app.pages.person import PersonSite  # noqa: PLC0415 - not needed for --help
    from privirec.app.pages.web import serve  # noqa: PLC0415

    serve(PersonSite(OwnDevice.at(client, store, artifact, user)), port)
