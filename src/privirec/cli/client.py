"""`privirec client`: take part in an operator's federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privirec.workflows import taking_part


def command(
    folder: Annotated[Path, typer.Argument(help="The client's folder.", metavar="CLIENT")],
    server: Annotated[
        str | None,
        typer.Option(
            help="https://host[:port], or host:port for Flower, if not the one it joined with."
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check keys, roster, policy and histories.")
    ] = False,
) -> None:
    """Stay connected and answer what the policy allows, until interrupted."""
    if check:
        taking_part.check(folder, server)
    else:
        taking_part.stay(folder, server)
