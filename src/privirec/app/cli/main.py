"""The command line, `privirec COMMAND`.

Only the called command is imported, because importing all of them takes a second and a half.
"""

from __future__ import annotations

import importlib
import inspect
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click
import typer
from click.formatting import wrap_text

from privirec.version import __version__

COMMANDS = {
    "demo": "demo.command",
    "fit": "fit.command",
    "recommend": "recommend.command",
    "run": "run.command",
    "federate": "federate.command",
    "plan": "plan.command",
    "server": "server.app",
    "client": "client.app",
    "device": "device.app",
    "data": "data.app",
    "audit": "audit.command",
    "explain-privacy": "facts.explain_privacy",
    "paper": "paper.app",
    "doctor": "facts.doctor",
}
"""Module and attribute of each command, in the order of the help; an `app` has subcommands."""


def app_of(names: Iterable[str]) -> typer.Typer:
    """Return the command line with only these commands."""
    app = typer.Typer(
        help="Recommender systems that learn from people's histories without collecting them.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    app.callback()(_main)
    for name in names:
        module, _, attribute = COMMANDS[name].partition(".")
        found = getattr(importlib.import_module(f"privirec.app.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    _let_paragraphs_flow(app)
    return app


def _let_paragraphs_flow(app: typer.Typer) -> None:
    """Join the lines of paragraphs in help texts; Typer would keep the source's line breaks."""
    for command in app.registered_commands:
        text = inspect.cleandoc(command.help or inspect.getdoc(command.callback) or "")
        command.help = "\n\n".join(map(_in_one_line, text.split("\n\n")))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _let_paragraphs_flow(group.typer_instance)


def _in_one_line(paragraph: str) -> str:
    """Join the lines of a paragraph, unless it is indented: that is an example."""
    is_example = paragraph.startswith((" ", "\b"))
    return paragraph if is_example else " ".join(paragraph.split("\n"))


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"privirec {__version__}")
        raise typer.Exit


def _main(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


def called() -> Callable[[], int]:
    """Import the called command, and return the function to run."""
    name = sys.argv[1:2]
    # The help, and suggestions for a mistyped name, need all commands.
    app = app_of(name if set(name) & set(COMMANDS) else COMMANDS)
    return lambda: int(app(standalone_mode=True, **settings_for_width(app)) or 0)


# --- help for narrow terminals: complete option names, each with its description below ----------

ROOM_FOR_TABLES = 80
"""Least width of a terminal, in columns, for Typer's tables; they shorten names below it."""


def settings_for_width(app: typer.Typer) -> dict[str, Any]:
    """Adapt the app to a narrow terminal; return the arguments to call it with."""
    columns = shutil.get_terminal_size().columns
    if columns >= ROOM_FOR_TABLES:
        return {}
    app.rich_markup_mode = None
    click.Context.formatter_class = _NarrowLines
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


class _NarrowLines(click.HelpFormatter):
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
