"""Help at any terminal width: names of options are never truncated."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import click
import pytest
import typer
from click.testing import CliRunner

from privirec.app.cli.every import app
from privirec.app.cli.main import settings_for_width


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from _commands(below, (*path, name))


@pytest.mark.parametrize("columns", [40, 60, 79])
def test_every_name_is_whole_on_a_narrow_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(click.Context, "formatter_class", click.HelpFormatter)
    own = copy.deepcopy(app)
    settings = settings_for_width(own)
    root = typer.main.get_command(own)
    for path, command in _commands(root):
        said = CliRunner().invoke(root, [*path, "--help"], **settings).output
        assert max(map(len, said.splitlines())) <= columns, path
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                assert f"  {', '.join(parameter.opts)}" in said, (path, parameter.opts)
        assert "\\[" not in said
        assert "…" not in said
        assert "'..." not in said


def test_a_wide_terminal_keeps_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert settings_for_width(app) == {}
    assert app.rich_markup_mode == "rich"
