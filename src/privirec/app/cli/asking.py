"""Confirmation on the terminal, before a change that other people rely on."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from privirec.errors import UsageError

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation, for scripts.")]


def agree(question: str, *, yes: bool) -> None:
    """Raise UsageError unless the user confirms, on the terminal or by --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} There is no terminal to ask on: check it and give --yes")
    if not typer.confirm(question):
        raise UsageError("nothing was changed")
