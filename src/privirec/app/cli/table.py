"""`privirec paper table`: the paper's main table."""

from __future__ import annotations

from typing import Annotated

import typer

from privirec.app.cli import options
from privirec.app.cli.table_options import reads_tables, words_for
from privirec.data import TableOptions, load_dataset
from privirec.errors import DataError, UsageError
from privirec.experiments.table import NDCG, measured_rows, table_rows
from privirec.federated.programs import DEFAULT_ROUNDS
from privirec.models import MODELS, compared
from privirec.progress import shown_progress
from privirec.rows import print_table, warn
from privirec.runtime.reveals import gives_away

COLUMNS = [
    ("model", "model"),
    ("method", "method"),
    ("preset", "preset"),
    ("rank", "k"),
    ("multiplications", "power steps"),
    ("ndcg@20", "NDCG@20"),
    ("central_difference", "vs centralised"),
    ("paper_ndcg", "paper"),
    ("paper_difference", "vs paper"),
    ("cpu_seconds", "CPU s"),
]
_COMPARED = ",".join(compared())


@reads_tables
def command(
    *,
    datasets: Annotated[
        str | None,
        typer.Option(
            help="Data sets, separated by commas (default: the paper's, as far as they are found).",
            show_default=False,
        ),
    ] = None,
    models: Annotated[str, typer.Option(help="Models, separated by commas.")] = _COMPARED,
    rounds: Annotated[
        int, typer.Option(min=2, help="L of the PriviRec rows without the preset paper.")
    ] = DEFAULT_ROUNDS,
    threads: options.Threads = None,
    seed: options.Seed = 0,
    data_dir: options.DataDir = None,
    table: TableOptions,
    json_file: options.Json = None,
) -> None:
    """Reproduce the paper's table of NDCG@20: centralised and PriviRec, with the paper's figures.

    "power steps" counts multiplications with the item-item matrix; the centralised rows use
    converged singular vectors ("converged"). Rows with the preset "paper" follow Algorithm 1
    exactly, with L = 2, which is one multiplication.

    With --json, each row is saved as soon as it is measured. The same command continues where it
    stopped.
    """
    wanted = models.split(",")
    unknown = set(wanted) - set(MODELS)
    if unknown:
        raise UsageError(f"no model {sorted(unknown)[0]!r}; there are {', '.join(MODELS)}")
    found, given = [], []
    for name in datasets.split(",") if datasets else list(NDCG):
        try:
            found.append(load_dataset(name, data_dir, table=table))
            given.append(name)
        except DataError as error:
            if datasets:
                raise
            warn(f"left out: {error}")
    if not found:
        raise DataError("none of the paper's data sets is here; run: privirec data get gowalla")
    measured = measured_rows(json_file)
    for data in found:
        with shown_progress() as phases:
            rows = list(
                table_rows(
                    data,
                    wanted,
                    measured=measured,
                    rounds=rounds,
                    seed=seed,
                    threads=threads,
                    phases=phases,
                )
            )
        print_table(f"{data.name}: NDCG@20, seed {seed}", COLUMNS, rows)
    warn(str(gives_away("privirec", words_for(given[0], data_dir, table))))
