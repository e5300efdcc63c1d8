"""`privirec sweep`: accuracy against k."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privirec.cli import options
from privirec.data import load_dataset
from privirec.errors import UsageError
from privirec.report.plots import sweep_plot
from privirec.report.progress import shown_progress
from privirec.report.rows import print_table, say, warn, write_json_lines
from privirec.workflows.plan import gives_away
from privirec.workflows.published import COMPETITIVE_RANK
from privirec.workflows.sweep import Sweep, reaches, usual_ranks


def command(
    dataset: options.Dataset,
    out: Annotated[
        Path,
        typer.Option(help="Folder for the CSV and the picture.", callback=options.writable_folder),
    ] = Path("privirec-out"),
    ranks: Annotated[
        str | None,
        typer.Option(
            help="FIRST:LAST:STEP, or values of k separated by commas (default: 256:3584:256, on "
            "smaller catalogues as many steps up to all items).",
            show_default=False,
        ),
    ] = None,
    rounds: Annotated[str, typer.Option(help="Values of L, separated by commas.")] = "2,3,4",
    threads: options.Threads = None,
    seed: options.Seed = 0,
    data_dir: options.DataDir = None,
    json_file: options.Json = None,
) -> None:
    """NDCG@20 of GF-CF on PriviRec-k against k: the paper's figure, as CSV and PNG.

    The paper's preset (Algorithm 1 to the letter) with L rounds. Stop it with Ctrl-C whenever you
    like: the same command goes on where it stopped, and finished points are kept.
    """
    data = load_dataset(dataset, data_dir)
    wanted = usual_ranks(data.train.n_items) if ranks is None else _numbers(ranks)
    sweep = Sweep(data, out, wanted, _numbers(rounds), seed=seed, threads=threads)
    with shown_progress() as phases:
        points = sweep.run(phases)
    paper_rank = COMPETITIVE_RANK.get(data.name)
    sweep_plot(data.name, points, paper_rank, sweep.png_path)
    write_json_lines(json_file, points)
    summary = []
    for count in sweep.rounds:
        target, least = reaches(points, count)
        best = max(row["ndcg@20"] for row in points if row["rounds"] == count and row["rank"])
        summary.append(
            {
                "rounds": count,
                "privirec": target,
                "best": best,
                "least": f"{least:,}" if least else f"not up to {max(sweep.ranks):,}",
                "paper": paper_rank,
            }
        )
    headings = [
        ("rounds", "L"),
        ("privirec", "PriviRec NDCG@20"),
        ("best", "best PriviRec-k"),
        ("least", "reached from k ="),
        ("paper", "paper says"),
    ]
    print_table(f"{data.name}: GF-CF, paper's preset, seed {seed}", headings, summary)
    say(f"Saved {sweep.csv_path} and {sweep.png_path}")
    warn(str(gives_away("privirec-k", data.name)))


def _numbers(text: str) -> list[int]:
    try:
        if ":" in text:
            first, last, step = (int(part) for part in text.split(":"))
            return list(range(first, last + 1, step))
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{text!r} is neither FIRST:LAST:STEP nor numbers with commas") from None
