"""`privirec demo`: a demonstration on synthetic data, in two minutes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from privirec.app.cli import options
from privirec.app.demo import FEW, MANY, PICTURE, demo
from privirec.app.pictures import check_picture
from privirec.progress import shown_progress
from privirec.rows import print_table, say, write_json_lines

COLUMNS = [
    ("label", ""),
    ("ndcg@20", "NDCG@20"),
    ("recall@20", "Recall@20"),
    ("bytes_up_per_client", "sent per client"),
    ("bytes_down_per_client", "received per client"),
]


def command(
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for the picture (PNG and SVG) and the model.",
            callback=options.writable_folder,
        ),
    ] = Path("privirec-out"),
    threads: options.Threads = None,
    seed: options.Seed = 0,
    json_file: options.Json = None,
) -> None:
    """Compare the main methods on synthetic data, in two minutes.

    The same recommender is computed on one machine, by PriviRec and by PriviRec-k, and once more
    protected by noise. The table shows the bytes that each of them costs and the histories that an
    attack reads from it. A second table shows noise with enough people to hide in.
    """
    check_picture(out / PICTURE)
    with shown_progress() as phases:
        result = demo(out, seed, threads, phases)
    write_json_lines(json_file, [*result.few, *result.many])
    users, items = result.few[0]["users"], result.few[0]["items"]
    title = f"{FEW}: {users:,} people, {items:,} items, seed {seed}"
    print_table(title, [*COLUMNS, ("read", "histories read")], result.few)
    users, items = result.many[-1]["users"], result.many[-1]["items"]
    print_table(f"{MANY}: {users:,} people, {items:,} items", COLUMNS, result.many)
    say(
        "Exact sums can be computed in private, and still give histories away. Noise does not; it "
        "needs people."
    )
    drawn = " and ".join(map(str, result.pictures))
    say(f"Saved the picture in {drawn}, and the last model in {result.model}")
    model = shlex.quote(str(result.model))
    say(
        f"Next: privirec federate (real processes), privirec explain-privacy {model}, "
        "privirec audit --help"
    )
