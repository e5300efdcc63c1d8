"""`privirec client` by itself: a device stays connected for months, in as little memory as will do.

The same command, with the same options, as that of `main`.
"""

from __future__ import annotations

import typer

from privirec.cli import client
from privirec.cli.ending import end_well

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
app.command("client")(client.command)


@app.callback()
def _main() -> None:
    """With a callback, the command keeps its name."""


def run() -> None:
    """Entry point."""
    end_well(app)
