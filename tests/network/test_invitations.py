"""Tests of enrolment by invitation links: once, for one client, after any interruption."""

from __future__ import annotations

import csv
import hashlib
import shutil
import sqlite3
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import breadth
from privirec.app.cli.every import app
from privirec.errors import DataError, FederationError, UsageError
from privirec.runtime.enrolment import invitations as invitations_module
from privirec.runtime.enrolment.cards import Card
from privirec.runtime.enrolment.folders import ClientFolder, OperatorFolder
from privirec.runtime.enrolment.identities import read_identity
from privirec.runtime.enrolment.invitations import (
    IN_WORDS,
    Application,
    Invitation,
    Invitations,
    NotEnrolled,
    Why,
)
from privirec.runtime.enrolment.roster import RosterFile
from privirec.runtime.https import gate as gate_module
from privirec.runtime.https.joining import OtherServer
from privirec.secagg.keys import Identity

from .crashing import Fault, Trap, in_a_process_of_its_own
from .https_chaos import URL
from .invited import ADDRESS, Site, operator_in

NODE = "ecdsa-sha2-nistp384 a"


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "REFUSED_AFTER", 0.0)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def refused(site: Site, invitation: Invitation, folder: Path) -> str:
    """Return the line with which a client is refused; fail if anything is left of it."""
    with pytest.raises(FederationError) as error:
        site.joining(invitation, folder).join()
    assert "\n" not in str(error.value)
    assert not folder.exists()
    return str(error.value)


# --- links ----------------------------------------------------------------------------------------

NAMES = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=40)


@given(NAMES, st.binary(min_size=16, max_size=16), st.data())
def test_a_link_says_all_or_is_refused(name: str, code: bytes, data: Any) -> None:
    invitation = Invitation(ADDRESS, "ab" * 32, "cd" * 32, name, code)
    link = invitation.link
    assert Invitation.parse(f" {link}\n") == invitation
    place = data.draw(st.integers(0, len(link) - 1))
    other = data.draw(st.sampled_from("Aa0-#:/x").filter(lambda sign: sign != link[place]))
    for bad in (link[:place] + other + link[place + 1 :], link[:place] + link[place + 1 :]):
        with pytest.raises(UsageError, match=r"^[^\n]*$"):
            Invitation.parse(bad)


@pytest.mark.parametrize("text", ["", "x", "https://a/join#", "https://a/join#AA", "http://a:1"])
def test_what_is_no_link_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="copy it again"):
        Invitation.parse(text)


def test_a_link_keeps_its_code_to_itself(site: Site) -> None:
    (invitation,) = site.invite("lyon")
    code = invitation.code
    assert len(code) == 16
    assert repr(code) not in repr(invitation)
    stored = (site.home.folder / "invitations.db").read_bytes()
    for secret in (code, code.hex().encode(), invitation.identity.public):
        assert secret not in stored
    assert invitation.identity.public.hex().encode() in stored
    sent: list[bytes] = []
    carried = site.transport

    class Listening(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            sent.append(str(request.url).encode() + request.read())
            return carried.handle_request(request)

    site.transport = Listening()
    site.joining(invitation, site.folder / "lyon").join()
    assert len(sent) >= 4
    for secret in (code, code.hex().encode(), hashlib.sha256(code).hexdigest().encode()):
        assert not any(secret in each for each in sent)


def test_codes_differ(site: Site) -> None:
    made = site.invite(*(f"c{number}" for number in range(50)))
    assert len({each.code for each in made}) == 50


# --- joining --------------------------------------------------------------------------------------


def test_a_client_joins_with_a_link(site: Site) -> None:
    client = site.client("Shop in Lyon \u2603")
    assert client.settings.server == ADDRESS
    assert client.settings.operator == site.home.operator
    assert client.members.member(0).name == "Shop in Lyon \u2603"
    assert client.members.model_dump() == site.home.members.model_dump()
    for name in ("catalogue.txt", "ca.crt"):
        source = site.home.folder / ("tls/ca.crt" if name == "ca.crt" else name)
        assert (client.folder / name).read_bytes() == source.read_bytes()
    assert client.has_joined
    assert client.memory() is not None


def test_titles_come_with_the_catalogue_if_there_are_some(site: Site) -> None:
    lyon = site.client("lyon")
    assert not (lyon.folder / "titles.csv").exists()
    titles = "item_id,title,link\na,The Apple,https://shop.example/a\n"
    (site.home.folder / "titles.csv").write_text(titles)
    oslo = site.client("oslo")
    assert (oslo.folder / "titles.csv").read_text() == titles
    (site.home.folder / "titles.csv").write_text("nonsense")
    (invitation,) = site.invite("porto")
    with pytest.raises(DataError):
        site.joining(invitation, site.folder / "porto").join()
    assert not ClientFolder(site.folder / "porto").has_joined
    (site.home.folder / "titles.csv").write_text(titles)
    assert site.joining(invitation, site.folder / "porto").join() == 2
    assert not list((site.folder / "porto").glob(".new.*"))


def test_a_server_without_a_catalogue_says_so(site: Site) -> None:
    catalogue = site.home.folder / "catalogue.txt"
    away = catalogue.rename(catalogue.with_name("away"))
    (invitation,) = site.invite("lyon")
    with pytest.raises(FederationError, match="no catalogue yet"):
        site.joining(invitation, site.folder / "lyon").join()
    away.rename(catalogue)
    assert site.joining(invitation, site.folder / "lyon").join() == 0


def test_the_same_link_again_changes_nothing(site: Site) -> None:
    (invitation,) = site.invite("lyon")
    for _ in range(2):
        assert site.joining(invitation, site.folder / "lyon").join() == 0
    assert site.home.members.number == 2


def test_a_used_link_enrols_nobody_else(site: Site) -> None:
    (invitation,) = site.invite("lyon")
    site.joining(invitation, site.folder / "lyon").join()
    assert refused(site, invitation, site.folder / "thief") == IN_WORDS[Why.USED]
    assert site.home.members.number == 2


def test_an_expired_link_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    early, late = site.invite("lyon", "oslo", days=3)
    assert site.joining(early, site.folder / "lyon").join() == 0
    later = datetime.now(UTC) + timedelta(days=3, seconds=1)
    monkeypatch.setattr(invitations_module, "time_now", lambda: later)
    assert refused(site, late, site.folder / "oslo") == IN_WORDS[Why.EXPIRED]
    shutil.rmtree(site.folder / "lyon/runs")  # who used it in time may finish later
    (site.folder / "lyon/client.json").unlink()
    assert site.joining(early, site.folder / "lyon").join() == 0
    assert Invitations(site.home).open() == []
    assert len(site.invite("oslo")) == 1  # the name is free again


def test_a_foreign_altered_or_withdrawn_link_is_refused(site: Site, tmp_path: Path) -> None:
    other = Site(tmp_path / "elsewhere")
    (foreign,), (own,) = other.invite("lyon"), site.invite("lyon")
    unknown = IN_WORDS[Why.UNKNOWN]
    guessed = Invitation(ADDRESS, own.operator, own.authority, "lyon", bytes(16))
    assert refused(site, guessed, tmp_path / "a") == unknown
    renamed = Invitation(ADDRESS, own.operator, own.authority, "oslo", own.code)
    assert refused(site, renamed, tmp_path / "b") == unknown
    mixed = Invitation(ADDRESS, foreign.operator, own.authority, "lyon", foreign.code)
    assert refused(site, mixed, tmp_path / "c") == unknown
    with pytest.raises(OtherServer, match="not the one that the link names"):
        site.joining(foreign, tmp_path / "d").join()
    assert not (tmp_path / "d").exists()
    Invitations(site.home).withdraw("lyon")
    assert refused(site, own, tmp_path / "e") == unknown
    with pytest.raises(UsageError, match="no invitation of this name is open"):
        Invitations(site.home).withdraw("lyon")
    assert site.home.members.number == 1


def test_a_revoked_client_does_not_come_back_with_its_link(site: Site) -> None:
    (invitation,) = site.invite("lyon")
    site.joining(invitation, site.folder / "lyon").join()
    site.change(lambda roster: roster.revoke(0))
    (site.folder / "lyon/client.json").unlink()
    with pytest.raises(NotEnrolled, match="was revoked"):
        site.joining(invitation, site.folder / "lyon").join()


def test_a_server_in_the_middle_can_put_no_other_card_in(site: Site) -> None:
    """The code signs the card, so a server without the operator's key cannot swap it."""
    (invitation,) = site.invite("lyon")
    honest = invitation.application(Identity(b"c" * 32), NODE)
    thief = Card.make("lyon", Identity(b"t" * 32), NODE)
    for forged in (
        honest.model_copy(update={"card": thief}),
        honest.model_copy(update={"code": Identity(b"t" * 32).public.hex()}),
        honest.model_copy(update={"card": honest.card.model_copy(update={"node": NODE + "b"})}),
        honest.model_copy(update={"operator": "ab" * 32}),
    ):
        with pytest.raises(NotEnrolled):
            Application.parse(forged.model_dump_json().encode(), site.home.operator)
    parsed = Application.parse(honest.model_dump_json().encode(), site.home.operator)
    assert parsed == honest
    for junk in (b"", b"[]", b"{}", b"\xff", b"x" * 100):
        with pytest.raises(NotEnrolled, match="could not read"):
            Application.parse(junk, site.home.operator)


def test_the_server_shows_a_roster_of_another_operator(site: Site, tmp_path: Path) -> None:
    other = operator_in(tmp_path / "other")
    lyon = ClientFolder.create(tmp_path / "lyon")
    (invitation,) = site.invite("lyon")
    enrolled = RosterFile(operator=other.operator).name_server(site.home.server.public.hex())
    enrolled = enrolled.approve(lyon.card("lyon"))
    site.gate._roster = enrolled.signed(read_identity(other.folder / "operator.key"))
    site.gate.read_roster = lambda: None  # type: ignore[method-assign]
    site.gate._members = {m.client: m for m in enrolled.members}
    with pytest.raises(UsageError, match="is trusted"):
        site.joining(invitation, lyon.folder).join()
    assert not lyon.has_joined


def test_a_folder_of_another_operator_is_refused(site: Site, tmp_path: Path) -> None:
    lyon = site.client("lyon")
    (foreign,) = Site(tmp_path / "elsewhere").invite("lyon")
    with pytest.raises(UsageError, match="client of another operator"):
        site.joining(foreign, lyon.folder).join()


def test_approval_by_hand(site: Site) -> None:
    """The client waits, is approved by a command, and goes on; nobody reads a fingerprint out."""
    (invitation,) = site.invite("lyon", by_hand=True)
    said: list[str] = []

    def approve_after_a_while(seconds: float) -> None:
        assert seconds == gate_module.LOOK_AGAIN
        site.slept.append(seconds)
        if len(site.slept) == 3:
            done = CliRunner().invoke(app, ["server", "approve", str(site.home.folder), "--yes"])
            assert done.exit_code == 0, done.output
            assert "lyon came with its invitation" in done.output
            site.gate.read_roster()

    joining = site.joining(invitation, site.folder / "lyon", said.append)
    joining._sleep = approve_after_a_while
    assert joining.join() == 0
    assert len(said) == 1
    assert "Waiting for the operator's approval" in said[0]
    assert len(site.slept) == 3
    with pytest.raises(UsageError, match="no invited client waits"):
        CliRunner().invoke(
            app, ["server", "approve", str(site.home.folder)], catch_exceptions=False
        )


def test_without_the_operators_key_clients_wait(site: Site, tmp_path: Path) -> None:
    (site.home.folder / "operator.key").rename(tmp_path / "operator.key")
    (invitation,) = site.invite("lyon")
    client = ClientFolder.create(tmp_path / "lyon")
    application = invitation.application(client.identity, client.node_key)
    assert Invitations(site.home).enrol(application) is None
    assert [each.name for each in Invitations(site.home).waiting()] == ["lyon"]
    said = CliRunner().invoke(app, ["server", "clients", str(site.home.folder)]).output
    assert "waits for approval" in said
    arguments = ["server", "approve", str(site.home.folder), "--yes", "--operator-key"]
    done = CliRunner().invoke(app, [*arguments, str(tmp_path / "operator.key")])
    assert done.exit_code == 0, done.output
    admitted = Invitations(site.home).enrol(application)
    assert admitted is not None
    assert admitted.client == 0


def test_the_name_is_taken_meanwhile(site: Site, tmp_path: Path) -> None:
    (invitation,) = site.invite("lyon")
    site.change(lambda roster: roster.approve(Card.make("lyon", Identity(b"l" * 32), NODE)))
    assert refused(site, invitation, tmp_path / "lyon") == IN_WORDS[Why.NAMED]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["oslo", "oslo"], "invited already"),
        (["lyon"], "invited already"),
        (["bergen"], "invited already"),
        ([""], "1 to 100"),
        (["a\nb"], "1 to 100"),
        (["x" * 101], "1 to 100"),
    ],
)
def test_names_are_checked_before_anything_is_made(site: Site, names: list[str], said: str) -> None:
    site.client("lyon")
    site.invite("bergen")
    with pytest.raises(UsageError, match=said):
        site.invite("new", *names)
    assert [each.name for each in Invitations(site.home).open()] == ["bergen"]


def test_two_who_come_with_one_link_at_the_same_time(site: Site, tmp_path: Path) -> None:
    (invitation,) = site.invite("lyon")
    outcomes: list[str] = []

    def come(number: int) -> None:
        application = invitation.application(Identity(bytes([number]) * 32), NODE)
        try:
            outcomes.append(str(Invitations(site.home).enrol(application).client))  # type: ignore[union-attr]
        except NotEnrolled as error:
            outcomes.append(error.why)

    threads = [threading.Thread(target=come, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["0", *[Why.USED] * 5]
    assert len(site.home.members.members) == 1


def test_strangers_cannot_ask_for_too_much(site: Site) -> None:
    """The content of an application is bounded, and so is their number at a time."""
    with httpx.Client(base_url=URL, transport=site.transport) as http:
        large = http.post("/v1/join", content=b"x" * (gate_module.LARGEST_APPLICATION + 1))
        assert large.status_code == 413
        assert http.post("/v1/join", content=b"{}").text == Why.MALFORMED
        site.gate._joining = gate_module.MOST_JOINING
        assert http.post("/v1/join", content=b"{}").status_code == 503
        site.gate._joining = 0
        assert http.get("/v1/join").content == (site.home.folder / "tls/ca.crt").read_bytes()
    assert site.gate._joining == 0


def test_a_server_that_cannot_write_says_that_it_cannot_now(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (invitation,) = site.invite("lyon")
    with monkeypatch.context() as full:
        full.setattr(OperatorFolder, "save", _no_room)
        with pytest.raises(FederationError, match=r"cannot enrol now \(503\)"):
            site.joining(invitation, tmp_path / "lyon").join()
    assert (tmp_path / "lyon" / "identity.key").exists()
    assert site.joining(invitation, tmp_path / "lyon").join() == 0


def _no_room(*_: Any) -> None:
    raise OSError(28, "No space left on device")


# --- crashes at every write -----------------------------------------------------------------------

LIMIT = 200
"""More writes than an enrolment has."""


ALL = [(Fault.KILL, 0, 1), (Fault.KILL_HALFWAY, 0, 1)]
SOME = [(Fault.KILL, 0, 9), (Fault.KILL_HALFWAY, 5, 9)]
"""Faults, each at these writes: the first of them and the step to the next."""
PLACES = breadth.first(1, [SOME, ALL])


def _at_writes(
    folder: Path,
    faults: list[tuple[Fault, int, int]],
    work: Callable[[Path], bytes],
    after: Callable[[Path], None],
) -> int:
    """Kill `work` at its writes, each time on a copy of the folder; check what holds afterwards."""
    done = 0
    for fault, start, step in faults:
        for place in range(start, LIMIT, step):
            copy = folder.with_name("copy")
            shutil.copytree(folder, copy)
            finished = in_a_process_of_its_own(lambda: work(copy), Trap(place, fault))  # noqa: B023
            after(copy)
            shutil.rmtree(copy)
            if finished is not None:
                break
            done += 1
        else:
            raise AssertionError("more writes than expected")
    return done


@pytest.mark.parametrize("faults", PLACES)
def test_a_server_that_dies_at_any_write_enrols_once(tmp_path: Path, faults: Any) -> None:
    site = Site(tmp_path / "site")
    site.client("first")
    (invitation,) = site.invite("lyon")
    client, thief = Identity(b"c" * 32), Identity(b"t" * 32)
    mine, other = (invitation.application(each, NODE) for each in (client, thief))

    def enrol(folder: Path) -> bytes:
        Invitations(OperatorFolder(folder / "server")).enrol(mine)
        return b"done"

    def check(folder: Path) -> None:
        home = OperatorFolder(folder / "server")
        assert home.members.number in (2, 3)  # readable, before or after the change
        used = [each for each in Invitations(home).all() if each.card]
        if home.members.number == 3:
            assert len(used) == 2, "approved before the code was used up"
        # Whoever comes next, in whatever order, there is one client for the code.
        first, second = (other, mine) if len(used) == 1 else (mine, other)
        admitted = Invitations(home).enrol(first)
        assert admitted is not None
        assert admitted.client == 1
        with pytest.raises(NotEnrolled, match="used before"):
            Invitations(home).enrol(second)
        assert len(home.members.members) == 2
        assert home.members.number == 3

    killed = _at_writes(tmp_path / "site", faults, enrol, check)
    assert killed > (20 if faults is ALL else 2)


@pytest.mark.parametrize("faults", PLACES)
def test_a_client_that_dies_at_any_write_goes_on_with_the_same_command(
    tmp_path: Path, faults: Any
) -> None:
    site = Site(tmp_path / "site")
    (invitation,) = site.invite("lyon")
    clients = tmp_path / "clients"
    clients.mkdir()
    before = {path: path.read_bytes() for path in site.home.folder.glob("*") if path.is_file()}

    def join(folder: Path) -> bytes:
        site.restart()
        number = site.joining(invitation, folder / "lyon").join()
        return str(number).encode()

    def check(folder: Path) -> None:
        # The server of this process is as it was: its part was played in the child that died. It
        # gets what the client sent, and the same command goes on.
        site.restart()
        lyon = ClientFolder(folder / "lyon")
        assert site.joining(invitation, lyon.folder).join() == 0
        assert lyon.has_joined
        assert lyon.members.model_dump() == site.home.members.model_dump()
        assert lyon.members.member(0).key == lyon.identity.public.hex()
        assert not list(lyon.folder.glob(".new.*"))
        lyon.memory().close()
        for path, content in before.items():
            path.write_bytes(content)

    killed = _at_writes(clients, faults, join, check)
    assert killed > (100 if faults is ALL else 8)


# --- commands -------------------------------------------------------------------------------------


def test_many_are_invited_from_a_list(site: Site, tmp_path: Path) -> None:
    listed, out = tmp_path / "names.csv", tmp_path / "links.csv"
    listed.write_text("id,Name\n1,ann\n2,bob\n\n3,  eve \n", encoding="utf-8-sig")
    command = ["server", "invite", str(site.home.folder), "--list", str(listed), "--out", str(out)]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert "3 links" in done.output
    assert out.stat().st_mode & 0o077 == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["name"] for row in rows] == ["ann", "bob", "eve"]
    for number, row in enumerate(rows):
        invitation = Invitation.parse(row["link"])
        assert invitation.address == "https://localhost:9443"
        assert site.joining(invitation, tmp_path / row["name"]).join() == number
    with pytest.raises(UsageError, match="is there already"):
        CliRunner().invoke(app, command, catch_exceptions=False)
    with pytest.raises(UsageError, match="name at least one"):
        CliRunner().invoke(app, ["server", "invite", str(site.home.folder)], catch_exceptions=False)


def test_the_port_of_the_server_that_was_up_is_in_the_link(site: Site) -> None:
    (site.home.folder / "carrier").write_text("https\n--host 127.0.0.1 --port 9999")
    done = CliRunner().invoke(app, ["server", "invite", str(site.home.folder), "lyon"])
    link = done.output.split("client join ")[1].split()[0]
    assert Invitation.parse(link).address == "https://localhost:9999"


def test_a_roster_that_changed_meanwhile_is_not_overwritten(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server enrols a client while the operator looks at a card."""
    card = tmp_path / "card.json"
    card.write_bytes(Card.make("oslo", Identity(b"o" * 32), NODE).as_file())
    newcomers = iter(["lyon"])

    def agree(*_: Any, **__: Any) -> None:
        for name in newcomers:
            site.client(name)

    monkeypatch.setattr("privirec.app.cli.roster.agree", agree)
    with pytest.raises(UsageError, match="has changed meanwhile"):
        CliRunner().invoke(
            app,
            ["server", "approve", str(site.home.folder), str(card)],
            catch_exceptions=False,
        )
    assert [member.name for member in site.home.members.members] == ["lyon"]


def test_a_server_of_other_rosters_reads_no_invitations_of_another_version(site: Site) -> None:
    site.invite("lyon")
    with sqlite3.connect(site.home.folder / "invitations.db") as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(FederationError, match="another version; invite these clients again"):
        Invitations(site.home).all()
