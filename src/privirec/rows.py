"""Result rows: flat JSON objects, one per line, and their display in a table."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from privirec.data.text import write_lines
from privirec.errors import UsageError

Row = Mapping[str, Any]


def write_json_lines(path: Path | None, rows: Iterable[Row], *, private: bool = False) -> None:
    """Write all rows or none. Without a path, write nothing."""
    if path is not None:
        write_lines(path, (json.dumps(row) for row in rows), private=private)


def check_writable(file: Path | None = None, *, folder: Path | None = None) -> None:
    """Raise UsageError if a result cannot be written, so that long work fails before it starts."""
    if file is not None:
        if file.name == "-":
            raise UsageError(f"{file}: name a file; /dev/stdout is one")
        if file.is_dir():
            raise UsageError(f"{file}: cannot be written (it is a folder)")
    if folder is not None and folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: cannot be written (it is a file, and a folder is needed)")
    for path in (file, folder):
        if path is None:
            continue
        # An existing file is replaced by a new file in its folder, so the folder must be writable.
        target = path if path.exists() and not path.is_file() else _nearest_existing(path)
        if not path.exists() and not target.is_dir():
            raise UsageError(f"{path}: cannot be written ({target} is not a folder)")
        if not os.access(target, os.W_OK):
            raise UsageError(f"{path}: cannot be written (no permission in {target})")


def in_file_name(name: str) -> str:
    """Return a name, such as a data set's, in a form that is safe as part of a file name."""
    return "".join(letter if letter.isalnum() else "-" for letter in name)


def _nearest_existing(path: Path) -> Path:
    for parent in path.absolute().parents:
        if parent.exists():
            return parent
    return Path("/")


def console() -> Console:
    """Return a console for standard output; in a pipe it is wide enough for most tables."""
    out = Console()
    return out if out.is_terminal else Console(width=160)


def warn(sentence: str) -> None:
    """Print a sentence to standard error, in yellow on a terminal."""
    Console(stderr=True, soft_wrap=True).print(
        sentence, style="yellow", highlight=False, markup=False
    )


def print_table(title: str, columns: Sequence[tuple[str, str]], rows: Iterable[Row]) -> None:
    """Print a table of (key, heading) columns under a title; missing values stay empty."""
    out = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    rows = list(rows)
    for key, heading in columns:
        numeric = any(isinstance(row.get(key), int | float) for row in rows)
        out.add_column(heading, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        out.add_row(*(escape(as_text(key, row.get(key))) for key, _ in columns))
    screen = console()
    screen.print(title, style="bold", highlight=False, markup=False, soft_wrap=True)
    # A table wider than the terminal is wrapped by the terminal; rich would truncate its figures.
    natural = Console(width=10_000).measure(out).maximum
    Console(width=max(screen.width, natural)).print(out)


def say(sentence: str) -> None:
    """Print a plain sentence to standard output."""
    console().print(sentence, highlight=False, markup=False, soft_wrap=True)


def as_text(key: str, value: Any) -> str:
    """Return a value formatted for people: four decimals for metrics, bytes with units."""
    if value is None:
        return ""
    if "bytes" in key:
        return as_bytes(value)
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, float):
        digits = 0 if key.endswith("_mb") else 1 if "seconds" in key else 4
        return f"{value:+.{digits}f}" if key.endswith("difference") else f"{value:.{digits}f}"
    return f"{value:,}"


def as_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} PB"
