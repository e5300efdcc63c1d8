"""The command line: one module per command, without logic of its own."""

from __future__ import annotations

import sys

from privirec.app.cli.ending import end_well
from privirec.compiled import go_without


def start() -> None:
    """Run the command line. Imports take a second, so Ctrl-C is handled during them as well."""
    try:
        if sys.argv[1:3] == ["client", "up"]:
            # This runs on a person's device: do not load what only other commands need.
            go_without()
            from privirec.app.cli import light as main  # noqa: PLC0415
        else:
            from privirec.app.cli import main  # type: ignore[no-redef]  # noqa: PLC0415
        command = main.called()
    except KeyboardInterrupt:
        print("privirec: interrupted", file=sys.stderr)
        sys.exit(130)
    end_well(command)
