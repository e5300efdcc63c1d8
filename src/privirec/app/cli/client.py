"""`privirec client`: take part in an operator's federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privirec.app import taking_part


def command(
    folder: Annotated[Path, typer.Argument(help="The client's folder.", metavar="CLIENT")],
    server: Annotated[
        str | None,
        typer.Option(
            help="Server: https://host[:port], or host:port for Flower (default: the one joined)."
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check keys, roster, policy and histories, then exit.")
    ] = False,
) -> None:
    """Stay connected to the server and answer what the policy allows, until interrupted."""
    if check:
        taking_part.check(folder, server)
    else:
        taking_part.stay(folder, server)
