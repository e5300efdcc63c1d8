"""Help for narrow terminals: complete option names, each with its description below.

Typer's tables shorten names with an ellipsis if their columns do not fit.
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
"""Least width of a terminal, in columns, for Typer's tables."""


def settings(app: typer.Typer) -> dict[str, Any]:
    """Adapt the app to a narrow terminal; return the arguments to call it with."""
    columns = shutil.get_terminal_size().columns
    if columns >= ROOM_FOR_TABLES:
        return {}
    app.rich_markup_mode = None
    click.Context.formatter_class = _Lines
    _shorten_nothing(app)
    return {"terminal_width": columns - 2}


def _shorten_nothing(app: typer.Typer) -> None:
    """Show the whole first paragraph of each command in lists; click would cut it to one line."""
    for command in app.registered_commands:
        paragraph = (inspect.getdoc(command.callback) or "").split("\n\n")[0]
        command.short_help = " ".join(paragraph.split())
        # Each example is a paragraph, because click joins the lines of a paragraph.
        command.help = (command.help or "").replace("\n  privirec ", "\n\n  privirec ")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            group.short_help = group.typer_instance.info.help
            _shorten_nothing(group.typer_instance)


class _Lines(click.HelpFormatter):
    """Formatter that writes each option or command above its description."""

    def write_dl(
        self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        below = self.current_indent + 4
        for name, description in rows:
            # Spaces let a line break between choices. Typer escapes "[" for markup, unused here.
            self._write_wrapped(name.replace("|", " | "), self.current_indent, below)
            if description:
                self._write_wrapped(description.replace("\\[", "["), below, below)

    def _write_wrapped(self, text: str, first: int, then: int) -> None:
        self.write(wrap_text(text, self.width, " " * first, " " * then) + "\n")
