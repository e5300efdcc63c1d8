"""Result rows: flat JSON objects, one per line, and their display in a table."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.live import Live
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


MOST = 1e24
"""Upper limit for amounts in bytes, or bytes per second; larger ones must be mistakes."""

_NUMBER = r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*"
_BYTES = re.compile(_NUMBER + r"([kmgt]?b)\s*", re.ASCII | re.IGNORECASE)
# A byte is a capital B and a bit is written out, because Mb/s is ambiguous.
_RATE = re.compile(_NUMBER + r"((?:[kKmMgGtT]?)(?:bit/s|bps|B/s))\s*", re.ASCII)
_THOUSANDS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def parse_bytes(text: str, what: str = "budget") -> int:
    """Return the bytes in `50MB`, `500 kB` or `1000B`; units are powers of 1000."""
    matched = _BYTES.fullmatch(text)
    if matched is None:
        raise UsageError(f"a {what} of {text!r}: give one as 60MB; units are B, kB, MB, GB and TB")
    found = _finite(float(matched[1]) * _THOUSANDS.get(matched[2][0].lower(), 1), text)
    if found < 1:
        raise UsageError(f"a {what} of {text!r} is nothing")
    return int(found)


def parse_rate(text: str, what: str) -> float:
    """Return the bytes per second in `5Mbit/s`, `50Mbps` or `2MB/s`."""
    matched = _RATE.fullmatch(text)
    if matched is None:
        raise UsageError(f"{what}: a speed of {text!r}: give one as 5Mbit/s, 1Gbit/s or 2MB/s")
    unit = matched[2]
    factor = _THOUSANDS.get(unit[0].lower(), 1) / (1 if unit.endswith("B/s") else 8)
    found = _finite(float(matched[1]) * factor, text)
    if not found > 0:
        raise UsageError(f"{what}: with a speed of {text!r} nothing arrives")
    return found


def _finite(value: float, text: str) -> float:
    if not value < MOST:
        raise UsageError(f"{text!r} is too large")
    return value


def as_duration(seconds: float) -> str:
    """Return a duration in its natural unit, with about two significant digits."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds)} s" if seconds >= 0.1 else f"{_digits(1000 * seconds)} ms"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


# --- live table of a running federation ----------------------------------------------------------

_COLOURS = {"answered": "green", "installed": "green", "refused": "red", "dropped": "yellow"}


def table_of(status: dict[str, Any]) -> Table | str:
    """Return a table of the clients with their state and bytes, titled with the current stage."""
    if not status:
        return "Starting the server and the clients ..."
    where = status["stage"]
    if status["step"]:
        where = status["step"]
    if status["sum_number"]:
        where = f"sum {status['sum_number']} of {status['sums']} ({status['sum']}): {where}"
    if status["waited"]:
        where += f" for {status['waited']} s"
    out = Table(title=where, box=box.SIMPLE_HEAD, title_justify="left")
    for heading in ("client", "state", "users", "up", "down", ""):
        right = heading in ("client", "users", "up", "down")
        out.add_column(heading, justify="right" if right else "left", no_wrap=heading != "")
    for client, line in status["clients"].items():
        colour = _COLOURS.get(line["state"], "")
        out.add_row(
            client,
            f"[{colour}]{line['state']}[/]" if colour else line["state"],
            f"{line['users']:,}" if line["users"] else "",
            as_bytes(line["bytes_up"]),
            as_bytes(line["bytes_down"]),
            escape(line["why"]),
        )
    return out


@contextmanager
def shown_federation() -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a callback that shows each status while the body runs, if there is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda status: None
        return
    with Live(table_of({}), console=console, transient=True, auto_refresh=False) as live:
        yield lambda status: live.update(table_of(status), refresh=True)
