"""Tests of the commands that run a program: the same options everywhere, and readable help."""

from __future__ import annotations

import ast
import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from privirec.app import cli
from privirec.app.cli.every import app
from privirec.app.cli.groups import with_groups
from privirec.app.cli.run_options import NetworkOptions, RunOptions, generated, offered
from privirec.errors import FederationError
from privirec.federated.settings import Option
from privirec.runtime.enrolment.folders import ClientFolder, OperatorFolder
from privirec.runtime.spec import RunSpec

ROOT: Any = typer.main.get_command(app)
RUN = ROOT.commands["run"]
FEDERATE = ROOT.commands["federate"]
SERVER_RUN = ROOT.commands["server"].commands["run"]
OF_ONE_MACHINE = {"method", "model", "aggregator", "drop_share", "server_model"}
"""Options with another default, or more choices, for `privirec run`."""


def _options(command: Any) -> dict[str, Any]:
    return {each.name: each for each in command.params if each.param_type_name == "option"}


def test_all_three_have_every_option_of_a_run() -> None:
    run, federate, server_run = map(_options, (RUN, FEDERATE, SERVER_RUN))
    network = {"smallest_cohort", "hello", "deadline"}
    shared = {each.name for each in fields(NetworkOptions)} - network  # type: ignore[arg-type]
    assert shared == (run.keys() & federate.keys() & server_run.keys())
    only_run = {"solver", "runtime", "secret_noise", "after", "sample", "work"}
    only_run |= {"engine", "most_items"}
    assert run.keys() - federate.keys() == only_run
    only_federate = {"carrier", "check", "compare", "keep", "picture"}
    assert federate.keys() - run.keys() == only_federate | network
    assert server_run.keys() - run.keys() == network
    for name in shared:
        assert _told(federate[name]) == _told(server_run[name])
        if name not in OF_ONE_MACHINE:
            assert _told(run[name]) == _told(federate[name])


def _told(option: Any) -> tuple[Any, ...]:
    return option.opts, option.help, option.default, option.type.to_info_dict()


def test_the_help_of_run_fits_two_screens() -> None:
    shown = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "100"}).output
    assert len(shown.splitlines()) <= 100
    assert "…" not in shown


class _Coloured(RunSpec):
    colour: Annotated[str, Option("NAME", "Paint")] = "red"
    """Colour of the run.

    A second paragraph is not help.
    """
    shine: Annotated[float, Option("X", "Paint", "none")] = Field(0.5, ge=0, le=1)
    """Share of light."""
    unmarked: int = 1


@generated(_Coloured)
class _ColouredOptions(RunOptions):
    """Options of a run with two more."""


def test_a_field_is_all_that_an_option_takes() -> None:
    found = {each.name: each for each in offered(["spectral"], [_Coloured])}
    assert "unmarked" not in found
    assert found["colour"].help == "Colour of the run (default red)."
    assert found["shine"].help == "Share of light (default: none)."
    assert found["columns"].mark.group == "Method spectral"

    command = typer.Typer()
    seen: list[dict[str, Any]] = []

    @command.command()
    @with_groups
    def painted(chosen: _ColouredOptions) -> None:
        seen.append(chosen.given())

    run = CliRunner().invoke
    assert run(command, ["--colour", "blue", "--shine", "0.25", "--rank", "3"]).exit_code == 0
    assert seen == [{"colour": "blue", "shine": 0.25, "rank": 3}]
    refused = run(command, ["--shine", "2"])
    assert refused.exit_code == 2
    assert "--shine" in refused.output


@pytest.mark.parametrize("tuned", [False, True])
def test_a_server_takes_presets_columns_and_settings(tmp_path: Path, tuned: bool) -> None:
    home = OperatorFolder.create(tmp_path)
    members = home.members
    for name in ("lyon", "oslo", "porto"):  # fewer than a sum needs are refused
        members = members.approve(ClientFolder.create(tmp_path / name).card(name))
    home.save(members)
    (tmp_path / "catalogue.txt").write_text("".join(f"{item}\n" for item in range(40)))
    given = ["--method", "spectral", "--rank", "8", "--columns", "3x12"]
    if tuned:
        found = {"program": {"method": "spectral", "columns": "3x12"}, "config": {"rank": 8}}
        (tmp_path / "found.json").write_text(json.dumps(found))
        given = ["--settings", str(tmp_path / "found.json")]
    began = mock.Mock(side_effect=FederationError("as far as this test goes"))
    with (
        mock.patch("privirec.runtime.https.installed.CARRIER.start_run", began),
        mock.patch("privirec.runtime.serving.check_up", return_value="https"),
    ):
        done = CliRunner().invoke(app, ["server", "run", str(tmp_path), "monday", *given])
    assert str(done.exception) == "as far as this test goes", done.output
    spec = began.call_args.args[2]
    assert spec.model == "spectral"
    assert spec.config["rank"] == 8
    assert spec.program.columns == (12, 12, 12)


def test_no_function_of_a_command_is_long() -> None:
    long = []
    for file in sorted(Path(next(iter(cli.__path__))).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                if (lines := node.end_lineno - first + 1) > 60:
                    long.append(f"{file.name}:{node.name} has {lines} lines")
    assert not long, "\n".join(long)
