"""`privirec budget` and `privirec explain-privacy`: privacy spent, and promises of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privirec.app.cli import options
from privirec.models.artifact import read_manifest
from privirec.privacy.explain import explained
from privirec.rows import print_table, say, warn, write_json_lines

COLUMNS = [
    ("at", "when"),
    ("run", "run"),
    ("computed", "computed"),
    ("sums", "sums"),
    ("bytes_up", "sent"),
    ("bytes_down", "received"),
    ("epsilon", "epsilon"),
    ("server", "server's key"),
]


def budget(
    folder: Annotated[Path, typer.Argument(help="A client's folder.", metavar="CLIENT")],
    json_file: options.Json = None,
) -> None:
    """Show which data left a client, and how much of the privacy budget is left.

    Each line shows the time, the computation, the server and the bytes. Epsilon bounds what all
    sums with noise together can reveal about a person, to anyone who collects them. It does not add
    up run by run: two runs of epsilon 8 are about 12 together. The record belongs to the client;
    each line is sealed with the client's key, and no server can reset it.
    """
    from privirec.app.budget import statement_of  # noqa: PLC0415 - not for --help

    found = statement_of(folder)
    write_json_lines(json_file, [*found.rows, {"total": True, **found.totals}])
    if found.rows:
        print_table(f"Client {folder}, at delta {found.totals['delta']:g}", COLUMNS, found.rows)
    for sentence in found.warnings:
        warn(sentence)
    for sentence in found.sentences:
        say(sentence)
    if not found.is_whole:
        raise typer.Exit(1)


def explain_privacy(
    artifact: Annotated[Path, typer.Argument(help="Folder of a saved model.", metavar="ARTIFACT")],
) -> None:
    """Explain in plain words how a saved model was made, who saw what, and what is promised."""
    for sentence in explained(read_manifest(artifact)[1]):
        say(sentence)
