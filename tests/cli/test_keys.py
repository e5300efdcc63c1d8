"""Keys and rosters: output and questions before a roster changes."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from privirec.app.cli import options
from privirec.app.cli.every import app
from privirec.durable import alone, private_folder
from privirec.errors import UsageError
from privirec.runtime.enrolment.folders import ClientFolder, OperatorFolder
from privirec.runtime.enrolment.identities import fingerprint


def privirec(*arguments: str | Path, answer: str | None = None) -> str:
    """Run the command; if an answer is given, simulate a user who types it at the terminal."""
    done = CliRunner().invoke(app, [*map(str, arguments)], input=answer)
    if isinstance(done.exception, UsageError):
        assert "\n" not in str(done.exception)
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(options, "sys", SimpleNamespace(stdin=stdin))


@pytest.fixture
def home(tmp_path: Path) -> OperatorFolder:
    said = privirec("server", "new", tmp_path / "server")
    home = OperatorFolder(tmp_path / "server")
    assert home.operator in said
    assert fingerprint(home.operator) in said
    assert "--operator-key" in said
    for name in ("lyon", "oslo", "porto"):
        said = privirec("client", "new", tmp_path / name, "--name", name)
        assert fingerprint(ClientFolder(tmp_path / name).identity.public.hex()) in said
    return home


def cards(home: OperatorFolder) -> list[Path]:
    return [home.folder.parent / name / "card.json" for name in ("lyon", "oslo", "porto")]


def told(card: Path) -> str:
    return fingerprint(ClientFolder(card.parent).identity.public.hex())


def test_a_card_is_approved_when_its_fingerprint_was_compared(
    home: OperatorFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lyon, oslo, porto = cards(home)
    with pytest.raises(UsageError, match="no terminal to ask on"):
        privirec("server", "approve", home.folder, lyon)
    with pytest.raises(UsageError, match="not the fingerprint that was given"):
        privirec("server", "approve", home.folder, lyon, "--fingerprint", told(oslo))
    with pytest.raises(UsageError, match="1 fingerprints for 2 cards"):
        privirec("server", "approve", home.folder, lyon, oslo, "--fingerprint", told(lyon))
    assert not home.members.members
    said = privirec("server", "approve", home.folder, lyon, "--fingerprint", told(lyon))
    assert "approved" in said
    stdin = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(options, "sys", SimpleNamespace(stdin=stdin))
    with pytest.raises(UsageError, match="nothing was changed"):
        privirec("server", "approve", home.folder, oslo, answer="n\n")
    said = privirec("server", "approve", home.folder, oslo, answer="y\n")
    assert told(oslo) in said
    assert "read out the same fingerprint?" in said
    privirec("server", "approve", home.folder, porto, "--yes")
    assert [member.name for member in home.members.members] == ["lyon", "oslo", "porto"]
    assert told(porto) in privirec("server", "clients", home.folder)


def test_joining_shows_roster_changes_and_asks(home: OperatorFolder, terminal: None) -> None:
    lyon, oslo, porto = cards(home)
    privirec("server", "approve", home.folder, lyon, oslo, "--yes")
    roster, client = home.folder / "roster.json", lyon.parent
    join = ("client", "roster", client, "--file", roster)
    with pytest.raises(UsageError, match="the first time, give the operator's key"):
        privirec(*join)
    with pytest.raises(UsageError, match="signed by operator"):
        privirec(*join, "--operator", told(oslo))
    first = (*join, "--operator", fingerprint(home.operator))
    with pytest.raises(UsageError, match="nothing was changed"):
        privirec(*first, answer="n\n")
    assert not ClientFolder(client).has_joined
    said = privirec(*first, answer="y\n")
    assert told(lyon) in said
    assert told(oslo) in said
    privirec("server", "revoke", home.folder, "1", "--yes")
    privirec("server", "approve", home.folder, porto, "--yes")
    said = privirec(*join, answer="y\n")
    for line in (f"revoked 1 oslo {told(oslo)}", f"approved 2 porto {told(porto)}"):
        assert line in " ".join(said.split())
    assert told(lyon) not in said
    assert "nothing has changed" in privirec(*join, "--yes")


def test_keys_are_rotated_by_the_client_and_accepted_by_the_operator(
    home: OperatorFolder, tmp_path: Path
) -> None:
    lyon, oslo, _ = cards(home)
    privirec("server", "approve", home.folder, lyon, oslo, "--yes")
    client, roster = ClientFolder(lyon.parent), home.folder / "roster.json"
    privirec(
        "client", "roster", client.folder, "--file", roster, "--operator", home.operator, "--yes"
    )
    old = client.identity.public.hex()
    said = privirec("client", "rotate", client.folder)
    rotation = client.folder / "rotation.json"
    with pytest.raises(UsageError, match="no terminal to ask on"):
        privirec("server", "accept", home.folder, rotation)
    with pytest.raises(UsageError, match="not the change of a key"):
        privirec("server", "accept", home.folder, lyon, "--yes")
    shown = privirec("server", "accept", home.folder, rotation, "--yes")
    new = home.members.member(0).key
    assert fingerprint(new) in said
    assert "new key" in shown
    assert fingerprint(new) in shown
    assert client.identity.public.hex() == old
    again = ("client", "roster", client.folder, "--file", roster, "--yes")
    done = CliRunner().invoke(app, [*map(str, again), "--server", "ftp://x"])
    assert "'ftp://x' is neither https" in str(done.exception)
    assert done.output == ""
    assert f"start it again: privirec client up {client.folder}" in privirec(*again)
    assert client.identity.public.hex() == new != old
    assert "goes on with this by itself" in privirec(*again, "--server", "https://fed.example:9443")
    assert home.members.lineages()[0] == old


def test_the_operators_key_is_elsewhere(home: OperatorFolder, tmp_path: Path) -> None:
    """Test --operator-key on the same machine, and rosters copied from another machine."""
    lyon, oslo, porto = cards(home)
    privirec("server", "approve", home.folder, lyon, "--yes")
    desk = tmp_path / "desk"
    shutil.copytree(home.folder, desk)
    safe = tmp_path / "safe.key"
    (home.folder / "operator.key").rename(safe)
    for refused in (
        ("server", "approve", home.folder, oslo),
        ("server", "revoke", home.folder, 0),
        ("server", "accept", home.folder, "rotation.json"),
        ("server", "run-key", home.folder),
    ):
        done = CliRunner().invoke(app, [*map(str, refused), "--yes"])
        assert done.output == ""
        why = str(done.exception)
        assert why.startswith(f"nothing was changed: {home.folder / 'operator.key'}: no key there")
        assert "--operator-key PATH" in why
    privirec("server", "approve", home.folder, oslo, "--yes", "--operator-key", safe)
    assert len(home.members.members) == 2
    privirec("server", "approve", desk, porto, "--yes")  # a fork of the server's roster
    with pytest.raises(UsageError, match="has another past"):
        privirec("server", "update", home.folder, "--roster", desk / "roster.json", "--yes")
    shutil.copy(home.folder / "roster.json", desk)
    privirec("server", "approve", desk, porto, "--yes")
    privirec("server", "run-key", desk, "--yes")
    said = privirec("server", "update", home.folder, "--roster", desk / "roster.json", "--yes")
    assert "approved" in said
    assert "server's new key" in said
    with pytest.raises(UsageError, match="not the key that the roster names"):
        _ = home.server
    shutil.copy(desk / "run.key", home.folder)
    assert home.server.public.hex() == home.members.server
    assert not (home.folder / "operator.key").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("client", "budget"),
        ("client", "policy"),
        ("device", "page"),
        ("client", "up"),
        ("client", "rotate"),
        ("client", "roster", "--file", "roster.json"),
        ("server", "clients"),
        ("server", "certificates"),
    ],
    ids=" ".join,
)
def test_a_folder_that_is_not_there_is_called_that(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "flat.csv").write_text("user,item\n")
    for name, words in (("nosuch", "no such folder"), ("flat.csv", "a file, not the folder of a")):
        done = CliRunner().invoke(app, [*command, str(tmp_path / name)])
        assert isinstance(done.exception, UsageError), done.output
        assert str(done.exception).startswith(f"{tmp_path / name}: {words}")
    assert not (tmp_path / "nosuch").exists()


def test_new_keys_never_stand_beside_old_ones(home: OperatorFolder) -> None:
    (card, *_) = cards(home)
    before = card.read_bytes()
    with pytest.raises(UsageError, match=r"has keys already.*client rotate"):
        privirec("client", "new", card.parent, "--name", "another")
    assert card.read_bytes() == before


def test_commands_that_are_printed_can_be_copied(home: OperatorFolder, tmp_path: Path) -> None:
    """Test a folder whose name contains a space too."""
    lyon, *_ = cards(home)
    privirec("server", "approve", home.folder, lyon, "--yes")
    client = lyon.parent.rename(tmp_path / "my client")
    server = OperatorFolder(home.folder.rename(tmp_path / "my server"))
    roster = server.folder / "roster.json"
    privirec("client", "roster", client, "--file", roster, "--operator", server.operator, "--yes")
    said = privirec("client", "roster", client, "--file", roster, "--yes")
    again = said.split("start it again: ")[1].splitlines()[0]
    assert shlex.split(again) == ["privirec", "client", "up", str(client)]
    said = privirec("server", "update", server.folder, "--roster", roster, "--yes")
    restart = said.split("Restart: ")[1].splitlines()[0]
    assert shlex.split(restart) == ["privirec", "server", "up", str(server.folder)]
    (server.folder / "carrier").write_text("flower")
    said = privirec("server", "update", server.folder, "--roster", roster, "--yes")
    assert said.rstrip().endswith("--carrier flower")
    with alone(private_folder(server.folder / "https")):
        said = privirec("server", "update", server.folder, "--roster", roster, "--yes")
    assert "reads it by itself" in said
    assert "Restart" not in said
