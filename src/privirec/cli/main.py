"""The command line: `privirec COMMAND`. One line for what goes wrong, and an exit code."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from typing import TextIO

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
from privirec.errors import DataWarning, PrivirecError
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
    """Entry point. Exit codes: 0 done, 1 a check failed, 2 bad usage or input, 3 a federation
    that could not finish safely, 130 or 143 interrupted."""
    # Typer would answer Ctrl-C itself, and in silence; this way it is one line and 130. Who is
    # ended by a service manager puts things away as well.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    warnings.showwarning = _show_warning
    try:
        code = app(standalone_mode=True)
    except PrivirecError as error:
        code = _say(str(error), error.exit_code)
    except _Interrupted as stop:
        code = _say("interrupted", 128 + stop.number)
    except MemoryError as error:
        code = _say(f"not enough memory ({str(error).rstrip('.') or 'none left'})", 2)
    except BrokenPipeError:
        # Whoever read has gone; say nothing, not even at exit when buffers are flushed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        code = _say(f"{where}{error.strerror or error}", 2)
    sys.exit(code)


class _Interrupted(BaseException):
    """Ctrl-C, or a polite kill."""

    def __init__(self, number: int) -> None:
        self.number = number


def _interrupted(number: int, _frame: object) -> None:
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # one is enough: let things be put away
    raise _Interrupted(number)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """What somebody should know of data is one line; anything else says where it comes from."""
    if issubclass(category, DataWarning):
        print(f"privirec: {message}", file=sys.stderr)
    else:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))


def _say(line: str, code: int) -> int:
    print(f"privirec: {line}", file=sys.stderr)
    return code
