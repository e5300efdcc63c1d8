"""`privirec paper privacy-table`: comparison of protected with other private methods."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from privirec.app.cli import options
from privirec.app.cli.groups import with_groups
from privirec.app.cli.table_options import reads_tables
from privirec.app.pictures.runs import people_plot
from privirec.data import TableOptions
from privirec.errors import UsageError
from privirec.experiments.privacy_table import (
    EPSILONS,
    METHODS,
    SEEDS,
    behind_a_peer,
    measured_rows,
    points_of,
    samples_of,
    summary_of,
)
from privirec.progress import shown_progress
from privirec.rows import print_table, say

COLUMNS = [
    ("epsilon", "epsilon"),
    ("method", "method"),
    ("ndcg@20", "NDCG@20"),
    ("spread", "spread"),
    ("recall@20", "Recall@20"),
    *((f"fifth_{number}", f"fifth {number}") for number in range(1, 6)),
    ("bytes_up_per_client", "up/client"),
    ("seeds", "seeds"),
]

USUAL_EPSILONS = ",".join(f"{value:g}" for value in EPSILONS)


@dataclass(frozen=True, kw_only=True)
class PrivacyTableOptions:
    """Options of the comparison."""

    datasets: options.Datasets = None
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = ",".join(METHODS)
    epsilon: Annotated[str, typer.Option(help="Values of epsilon, separated by commas.")] = (
        USUAL_EPSILONS
    )
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of runs per cell, with seeds from 0.")
    ] = SEEDS
    curve: Annotated[
        Path | None,
        typer.Option(
            help="Also measure on halves, quarters ... of the people of large data sets, and draw "
            "NDCG@20 against the number of people, as PNG and SVG; name either of the two files.",
            callback=options.picture_file,
            show_default=False,
        ),
    ] = None
    curve_epsilon: Annotated[
        float,
        typer.Option(min=0.01, max=50, callback=options.finite, help="Epsilon of the curve."),
    ] = 8.0
    threads: options.Threads = None
    data_dir: options.DataDir = None
    json_file: options.Json = None


@with_groups
@reads_tables
def command(*, chosen: PrivacyTableOptions, table: TableOptions) -> None:
    """Compare the accuracy of protected with other methods under differential privacy.

    All methods keep the same promise to every person (delta 1e-6, the whole history), with the same
    noise over the same sums, and choose their items within the budget: popularity alone; a private
    power method (arXiv 2411.01931); private alternating least squares, plain (dpals: Chien et al.
    2021) and adaptive (ada-dpals: Krichene et al. 2023). The settings of the other methods were
    tuned per data set on a held-out fifth of its train split; protected has the same constants for
    all data sets.

    NDCG@20 and Recall@20 are means over all users and seeds; the spread is the standard deviation
    between seeds. "fifth 1" to "fifth 5" are NDCG@20 on the most to the least popular items; all
    fifths have the same number of interactions.

    With --json, each row is saved as soon as it is measured. The same command continues where it
    stopped; with more epsilons, methods or seeds it measures only the new points.
    """
    epsilons = _epsilons(chosen.epsilon)
    wanted = chosen.methods.split(",")
    points_of([], wanted)  # raises an error for unknown methods before data are read
    measured = measured_rows(chosen.json_file)
    found = options.datasets_named(chosen.datasets, chosen.data_dir, table)
    points = points_of(found, wanted, epsilons, chosen.seeds)
    for_curve = []
    if chosen.curve is not None:
        samples = [sample for data in found for sample in samples_of(data)]
        for_curve = points_of(samples, wanted, [chosen.curve_epsilon], chosen.seeds)
    with shown_progress() as phases:
        measured.measure_missing(points, chosen.threads, phases("privacy-table"))
        measured.measure_missing(for_curve, chosen.threads, phases("privacy-table: fewer people"))
    summary = summary_of(measured.of(points))
    for data in found:
        mine = [
            row | {"epsilon": f"{row['epsilon']:g}"}
            for row in summary
            if row["dataset"] == data.name
        ]
        print_table(f"{data.name}, {data.train.n_users:,} people", COLUMNS, mine)
    if METHODS[0] in wanted and len(wanted) > 1:
        behind = behind_a_peer(summary)
        for line in behind:
            say(f"Not ahead: {line}")
        if not behind:
            say("protected is ahead of every peer in every line.")
    if chosen.curve is not None:
        pictures = people_plot(
            summary_of(measured.of(for_curve)), chosen.curve_epsilon, chosen.curve
        )
        say(f"Saved {' and '.join(map(str, pictures))}")


def _epsilons(text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"epsilon: {text!r} is not a list of numbers with commas") from None
    for value in values:
        if not 0.01 <= value <= 50:
            raise UsageError(f"epsilon = {value:g}: it must be between 0.01 and 50")
    return values
