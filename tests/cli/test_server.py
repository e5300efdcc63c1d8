"""`privirec server`: output without a running server, and for finished runs."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from typer.testing import CliRunner, Result

from privirec.app import operating
from privirec.app.cli import server as server_command
from privirec.app.cli.every import app
from privirec.app.cli.server import _propose_epsilon, _saying_what_to_expect
from privirec.data.catalogue import Catalogue, write_catalogue
from privirec.durable import alone, private_folder
from privirec.errors import FederationError, UsageError
from privirec.federated.dp.loss import Loss
from privirec.federated.programs import Protected, ProtectedSettings
from privirec.runtime import serving
from privirec.runtime.carriers import carrier_names
from privirec.runtime.enrolment.folders import ClientFolder, OperatorFolder
from privirec.runtime.https import runs as https


@pytest.fixture
def home(tmp_path: Path) -> OperatorFolder:
    home = OperatorFolder.create(tmp_path / "server")
    members = home.members
    for name in ("lyon", "oslo", "porto"):
        members = members.approve(ClientFolder.create(tmp_path / name).card(name))
    home.save(members)
    write_catalogue(home.folder / "catalogue.txt", Catalogue(["a", "b", "c"]))
    return home


def server(command: str, home: OperatorFolder, *more: str) -> Result:
    return CliRunner().invoke(app, ["server", command, str(home.folder), *more])


def files(home: OperatorFolder) -> set[Path]:
    return set(home.folder.rglob("*"))


@pytest.mark.parametrize(
    ("had", "command"),
    [("https", "server"), ("flower", "--carrier flower"), (None, "server")],
)
def test_a_run_without_a_server_names_the_command_that_starts_it(
    home: OperatorFolder, had: str | None, command: str
) -> None:
    if had:
        serving.remember(home, had)
    before = files(home)
    done = server("run", home, "dead", "--epsilon", "1")
    assert isinstance(done.exception, FederationError)
    said = str(done.exception)
    assert said.startswith(f"nobody listens: privirec server up {home.folder}")
    assert said.endswith(command)
    assert done.output == ""  # a folder without a run gets no promises
    assert files(home) == before


@pytest.mark.parametrize("up", carrier_names())
def test_the_carrier_is_that_of_the_server_that_is_up(home: OperatorFolder, up: str) -> None:
    """The previous server's carrier and the files in the folder do not matter."""
    for name in carrier_names():
        private_folder(home.folder / name)
    (other,) = set(carrier_names()) - {up}
    serving.remember(home, other)
    assert serving.carrier_up(home) is None
    assert serving.last_carrier(home) == other
    with alone(home.folder / up, wait=False):
        assert serving.carrier_up(home) == serving.check_up(home) == up
        assert serving.last_carrier(home) == up
        assert ("--carrier flower" in serving.how_to_start(home)) is (up == "flower")
        assert https.is_up(home) is (up == "https")
        assert "down" not in server("status", home).stderr
    assert "The server is down: privirec server up" in server("status", home).stderr


@pytest.mark.parametrize("content", [b"", b"pigeon", b"\xff", b"flower "])
def test_a_carrier_that_is_none_is_not_believed(home: OperatorFolder, content: bytes) -> None:
    (home.folder / "carrier").write_bytes(content)
    private_folder(home.folder / "flower")
    assert serving.last_carrier(home) == "https"


def test_a_server_is_started_again_as_it_was(
    home: OperatorFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The printed command has the given options and no others."""
    given: list[list[str]] = []
    up = mock.Mock(**{"serve.side_effect": lambda *all_of_it: given.append(all_of_it[2])})
    monkeypatch.setattr(server_command, "installed_carrier", lambda _: up)
    asked = ["--port", "9543", "--behind-proxy", "--watched-port", "0"]
    assert server("up", home, *asked).exit_code == 0
    assert sorted(given[0]) == sorted(asked)
    serving.remember(home, "https", given[0])
    assert shlex.split(serving.how_to_start(home))[:4] == [
        *("privirec", "server", "up", str(home.folder)),
    ]
    assert sorted(shlex.split(serving.how_to_start(home))[4:]) == sorted(asked)
    (home.folder / "carrier").write_text("https\n--port 'open")
    assert serving.how_to_start(home).endswith(str(home.folder))
    (home.folder / "carrier").write_text("flower\n--port 9543")
    assert serving.how_to_start(home).endswith(f"{home.folder} --carrier flower")


def test_an_empty_roster_is_one_line(tmp_path: Path) -> None:
    home = OperatorFolder.create(tmp_path / "server")
    write_catalogue(home.folder / "catalogue.txt", Catalogue(["a", "b"]))
    done = server("run", home, "monday")
    assert "nobody is in the roster yet: privirec server approve" in str(done.exception)


def words_behind(beginning: str, text: str) -> list[str]:
    """Return the words of a printed command after its beginning."""
    return shlex.split(text.split(beginning, 1)[1].splitlines()[0])


@pytest.fixture
def spaced(home: OperatorFolder) -> OperatorFolder:
    """Return a folder whose name contains a space."""
    return OperatorFolder(home.folder.rename(home.folder.with_name("my server")))


@pytest.mark.parametrize(
    ("had", "option"), [("flower", ["--carrier", "flower"]), ("https", [])], ids=str
)
def test_how_to_start_a_server_can_be_copied(
    spaced: OperatorFolder, had: str, option: list[str]
) -> None:
    serving.remember(spaced, had)
    command = ["privirec", "server", "up", str(spaced.folder), *option]
    assert shlex.split(serving.how_to_start(spaced)) == command
    done = server("status", spaced)
    assert words_behind("The server is down: ", done.stderr) == command


def test_how_to_start_a_run_can_be_copied(
    spaced: OperatorFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(_home: OperatorFolder, _where: Any, _limits: Any, ready: Callable[[], None]) -> None:
        ready()

    monkeypatch.setattr("privirec.runtime.https.server.serve", serve)
    monkeypatch.setattr("privirec.runtime.child_processes.check_free", lambda *_: None)
    done = server("up", spaced)
    assert done.exit_code == 0, done.exception
    command = ["privirec", "server", "run", str(spaced.folder), "NAME"]
    assert words_behind("Start runs with: ", done.stdout) == command


def test_arguments_are_looked_at_first(home: OperatorFolder) -> None:
    done = server("run", home, "../x", "--epsilon", "40")
    assert isinstance(done.exception, UsageError)
    assert done.output == ""


def ended(home: OperatorFolder, *settings: str, reason: str = "") -> None:
    """Return the folder of a run that a server has started, served and ended."""
    (private_folder(home.folder / "https") / "carrier").touch()
    with alone(home.folder / "https", wait=False), pytest.MonkeyPatch.context() as patch:
        patch.setattr("privirec.runtime.https.runs.follow_run", _no_result)
        assert isinstance(server("run", home, "fri", *settings).exception, FederationError)
    stage = "stopped" if reason else "done"
    line = {"state": "told", "users": 7, "bytes_up": 1, "bytes_down": 2, "why": ""}
    status = {"stage": stage, "reason": reason, "clients": {"0": line}}
    (home.run("fri") / "result.json").write_text(json.dumps({"reason": reason, "status": status}))


def _no_result(*_: object) -> None:
    raise FederationError("as far as this goes")


def test_the_same_command_shows_a_run_that_has_ended(home: OperatorFolder) -> None:
    ended(home, "--epsilon", "1")
    serving.remember(home, "https")  # also if the server is down
    done = server("run", home, "fri", "--epsilon", "1")
    assert done.exit_code == 0, done.exception
    assert "The run fri has ended" in done.stdout
    assert "told" in done.stdout
    assert "Model signed and handed out" in done.stdout
    rows = home.folder / "rows.jsonl"
    assert server("status", home, "--json", str(rows)).exit_code == 0
    row = json.loads(rows.read_text())
    assert (row["method"], row["aggregator"]) == ("protected", "secagg+")
    other = server("run", home, "fri", "--epsilon", "2")
    assert isinstance(other.exception, UsageError)
    assert "has ended; give a new one another name" in str(other.exception)


def test_and_one_that_was_stopped(home: OperatorFolder) -> None:
    ended(home, "--epsilon", "1", reason="too few came")
    serving.remember(home, "https")
    done = server("run", home, "fri", "--epsilon", "1")
    assert str(done.exception) == "too few came"
    assert "told" in done.stdout


def test_stopping_an_unknown_run_is_refused(home: OperatorFolder) -> None:
    done = server("stop", home, "nosuch")
    assert isinstance(done.exception, UsageError)
    assert "no such run" in str(done.exception)


@pytest.mark.parametrize(
    ("command", "promises"),
    [
        ("run --dataset synthetic:small --method protected --epsilon 2 --save model", False),
        ("plan --users 100000 --items 5000 --budget 10MB --epsilon 2", True),
    ],
)
def test_commands_say_what_their_epsilon_is_worth(
    command: str, promises: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the sentence for a person, and that noise from a seed is called a simulation."""
    monkeypatch.chdir(tmp_path)
    found = [CliRunner().invoke(app, command.split()).output.replace("\n", " ")]
    for saved in tmp_path.glob("model/manifest.json"):
        manifest = json.loads(saved.read_text())
        found += [manifest["gives_away"], manifest["promised"]]
    for said in found:
        assert re.search(r"epsilon (2|1\.\d+) at delta 1e-06", said)
        assert "is right in at most 59 of 100 cases; a coin is right in 50" in said
        assert ("Promised: nothing. This is a simulation" in said) is not promises


def test_expected_accuracy_is_printed_once_when_the_people_are_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[dict[str, Any]] = []
    watch = _saying_what_to_expect(seen.append, ProtectedSettings(epsilon=1.0, clients=3), 200)
    gathering = {"clients": {"0": {"users": 0}}}
    some = {"clients": {"0": {"users": 3}}, "stage": "gathering clients"}
    gathered = {"clients": {"0": {"users": 3}, "1": {"users": 4}}, "stage": "summing"}
    for status in ({}, gathering, some):
        watch(status)
    assert capsys.readouterr().out == ""
    for status in (gathered, gathered):
        watch(status)
    said = capsys.readouterr().out
    assert said.count("7 people and 200 items at epsilon 1: noise leaves as much as") == 1
    assert seen == [{}, gathering, some, gathered, gathered]


def test_the_epsilon_that_everybody_can_pay_is_proposed(
    home: OperatorFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server knows what its own runs have cost, and says so before any client is asked."""
    program = Protected(ProtectedSettings(epsilon=8.0), 100, 100)
    _propose_epsilon(home, program)
    assert capsys.readouterr().err == ""
    model = home.run("old") / "model"
    model.mkdir(parents=True)
    (model / "manifest.json").write_text("{}")
    monkeypatch.setattr(operating, "read_manifest", lambda _: (b"", {}))
    monkeypatch.setattr(operating, "losses", lambda _: [Loss(1.0)])
    _propose_epsilon(home, program)
    said = capsys.readouterr().err.replace("\n", " ")
    assert re.search(r"pay --epsilon 6\.99 now, and this run from 20\d\d-\d\d-\d\d on", said)
