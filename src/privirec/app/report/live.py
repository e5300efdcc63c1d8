"""Live table of a running federation on a terminal; nothing is shown in a pipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from privirec.rows import as_bytes

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
def federation() -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a callback that shows each status while the body runs, if there is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda status: None
        return
    with Live(table_of({}), console=console, transient=True, auto_refresh=False) as live:
        yield lambda status: live.update(table_of(status), refresh=True)
