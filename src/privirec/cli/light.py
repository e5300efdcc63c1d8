"""`privirec client` by itself: a device stays connected for months, in as little memory as will do.

The usual calls, `privirec client CLIENT` and `privirec client CLIENT --server ADDRESS`, are
understood without Typer, which takes five megabytes. Every other one (help, a check, a mistake) is
Typer's, with the same command as that of `main`.
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
        end_well(_with_typer)


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


def _with_typer() -> int:
    import typer  # noqa: PLC0415 - see above

    from privirec.cli import client, narrow_help  # noqa: PLC0415

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    app.command("client")(client.command)

    @app.callback()
    def _main() -> None:
        """With a callback, the command keeps its name."""

    return int(app(standalone_mode=True, **narrow_help.settings(app)) or 0)
