"""One file a command, no logic of its own."""

from __future__ import annotations

import sys


def start() -> None:
    """Entry point. Importing takes a second, in which Ctrl-C is one line as well."""
    try:
        from privirec.cli import main  # noqa: PLC0415
    except KeyboardInterrupt:
        print("privirec: interrupted", file=sys.stderr)
        sys.exit(130)
    main.run()
