"""`privirec client` by itself: a device stays connected for months, in as little memory as will do.

The usual calls, `privirec client CLIENT` and `privirec client CLIENT --server ADDRESS`, are
understood without Typer, which takes five megabytes. Every other one (help, a check, a mistake) is
Typer's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from privirec.workflows import taking_part


def called() -> Callable[[], int | None]:
    """What to run, everything imported."""
    if usual := as_usual(sys.argv[2:]):
        return lambda: taking_part.stay(*usual)
    from privirec.cli import main  # noqa: PLC0415 - see above

    return main.called()


def as_usual(arguments: Sequence[str]) -> tuple[Path, str | None] | None:
    """The folder and the server of a call that only names these; of any other one nothing."""
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
