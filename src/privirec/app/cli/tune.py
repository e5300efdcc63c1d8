"""`privirec paper tune`: settings of `spectral` for a budget of bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from privirec.app.cli import options
from privirec.app.cli.groups import with_groups
from privirec.app.cli.table_options import reads_tables, words_for
from privirec.data import Dataset, TableOptions, load_dataset
from privirec.durable import write_whole
from privirec.errors import UsageError
from privirec.experiments.tune import Tuning, as_spec
from privirec.experiments.tune_federated import RUNTIMES, FederatedTuning
from privirec.federated.programs import SpectralValidation
from privirec.progress import shown_progress
from privirec.rows import as_bytes, parse_bytes, print_table, say, warn, write_json_lines
from privirec.runtime.reveals import gives_away
from privirec.runtime.spec import DEFAULT_AGGREGATOR
from privirec.secagg import protocol_names

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


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """Options of tuning."""

    dataset: options.Dataset
    budget: Annotated[
        str, typer.Option(help="Upload budget per client, as 60MB (B, kB, MB, GB or TB).")
    ]
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for the trace and the settings.", callback=options.writable_folder
        ),
    ] = Path("privirec-out")
    rounds: Annotated[
        str | None,
        typer.Option(help="Numbers of rounds to try (default 4,6,8; federated: 8)."),
    ] = None
    ring_bits: Annotated[
        str | None,
        typer.Option(help="Widths of the ring to try (default 12,16; federated: 12)."),
    ] = None
    users: Annotated[
        int | None,
        typer.Option(min=1, help="Largest number of people to rank for per point (default 3000)."),
    ] = None
    federated: Annotated[
        bool,
        typer.Option(
            "--federated",
            help="Validate on the clients, on items that they hold out; only means are released.",
        ),
    ] = False
    runtime: Annotated[
        str | None,
        options.one_of(
            RUNTIMES,
            help="federated: all clients at once (simulation, the default), client by client in "
            "this process, or as real processes over TLS.",
        ),
    ] = None
    clients: Annotated[
        int | None,
        typer.Option(min=2, help="federated: number of clients (default: one per user)."),
    ] = None
    aggregator: Annotated[
        str | None,
        options.one_of(
            protocol_names(),
            help=f"federated: protocol for sums (default {DEFAULT_AGGREGATOR}).",
        ),
    ] = None
    threads: options.Threads = None
    seed: options.Seed = 0
    data_dir: options.DataDir = None
    json_file: options.Json = None


@with_groups
@reads_tables
def command(*, chosen: TuneOptions, table: TableOptions) -> None:
    """Choose exponents, response, rank, columns and bits of spectral on a validation split.

    A fifth of each user's train items is held out; the test split is not used. Every measured point
    is a line of tune-DATA.jsonl. You can stop with Ctrl-C at any time; the same command continues
    where it stopped. The best point is saved as settings for privirec run.

    With --federated, items stay on the clients: each client holds out a fifth of its own, ranks
    with a grid of candidates on its own device, and sends metrics, which are summed like everything
    else. There is one run per number of rounds and width of the ring; the trace is
    tune-federated-DATA.jsonl.

    Examples:

      privirec paper tune --dataset gowalla --budget 60MB

      privirec paper tune --dataset synthetic:small --budget 50KB --federated --runtime in-process

      privirec run --dataset gowalla --settings privirec-out/spectral-gowalla.json
    """
    _check(chosen)
    limit = parse_bytes(chosen.budget)
    data = load_dataset(chosen.dataset, chosen.data_dir, table=table)
    label = data.name.replace(":", "-").replace("/", "-")
    tuning: Tuning | FederatedTuning
    if chosen.federated:
        tuning = _federated_tuning(chosen, data, limit, label)
        words = words_for(chosen.dataset, chosen.data_dir, table)
        warn(str(gives_away(SpectralValidation.name, words)))
    else:
        tuning = Tuning(
            data,
            limit,
            chosen.out / f"tune-{label}.jsonl",
            rounds=_numbers(chosen.rounds or "4,6,8", "rounds"),
            ring_bits=_numbers(chosen.ring_bits or "12,16", "ring-bits"),
            users=chosen.users or 3000,
            seed=chosen.seed,
            threads=chosen.threads,
        )
    with shown_progress() as phases:
        best = tuning.run(phases)
    settings = chosen.out / f"spectral-{'federated-' if chosen.federated else ''}{label}.json"
    write_whole(settings, as_spec(best).as_chosen())
    write_json_lines(chosen.json_file, [best])
    title = f"{data.name}: best of {len(tuning.points)} points, validation, {as_bytes(limit)} up"
    _show(title, best, tuning)
    say(f"Saved {settings}; the trace is {tuning.trace}")


def _check(chosen: TuneOptions) -> None:
    """Raise UsageError for options that do not go together."""
    only_federated = {
        "--runtime": chosen.runtime,
        "--clients": chosen.clients,
        "--aggregator": chosen.aggregator,
    }
    for name, value in only_federated.items():
        if value is not None and not chosen.federated:
            raise UsageError(f"{name} goes with --federated")
    if chosen.federated and chosen.users is not None:
        raise UsageError("--users does not go with --federated: every client ranks for its own")


def _federated_tuning(
    chosen: TuneOptions, data: Dataset, limit: int, label: str
) -> FederatedTuning:
    runtime = chosen.runtime or RUNTIMES[0]
    usual = "none" if runtime == RUNTIMES[0] else DEFAULT_AGGREGATOR
    return FederatedTuning(
        data,
        limit,
        chosen.out / f"tune-federated-{label}.jsonl",
        rounds=_numbers(chosen.rounds or "8", "rounds"),
        ring_bits=_numbers(chosen.ring_bits or "12", "ring-bits"),
        runtime=runtime,
        clients=chosen.clients,
        aggregator=chosen.aggregator or usual,
        seed=chosen.seed,
        threads=chosen.threads,
    )


def _show(title: str, best: dict[str, Any], tuning: Tuning | FederatedTuning) -> None:
    """Print the best point, and the bytes that clients sent to find it."""
    config = best["config"]
    row = best | {
        "columns_text": f"{len(best['columns'])}x{best['columns'][0]}",
        "rank": config["rank"],
        "a": config["history_exponent"],
        "b": config["item_exponent"],
        "response": config["response"],
    }
    print_table(title, COLUMNS, [row])
    if isinstance(tuning, FederatedTuning):
        up, down = (as_bytes(each) for each in tuning.paid)
        metrics = as_bytes(best["metrics_bytes_up_per_client"])
        say(f"Each client sent {up} and was sent {down} for this, metrics in {metrics} a run.")


def _numbers(text: str, what: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{what}: {text!r} is not numbers with commas") from None
    least, most = (1, 1000) if what == "rounds" else (6, 64)
    if not all(least <= number <= most for number in numbers):
        raise UsageError(f"{what}: {text!r}, possible are {least} to {most}")
    return numbers
