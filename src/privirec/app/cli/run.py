"""`privirec run`: compute and measure one model on one data set with one method."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from privirec.app.cli import options
from privirec.app.cli.groups import PANEL, with_groups
from privirec.app.cli.run_options import OneMachineOptions
from privirec.app.cli.table_options import reads_tables, words_for
from privirec.app.fit import chosen as choose
from privirec.data import TableOptions, load_dataset
from privirec.data.datasets import load_sharded
from privirec.errors import UsageError
from privirec.models.base import CENTRAL_MODEL
from privirec.progress import shown_progress
from privirec.rows import print_table, say, warn, write_json_lines
from privirec.runtime.reveals import gives_away
from privirec.runtime.run import Result, run
from privirec.runtime.run_shards import DEFAULT_SAMPLE, run_shards
from privirec.runtime.spec import AUTO, OneProcess, RunSpec

COLUMNS = [
    ("model", "model"),
    ("method", "method"),
    ("rank", "k"),
    ("rounds", "L"),
    ("ndcg@20", "NDCG@20"),
    ("recall@20", "Recall@20"),
    ("bytes_up_per_client", "up/client"),
    ("bytes_down_per_client", "down/client"),
    ("cpu_seconds", "CPU s"),
]

_SHARDS = {PANEL: "Data in shards"}


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Options that select the data, and the place of the model."""

    dataset: options.Dataset
    data_dir: options.DataDir = None
    test_file: options.TestFile = None
    by: options.Split = "random"
    save: options.Save = None
    overwrite: options.Overwrite = False
    sample: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help=f"Number of random users to rank for (default {DEFAULT_SAMPLE:,}).",
            show_default=False,
        ),
    ] = field(default=None, metadata=_SHARDS)
    work: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Keep finished sums here; an interrupted run resumes from them.",
            callback=options.writable_folder,
            show_default=False,
        ),
    ] = field(default=None, metadata=_SHARDS)
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Dask workers for sums: dask starts --threads, or tcp://HOST:PORT.",
            show_default=False,
        ),
    ] = field(default=None, metadata=_SHARDS)


@with_groups
@reads_tables
def command(*, data: DataOptions, chosen: OneMachineOptions, table: TableOptions) -> None:
    """Compute the filters, rank items for every user, and measure the accuracy.

    Examples:

      privirec run --dataset gowalla --model gf-cf --method privirec-k --rank 512 --save model
      privirec run --dataset gowalla --method spectral --preset gowalla-60mb
      privirec run --dataset FILE --method spectral --rank 256 --after monday
      privirec run --dataset gowalla --method protected --epsilon 8 --delta 1e-6
      privirec run --dataset ratings.csv --min-rating 4 --split time --model item-knn
      privirec run --dataset FOLDER-OF-SHARDS --method protected --sample 5000 --work sums
    """
    options.check_save(data.save, data.overwrite)
    spec = chosen.spec()
    result = _result(data, spec, chosen.process(), table)
    write_json_lines(chosen.json_file, [result.row])
    print_table(f"{result.row['dataset']}, seed {spec.program.seed}", COLUMNS, [result.row])
    found = result.metrics
    if load_sharded(data.dataset) is None:
        say(
            f"MRR@20 {found.mrr:.4f}, a hit for {found.hit_rate:.1%} of the users, "
            f"{found.coverage:.1%} of the catalogue recommended, novelty {found.novelty:.1f} bits"
        )
    else:
        say(f"NDCG and Recall of {found.users:,} users, drawn at random")
    same_data = words_for(data.dataset, data.data_dir, table, test_file=data.test_file, by=data.by)
    if warning := gives_away(spec.method, same_data, result.promised):
        warn(warning)
    if data.save:
        if spec.federated is None:
            warn(CENTRAL_MODEL)
        result.recommender.save(data.save, result.manifest())
        say(f"Saved in {data.save}")


def _result(chosen: DataOptions, spec: RunSpec, process: OneProcess, table: TableOptions) -> Result:
    sharded = load_sharded(chosen.dataset)
    if sharded is None and (chosen.sample, chosen.work, chosen.engine) != (None, None, None):
        raise UsageError(
            "--sample, --work and --engine go with data in shards: privirec data convert"
        )
    with shown_progress() as phases:
        if sharded is not None:
            if spec.model == AUTO:
                raise UsageError(f"--model {AUTO} needs data that fit in memory, not shards")
            sample = chosen.sample or DEFAULT_SAMPLE
            work, engine = chosen.work, chosen.engine
            return run_shards(
                sharded, spec, phases, process, sample=sample, work=work, engine=engine
            )
        data = load_dataset(
            chosen.dataset, chosen.data_dir, test_file=chosen.test_file, by=chosen.by, table=table
        )
        return run(data, choose(spec, data.train, phases), phases, process)
