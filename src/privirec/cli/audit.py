"""`privirec audit`: what does a release give away?"""

from __future__ import annotations

from typing import Annotated

import typer

from privirec.cli import options
from privirec.data import load_dataset
from privirec.federated.programs import PROGRAMS, Privirec
from privirec.report.progress import shown_progress
from privirec.report.rows import check_writable, print_table, say, write_json_lines
from privirec.workflows.audit import audit, unmet_needs

COLUMNS = [
    ("attack", "attack"),
    ("users", "users"),
    ("users_recovered", "whole history recovered"),
    ("users_wrong", "wrong"),
    ("interaction_precision", "precision"),
    ("interaction_recall", "recall"),
    ("rows_recovered", "rows of P'"),
    ("seconds", "seconds"),
]


def command(
    dataset: options.Dataset,
    release: Annotated[
        str,
        typer.Option(
            help=f"What was released: the sums of {' or '.join(PROGRAMS)}, or a saved model's "
            "folder.",
            metavar="|".join([*PROGRAMS, "FOLDER"]),
        ),
    ] = Privirec.name,
    rank: Annotated[
        int | None,
        typer.Option(
            min=1, help="k: columns of the power method (default: 256, and none for privirec)."
        ),
    ] = None,
    rounds: options.Rounds = None,
    head: Annotated[
        int | None,
        typer.Option(min=1, help="head-gram: how many of the most popular items."),
    ] = None,
    ring_bits: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Width of the ring the release was summed in."),
    ] = None,
    threads: options.Threads = None,
    data_dir: options.DataDir = None,
    json_file: options.Json = None,
) -> None:
    """Attack a release as somebody curious would, and count the histories that come out.

    A run of a program releases its sums to the server; a saved model is what every client holds.
    Every attack that applies is run, and says nothing that it has not checked: truth is used only
    to grade the result.

    peeling: an item with few users has a row of the item-item matrix that is a sum of few
    histories; read those off, take them away, and further items have few users left.

    matching-pursuit: the same rows out of their products with public vectors.
    """
    check_writable(json_file)
    data = load_dataset(dataset, data_dir)
    chosen = {"rank": rank, "rounds": rounds, "head": head, "ring_bits": ring_bits}
    given = {name: value for name, value in chosen.items() if value is not None}
    with shown_progress() as phases:
        rows = audit(data, release, given, threads=threads, phases=phases)
    write_json_lines(json_file, rows)
    if not rows:
        say(f"No attack here applies to {release}, which does not make it safe: {unmet_needs()}.")
        return
    print_table(f"{data.name}: what {release} gives away", COLUMNS, rows)
    for row in rows:
        share = row["users_recovered"] / max(row["users"], 1)
        say(
            f"{row['attack'].capitalize()} read {row['users_recovered']:,} of {row['users']:,} "
            f"histories ({share:.1%}) out of what was released as planned. Secure aggregation "
            "hides who sent what, not what the sum itself says."
        )
