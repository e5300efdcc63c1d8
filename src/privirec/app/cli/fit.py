"""`privirec fit`: a model for use, fitted on all data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privirec.app.cli import options
from privirec.app.cli.table_options import reads_tables
from privirec.app.fit import fit_all
from privirec.data import TableOptions, load_everything
from privirec.progress import shown_progress
from privirec.rows import say, warn, write_json_lines
from privirec.runtime.plan import CENTRAL_MODEL, Plan


@reads_tables
def command(
    *,
    dataset: Annotated[
        str,
        typer.Argument(
            help="File, folder, or name of a data set (see: privirec data list).",
            metavar="DATASET",
        ),
    ],
    save: Annotated[
        Path,
        typer.Option(
            "--save", help="Folder to save the model in.", callback=options.writable_folder
        ),
    ],
    overwrite: options.Overwrite = False,
    model: options.Model = None,
    rank: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="k, vectors of the low-pass filter, if the model has one.",
            show_default=False,
        ),
    ] = None,
    table: TableOptions,
    threads: options.Threads = None,
    seed: options.Seed = 0,
    data_dir: options.DataDir = None,
    json_file: options.Json = None,
) -> None:
    """Fit a model on all interactions, train and test together, and save it for use.

    Unlike privirec run, this holds nothing out and measures nothing. The model is computed on this
    machine, and anyone who gets it can reconstruct histories from it.

    Examples:

      privirec fit ratings.csv --min-rating 4 --save model

      privirec fit gowalla --model bspm-em --save model

      privirec recommend --store me.db --artifact model
    """
    options.check_save(save, overwrite)
    plan = Plan(model=model, rank=rank, seed=seed, threads=threads)
    plan.check()
    found = load_everything(dataset, data_dir, table=table)
    with shown_progress() as phases:
        fitted = fit_all(found, Path(dataset).name, plan, phases)
    warn(CENTRAL_MODEL)
    fitted.recommender.save(save, fitted.manifest)
    write_json_lines(json_file, [fitted.manifest["run"]])
    say(
        f"{plan.model_name} from {found.n_interactions:,} interactions of {found.n_users:,} users "
        f"with {found.n_items:,} items, saved in {save}"
    )
