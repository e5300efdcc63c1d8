"""Options for reading tables, shared by all commands that read one.

A command declares a parameter `table: TableOptions`; `reads_tables` replaces it by the options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from privirec.app.cli.options import finite
from privirec.data.columns import TableOptions
from privirec.data.splits import By

_PANEL = "Reading a table"


class TableFlags(TableOptions):
    """Table options given on the command line: error messages name the flags."""

    def how(self, option: str, value: object = "...") -> str:
        flag = option.replace("_", "-")
        if value is False:
            return f"--no-{flag}"
        return f"--{flag}" if value == "..." else f"--{flag} {value}"


def _option(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, show_default=False, rich_help_panel=_PANEL, **more)


_OPTIONS: dict[str, Any] = {
    "user_column": Annotated[
        str | None,
        _option(metavar="NAME", help="Column of user ids: its name, or number."),
    ],
    "item_column": Annotated[str | None, _option(metavar="NAME", help="Column of item ids.")],
    "rating_column": Annotated[str | None, _option(metavar="NAME", help="Column of ratings.")],
    "time_column": Annotated[
        str | None, _option(metavar="NAME", help="Column of times, as numbers or dates.")
    ],
    "min_rating": Annotated[
        float | None,
        _option(
            metavar="X",
            help="Leave out rows with a lower rating; 0 keeps all.",
            callback=finite,
        ),
    ],
    "delimiter": Annotated[
        str | None,
        _option(metavar="SEPARATOR", help="One character, ::, tab, space (default: detected)."),
    ],
    "header": Annotated[
        bool | None,
        _option(
            "--header/--no-header",
            help="Is the first line a header (default: detected)?",
        ),
    ],
}
"""Options by the field of `TableOptions` that they fill."""


def reads_tables(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with these options instead of its parameter `table`."""
    own = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for each in own.parameters.values():
        if each.name == "table":
            parameters += (
                inspect.Parameter(name, each.KEYWORD_ONLY, default=None, annotation=annotation)
                for name, annotation in _OPTIONS.items()
            )
        else:
            parameters.append(each.replace(kind=each.KEYWORD_ONLY))

    @wraps(command)
    def with_options(**given: Any) -> None:
        table = TableFlags(**{name: given.pop(name) for name in _OPTIONS})
        command(**given, table=table)

    # Typer reads both attributes.
    with_options.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options


def words_for(
    dataset: str,
    data_dir: Path | None,
    table: TableOptions,
    *,
    test_file: Path | None = None,
    by: By = "random",
) -> list[str]:
    """Return the words after `--dataset` in a printed command that reads the same data set."""
    words = [dataset]
    if data_dir is not None:
        words += ["--data-dir", str(data_dir)]
    if test_file is not None:
        words += ["--test-file", str(test_file)]
    if by != "random":
        words += ["--split", by]
    for name in _OPTIONS:
        value = getattr(table, name)
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(option if value else f"--no-{name}")
        elif isinstance(value, float):
            words += [option, f"{value:.15g}"]
        elif value is not None:
            words += [option, _SAID.get(value, value) if name == "delimiter" else value]
    return words


_SAID = {"\t": "tab", " ": "space"}
