"""`privirec paper`: reproduce and extend the experiments of the paper; costs of protocols."""

from __future__ import annotations

from typing import Annotated

import typer

from privirec.app.cli import cost, frontier, options, privacy_table, sweep, table, tune
from privirec.experiments.protocols import protocol_rows
from privirec.progress import shown_progress
from privirec.rows import print_table, say, warn, write_json_lines
from privirec.runtime.spec import CORRUPT_SHARE, DROP_SHARE, Assumptions
from privirec.secagg import ServerModel, protocol, protocol_names

COLUMNS = [
    ("protocol", "protocol"),
    ("exchanges", "exchanges"),
    ("bytes_up_per_client", "up/client"),
    ("bytes_down_per_client", "down/client"),
    ("largest_error", "largest error"),
    ("cpu_seconds", "CPU s, all"),
]


def _protocols(
    clients: Annotated[int, typer.Option(min=3, help="Number of clients that take part.")] = 20,
    entries: Annotated[int, typer.Option(min=1, help="Number of entries of the vector.")] = 10_000,
    bits: Annotated[int, typer.Option(min=2, max=62, help="Width of the ring in bits.")] = 32,
    corrupt_share: options.CorruptShare = CORRUPT_SHARE,
    drop_share: options.DropShare = DROP_SHARE,
    server_model: options.ServerModelName = ServerModel.ACTIVE,
    json_file: options.Json = None,
) -> None:
    """List the protocols that sum vectors, with the bytes of one sum in real messages.

    All clients and the server run in this process with real cryptography. If a protocol's guarantee
    is noise, some of the noise stays in the sum: the largest error is that of this run.
    """
    trust = Assumptions(
        corrupt_share=corrupt_share, drop_share=drop_share, server_model=server_model
    )
    with shown_progress() as phases:
        rows = list(protocol_rows(clients, entries, bits, assumptions=trust, phases=phases))
    write_json_lines(json_file, rows)
    title = f"One sum of {entries:,} entries of {bits} bits over {clients:,} clients"
    print_table(title, COLUMNS, [row for row in rows if "refused" not in row])
    for row in rows:
        if "refused" in row:
            warn(f"{row['protocol']} refuses these numbers: {row['refused']}")
    for name in protocol_names():
        say(f"{name}: {protocol(name).guarantee.value}")


app = typer.Typer(
    help="Reproduce and extend the experiments of the paper.",
    no_args_is_help=True,
    add_completion=False,
)
app.command("table")(table.command)
app.command("sweep")(sweep.command)
app.command("cost")(cost.command)
app.command("frontier")(frontier.command)
app.command("privacy-table")(privacy_table.command)
app.command("tune")(tune.command)
app.command("protocols")(_protocols)
