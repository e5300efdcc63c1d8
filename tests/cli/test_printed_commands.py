"""Commands printed by other commands: they parse, and they read the same data."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from privirec.app.cli import audit as audit_command
from privirec.app.cli import demo as demo_command
from privirec.app.cli.every import app
from privirec.app.cli.table_options import words_for
from privirec.data.columns import TableOptions
from privirec.federated.programs import PROGRAMS
from privirec.runtime.reveals import gives_away

ROOT: Any = typer.main.get_command(app)
SAID = TableOptions("who", "what", "3", "my time", 0.0, "tab", header=False)
TABLE = {"user_column", "item_column", "rating_column", "time_column", "min_rating"}
TABLE |= {"delimiter", "header"}


def _printed(output: str, beginning: str) -> list[str]:
    """Return the words of the command printed after this text, without `privirec`."""
    line = next(line for line in output.splitlines() if beginning in line)
    words = shlex.split(line.split(beginning, 1)[1])
    assert words[0] == "privirec"
    return words[1:]


def _parsed(words: list[str]) -> dict[str, Any]:
    command = ROOT.commands[words[0]]
    context: Any = command.make_context(words[0], words[1:])
    return dict(context.params)


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, below in getattr(command, "commands", {}).items():
        yield from _commands(below, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command


def test_every_command_that_reads_a_table_has_the_same_options_for_it() -> None:
    read = {("fit",), ("device", "import"), ("data", "info"), ("data", "convert")}
    for path, command in _commands(ROOT):
        names = {each.name for each in command.params}
        if path in read or names & {"dataset", "datasets"}:
            assert names >= TABLE, path
            read.discard(path)
    assert not read


@pytest.mark.parametrize("method", PROGRAMS)
def test_the_audit_that_is_printed_reads_the_same_data(method: str) -> None:
    same = words_for(
        "my data/a.csv", Path("data dir"), SAID, test_file=Path("t.csv"), by="leave-one-out"
    )
    words = _printed(str(gives_away(method, same)), "see for yourself: ")
    parsed = _parsed(words)
    assert words[0] == "audit"
    assert (parsed["release"], parsed["dataset"]) == (method, "my data/a.csv")
    assert (parsed["data_dir"], parsed["test_file"]) == ("data dir", "t.csv")
    assert parsed["by"] == "leave-one-out"
    assert TableOptions(**{name: parsed[name] for name in TABLE}) == SAID
    # Words in capitals are placeholders; the rest must be a valid command.
    general = str(gives_away(method)).split("; ")[-1].removesuffix(" shows it on any data")
    assert _parsed(shlex.split(general)[1:])["release"] == method


def test_detected_table_options_are_not_printed() -> None:
    assert words_for("gowalla", None, TableOptions()) == ["gowalla"]


def test_the_next_command_of_the_demo_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test a folder whose name contains a space too."""
    row = {"users": 2, "items": 3, "label": "", "ndcg@20": 0.1}
    out = tmp_path / "my demo"
    made = SimpleNamespace(few=[row], many=[row], pictures=[], model=out / "model")
    monkeypatch.setattr(demo_command, "demo", lambda *_: made)
    done = CliRunner().invoke(app, ["demo", "--out", str(out)])
    assert done.exit_code == 0, done.output
    line = next(line for line in done.output.splitlines() if line.startswith("Next: "))
    explain = next(each for each in line.split(", ") if "explain-privacy" in each)
    words = shlex.split(explain)
    assert words[0] == "privirec"
    assert _parsed(words[1:])["artifact"] == str(out / "model")


def test_an_audit_says_first_that_it_may_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(audit_command, "audit", stop)
    done = CliRunner().invoke(app, ["audit", "--dataset", "synthetic:small"])
    assert "many minutes" in done.output
