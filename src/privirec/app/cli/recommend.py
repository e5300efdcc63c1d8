"""`privirec recommend`: recommendations from a local history, on a person's own device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from privirec.app.cli import options
from privirec.device import Device, Recommendation, Store, load_model
from privirec.device.titles import read_titles
from privirec.rows import print_table, write_json_lines

NAMED = 3
"""Number of history items that the table names for each recommendation."""


def command(
    store: Annotated[Path, typer.Option("--store", help="File with the history.")],
    artifact: Annotated[
        Path,
        typer.Option("--artifact", help="Folder of a saved model or of installed artifacts."),
    ],
    user: Annotated[
        str | None,
        typer.Option(
            "--user", help="User whose history to use, if there are several.", show_default=False
        ),
    ] = None,
    number: Annotated[
        int, typer.Option("-n", "--number", min=1, help="Number of items to list.")
    ] = 10,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Name the history items that contribute to each score."),
    ] = False,
    similar_to: Annotated[
        str | None,
        typer.Option(
            "--similar-to", help="List items similar to this one instead.", show_default=False
        ),
    ] = None,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Also rank items that are in the history.")
    ] = False,
    titles: Annotated[
        Path | None,
        typer.Option(
            "--titles",
            help="A .csv or .tsv file: item_id, title (default: those of privirec device titles).",
            show_default=False,
        ),
    ] = None,
    json_file: options.Json = None,
) -> None:
    """Recommend items from the local store. Nothing leaves the device.

    Examples:

      privirec recommend --store me.db --artifact model

      privirec recommend --store me.db --artifact model -n 5 --explain
    """
    with Store(store) as opened:
        named = read_titles(titles) if titles is not None else None
        device = Device(opened, load_model(artifact), named)
        if similar_to is not None:
            found = device.similar(similar_to, number)
            title = f"Similar to {device.title(similar_to) or similar_to}"
        else:
            name = device.user(user)
            found = device.recommend(name, number, include_seen=include_seen, explain=explain)
            title = f"For {name}"
    rows = [_row(rank, each, explain) for rank, each in enumerate(found, 1)]
    write_json_lines(json_file, rows, private=True)  # reveals taste, and history with --explain
    columns = [("rank", ""), ("item", "item")]
    if any(each.title for each in found):
        columns.append(("title", "title"))
    columns.append(("score", "score"))
    if explain and similar_to is None:
        columns.append(("why", "because of"))
    shown = [_shown(rank, each) for rank, each in enumerate(found, 1)]
    print_table(title, columns, shown)


def _row(rank: int, each: Recommendation, explain: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"rank": rank, "item": each.item, "title": each.title}
    row["score"] = each.score
    if explain and each.because:
        row["because"] = [
            {"item": cause.item, "title": cause.title, "contribution": cause.contribution}
            for cause in each.because
        ]
    return row


def _shown(rank: int, each: Recommendation) -> dict[str, Any]:
    # Names and titles are plain text, so they must not be interpreted as markup.
    names = {"item": each.item, "title": each.title or "", "why": _why(each)}
    return {"rank": rank, "score": each.score} | names


def _why(each: Recommendation) -> str:
    """Return the strongest history items, with their shares of all positive contributions."""
    return ", ".join(
        f"{cause.title or cause.item} ({share:.0%})" for cause, share in each.strongest(NAMED)
    )
