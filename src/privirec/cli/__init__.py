"""One file a command, no logic of its own."""

from __future__ import annotations

import sys

from privirec.cli.ending import end_well
from privirec.compiled import go_without


def start() -> None:
    """Entry point. Importing takes a second, in which Ctrl-C is one line as well."""
    try:
        if sys.argv[1:2] == ["client"]:
            # One person's device: nothing is loaded that only other commands need.
            go_without()
            from privirec.cli import light as main  # noqa: PLC0415
        else:
            from privirec.cli import main  # type: ignore[no-redef]  # noqa: PLC0415
        command = main.called()
    except KeyboardInterrupt:
        print("privirec: interrupted", file=sys.stderr)
        sys.exit(130)
    end_well(command)
