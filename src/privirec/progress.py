"""Progress bars with phase and remaining time on a terminal; nothing is shown in a pipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

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
