"""`privirec client up`: messages for its owner only, and calls that do not import Typer."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from privirec.app import taking_part
from privirec.app.cli.every import app
from privirec.app.cli.light import as_usual
from privirec.data.catalogue import Catalogue, write_catalogue
from privirec.device import Store
from privirec.errors import UsageError
from privirec.runtime.enrolment.certificates import make_certificates
from privirec.runtime.enrolment.folders import ClientFolder, OperatorFolder
from privirec.runtime.node.memory import Memory


def privirec(*arguments: str | Path) -> None:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == 0, done.output


@pytest.fixture
def client(tmp_path: Path) -> Path:
    server, folder = tmp_path / "server", tmp_path / "lyon"
    privirec("server", "new", server)
    privirec("client", "new", folder, "--name", "lyon")
    privirec("server", "approve", server, folder / "card.json", "--yes")
    operator = OperatorFolder(server).operator
    privirec(
        "client",
        "roster",
        folder,
        "--file",
        server / "roster.json",
        "--operator",
        operator,
        "--yes",
    )
    write_catalogue(folder / "catalogue.txt", Catalogue(["a", "b"]))
    make_certificates(folder / "tls")
    (folder / "tls" / "ca.crt").rename(folder / "ca.crt")
    with Store(ClientFolder(folder).folder / "history.db", create=True) as store:
        store.add([("ann", "a"), ("bob", "elsewhere")])
    return folder


def check(client: Path) -> tuple[str, str]:
    done = CliRunner().invoke(app, ["client", "up", str(client), "--check"])
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


def test_interactions_outside_the_catalogue_are_left_out(client: Path) -> None:
    said, warned = check(client)
    assert "2 users, 1 interactions" in said  # everybody counts, whatever their history
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
        ("-", None),
        ("-h", None),
        ("-me --server https://s:1", None),
        ("--server https://s:1 -me", None),
        ("me --server -s:1", None),
        ("--server https://s:1 me you", None),
    ],
)
def test_only_the_usual_calls_go_without_typer(
    words: str, found: tuple[Path, str | None] | None
) -> None:
    assert as_usual(words.split()) == found


def test_an_empty_word_is_not_usual() -> None:
    assert as_usual([""]) is None
    assert as_usual(["me", "--server", ""]) is None
    assert as_usual(["", "--server", "https://s:1"]) is None


def test_no_server_is_said_with_the_whole_command_that_names_one(
    client: Path, tmp_path: Path
) -> None:
    spaced = client.rename(tmp_path / "my client")
    done = CliRunner().invoke(app, ["client", "up", str(spaced)])
    assert done.exit_code == 1
    assert f"privirec client roster '{spaced}' --file ROSTER" in str(done.exception)
    _, warned = check(spaced)
    assert f"privirec client roster '{spaced}'" in warned


@pytest.fixture
def stayed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Record the carrier and the server of each connection; clients do not stay connected."""
    found: list[tuple[str, str]] = []

    def https(_: Path, address: str, tell: object) -> None:
        found.append(("https", address))

    def flower(_: Path, address: str, say: object) -> None:
        found.append(("flower", address))

    monkeypatch.setattr("privirec.runtime.https.client.stay", https)
    monkeypatch.setattr("privirec.extra.flower.installed.CARRIER.stay", flower)
    return found


@pytest.mark.parametrize(
    "wrong",
    [
        *("http://fed.example:9443", "https://", "fed.example", "a b:1", "a:0", "a:99999"),
        *("a:\u0663", "-x:1", "u@a:1", "https://-x", "https://a:99999", "a?b:1"),
    ],
)
def test_an_invalid_server_address_is_refused(
    client: Path, stayed: list[tuple[str, str]], wrong: str
) -> None:
    """Refuse it both as an argument and as the address stored in the folder."""
    for use in (taking_part.stay, taking_part.check):
        with pytest.raises(UsageError, match="https"):
            use(client, wrong)
    home = ClientFolder(client)
    home.write(home.settings.model_copy(update={"server": wrong}))
    with pytest.raises(UsageError, match="https"):
        taking_part.stay(client)
    assert not stayed


def test_the_address_says_by_which_carrier(client: Path, stayed: list[tuple[str, str]]) -> None:
    """The address given as an argument overrides the one stored in the folder."""
    home = ClientFolder(client)
    home.write(home.settings.model_copy(update={"server": "https://fed.example:9443"}))
    taking_part.stay(client)
    taking_part.stay(client, "fed.example:9092")
    assert stayed == [("https", "https://fed.example:9443"), ("flower", "fed.example:9092")]


@pytest.mark.parametrize("right", ["a:1", "10.0.0.1:65535", "[::1]:9092", "https://[::1]:9443/"])
def test_these_are_addresses(client: Path, stayed: list[tuple[str, str]], right: str) -> None:
    taking_part.check(client, right)
    taking_part.stay(client, right)
    assert [address for _, address in stayed] == [right]


def test_a_certificate_is_one(client: Path, stayed: list[tuple[str, str]]) -> None:
    (client / "ca.crt").write_text("nonsense")
    for use in (taking_part.stay, taking_part.check):
        for address in ("https://fed.example", "fed.example:9092"):
            with pytest.raises(UsageError, match="not a certificate to know the server by"):
                use(client, address)
    assert not stayed


@pytest.mark.parametrize("there", [False, True])
def test_a_client_needs_a_certificate_to_know_its_server_by(
    client: Path, stayed: list[tuple[str, str]], there: bool
) -> None:
    (client / "ca.crt").unlink()
    if there:
        (client / "ca.crt").mkdir()  # Docker creates a folder where a mounted file is missing
    with pytest.raises(UsageError, match="no certificate to know the server by"):
        taking_part.check(client)
    for address in ("https://fed.example", "fed.example:9092"):
        with pytest.raises(UsageError, match="no certificate to know the server by"):
            taking_part.stay(client, address)
    assert not stayed
