"""Plain lines for people, of which a device needs nothing but these."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """On standard output."""
    print(line, flush=True)


def warn(line: str) -> None:
    """On standard error; in yellow on a terminal."""
    yellow = f"\x1b[33m{line}\x1b[0m" if sys.stderr.isatty() else line
    print(yellow, file=sys.stderr, flush=True)
