"""`privirec federate`: a whole federation on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privirec.app.cli import options
from privirec.app.cli.table_options import reads_tables, words_for
from privirec.app.report import live
from privirec.app.report.pictures.federation import federation_plot
from privirec.data import TableOptions, load_dataset
from privirec.federated.programs import DEFAULT_PROGRAM
from privirec.rows import print_table, say, warn, write_json_lines
from privirec.runtime.carriers import DEFAULT_CARRIER, installed_carrier
from privirec.runtime.federate import federate, outlook, promise_kept
from privirec.runtime.plan import NETWORK, PUBLISHED, Plan, gives_away, is_noisy, server_sees
from privirec.runtime.spec import (
    CORRUPT_SHARE,
    DEFAULT_AGGREGATOR,
    DROPPED_SHARE,
    Assumptions,
)
from privirec.secagg import ServerModel

DATASET = "synthetic:town"
COLUMNS = [
    ("rank", "k"),
    ("rounds", "L"),
    ("dropped", "dropped"),
    ("ndcg@20", "NDCG@20"),
    ("recall@20", "Recall@20"),
    ("bytes_up_per_client", "up"),
    ("bytes_down_per_client", "down"),
    ("fit_seconds", "seconds"),
    ("peak_rss_mb", "server MB"),
    ("peak_client_rss_mb", "client MB"),
]


@reads_tables
def command(
    *,
    dataset: options.Dataset = DATASET,
    clients: Annotated[int, typer.Option(min=2, help="Number of clients (silos).")] = 5,
    model: options.Model = None,
    method: options.Program = DEFAULT_PROGRAM,
    preset: options.Preset = PUBLISHED,
    rank: options.Rank = None,
    rounds: options.Rounds = None,
    head: options.Head = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = None,
    way: options.Way = None,
    columns: options.Columns = None,
    block_bits: options.BlockBits = None,
    pairs: options.Pairs = None,
    settle: options.Settle = None,
    aggregator: options.Aggregator = DEFAULT_AGGREGATOR,
    corrupt_share: options.CorruptShare = CORRUPT_SHARE,
    drop_share: options.DropShare = DROPPED_SHARE,
    server_model: options.ServerModelName = ServerModel.ACTIVE,
    carrier: options.Carrier = DEFAULT_CARRIER,
    check: Annotated[
        bool, typer.Option("--check", help="Also run the simulation; exit with 1 if a bit differs.")
    ] = False,
    compare: Annotated[
        bool,
        typer.Option(help="With noise: also measure an exact run and popularity."),
    ] = True,
    threads: options.Threads = None,
    seed: options.Seed = 0,
    data_dir: options.DataDir = None,
    table: TableOptions,
    keep: Annotated[
        Path | None,
        typer.Option(
            help="Folder in which to keep keys, logs and client folders.",
            callback=options.writable_folder,
            show_default=False,
        ),
    ] = None,
    save: options.Save = None,
    overwrite: options.Overwrite = False,
    json_file: options.Json = None,
    picture: options.Picture = None,
) -> None:
    """Start a server and clients as real processes, over TLS, and compute a model with them.

    By default, noise protects every person (--epsilon), and the last line shows the cost in
    accuracy. Use --method for the paper's exact methods. --picture draws the run sum by sum: the
    time of each sum, bytes per client, and clients that dropped out.

    Examples:

      privirec federate

      privirec federate --dataset gowalla --epsilon 4

      privirec federate --clients 20

      privirec federate --method privirec-k --dataset synthetic:small --rank 16
    """
    installed_carrier(carrier)  # fail before anything is read
    options.check_save(save, overwrite)
    plan = Plan(
        model=model,
        method=method,
        preset=preset,
        rank=rank,
        rounds=rounds,
        head=head,
        runtime=NETWORK,
        clients=clients,
        aggregator=aggregator,
        seed=seed,
        threads=threads,
        assumptions=Assumptions(
            corrupt_share=corrupt_share, dropped_share=drop_share, server=server_model
        ),
        federated=options.given(
            epsilon=epsilon,
            delta=delta,
            way=way,
            columns=columns,
            block_bits=block_bits,
            pairs=pairs,
            settle=settle,
        ),
    )
    data = load_dataset(dataset, data_dir, table=table)
    tell = say if is_noisy(method) else warn
    tell(outlook(data, plan) or str(gives_away(method, words_for(dataset, data_dir, table))))
    if seen := server_sees(aggregator):
        warn(seen)
    with live.federation() as watch:
        row = federate(
            data,
            plan,
            carrier=carrier,
            keep=keep,
            check=check,
            compare=compare and plan.noisy,
            save=save,
            watch=watch,
        )
    write_json_lines(json_file, [row])
    title = f"{data.name}: {row['model']} by {method} over {clients} clients, seed {seed}"
    print_table(title, COLUMNS, [row])
    if picture is not None:
        stages = row["timeline"]
        options.say_drawn(federation_plot(title, method, clients, stages, picture))
    say(f"Model {row['model_sha256'][:16]}" + (f", saved in {save}" if save else ""))
    say("Its clients allow what this run asks for; in a real federation each decides that itself.")
    if "epsilon" in row:
        say(promise_kept(row))
    if check:
        same = row["same_as_simulation"]
        say(f"The simulation gives {'the same' if same else 'ANOTHER'} model, bit for bit.")
        if not same:
            raise typer.Exit(1)
