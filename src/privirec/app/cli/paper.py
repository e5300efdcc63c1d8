"""`privirec paper`: reproduce and extend the experiments of the paper."""

from __future__ import annotations

import typer

from privirec.app.cli import cost, frontier, privacy_table, protocols, sweep, table, tune

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
app.command("protocols")(protocols.command)
