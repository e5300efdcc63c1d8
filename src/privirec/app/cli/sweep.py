"""`privirec paper sweep`: accuracy against k."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from privirec.app.cli import options
from privirec.app.cli.groups import with_groups
from privirec.app.cli.table_options import reads_tables, words_for
from privirec.app.pictures import check_picture
from privirec.app.pictures.paper import sweep_plot
from privirec.data import TableOptions, load_dataset
from privirec.errors import UsageError
from privirec.experiments.sweep import COMPETITIVE_RANK, Sweep, averaged, reaches, usual_ranks
from privirec.progress import shown_progress
from privirec.rows import print_table, say, warn, write_json_lines
from privirec.runtime.reveals import gives_away


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Options of a sweep."""

    dataset: options.Dataset
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for the figures (CSV) and the picture.", callback=options.writable_folder
        ),
    ] = Path("privirec-out")
    ranks: Annotated[
        str | None,
        typer.Option(
            help="Values of k, as FIRST:LAST:STEP or separated by commas (default: 256:3584:256; "
            "for smaller catalogues the same number of steps).",
            show_default=False,
        ),
    ] = None
    rounds: Annotated[str, typer.Option(help="Values of L, separated by commas.")] = "2,3,4"
    threads: options.Threads = None
    seed: options.Seed = 0
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of runs per point, with seeds from --seed.")
    ] = 1
    data_dir: options.DataDir = None
    json_file: options.Json = None


@with_groups
@reads_tables
def command(*, chosen: SweepOptions, table: TableOptions) -> None:
    """Measure NDCG@20 of GF-CF by PriviRec-k against k: the paper's figure, as CSV, PNG and SVG.

    Uses the paper's preset (exactly Algorithm 1) with L rounds, and compares with PriviRec and with
    GF-CF on one machine. With several --seeds, the picture shows their mean and spread, and each
    seed has a CSV file. You can stop with Ctrl-C at any time: finished points are kept, and the
    same command continues where it stopped.
    """
    data = load_dataset(chosen.dataset, chosen.data_dir, table=table)
    wanted = usual_ranks(data.train.n_items) if chosen.ranks is None else _numbers(chosen.ranks)
    sweeps = [
        Sweep(data, chosen.out, wanted, _numbers(chosen.rounds), seed=one, threads=chosen.threads)
        for one in range(chosen.seed, chosen.seed + chosen.seeds)
    ]
    sweep = sweeps[0]
    check_picture(sweep.picture_path)
    with shown_progress() as phases:
        centralised = sweep.centralised(phases)
        measured = [row for one in sweeps for row in one.run(phases)]
    write_json_lines(chosen.json_file, [centralised, *measured])
    points = averaged(measured)
    paper_rank = COMPETITIVE_RANK.get(data.name)
    pictures = sweep_plot(data.name, points, centralised["ndcg@20"], paper_rank, sweep.picture_path)
    summary = []
    for count in sweep.rounds:
        target, least = reaches(points, count)
        best = max(row["ndcg@20"] for row in points if row["rounds"] == count and row["rank"])
        summary.append(
            {
                "rounds": count,
                "privirec": target,
                "best": best,
                "centralised": centralised["ndcg@20"],
                "least": f"{least:,}" if least else f"not up to {max(sweep.ranks):,}",
                "paper": paper_rank,
            }
        )
    headings = [
        ("rounds", "L"),
        ("privirec", "PriviRec NDCG@20"),
        ("best", "best PriviRec-k"),
        ("centralised", "centralised"),
        ("least", "reached from k ="),
        ("paper", "paper says"),
    ]
    last = chosen.seed + chosen.seeds - 1
    which = f"mean of seeds {chosen.seed} to {last}" if chosen.seeds > 1 else f"seed {last}"
    print_table(f"{data.name}: GF-CF, paper's preset, {which}", headings, summary)
    saved = [*(one.csv_path for one in sweeps), *pictures]
    say(f"Saved {', '.join(map(str, saved))}")
    warn(str(gives_away("privirec-k", words_for(chosen.dataset, chosen.data_dir, table))))


def _numbers(text: str) -> list[int]:
    try:
        if ":" in text:
            first, last, step = (int(part) for part in text.split(":"))
            return list(range(first, last + 1, step))
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{text!r} is neither FIRST:LAST:STEP nor numbers with commas") from None
