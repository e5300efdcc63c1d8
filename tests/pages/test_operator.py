"""Tests of the operator's page without a browser: status, and starting and stopping runs."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from network.invited import operator_in
from network.memory import MemoryCarrier
from privirec.app import operating
from privirec.app.cli.every import app
from privirec.app.pages.operator import OperatorSite
from privirec.app.pages.web import PageServer
from privirec.durable import private_folder
from privirec.errors import FederationError, UsageError
from privirec.runtime import carrier
from privirec.runtime.enrolment.folders import ClientFolder, OperatorFolder
from privirec.runtime.enrolment.invitations import Invitation, Invitations
from privirec.runtime.runs import STOPPED_BY_OPERATOR, RunFolder
from privirec.runtime.serving import remember
from privirec.secagg.keys import Identity

from .a_server import FILE, begin, kill, up
from .visitor import Answer, Visitor, serving

NODE = "ecdsa-sha2-nistp384 a"


@pytest.fixture
def visitor(home: OperatorFolder) -> Iterator[Visitor]:
    with serving(OperatorSite(home)) as server:
        yield Visitor(server).enter()


def test_a_new_server_says_that_nothing_was_started(visitor: Visitor) -> None:
    words = visitor.look().words
    assert "To do: the catalogue" in words or "Done: the catalogue" in words
    assert "To do: start the first run" in words
    assert "No run was started yet." in visitor.look("runs").words
    words = visitor.look("clients").words
    assert "No run has asked them yet." in words
    assert "Oslo 0" in words
    assert "Gone 2 revoked" in words


def test_the_run_in_progress(visitor: Visitor, home: OperatorFolder) -> None:
    folder = begin(home, "monday")
    began = time.time() - 100
    os.utime(folder / "run.json", (began, began))
    words = visitor.look().words
    assert "Sum 2 of 3 (noisy-head-gram): input for 15 s" in words
    assert "about 3 min left" in words  # one of three sums in 100 seconds
    assert "1 of 2 clients in it, 1 dropped out; 4.0 kB sent by all, 6.0 kB received" in words
    assert "Oslo 0 answered 7 2.0 kB 3.0 kB" in words
    assert "<b>Lyon</b> 1 dropped" in words
    assert "<i>its line</i>" in words
    assert "<b>" not in visitor.look().text
    assert '<progress max="3" value="1"' in visitor.look().text
    assert visitor.look("live").text in visitor.look().text
    assert visitor.look("live-run?name=monday").text in visitor.look("run?name=monday").text
    assert "Stop it" in visitor.look("run?name=monday").words


def test_runs_that_ended_failed_or_were_left(visitor: Visitor, home: OperatorFolder) -> None:
    begin(home, "stopped", stage="stopped", reason="too few came")
    (home.run("stopped") / "result.json").write_text("{}")
    begin(home, "failed")
    (home.run("failed") / "failure.json").write_text('{"reason": "a full disk"}')
    begin(home, "left")
    os.utime(home.run("left") / "alive", (1, 1))
    home.run("empty").mkdir()
    rows = {each.name: each.row for each in operating.overviews(home)}
    assert (rows["stopped"]["stage"], rows["stopped"]["reason"]) == ("stopped", "too few came")
    assert (rows["failed"]["stage"], rows["failed"]["reason"]) == ("failed", "a full disk")
    assert rows["left"]["stage"] == "not going on"
    assert not any(row["going_on"] for row in rows.values())
    words = visitor.look("runs").words
    for word in ("too few came", "a full disk", "not going on", "empty"):
        assert word in words
    for name in rows:
        assert "Stop it" not in visitor.look(f"run?name={name}").words
        with pytest.raises(UsageError, match="is not going on"):
            operating.stop(home, name)
    assert visitor.look("run?name=nothing").status == 400
    assert visitor.look("run?name=../../etc").status == 400
    assert visitor.look("run").status == 400


def test_a_run_is_stopped_within_seconds_and_says_why(
    home: OperatorFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrier, "LOOK_FOR_CLIENTS", 0.02)

    class Nobody(MemoryCarrier):
        """Carrier during whose waiting for clients the operator stops the run."""

        def rest(self) -> None:
            operating.stop(home, "monday")
            time.sleep(0.02)

    run = RunFolder(home, "monday")
    run.prepare(FILE)
    with pytest.raises(FederationError, match=STOPPED_BY_OPERATOR):
        run.serve(lambda _: Nobody({}))
    row = operating.overview(home, "monday").row
    assert (row["stage"], row["reason"]) == ("stopped", STOPPED_BY_OPERATOR)
    with pytest.raises(UsageError, match="is not going on"):
        operating.stop(home, "monday")


def test_a_server_that_was_killed_is_down(
    visitor: Visitor, home: OperatorFolder, tmp_path: Path
) -> None:
    folder = begin(home, "mid", stage="gathering clients", sum_number=0, sums=0)
    words = visitor.look().words
    assert "gathering clients" in words
    assert "The server is down" not in words
    remember(home, "https")
    (private_folder(home.folder / "https/start") / "mid").touch()
    kill(home)
    row = operating.overview(home, "mid").row
    assert not row["server_up"]
    assert not row["going_on"]
    goes_on = "the server is down; once it is up it goes on with the run mid"
    out = tmp_path / "out.jsonl"
    asked = ["server", "status", str(home.folder), "mid", "--json", str(out)]
    done = CliRunner().invoke(app, asked)
    assert goes_on in " ".join(done.stdout.split())
    told = json.loads(out.read_text())
    assert (told["stage"], told["server_up"]) == ("not going on", False)
    assert told["reason"].endswith(f"privirec server up {home.folder}")
    listed = CliRunner().invoke(app, ["server", "status", str(home.folder)])
    assert "The server is down: privirec server up" in listed.stderr
    done = CliRunner().invoke(app, ["server", "stop", str(home.folder), "mid", "--yes"])
    assert isinstance(done.exception, FederationError)
    assert goes_on in str(done.exception)
    assert not (folder / "stop").exists()
    words = visitor.look().words
    assert "The server is down: privirec server up" in words
    assert goes_on in words
    assert "Stop it" not in visitor.look("run?name=mid").words
    (home.folder / "https/start/mid").unlink()
    assert "start the run mid again" in operating.overview(home, "mid").row["reason"]
    up(home)
    assert operating.overview(home, "mid").is_going_on


def test_a_run_that_has_ended_is_not_stopped_whether_the_server_is_up_or_not(
    home: OperatorFolder,
) -> None:
    """The page does not suggest starting a server for it."""
    begin(home, "over", stage="done")
    (home.run("over") / "result.json").write_text("{}")
    begin(home, "left")
    os.utime(home.run("left") / "alive", (1, 1))
    for name in ("over", "left"):
        with pytest.raises(UsageError, match="is not going on"):
            operating.check_can_stop(home, name)
    kill(home)
    with pytest.raises(UsageError, match="the run over is not going on"):
        operating.check_can_stop(home, "over")
    with pytest.raises(FederationError, match="nothing was stopped: the server is down"):
        operating.check_can_stop(home, "left")


def test_stopping_a_run_of_a_killed_server_is_refused(home: OperatorFolder) -> None:
    """The request would stay there, and stop the run as soon as it resumes."""
    folder = begin(home, "mid")
    kill(home)
    with pytest.raises(FederationError, match="nothing was stopped"):
        operating.stop(home, "mid")
    assert not (folder / "stop").exists()


def test_stopping_needs_a_tick(visitor: Visitor, home: OperatorFolder) -> None:
    folder = begin(home, "monday")
    visitor.look("run?name=monday")
    assert visitor.change("stop", name="monday").status == 400
    assert not (folder / "stop").exists()
    answer = visitor.change("stop", name="monday", confirm="yes")
    assert "The server ends the run monday within seconds." in answer.words
    assert (folder / "stop").exists()


def test_starting_is_the_command(
    visitor: Visitor, home: OperatorFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    class Done:
        def __init__(self, command: list[str], **_: Any) -> None:
            started.append(command)

        def poll(self) -> int:
            return 0

    monkeypatch.setattr(operating.subprocess, "Popen", Done)
    form = {"name": "-x", "method": "protected", "aggregator": "secagg+", "epsilon": "4.0000001"}
    visitor.look("start")
    words = visitor.change("start", **form, rank="8").words
    assert "-x: ended as it should." in words
    assert "being started" not in words
    (command,) = started
    assert command[:6] == [sys.executable, "-P", "-m", "privirec", "server", "run"]
    assert command[-3:] == ["--", str(home.folder), "-x"]
    options = command[6:-3]
    assert options == [
        *(
            "--method",
            "protected",
            "--aggregator",
            "secagg+",
            "--epsilon",
            "4.0000001",
            "--rank",
            "8",
        )
    ]
    for wrong in (
        {"name": ""},
        {"name": "../x"},
        {"name": "a b"},
        {"method": "--help"},
        {"method": ""},
        {"aggregator": "x"},
        {"epsilon": "inf"},
        {"epsilon": "-1"},
        {"rank": "x"},
    ):
        assert visitor.change("start", **(form | wrong)).status == 400, wrong
    assert len(started) == 1


def test_only_our_script_may_run(visitor: Visitor) -> None:
    policy = visitor.look().headers["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    assert visitor.look("live.js").headers["Content-Type"].startswith("text/javascript")
    assert visitor.look("operator.html").status == 404


def test_the_command_lists_runs_and_says_where_one_stands(
    home: OperatorFolder, tmp_path: Path
) -> None:
    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["server", *arguments])
        assert done.exit_code == 0, done.exception
        return done.stdout

    assert "No run was started yet." in run("status", str(home.folder))
    begin(home, "monday")
    out = tmp_path / "out.jsonl"
    assert "monday" in run("status", str(home.folder), "--json", str(out))
    (row,) = map(json.loads, out.read_text().splitlines())
    assert row["name"] == "monday"
    assert row["going_on"]
    assert "summing 2 of 3: input" in run("status", str(home.folder), "monday", "--json", str(out))
    row = json.loads(out.read_text())
    assert [each["name"] for each in row["by_client"]] == ["Oslo", "<b>Lyon</b>"]
    assert "within seconds" in run("stop", str(home.folder), "monday", "--yes")
    assert (home.run("monday") / "stop").exists()
    for wrong in (["status", str(home.folder), "x"], ["status", str(tmp_path)]):
        done = CliRunner().invoke(app, ["server", *wrong])
        assert isinstance(done.exception, UsageError)


def test_a_run_is_shown_with_the_clients_that_it_had(home: OperatorFolder, tmp_path: Path) -> None:
    """Clients approved later are not listed; clients revoked later are."""
    begin(home, "monday")
    members = home.members.revoke(0).approve(ClientFolder.create(tmp_path / "late").card("late"))
    home.save(members)
    found = operating.overview(home, "monday")
    assert [each["name"] for each in found.clients] == ["Oslo", "<b>Lyon</b>"]
    assert found.row["clients"] == 2
    assert found.clients[0]["revoked"]
    assert found.clients[0]["state"] not in ("", "revoked")
    assert found.clients[0]["why"] == "revoked since"
    now = {each["name"]: each["state"] for each in operating.client_rows(home, {})}
    assert now == {
        "Oslo": "revoked",
        "<b>Lyon</b>": "approved",
        "Gone": "revoked",
        "late": "approved",
    }


def test_the_page_of_clients_lists_new_and_revoked_ones_too(
    visitor: Visitor, home: OperatorFolder, tmp_path: Path
) -> None:
    begin(home, "monday")
    members = home.members.revoke(0).approve(ClientFolder.create(tmp_path / "late").card("late"))
    home.save(members)
    shown = visitor.look("clients").words
    for word in ("As the run monday saw them", "Oslo", "revoked since", "Gone", "late", "approved"):
        assert word in shown


def test_a_run_lasts_from_its_first_start_to_its_end(
    visitor: Visitor, home: OperatorFolder
) -> None:
    """Restarts of the server do not change the duration."""
    folder = begin(home, "thu", stage="done", sum_number=0)
    result = folder / "result.json"
    result.write_text('{"seconds": 15.0}')
    began = result.stat().st_mtime - 90
    os.utime(folder / "run.json", (began, began))
    assert "90 s in all" in visitor.look("run?name=thu").words
    row = operating.overview(home, "thu").row
    listed = CliRunner().invoke(app, ["server", "status", str(home.folder)])
    assert "in_the_run" in listed.stdout
    assert f"{row['in_the_run']} of {row['clients']} clients in it" in visitor.look().words


# --- the first federation -------------------------------------------------------------------------


@pytest.fixture
def new_home(tmp_path: Path) -> OperatorFolder:
    return operator_in(tmp_path / "new")


@pytest.fixture
def first(new_home: OperatorFolder) -> Iterator[PageServer]:
    with serving(OperatorSite(new_home)) as server:
        yield server


def links_of(answer: Answer) -> dict[str, Invitation]:
    found = re.findall(r"client join (https://[^\s<]+)", unescape(answer.text))
    return {each.name: each for each in map(Invitation.parse, found)}


def test_the_page_leads_to_a_first_run(first: PageServer, new_home: OperatorFolder) -> None:
    """Invite, see who came, approve who waits, and get to the form for the first run."""
    visitor = Visitor(first).enter()
    words = visitor.look().words
    assert "Done: the catalogue" in words
    assert "Done: the server's certificate" in words
    assert "To do: 0 clients have enrolled, 0 wait for approval, 0 more are invited" in words
    assert "Invite clients" in words
    visitor.look("clients")
    address = "https://localhost:9443"
    shown = visitor.change("invite", names="lyon\n<b>oslo</b>\n\nporto", address=address)
    links = links_of(shown)
    assert list(links) == ["lyon", "<b>oslo</b>", "porto"]
    assert "<b>oslo" not in shown.text
    assert "client join" not in visitor.look("clients").text  # shown once
    assert "Invited, not here yet" in visitor.look("clients").words
    clients = {name: Identity(name.encode().ljust(32, b"x")) for name in links}
    for name in ("lyon", "porto"):
        Invitations(new_home).enrol(links[name].application(clients[name], NODE))
    assert (
        "2 clients have enrolled, 0 wait for approval, 1 more are invited" in visitor.look().words
    )
    (new_home.folder / "operator.key").rename(new_home.folder / "away.key")
    application = links["<b>oslo</b>"].application(clients["<b>oslo</b>"], NODE)
    assert Invitations(new_home).enrol(application) is None
    assert "They came with a valid link and wait: <b>oslo</b>" in visitor.look("clients").words
    assert "no key there" in visitor.change("approve").words
    (new_home.folder / "away.key").rename(new_home.folder / "operator.key")
    visitor.look("clients")
    assert "Approved: <b>oslo</b>." in visitor.change("approve").words
    assert "Done: 3 clients have enrolled" in visitor.look().words
    up(new_home)
    assert "Start the first run" in visitor.look().words


@pytest.mark.parametrize(
    ("names", "address", "said"),
    [
        ("", "https://localhost:9443", "No name was given"),
        ("lyon\nlyon", "https://localhost:9443", "invited already"),
        ("lyon", "http://localhost:9443", "nly https"),
        ("lyon", "localhost", "neither https"),
    ],
)
def test_an_invitation_that_cannot_be_made(
    first: PageServer, new_home: OperatorFolder, names: str, address: str, said: str
) -> None:
    visitor = Visitor(first).enter()
    visitor.look("clients")
    assert said in visitor.change("invite", names=names, address=address).words
    assert Invitations(new_home).all() == []


def test_who_only_looks_changes_nothing(first: PageServer, new_home: OperatorFolder) -> None:
    """The second address shows all pages, without forms; forged forms are refused."""
    viewer = Visitor(first)
    answer = viewer.ask("GET", first.guard.address_to_look.partition(viewer.host)[2])
    viewer.cookie = answer.headers["Set-Cookie"].partition(";")[0]
    assert first.guard.address_to_look != first.guard.address
    for path in ("", "clients", "runs"):
        page = viewer.look(path)
        assert page.status == 200
        assert "<form" not in page.text
        assert "Start a run" not in page.words
    operator = Visitor(first).enter()
    operator.look("clients")
    session = next(each for each in first.guard._sessions if not each.may_change)
    for path, form in {
        "invite": {"names": "lyon", "address": "https://localhost:9443"},
        "approve": {},
        "start": {"name": "monday", "method": "protected", "aggregator": "secagg+"},
        "stop": {"name": "monday", "confirm": "yes"},
    }.items():
        for secret in (session.csrf, operator.csrf):
            viewer.csrf = secret
            refused = viewer.change(path, **form)
            assert refused.status == 403
            assert "for looking only" in refused.words
    assert Invitations(new_home).all() == []
    assert not new_home.run("monday").exists()
