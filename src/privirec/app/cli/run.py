"""`privirec run`: compute and measure one model on one data set with one method."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from privirec.app.cli import options
from privirec.app.cli.table_options import reads_tables, words_for
from privirec.data import TableOptions, load_dataset
from privirec.data.datasets import load_sharded
from privirec.errors import UsageError
from privirec.federated.programs import DEFAULT_ROUNDS, PrivirecKSettings, PrivirecSettings
from privirec.federated.programs.power import PowerSettings
from privirec.progress import shown_progress
from privirec.rows import print_table, say, warn, write_json_lines
from privirec.runtime.plan import (
    CENTRAL_MODEL,
    CENTRALIZED,
    PUBLISHED,
    RUNTIMES,
    SOLVERS,
    Plan,
    gives_away,
    methods,
    methods_in_short,
    presets,
    read_settings,
    usual_dropped_share,
)
from privirec.runtime.run import run
from privirec.runtime.run_shards import DEFAULT_SAMPLE, run_shards
from privirec.runtime.spec import (
    CORRUPT_SHARE,
    DROPPED_SHARE,
    SERVER_ON_ONE_MACHINE,
    Assumptions,
)
from privirec.secagg import protocol_names

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


@reads_tables
def command(
    *,
    dataset: options.Dataset,
    model: options.Model = None,
    method: Annotated[
        str,
        options.one_of(methods(), help=f"Method that computes the filters. {methods_in_short()}"),
    ] = CENTRALIZED,
    preset: Annotated[
        str,
        options.one_of(
            presets(),
            help="Preset of settings. published: the models' published settings; paper: also "
            "exactly the paper's federated settings (L = 2, a start row per user, eigenvalues from "
            "the QR factor); DATA-NMB: spectral with at most N megabytes up per client, with "
            "columns, rank and bits chosen on a validation split of that data set.",
        ),
    ] = PUBLISHED,
    rank: Annotated[
        int | None,
        typer.Option(
            min=1, help="k, vectors of the low-pass filter; privirec-k: of the low-rank matrix."
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"L, the secure sums of the power method (default {DEFAULT_ROUNDS}; 2 with the "
            "preset paper).",
        ),
    ] = None,
    head: options.Head = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = None,
    way: options.Way = None,
    columns: options.Columns = None,
    block_bits: options.BlockBits = None,
    pairs: options.Pairs = None,
    settle: options.Settle = None,
    settings: Annotated[
        Path | None,
        typer.Option(
            help="File of privirec paper tune with the method, the model and their settings.",
            show_default=False,
        ),
    ] = None,
    warm: Annotated[
        Path | None,
        typer.Option(
            help="spectral: start from the basis of this saved model, in one round unless "
            "--columns is given. Items that the model does not know start from zero.",
            show_default=False,
        ),
    ] = None,
    solver: Annotated[
        str,
        options.one_of(
            SOLVERS,
            help="centralized: converged singular vectors, or the randomised power method with "
            "--rounds steps of one or two QR factorisations.",
        ),
    ] = "converged",
    start: Annotated[
        str | None,
        options.one_of(
            options.choices_of(PowerSettings, "start"),
            help="Start block: over items from a public seed, or one row per user.",
        ),
    ] = None,
    eigenvalues: Annotated[
        str | None,
        options.one_of(
            options.choices_of(PrivirecKSettings, "eigenvalues"),
            help="privirec-k: eigenvalues by Rayleigh-Ritz, or from the QR diagonal.",
        ),
    ] = None,
    low_pass_from: Annotated[
        str | None,
        options.one_of(
            options.choices_of(PrivirecSettings, "low_pass_from"),
            help="privirec: compute the low-pass filter with the clients, or on the server from "
            "its P~.",
        ),
    ] = None,
    ring_bits: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Width of the ring in bits (default 32; spectral 12)."),
    ] = None,
    runtime: Annotated[
        str,
        options.one_of(
            RUNTIMES,
            help="simulation: all users in one matrix; in-process: client by client, in this "
            "process.",
        ),
    ] = "simulation",
    clients: Annotated[
        int | None, typer.Option(min=1, help="Number of silos (default: one client per user).")
    ] = None,
    aggregator: Annotated[
        str, options.one_of(protocol_names(), help="in-process: protocol for sums.")
    ] = "none",
    drop_share: Annotated[
        float,
        typer.Option(
            min=0,
            max=0.5,
            callback=options.finite,
            help="Share of clients that drop out before the first sum. Noise is sufficient for a "
            f"share of {DROPPED_SHARE:g}, or for this share if it is larger.",
        ),
    ] = 0.0,
    corrupt_share: options.CorruptShare = CORRUPT_SHARE,
    server_model: options.ServerModelName = SERVER_ON_ONE_MACHINE,
    threads: options.Threads = None,
    seed: options.Seed = 0,
    data_dir: options.DataDir = None,
    test_file: options.TestFile = None,
    by: options.Split = "random",
    table: TableOptions,
    save: options.Save = None,
    overwrite: options.Overwrite = False,
    sample: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Data in shards: number of random users with test items to rank for "
            f"(default {DEFAULT_SAMPLE:,}). The result row has the actual number.",
            show_default=False,
        ),
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option(
            help="Data in shards: folder for finished sums, from which an interrupted run resumes.",
            callback=options.writable_folder,
            show_default=False,
        ),
    ] = None,
    json_file: options.Json = None,
) -> None:
    """Compute the filters, rank items for every user, and measure the accuracy.

    Examples:

      privirec run --dataset gowalla --model gf-cf

      privirec run --dataset gowalla --model gf-cf --method privirec-k --rank 512 --save model

      privirec run --dataset gowalla --method spectral --preset gowalla-60mb

      privirec run --dataset FILE --method spectral --rank 256 --columns 6x64 --save monday

      privirec run --dataset FILE --method spectral --rank 256 --warm monday

      privirec run --dataset gowalla --method protected --epsilon 8 --delta 1e-6

    Your own data: one file, which is split, or two files. See "Reading a table" below.

      privirec run --dataset ratings.csv --min-rating 4 --split time --model item-knn

      privirec run --dataset train.csv --test-file test.csv

    A folder of shards (privirec data make, privirec data convert) is processed shard by shard:

      privirec run --dataset FOLDER --method protected --sample 5000 --work sums --save model
    """
    options.check_save(save, overwrite)
    choices = options.given(
        start=start,
        eigenvalues=eigenvalues,
        low_pass_from=low_pass_from,
        ring_bits=ring_bits,
        epsilon=epsilon,
        delta=delta,
        way=way,
        columns=columns,
        block_bits=block_bits,
        pairs=pairs,
        settle=settle,
    )
    config: dict[str, Any] = {}
    if settings is not None:
        chosen = read_settings(settings)
        method, config = chosen["method"], chosen["config"]
        model = model or chosen["model"]
        choices = chosen["program"] | choices
    plan = Plan(
        model=model,
        method=method,
        preset=preset,
        rank=rank,
        rounds=rounds,
        head=head,
        solver=solver,
        runtime=runtime,
        clients=clients,
        aggregator=aggregator,
        drop_share=drop_share,
        assumptions=Assumptions(
            corrupt_share=corrupt_share,
            dropped_share=max(usual_dropped_share(method), drop_share),
            server=server_model,
        ),
        seed=seed,
        threads=threads,
        federated=choices,
        config=config,
        warm=warm,
    )
    if aggregator == "none":
        # Without masks there are no secret shares; only noise depends on the corrupt share.
        if corrupt_share != CORRUPT_SHARE and not plan.noisy:
            raise UsageError("--corrupt-share goes with an --aggregator, or with noise (protected)")
        if server_model != SERVER_ON_ONE_MACHINE:
            raise UsageError("--server-model goes with an --aggregator: secagg+ or secagg")
    sharded = load_sharded(dataset)
    if sharded is None and not (sample is None and work is None):
        raise UsageError("--sample and --work go with data in shards: privirec data convert")
    with shown_progress() as phases:
        if sharded is not None:
            result = run_shards(sharded, plan, phases, sample=sample or DEFAULT_SAMPLE, work=work)
        else:
            data = load_dataset(dataset, data_dir, test=test_file, by=by, table=table)
            result = run(data, plan, phases)
    write_json_lines(json_file, [result.row])
    print_table(f"{result.row['dataset']}, seed {seed}", COLUMNS, [result.row])
    if sharded is None:
        found = result.metrics
        say(
            f"MRR@20 {found.mrr:.4f}, a hit for {found.hit_rate:.1%} of the users, "
            f"{found.coverage:.1%} of the catalogue recommended, novelty {found.novelty:.1f} bits"
        )
    else:
        say(f"NDCG and Recall of {result.metrics.users:,} users, drawn at random")
    same_data = words_for(dataset, data_dir, table, test_file=test_file, by=by)
    if warning := gives_away(method, same_data, result.row.get("epsilon")):
        warn(warning)
    if save:
        if plan.program is None:
            warn(CENTRAL_MODEL)
        result.recommender.save(save, result.manifest())
        say(f"Saved in {save}")
