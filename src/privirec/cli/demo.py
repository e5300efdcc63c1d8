"""`privirec demo`: two minutes, no data needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privirec.cli import options
from privirec.report.progress import shown_progress
from privirec.report.rows import check_writable, print_table, say, write_json_lines
from privirec.workflows.demo import DATASET, demo
from privirec.workflows.published import NDCG

COLUMNS = [
    ("label", "GF-CF"),
    ("ndcg@20", "NDCG@20"),
    ("recall@20", "Recall@20"),
    ("bytes_up_per_client", "sent per client"),
    ("bytes_down_per_client", "received per client"),
]


def command(
    out: Annotated[Path, typer.Option(help="Folder for the picture and the model.")] = Path(
        "privirec-out"
    ),
    threads: options.Threads = None,
    seed: options.Seed = 0,
    json_file: options.Json = None,
) -> None:
    """Show everything once on made-up data: the same recommender computed on one machine, by
    PriviRec and by PriviRec-k, what each costs in bytes, and what the first gives away."""
    check_writable(json_file, folder=out)
    with shown_progress() as phases:
        result = demo(out, seed, threads, phases)
    write_json_lines(json_file, result.rows)
    users, items = result.rows[0]["users"], result.rows[0]["items"]
    print_table(f"{DATASET}: {users:,} users, {items:,} items, seed {seed}", COLUMNS, result.rows)
    audit = result.audit
    say(
        f"From what PriviRec reveals, the peeling attack read {audit['users_recovered']:,} of "
        f"{audit['users']:,} whole histories in {audit['seconds']:.1f} s "
        f"({audit['users_wrong']} wrong): sums can be private while their content is not."
    )
    say(f"Saved the picture in {result.picture} and the PriviRec-k model in {result.model}")
    say(f"Next: privirec data get {next(iter(NDCG))}, then privirec table")
