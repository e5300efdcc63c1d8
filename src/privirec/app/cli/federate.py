"""`privirec federate`: a whole federation on one machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from privirec.app.cli import options
from privirec.app.cli.groups import with_groups
from privirec.app.cli.run_options import NetworkOptions
from privirec.app.cli.table_options import reads_tables, words_for
from privirec.app.pictures.runs import federation_plot
from privirec.data import TableOptions, load_dataset
from privirec.rows import print_table, say, shown_federation, warn, write_json_lines
from privirec.runtime.carriers import DEFAULT_CARRIER, installed_carrier
from privirec.runtime.federate import federate, for_clients, promise_kept
from privirec.runtime.reveals import gives_away, outlook, server_sees
from privirec.runtime.spec import RunSpec

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


@dataclass(frozen=True, kw_only=True)
class FederationOptions:
    """Options of a federation on this machine, beside those of its run."""

    dataset: options.Dataset = DATASET
    clients: Annotated[int, typer.Option(min=2, metavar="N", help="Number of clients (silos).")] = 5
    carrier: options.Carrier = DEFAULT_CARRIER
    check: Annotated[
        bool, typer.Option("--check", help="Also run the simulation; exit with 1 if a bit differs.")
    ] = False
    compare: Annotated[
        bool, typer.Option(help="With noise: also measure an exact run and popularity.")
    ] = True
    data_dir: options.DataDir = None
    test_file: options.TestFile = None
    by: options.Split = "random"
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder in which to keep keys, logs and client folders.",
            callback=options.writable_folder,
            show_default=False,
        ),
    ] = None
    save: options.Save = None
    overwrite: options.Overwrite = False
    picture: options.Picture = None


@with_groups
@reads_tables
def command(*, here: FederationOptions, chosen: NetworkOptions, table: TableOptions) -> None:
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
    installed_carrier(here.carrier)  # fail before anything is read
    options.check_save(here.save, here.overwrite)
    spec = chosen.spec()
    data = load_dataset(
        here.dataset, here.data_dir, test_file=here.test_file, by=here.by, table=table
    )
    words = words_for(here.dataset, here.data_dir, table, test_file=here.test_file, by=here.by)
    sizes = data.train.n_users, data.train.n_items
    expected = outlook(for_clients(spec, data, here.clients).program, *sizes)
    (say if spec.protected else warn)(expected or str(gives_away(spec.method, words)))
    if seen := server_sees(spec.aggregator):
        warn(seen)
    with shown_federation() as watch:
        row = federate(
            data,
            spec,
            here.clients,
            carrier=here.carrier,
            keep=here.keep,
            check=here.check,
            compare=here.compare and spec.protected,
            save=here.save,
            watch=watch,
        )
    write_json_lines(chosen.json_file, [row])
    _show(row, spec, here, data.name)


def _show(row: dict[str, Any], spec: RunSpec, here: FederationOptions, name: str) -> None:
    """Print the result of a federation; exit with 1 if the simulation gives another model."""
    clients = here.clients
    title = f"{name}: {row['model']} by {spec.method} over {clients} clients, seed {row['seed']}"
    print_table(title, COLUMNS, [row])
    if here.picture is not None:
        drawn = federation_plot(title, spec.method, clients, row["timeline"], here.picture)
        options.say_drawn(drawn)
    say(f"Model {row['model_sha256'][:16]}" + (f", saved in {here.save}" if here.save else ""))
    say("Its clients allow what this run asks for; in a real federation each decides that itself.")
    if "epsilon" in row:
        say(promise_kept(row))
    if here.check:
        same = row["same_as_simulation"]
        say(f"The simulation gives {'the same' if same else 'ANOTHER'} model, bit for bit.")
        if not same:
            raise typer.Exit(1)
