"""`privirec tune`: settings of `spectral` under a budget of bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from privirec.cli import options
from privirec.data import load_dataset
from privirec.data.text import write_lines
from privirec.errors import UsageError
from privirec.report.progress import shown_progress
from privirec.report.rows import as_bytes, check_writable, print_table, say, write_json_lines
from privirec.report.units import parse_bytes
from privirec.workflows.tune import Tuning, as_settings

COLUMNS = [
    ("columns_text", "columns"),
    ("ring_bits", "bits"),
    ("pairs", "pairs"),
    ("rank", "k"),
    ("a", "a"),
    ("b", "b"),
    ("response", "h"),
    ("ndcg@20", "NDCG@20"),
    ("bytes_up_per_client", "up/client"),
    ("bytes_down_per_client", "down/client"),
]


def command(
    dataset: options.Dataset,
    budget: Annotated[str, typer.Option(help="Bytes up a client in all, as 60MB.")],
    out: Annotated[Path, typer.Option(help="Folder for the trace and the settings.")] = Path(
        "privirec-out"
    ),
    rounds: Annotated[str, typer.Option(help="Numbers of rounds to try.")] = "4,6,8",
    ring_bits: Annotated[str, typer.Option(help="Widths of the ring to try.")] = "12,16",
    users: Annotated[
        int, typer.Option(min=1, help="Rank for so many people, at most, at each point.")
    ] = 3000,
    threads: options.Threads = None,
    seed: options.Seed = 0,
    data_dir: options.DataDir = None,
    json_file: options.Json = None,
) -> None:
    """Choose exponents, response, rank, columns and bits of spectral on a validation split.

    A fifth of everybody's train items is held out, and the test split is not looked at. Every point
    that was measured is a line of tune-DATA.jsonl: stop with Ctrl-C whenever you like, the same
    command goes on where it stopped. The best point is saved as settings for privirec run.

    Examples:

      privirec tune --dataset gowalla --budget 60MB

      privirec run --dataset gowalla --settings privirec-out/spectral-gowalla.json
    """
    check_writable(json_file, folder=out)
    limit = parse_bytes(budget)
    data = load_dataset(dataset, data_dir)
    label = data.name.replace(":", "-").replace("/", "-")
    tuning = Tuning(
        data,
        limit,
        out / f"tune-{label}.jsonl",
        rounds=_numbers(rounds, "rounds"),
        ring_bits=_numbers(ring_bits, "ring-bits"),
        users=users,
        seed=seed,
        threads=threads,
    )
    with shown_progress() as phases:
        best = tuning.run(phases)
    config = best["config"]
    row = best | {
        "columns_text": f"{len(best['columns'])}x{best['columns'][0]}",
        "rank": config["rank"],
        "a": config["history_exponent"],
        "b": config["item_exponent"],
        "response": config["response"],
    }
    settings = out / f"spectral-{label}.json"
    write_lines(settings, [json.dumps(as_settings(best), indent=2, sort_keys=True)])
    write_json_lines(json_file, [best])
    title = f"{data.name}: best of {len(tuning.points)} points, validation, {as_bytes(limit)} up"
    print_table(title, COLUMNS, [row])
    say(f"Saved {settings}; the trace is {tuning.trace}")


def _numbers(text: str, what: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{what}: {text!r} is not numbers with commas") from None
    least, most = (1, 1000) if what == "rounds" else (6, 64)
    if not all(least <= number <= most for number in numbers):
        raise UsageError(f"{what}: {text!r}, possible are {least} to {most}")
    return numbers
