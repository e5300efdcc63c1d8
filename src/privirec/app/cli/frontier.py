"""`privirec paper frontier`: accuracy against bytes per client."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from privirec.app.cli import options
from privirec.app.cli.groups import with_groups
from privirec.app.cli.table_options import reads_tables
from privirec.app.pictures import check_picture
from privirec.app.pictures.paper import frontier_plot
from privirec.data import TableOptions
from privirec.errors import UsageError
from privirec.experiments.frontier import (
    CSV_COLUMNS,
    FAMILIES,
    cheapest_that_reaches,
    measured_rows,
    points_of,
    summary_of,
)
from privirec.experiments.measured import write_csv_table
from privirec.progress import shown_progress
from privirec.rows import as_bytes, in_file_name, print_table, say

COLUMNS = [
    ("title", "method"),
    ("label", ""),
    ("ndcg@20", "NDCG@20"),
    ("spread", "spread"),
    ("recall@20", "Recall@20"),
    ("bytes_up_per_client", "up/client"),
    ("bytes_down_per_client", "down/client"),
    ("bytes_per_client", "both"),
    ("seeds", "seeds"),
]
REFERENCE = "GF-CF"


@dataclass(frozen=True, kw_only=True)
class FrontierOptions:
    """Options of a frontier."""

    datasets: options.Datasets = None
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = ",".join(FAMILIES)
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for the pictures and the figures.", callback=options.writable_folder
        ),
    ] = Path("privirec-out")
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of runs per point, with seeds from 0.")
    ] = 1
    draw_only: Annotated[
        bool, typer.Option("--draw-only", help="Measure nothing; draw the rows already measured.")
    ] = False
    threads: options.Threads = None
    data_dir: options.DataDir = None
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            help="File for the rows, one JSON object per line (default: frontier.jsonl in --out).",
            callback=options.writable_file,
            show_default=False,
        ),
    ] = None


@with_groups
@reads_tables
def command(*, chosen: FrontierOptions, table: TableOptions) -> None:
    """Measure and draw NDCG@20 against the bytes that a client sends and receives.

    Draws one picture per data set (PNG and SVG) with bytes on a log axis: up and down together, up
    alone, down alone; and writes the figures as CSV. Bytes are those of the run's ledger: packed
    vectors as sent by a client, broadcasts, and the final filters that every client fetches. For
    the overhead of secure aggregation see: privirec paper protocols.

    spectral: by the total number of columns summed.
    privirec-k, privirec: GF-CF with the paper's preset.
    head-ease: EASE on the m most popular items.
    protected: with noise and a promise to every person, by epsilon.
    mf, lightgcn: federated training, as in the paper's table of costs,
    by the number of epochs. User vectors stay on the clients. Every epoch sums the gradients of all
    items (zeros left out would reveal who has which item), and for LightGCN every layer of the
    graph, forwards and backwards. Settings were tuned on a validation split.
    central: baselines on one machine, as level lines.

    Every row is saved as soon as it is measured. The same command continues where it stopped; with
    more methods, data sets or seeds it measures only the new points. All points take about an hour
    of CPU on a large data set; --methods and --datasets restrict them.
    """
    json_file = chosen.json_file or chosen.out / "frontier.jsonl"
    for name in chosen.datasets.split(",") if chosen.datasets else []:
        check_picture(_stem(chosen.out, name).with_suffix(".png"))
    wanted = chosen.methods.split(",")
    points_of([], wanted)  # raises an error for unknown methods before data are read
    measured = measured_rows(json_file)
    found = options.datasets_named(chosen.datasets, chosen.data_dir, table)
    with shown_progress() as phases:
        for data in [] if chosen.draw_only else found:
            points = points_of([data], wanted, chosen.seeds)
            measured.measure_missing(points, chosen.threads, phases(f"frontier: {data.name}"))
    for data in found:
        summary = summary_of(measured.of(points_of([data], wanted, chosen.seeds)))
        if not summary:
            raise UsageError(f"{json_file}: no rows of {data.name} to draw")
        titled = [row | {"title": FAMILIES[row["family"]].title} for row in summary]
        print_table(f"{data.name}, {data.train.n_users:,} people", COLUMNS, titled)
        levels = [row for row in summary if FAMILIES[row["family"]].level]
        for reference in (row for row in levels if row["label"] == REFERENCE):
            for row in cheapest_that_reaches(summary, reference["ndcg@20"]):
                say(
                    f"As good as centralised {REFERENCE} ({reference['ndcg@20']:.4f}): "
                    f"{FAMILIES[row['family']].title}, {row['label']}, with "
                    f"{as_bytes(row['bytes_per_client'])} per client"
                )
        stem = _stem(chosen.out, data.name)
        pictures = frontier_plot(
            f"{data.name}: accuracy against bytes per client",
            [row for row in summary if row not in levels],
            {name: one.title for name, one in FAMILIES.items() if not one.level},
            levels,
            stem.with_suffix(".png"),
        )
        saved = [*pictures, write_csv_table(stem.with_suffix(".csv"), CSV_COLUMNS, summary)]
        say(f"Saved {', '.join(map(str, saved))}")


def _stem(out: Path, dataset: str) -> Path:
    return out / f"frontier-{in_file_name(dataset)}"
