"""`privirec recommend`: from one's own history, on one's own device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from privirec.cli import options
from privirec.device import Device, Recommendation, Store, load_model
from privirec.device.titles import read_titles
from privirec.report.rows import print_table, write_json_lines

NAMED = 3
"""Items of the history that the table names for each recommendation."""


def command(
    store: Annotated[Path, typer.Option("--store", help="File with the history.")],
    artifact: Annotated[
        Path,
        typer.Option("--artifact", help="Folder of a saved model, or of installed artifacts."),
    ],
    user: Annotated[
        str | None,
        typer.Option("--user", help="Whose history, if the store has several.", show_default=False),
    ] = None,
    number: Annotated[int, typer.Option("-n", "--number", min=1, help="How many items.")] = 10,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Name the items of the history behind each score."),
    ] = False,
    similar_to: Annotated[
        str | None,
        typer.Option("--similar-to", help="Items like this one instead.", show_default=False),
    ] = None,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Also rank what the history already holds.")
    ] = False,
    titles: Annotated[
        Path | None,
        typer.Option(
            "--titles",
            help="A .csv or .tsv file: item_id, title. Without it, those of privirec store titles.",
            show_default=False,
        ),
    ] = None,
    json_file: options.Json = None,
) -> None:
    """Recommend from the local store. Nothing leaves the device, nobody is asked.

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
    write_json_lines(json_file, rows, private=True)  # one's own taste, and with --explain history
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
    # Names and titles are text to show, not markup to follow.
    names = {"item": each.item, "title": each.title or "", "why": _why(each)}
    return {"rank": rank, "score": each.score} | names


def _why(each: Recommendation) -> str:
    """The strongest items, each with its share of what speaks for this one."""
    return ", ".join(
        f"{cause.title or cause.item} ({share:.0%})" for cause, share in each.strongest(NAMED)
    )
