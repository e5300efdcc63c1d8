"""Imports of the command line: only those of the called command."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from privirec.app.cli.every import app
from privirec.app.cli.main import COMMANDS
from privirec.version import __version__

IMPORTED = (
    "import sys\n"
    "from privirec.app.cli import start\n"
    "try:\n    start()\n"
    "except SystemExit as end:\n    print('code', end.code or 0)\n"
    "print('imported', *[name for name in sys.modules if name.startswith('privirec.app.cli.')])\n"
)


def called(*arguments: str) -> tuple[int, set[str]]:
    """Return the exit code and the imported modules of commands."""
    command = [sys.executable, "-c", IMPORTED, *arguments]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [words for line in said.splitlines() if (words := line.split())]
    code = next(int(line[1]) for line in lines if line[0] == "code")
    names = {name.removeprefix("privirec.app.cli.") for name in lines[-1][1:]}
    return code, names & {place.split(".")[0] for place in COMMANDS.values()}


@pytest.mark.parametrize("arguments", [("data", "--help"), ("client", "--help")])
def test_only_the_command_that_is_called_is_imported(arguments: tuple[str, str]) -> None:
    assert called(*arguments) == (0, {arguments[0]})


def test_a_mistyped_command_loads_all_commands_for_suggestions() -> None:
    code, imported = called("recomend")
    assert code == 2
    assert imported == {place.split(".")[0] for place in COMMANDS.values()}


def test_paragraphs_of_help_flow_and_examples_stand() -> None:
    """Lines break at the terminal width, not where the source breaks them."""
    shown = CliRunner().invoke(app, ["audit", "--help"], env={"COLUMNS": "100"}).output
    *whole, _ = shown[shown.index("A run of a program") :].split("Every attack")[0].splitlines()
    assert all(len(line.strip()) > 80 for line in whole)
    assert re.search(r"\n +privirec audit --dataset gowalla", shown)


def test_the_version_is_told() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"privirec {__version__}\n")


def test_a_device_has_no_plugins_of_others() -> None:
    """Plugins of other packages could observe everything the device checks."""
    assert "PYDANTIC_DISABLE_PLUGINS" not in os.environ
    program = (
        "import os\nfrom privirec.compiled import go_without\ngo_without()\n"
        "print(os.environ['PYDANTIC_DISABLE_PLUGINS'])"
    )
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout == "__all__\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_text_under_its_name(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"])
    assert shown.exit_code == 0
    assert f"{name} [OPTIONS]" in shown.output
