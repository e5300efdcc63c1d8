"""`privirec recommend`: recommendations from a local history, on a person's own device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from privirec.app.cli import options
from privirec.app.cli.groups import with_groups
from privirec.device import Device, Recommendation, Store, load_model
from privirec.device.titles import read_titles
from privirec.rows import print_table, write_json_lines

NAMED = 3
"""Number of history items that the table names for each recommendation."""


@dataclass(frozen=True, kw_only=True)
class RecommendOptions:
    """Options of recommendations."""

    store: Annotated[Path, typer.Option("--store", help="File with the history.")]
    artifact: Annotated[
        Path,
        typer.Option("--artifact", help="Folder of a saved model or of installed artifacts."),
    ]
    user: Annotated[
        str | None,
        typer.Option(
            "--user", help="User whose history to use, if there are several.", show_default=False
        ),
    ] = None
    number: Annotated[
        int, typer.Option("-n", "--number", min=1, help="Number of items to list.")
    ] = 10
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Name the history items that contribute to each score."),
    ] = False
    similar_to: Annotated[
        str | None,
        typer.Option(
            "--similar-to", help="List items similar to this one instead.", show_default=False
        ),
    ] = None
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Also rank items that are in the history.")
    ] = False
    titles: Annotated[
        Path | None,
        typer.Option(
            "--titles",
            help="A .csv or .tsv file: item_id, title (default: those of privirec device titles).",
            show_default=False,
        ),
    ] = None
    json_file: options.Json = None


@with_groups
def command(*, chosen: RecommendOptions) -> None:
    """Recommend items from the local store. Nothing leaves the device.

    Examples:

      privirec recommend --store me.db --artifact model

      privirec recommend --store me.db --artifact model -n 5 --explain
    """
    with Store(chosen.store) as opened:
        named = read_titles(chosen.titles) if chosen.titles is not None else None
        device = Device(opened, load_model(chosen.artifact), named)
        if chosen.similar_to is not None:
            found = device.similar(chosen.similar_to, chosen.number)
            title = f"Similar to {device.title(chosen.similar_to) or chosen.similar_to}"
        else:
            name = device.user(chosen.user)
            found = device.recommend(
                name, chosen.number, include_seen=chosen.include_seen, explain=chosen.explain
            )
            title = f"For {name}"
    rows = [_row(rank, each, chosen.explain) for rank, each in enumerate(found, 1)]
    # Private, because it reveals taste, and with --explain the history.
    write_json_lines(chosen.json_file, rows, private=True)
    columns = [("rank", ""), ("item", "item")]
    if any(each.title for each in found):
        columns.append(("title", "title"))
    columns.append(("score", "score"))
    if chosen.explain and chosen.similar_to is None:
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
