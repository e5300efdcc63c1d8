"""Asking whoever sits at the terminal, before something is changed that others rely on."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from privirec.errors import UsageError

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")]


def agree(question: str, *, yes: bool) -> None:
    """Go on only if a person, or a script by --yes, agrees."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Nobody is here to ask: look at it and give --yes")
    if not typer.confirm(question):
        raise UsageError("nothing was changed")
