"""Help on a narrow terminal: names of options whole, and under each what it does.

Typer's tables cut names with an ellipsis where there is no room for their columns.
"""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Sequence
from typing import Any

import click
import typer
from click.formatting import wrap_text

ROOM_FOR_TABLES = 80
"""Columns of a terminal."""


def settings(app: typer.Typer) -> dict[str, Any]:
    """What the app is to be called with, on this terminal; on a wide one nothing."""
    columns = shutil.get_terminal_size().columns
    if columns >= ROOM_FOR_TABLES:
        return {}
    app.rich_markup_mode = None
    click.Context.formatter_class = _Lines
    _shorten_nothing(app)
    return {"terminal_width": columns - 2}


def _shorten_nothing(app: typer.Typer) -> None:
    """In lists of commands, the whole first paragraph of each: click would cut it to the line."""
    for command in app.registered_commands:
        paragraph = (inspect.getdoc(command.callback) or "").split("\n\n")[0]
        command.short_help = " ".join(paragraph.split())
    for group in app.registered_groups:
        if group.typer_instance is not None:
            group.short_help = group.typer_instance.info.help
            _shorten_nothing(group.typer_instance)


class _Lines(click.HelpFormatter):
    """Writes each option, or command, above its description."""

    def write_dl(
        self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        below = self.current_indent + 4
        for name, description in rows:
            # A line can break between choices; markup, for which Typer escapes, is not read here.
            self._write_wrapped(name.replace("|", " | "), self.current_indent, below)
            if description:
                self._write_wrapped(description.replace("\\[", "["), below, below)

    def _write_wrapped(self, text: str, first: int, then: int) -> None:
        self.write(wrap_text(text, self.width, " " * first, " " * then) + "\n")
