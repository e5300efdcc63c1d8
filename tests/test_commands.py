"""Tests of the commands in the README and the guides: parsed, and run as written."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import typer
from typer.testing import CliRunner

import documented
from privirec.app.cli import options
from privirec.app.cli.every import app
from privirec.runtime.enrolment.folders import ClientFolder
from privirec.runtime.enrolment.identities import fingerprint

README = documented.ROOT / "README.md"
GUIDES = documented.ROOT / "docs" / "how-to"
OPERATE = (GUIDES / "federation.md", GUIDES / "devices.md")
"""Guides that set up and run a federation, in this order."""
PAGES = [
    README,
    documented.ROOT / "benchmarks" / "README.md",
    *sorted((documented.ROOT / "docs").rglob("*.md")),
]
TOP = typer.main.get_command(app)

NOT_RUN = {
    "make demo": "sets up an environment; the command itself is tested in tests/cli",
    "make test": "runs this test",
    "pip install": "changes the environment; test_package.py installs a wheel",
    "privirec federate": "a minute of real processes; test_federate.py runs it",
    "privirec device page": "stays in front until Ctrl-C; test_paths.py runs it in the background",
    "privirec server up": "stays in front on a machine of its own; test_first_model.py runs it",
    "privirec client up client": "stays in front on a machine of its own; test_first_model.py does",
    "privirec server run": "needs server and clients that are up; test_first_model.py runs it",
    "privirec recommend --store client/": "needs the model of that run; as above",
}
"""Lines of shell that are only parsed, with the reason."""


def _id(page: Path) -> str:
    return str(page.relative_to(documented.ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_every_command_of_a_page_is_one_that_there_is(page: Path) -> None:
    wrong = [
        f"{' '.join(words)}: {why}"
        for words in documented.commands_of(page)
        # An option that a sentence mentions may end it, without a value.
        if (why := _refused(words)) and _refused([*words, "VALUE"])
    ]
    assert not wrong, "\n".join(wrong)


def test_a_command_that_is_not_there_is_noticed() -> None:
    assert "No such command" in _refused(["server", "remake", "client"])
    assert "No such option" in _refused(["run", "--data", "gowalla"])
    assert "too many" in _refused(["server", "clients", "server", "client"])
    assert "not one of" in _refused(["run", "--method", "privirec-j"])
    assert "not a valid" in _refused(["run", "--rank", "many"])
    assert not _refused(["run", "--rank", "K", "--json", "FILE"])


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_every_block_of_shell_is_shell(page: Path) -> None:
    script = "".join(text for language, text in documented.blocks(page) if language == "sh")
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def _refused(words: list[str]) -> str:
    """Return why the real parser refuses these words; empty if it accepts them. Words in capitals
    are placeholders, and required arguments may be missing in running text."""
    command: Any = TOP
    context: Any = None
    words = list(words)
    try:
        while True:
            context = click.Context(command, info_name=command.name, parent=context)
            if not hasattr(command, "commands") or not words:
                break
            name = words.pop(0)
            command = command.get_command(context, name)
            if command is None:
                return f"No such command {name!r}"
        given, left, _ = command.make_parser(context).parse_args(words)
        for parameter in command.params:
            _convert(context, parameter, given.get(parameter.name))
    except click.UsageError as error:
        return error.format_message()
    return f"too many: {' '.join(left)}" if left else ""


def _convert(context: click.Context, parameter: Any, value: Any) -> None:
    for each in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(each, str) and not each.isupper():
            parameter.type.convert(each, parameter, context)


def _not_run(line: str) -> bool:
    return any(line.startswith(start) for start in NOT_RUN) and "--check" not in line


def _run(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run one line in a folder: our commands in this process, with every question answered by
    yes."""
    monkeypatch.chdir(folder)
    words = shlex.split(line, comments=True)
    if words[0] != "privirec":
        subprocess.run(["bash", "-c", line], cwd=folder, check=True)
        return ""
    done = CliRunner().invoke(app, words[1:], input="y\n" * 9)
    assert done.exit_code == 0, (line, done.output, done.exception)
    return done.output


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(options, "sys", SimpleNamespace(stdin=stdin))


def test_the_two_commands_are_targets_and_ci_calls_the_second() -> None:
    targets = re.findall(r"^(\w+):", (documented.ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert {"demo", "test"} <= set(targets)
    assert "make test" in (documented.ROOT / ".ci" / "run").read_text()


def test_what_is_left_out_is_on_a_page() -> None:
    lines = [line for page in (README, *OPERATE) for line in _shell(page)]
    assert all(any(line.startswith(start) for line in lines) for start in NOT_RUN)


def _shell(page: Path) -> list[str]:
    return [
        line
        for language, text in documented.blocks(page)
        if language == "sh"
        for line in documented.lines_of(text)
    ]


def test_the_readme_runs_from_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    said = ""
    for language, text in documented.blocks(README):
        if language == "python":
            exec(compile(text, "README.md", "exec"), names)  # noqa: S102 - our own README
            continue
        for line in documented.lines_of(text):
            if not _not_run(line):
                said += _run(line, tmp_path, monkeypatch)
    assert len(names["ids"]) == 10
    assert (tmp_path / "my-model" / "model.safetensors").is_file()
    assert "because of" in said


def test_the_guides_run_on_four_machines_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: None
) -> None:
    """Test four folders for the machines of the server and the clients. Files are copied where the
    guides say so, and values that are read out replace the examples."""
    stick = tmp_path / "stick"
    server, *clients = machines = [tmp_path / name for name in ("fed", "lyon", "oslo", "porto")]
    for folder in (stick, *machines):
        folder.mkdir()
    (server / "items.txt").write_text("".join(f"{item}\n" for item in range(20)))
    (server / "names.csv").write_text("name\nann\nbob\n")
    for number, client in enumerate(clients):
        (client / "history.csv").write_text(f"item\n{number}\n{number + 5}\n")
    said, read_out = "", {"/media/stick": str(stick)}
    blocks = [block for page in OPERATE for block in documented.blocks(page)]
    for block in (text for language, text in blocks if language == "sh"):
        lines = documented.lines_of(block)
        if any(line.startswith("privirec client roster") for line in lines):
            for name, client in product(("roster.json", "catalogue.txt", "tls/ca.crt"), clients):
                shutil.copy(server / "server" / name, client)
        for line in lines:
            on_clients = re.search(r" client\b", line)
            for machine in clients if on_clients else [server]:
                ready = line.replace("Shop in Lyon", f"Shop in {machine.name}")
                for example, real in read_out.items():
                    ready = ready.replace(example, real)
                if not _not_run(line):
                    said += _run(ready, machine, monkeypatch)
        if any(line.startswith("privirec client new") for line in lines):
            for client in clients:
                shutil.copy(client / "client" / "card.json", server / f"{client.name}.json")
            lyon = ClientFolder(clients[0] / "client").identity.public.hex()
            read_out["40514 09427 78172 41903 00311 52260"] = fingerprint(lyon)
        if any(line.startswith("privirec server new") for line in lines):
            read_out[" KEY "] = f" {(server / 'server' / 'operator.pub').read_text().strip()} "
    assert not (server / "server" / "operator.key").exists()
    assert said.count("1 users, 2 interactions") == len(clients)
    assert len((server / "links.csv").read_text().splitlines()) == 3
    for client in clients:
        assert ClientFolder(client / "client").has_joined
