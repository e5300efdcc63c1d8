"""Progress bars and the live table of a federation on a terminal; nothing is shown in a pipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from privirec.rows import as_bytes

Report = Callable[[int, int], None]


class Phases:
    """Factory of progress callbacks `(done, total)`, one for each named phase of a job."""

    def __init__(self, bar: Progress | None = None) -> None:
        self._bar = bar

    def __call__(self, name: str) -> Report:
        bar = self._bar
        if bar is None:
            return _ignore
        self.finish()
        current = bar.add_task(name, total=None)

        def report(done: int, total: int) -> None:
            bar.update(current, completed=min(done, total), total=total)

        return report

    def finish(self) -> None:
        """Show the visible phases at 100 %, whatever they reported last, and then hide them."""
        if self._bar is None:
            return
        for task in self._bar.tasks:
            if task.visible:
                total = task.total or 1
                self._bar.update(task.id, completed=total, total=total, refresh=True)
                self._bar.update(task.id, visible=False)


def _ignore(done: int, total: int) -> None:
    return None


QUIET = Phases()


@contextmanager
def shown_progress() -> Iterator[Phases]:
    """Yield `Phases` that are shown on standard error while the body runs, if on a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield QUIET
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        phases = Phases(bar)
        yield phases
        phases.finish()


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
