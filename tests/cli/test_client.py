"""`privirec client`: what its owner hears and the server does not; which calls go without Typer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privirec.cli.every import app
from privirec.cli.light import as_usual
from privirec.data.catalogue import Catalogue, write_catalogue
from privirec.device import Store
from privirec.runtime.network.enrolment.folders import ClientFolder, OperatorFolder
from privirec.runtime.network.node.memory import Memory


def keys(*arguments: str | Path) -> None:
    done = CliRunner().invoke(app, ["keys", *map(str, arguments)])
    assert done.exit_code == 0, done.output


@pytest.fixture
def client(tmp_path: Path) -> Path:
    server, folder = tmp_path / "server", tmp_path / "lyon"
    keys("operator", server)
    keys("new", folder, "--name", "lyon")
    keys("approve", server, folder / "card.json", "--yes")
    operator = OperatorFolder(server).operator
    keys("join", folder, "--roster", server / "roster.json", "--operator", operator, "--yes")
    write_catalogue(folder / "catalogue.txt", Catalogue(["a", "b"]))
    shutil.copy(folder / "card.json", folder / "ca.crt")  # not looked into here
    with Store(ClientFolder(folder).folder / "history.db", create=True) as store:
        store.add([("ann", "a"), ("bob", "elsewhere")])
    return folder


def check(client: Path) -> tuple[str, str]:
    done = CliRunner().invoke(app, ["client", str(client), "--check"])
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


def test_only_people_with_something_in_the_catalogue_are_counted(client: Path) -> None:
    said, warned = check(client)
    assert "1 users, 1 interactions" in said
    assert "Left out: 1 interactions" in warned
    assert "spoilt" not in warned


def test_the_owner_hears_of_spoilt_runs(client: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = "item degrees below this client's own"
    monkeypatch.setattr(Memory, "spoilt", lambda _: {"ab" * 16: claim})
    _, warned = check(client)
    assert f"Run abababab is spoilt: the server claimed {claim}" in " ".join(warned.split())


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("me", (Path("me"), None)),
        ("me --server https://s:1", (Path("me"), "https://s:1")),
        ("--server https://s:1 me", (Path("me"), "https://s:1")),
        ("", None),
        ("--check", None),
        ("--help", None),
        ("me --check", None),
        ("me --server", None),
        ("me --server --check", None),
        ("--server me", None),
        ("--server --server me", None),
        ("me you", None),
        ("me --sever https://s:1", None),
        ("me --server=https://s:1", None),
        ("me --server https://s:1 --check", None),
        ("-- me", None),
    ],
)
def test_only_the_usual_calls_go_without_typer(
    words: str, found: tuple[Path, str | None] | None
) -> None:
    assert as_usual(words.split()) == found


def test_an_empty_word_is_not_usual() -> None:
    assert as_usual([""]) is None
    assert as_usual(["me", "--server", ""]) is None


def test_no_server_is_said_with_the_whole_command_that_names_one(
    client: Path, tmp_path: Path
) -> None:
    spaced = client.rename(tmp_path / "my client")
    done = CliRunner().invoke(app, ["client", str(spaced)])
    assert done.exit_code == 1
    assert f"privirec keys join '{spaced}' --roster ROSTER" in str(done.exception)
    _, warned = check(spaced)
    assert f"privirec keys join '{spaced}'" in warned
