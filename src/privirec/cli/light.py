"""`privirec client` by itself: a device stays connected for months, in as little memory as will do.

The usual calls, `privirec client CLIENT` and `privirec client CLIENT --server ADDRESS`, are
understood without Typer, which takes five megabytes. Every other one (help, a check, a mistake) is
Typer's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from privirec.cli.ending import end_well
from privirec.workflows import taking_part


def run() -> None:
    """Entry point."""
    if usual := as_usual(sys.argv[2:]):
        end_well(lambda: taking_part.stay(*usual))
    else:
        from privirec.cli import main  # noqa: PLC0415 - see above

        main.run()


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
