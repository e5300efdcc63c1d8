"""The command line: `privirec COMMAND`. One line for what goes wrong, and an exit code."""

from __future__ import annotations

import sys

import typer

from privirec.cli import (
    audit,
    client,
    cost,
    data,
    demo,
    doctor,
    federate,
    keys,
    server,
    sweep,
    table,
)
from privirec.cli import run as run_command
from privirec.errors import PrivirecError
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
app.command("table")(table.command)
app.command("sweep")(sweep.command)
app.command("cost")(cost.command)
app.command("audit")(audit.command)
app.command("doctor")(doctor.command)
app.add_typer(data.app, name="data")
app.command("federate")(federate.command)
app.command("client")(client.command)
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
    """Entry point. Exit codes: 0 done, 1 a check failed, 2 bad usage or input, 3 a federation
    that could not finish safely, 130 interrupted."""
    try:
        code = app(standalone_mode=True)
    except PrivirecError as error:
        print(f"privirec: {error}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        print("privirec: interrupted", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        code = 141
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"privirec: {where}{error.strerror or error}", file=sys.stderr)
        code = 2
    sys.exit(code)
