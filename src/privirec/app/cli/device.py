"""`privirec device`: a person's own history, and the page that shows it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from privirec.app.cli import options
from privirec.app.cli.groups import with_groups
from privirec.app.cli.questions import ask_columns, ask_same
from privirec.app.cli.table_options import reads_tables
from privirec.app.history import ONLY_USER, counted, forgetting, only_user, used_by_runs
from privirec.app.importing import ImportOptions, Questions, Unsure, import_file
from privirec.data.columns import TableOptions
from privirec.device import Device, Store, find_items, load_model
from privirec.device.titles import read_titles_and_links
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


@dataclass(frozen=True, kw_only=True)
class ImportChoices:
    """Options of an import."""

    store: StoreFile
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            help="User of all rows, if the file has no column of users (default: the store's only "
            f"user, or {ONLY_USER}).",
            show_default=False,
        ),
    ] = None
    titles: Annotated[
        Path | None,
        typer.Option(
            help="Catalogue to match titles with: item_id, title and optionally link.",
            show_default=False,
        ),
    ] = None
    artifact: Annotated[
        Path | None,
        typer.Option(help="Saved model whose items are the catalogue.", show_default=False),
    ] = None
    unsure: Annotated[
        Unsure | None,
        typer.Option(
            help="Titles that are nearly the same: ask about them, skip or take them (default: ask "
            "on a terminal, otherwise skip).",
            show_default=False,
        ),
    ] = None
    keep_unknown: Annotated[
        bool,
        typer.Option("--keep-unknown", help="Also add items that the catalogue does not have."),
    ] = False
    day_first: Annotated[
        bool | None,
        typer.Option(
            "--day-first/--month-first",
            help="Order of dates such as 3/4/2024 (default: detected).",
            show_default=False,
        ),
    ] = None
    profile: Annotated[
        str | None,
        typer.Option(help="Your profile, if several people share an account.", show_default=False),
    ] = None
    json_file: options.Json = None


@app.command("import")
@with_groups
@reads_tables
def import_(
    *,
    source: Annotated[
        Path,
        typer.Argument(help="Export or table: .csv, .json, .zip and others.", metavar="FILE"),
    ],
    chosen: ImportChoices,
    table: TableOptions,
) -> None:
    """Add a personal export, or any table of items, to a store; it is created if it is missing.

    Exports of Spotify, YouTube, Netflix, Goodreads, Letterboxd, Amazon and Steam are recognised,
    unpacked or as .zip. Their titles are matched with the catalogue that the device knows: that
    of the federation, of a model, or of a file of titles. If nothing matches, nothing is imported.

    In a file without a column of users all rows belong to one user. --json writes how each title
    was matched.
    """
    asks = sys.stdin.isatty()
    unsure = chosen.unsure or (Unsure.ASK if asks else Unsure.SKIP)
    if unsure is Unsure.ASK and not asks:
        raise UsageError("there is no terminal to ask on; use --unsure skip or take")
    found = import_file(
        source,
        chosen.store,
        table,
        ImportOptions(
            user=chosen.user,
            artifact=chosen.artifact,
            titles=chosen.titles,
            unsure=unsure,
            keep_unknown=chosen.keep_unknown,
            day_first=chosen.day_first,
            profile=chosen.profile,
        ),
        Questions(columns=ask_columns, same=ask_same) if asks else Questions(),
    )
    write_json_lines(chosen.json_file, found.rows, private=True)
    for sentence in found.sentences:
        say(sentence)


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
        Path,
        typer.Argument(
            help="A .csv or .tsv file: item_id, title and optionally link.", metavar="FILE"
        ),
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
    found, links = read_titles_and_links(source, item_column=item_column, title_column=title_column)
    with Store(store, create=True) as opened:
        count = opened.set_titles(found, links)
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
