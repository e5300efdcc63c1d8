"""The command line: `privirec COMMAND`. One line for what goes wrong, and an exit code."""

from __future__ import annotations

import typer

from privirec.cli import (
    audit,
    client,
    cost,
    data,
    demo,
    device,
    doctor,
    federate,
    fit,
    frontier,
    keys,
    narrow_help,
    plan,
    privacy,
    privacy_table,
    protocols,
    recommend,
    server,
    store,
    sweep,
    table,
    tune,
)
from privirec.cli import run as run_command
from privirec.cli.ending import end_well
from privirec.version import __version__

app = typer.Typer(
    help="Recommendation that learns from people's histories without collecting them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("demo")(demo.command)
app.command("run")(run_command.command)
app.command("fit")(fit.command)
app.command("table")(table.command)
app.command("privacy-table")(privacy_table.command)
app.command("frontier")(frontier.command)
app.command("sweep")(sweep.command)
app.command("tune")(tune.command)
app.command("plan")(plan.command)
app.command("cost")(cost.command)
app.command("audit")(audit.command)
app.command("doctor")(doctor.command)
app.command("protocols")(protocols.command)
app.command("recommend")(recommend.command)
app.add_typer(data.app, name="data")
app.add_typer(store.app, name="store")
app.command("federate")(federate.command)
app.command("client")(client.command)
app.command("budget")(privacy.budget)
app.command("explain-privacy")(privacy.explain_privacy)
app.add_typer(device.app, name="device")
app.add_typer(server.app, name="server")
app.add_typer(keys.app, name="keys")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"privirec {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


def run() -> None:
    """Entry point."""
    end_well(lambda: app(standalone_mode=True, **narrow_help.settings(app)))
