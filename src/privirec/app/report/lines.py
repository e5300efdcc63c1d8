"""Plain output lines without dependencies, for programs that run on a device."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """Print a line to standard output."""
    print(line, flush=True)


def warn(line: str) -> None:
    """Print a line to standard error, in yellow on a terminal."""
    yellow = f"\x1b[33m{line}\x1b[0m" if sys.stderr.isatty() else line
    print(yellow, file=sys.stderr, flush=True)
