"""All options of all commands: impossible outputs and numbers are refused before any work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from click.testing import CliRunner

from privirec.app.cli.every import app
from privirec.errors import UsageError

OUTPUTS = {"--json", "--save", "--out", "--report", "--keep", "--work", "--curve", "--picture"}
ARGUMENTS_WRITTEN = {("data", "make", "folder"), ("device", "export", "target")}
IN_THE_COMMAND = {("plan", "--out")}
"""Written only with another option; tested separately below, together with `data convert`."""


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if hasattr(command, "commands"):
        for name, below in command.commands.items():
            yield from _commands(below, (*path, name))
    else:
        yield path, command


ROOT = typer.main.get_command(app)
COMMANDS = dict(_commands(ROOT))


def _is_output(path: tuple[str, ...], parameter: Any) -> bool:
    name = parameter.opts[0]
    return (name in OUTPUTS or (*path, name) in ARGUMENTS_WRITTEN) and (
        *path,
        name,
    ) not in IN_THE_COMMAND


def _each(wanted: Any) -> list[Any]:
    return [
        pytest.param(path, parameter, id=f"{' '.join(path)} {parameter.opts[0]}")
        for path, command in COMMANDS.items()
        for parameter in command.params
        if wanted(path, parameter)
    ]


def _line(path: tuple[str, ...], parameter: Any, value: str, tmp_path: Path) -> list[str]:
    """Return a command line with this value and valid values for all other required options."""
    arguments, named = [], []
    for each in COMMANDS[path].params:
        if each is not parameter and not each.required:
            continue
        given = value if each is parameter else str(tmp_path / "other")
        if each.param_type_name == "argument":
            arguments.append(given)
        else:
            named.append(f"{each.opts[0]}={given}")
    return [*path, *named, "--", *arguments]


def _refused_before_work(
    path: tuple[str, ...], line: list[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[str, BaseException | None]:
    begun = []
    monkeypatch.setattr(COMMANDS[path], "callback", lambda **_: begun.append(path))
    result = CliRunner().invoke(ROOT, line)
    assert not begun, line
    assert result.exit_code, line
    return result.output, result.exception


@pytest.mark.parametrize(("path", "parameter"), _each(_is_output))
def test_an_output_that_cannot_be_written(
    path: tuple[str, ...], parameter: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    line = _line(path, parameter, str(tmp_path / "file" / "below.png"), tmp_path)
    _, error = _refused_before_work(path, line, monkeypatch)
    assert isinstance(error, UsageError)
    assert "cannot be written" in str(error)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


def test_every_path_is_known_to_be_read_or_written() -> None:
    """A new option for a file must be added here as read or written."""
    read = {"--data-dir", "--settings", "--after", "--test-file", "--artifact", "--titles"}
    read |= {
        "--store",
        "--operator-key",
        "--roster",
        "--file",
        "--history",
        "--list",
        "folder",
        "source",
        "artifact",
        "client",
    }
    read |= {"cards", "rotation", "--beside", "--catalogue"}
    for path, command in COMMANDS.items():
        for each in command.params:
            if "Path" not in type(each.type).__name__ or _is_output(path, each):
                continue
            name = each.opts[0]
            elsewhere = (*path, name) in {*IN_THE_COMMAND, ("data", "convert", "target")}
            assert name in read or elsewhere, (path, name)


def _number(_: object, parameter: Any) -> bool:
    return "Float" in type(parameter.type).__name__


@pytest.mark.parametrize(("path", "parameter"), _each(_number))
def test_a_number_that_is_none_or_out_of_range(
    path: tuple[str, ...], parameter: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = ["nan", "-nan", "inf", "-inf", "many"]
    if parameter.opts[0] != "--min-rating":  # ratings may be negative, shares may not
        bad.append("-0.5")
    if (most := getattr(parameter.type, "max", None)) is not None:
        bad.append(str(most * 1.01))
    for value in bad:
        line = _line(path, parameter, value, tmp_path)
        said, error = _refused_before_work(path, line, monkeypatch)
        assert isinstance(error, SystemExit), error
        assert error.code == 2
        assert parameter.opts[0] in said


def test_outputs_that_depend_on_other_options(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1,2\n")
    below = str(tmp_path / "file" / "below")
    lines = [
        ["plan", "--dataset", "synthetic:small", "--target", "0.1", "--out", below],
        ["data", "convert", str(tmp_path / "none.csv"), below],
        ["data", "convert", str(tmp_path / "none.csv"), below + ".txt"],
        ["data", "convert", "--shards", str(tmp_path / "none.csv"), below],
    ]
    for line in lines:
        result = CliRunner().invoke(ROOT, line)
        assert isinstance(result.exception, UsageError), line
        assert "cannot be written" in str(result.exception)


def test_click_and_typer_agree_on_what_a_command_is() -> None:
    """Check that the walk above finds every command."""
    assert ("client", "join") in COMMANDS
    assert ("run",) in COMMANDS
    assert len(COMMANDS) > 40
    assert all(isinstance(command, click.Command) for command in COMMANDS.values())
