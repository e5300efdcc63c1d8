"""`privirec fit`: a model for use, fitted on all data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privirec.app.cli import options
from privirec.app.cli.table_options import reads_tables
from privirec.app.fit import chosen, fit_all, fit_private
from privirec.data import TableOptions, load_everything
from privirec.errors import UsageError
from privirec.models import Recommender
from privirec.models.base import CENTRAL_MODEL
from privirec.private import PrivateRecommender
from privirec.progress import shown_progress
from privirec.rows import say, warn, write_json_lines
from privirec.runtime.spec import RunSpec

Dataset = Annotated[
    str,
    typer.Argument(
        help="File, folder, or name of a data set (see: privirec data list).", metavar="DATASET"
    ),
]
Save = Annotated[
    Path,
    typer.Option("--save", help="Folder to save the model in.", callback=options.writable_folder),
]
Rank = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="k, vectors of the low-pass filter, if the model has one.",
        show_default=False,
    ),
]
Epsilon = Annotated[
    float | None,
    typer.Option(
        min=0.01,
        max=50,
        metavar="X",
        callback=options.finite,
        help="Add noise that promises this epsilon to every person.",
        show_default=False,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="Seed of start blocks (default 0). With --epsilon: of the noise, which then "
        "promises nothing.",
        show_default=False,
    ),
]


@reads_tables
def command(
    *,
    dataset: Dataset,
    save: Save,
    overwrite: options.Overwrite = False,
    model: options.ModelOrAuto = None,
    rank: Rank = None,
    epsilon: Epsilon = None,
    delta: options.Delta = None,
    table: TableOptions,
    threads: options.Threads = None,
    seed: Seed = None,
    data_dir: options.DataDir = None,
    json_file: options.Json = None,
) -> None:
    """Fit a model on all interactions, train and test together, and save it for use.

    Unlike privirec run, this holds nothing out and measures nothing. Without --epsilon the model is
    exact, and anyone who gets it can reconstruct histories from it. With --epsilon, noise from the
    system's randomness protects every person in the data.

    Examples:

      privirec fit ratings.csv --min-rating 4 --save model

      privirec fit ratings.csv --epsilon 1 --save model

      privirec fit gowalla --model bspm-em --save model

      privirec fit ratings.csv --model auto --save model

      privirec recommend --store me.db --artifact model
    """
    options.check_save(save, overwrite)
    if epsilon is None and delta is not None:
        raise UsageError("--delta goes with --epsilon")
    if epsilon is not None and not (model is None and rank is None):
        raise UsageError("--epsilon has a model of its own: leave out --model and --rank")
    spec = RunSpec.of(**options.given(model=model, rank=rank, seed=seed, threads=threads))
    found = load_everything(dataset, data_dir, table=table)
    name = Path(dataset).name
    promised = options.given(epsilon=epsilon, delta=delta, seed=seed)
    with shown_progress() as phases:
        if epsilon is None:
            fitted = fit_all(found, name, chosen(spec, found, phases), phases)
        else:
            say(PrivateRecommender(**promised).outlook(found.n_users, found.n_items))
            fitted = fit_private(found, name, promised, threads=threads, phases=phases)
    _say_what_it_gives_away(fitted.recommender)
    fitted.recommender.save(save, fitted.manifest)
    write_json_lines(json_file, [fitted.manifest["run"]])
    say(
        f"{fitted.recommender.title} from {found.n_interactions:,} interactions of "
        f"{found.n_users:,} users with {found.n_items:,} items, saved in {save}"
    )


def _say_what_it_gives_away(model: Recommender) -> None:
    if not isinstance(model, PrivateRecommender):
        warn(CENTRAL_MODEL)
    elif model.seed is not None:
        warn(f"{model.ledger_.promised} Leave out --seed for a promise.")
    else:
        say(model.ledger_.promised)
