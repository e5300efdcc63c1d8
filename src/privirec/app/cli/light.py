"""`privirec client up` without Typer: a device stays connected for months, so memory matters.

The usual calls, `privirec client up CLIENT` and `privirec client up CLIENT --server ADDRESS`, are
parsed here, because Typer takes five megabytes. All other calls (help, a check, a mistake) go to
Typer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from privirec.app import taking_part


def called() -> Callable[[], int | None]:
    """Import everything, and return the function to run."""
    if usual := as_usual(sys.argv[3:]):
        return lambda: taking_part.stay(*usual)
    from privirec.app.cli import main  # noqa: PLC0415 - imports Typer

    return main.called()


def as_usual(arguments: Sequence[str]) -> tuple[Path, str | None] | None:
    """Return folder and server of `client up FOLDER [--server URL]`; None for other arguments."""
    match arguments:
        case [folder]:
            server = None
        case [folder, "--server", server] | ["--server", server, folder]:
            pass
        case _:
            return None
    if any(not each or each.startswith("-") for each in (folder, server) if each is not None):
        return None
    return Path(folder), server
