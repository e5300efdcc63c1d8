"""`privirec audit`: what does a release give away?"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from privirec.cli import options
from privirec.data import load_dataset
from privirec.report.progress import shown_progress
from privirec.report.rows import check_writable, print_table, say, write_json_lines
from privirec.workflows.audit import audit_privirec

COLUMNS = [
    ("attack", "attack"),
    ("users", "users"),
    ("users_recovered", "whole history recovered"),
    ("users_wrong", "wrong"),
    ("interaction_precision", "precision"),
    ("interaction_recall", "recall"),
    ("seconds", "seconds"),
]


def command(
    dataset: options.Dataset,
    release: Annotated[
        Literal["privirec"], typer.Option(help="What the server and the clients get to see.")
    ] = "privirec",
    ring_bits: Annotated[
        int, typer.Option(min=1, max=64, help="Width of the ring the release was summed in.")
    ] = 32,
    threads: options.Threads = None,
    data_dir: options.DataDir = None,
    json_file: options.Json = None,
) -> None:
    """Attack a release as a curious server would, and count the histories that come out.

    privirec: the peeling attack on the item degrees and the item-item matrix, as decoded from the
    ring. An item with few users has a row that is a sum of few histories; read those off, take
    them away, and further items have few users left. Truth is used only to grade the result.
    """
    check_writable(json_file)
    data = load_dataset(dataset, data_dir)
    with shown_progress() as phases:
        row = audit_privirec(data, ring_bits=ring_bits, threads=threads, phases=phases)
    write_json_lines(json_file, [row])
    print_table(f"{data.name}: what {release} gives away", COLUMNS, [row])
    share = row["users_recovered"] / max(row["users"], 1)
    say(
        f"The attack read {row['users_recovered']:,} of {row['users']:,} histories ({share:.1%}) "
        "out of sums that secure aggregation delivered as promised. Secure aggregation hides who "
        "sent what, not what the sum itself says."
    )
