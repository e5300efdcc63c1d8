"""Tests of a server that runs itself: schedule, log of the operator, rollback, check, metrics."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from privirec.app import operating
from privirec.app.checking import findings
from privirec.app.cli.every import app
from privirec.data import Dataset
from privirec.device.installed import Installed
from privirec.errors import FederationError, UsageError
from privirec.models import GFCF
from privirec.runtime import operator_log, schedule
from privirec.runtime.carriers import Listening
from privirec.runtime.child_processes import free_port
from privirec.runtime.enrolment.certificates import make_certificates
from privirec.runtime.enrolment.folders import ClientFolder, OperatorFolder
from privirec.runtime.envelope import Envelope
from privirec.runtime.health import Level
from privirec.runtime.https import gate, going_back
from privirec.runtime.https.going_back import Asking
from privirec.runtime.https.metrics import ServerMetrics
from privirec.runtime.messages import GoBack, Goodbye
from privirec.runtime.node import Node
from privirec.runtime.one_machine import make_federation
from privirec.runtime.runs import RunFolder
from privirec.runtime.schedule import Every, Schedule
from privirec.runtime.spec import RunSpec

from .chaos import small_policy
from .test_https_processes import histories, serving

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
Both = tuple[OperatorFolder, list[Path]]


@pytest.fixture
def both(tmp_path: Path) -> Both:
    """Return an operator's folder and those of three clients."""
    return make_federation(tmp_path, histories(), 3, small_policy())


# --- the operator's log ---------------------------------------------------------------------------


def did(home: OperatorFolder) -> list[str]:
    return [row["did"] for row in operator_log.rows(home.folder)]


def test_the_log_has_what_the_operator_did(both: Both) -> None:
    home, _ = both
    home.save(home.members.revoke(1))
    RunFolder(home, "one").prepare(RunSpec.of("privirec-k"))
    RunFolder(home, "one").ask_to_stop()
    assert did(home)[-3:] == ["revoked", "start", "stop"]
    assert did(home).count("approved") == 3
    shown = CliRunner().invoke(app, ["server", "log", str(home.folder)], env={"COLUMNS": "200"})
    assert "client-1" in shown.output


@pytest.mark.parametrize("change", ["a word", "a line", "the order"])
def test_a_log_that_was_changed_is_refused(both: Both, change: str) -> None:
    home, _ = both
    path = home.folder / operator_log.FILE
    lines = path.read_text().splitlines(keepends=True)
    if change == "a word":
        lines[1] = lines[1].replace("approved", "revoked")
    elif change == "a line":
        del lines[1]
    else:
        lines[1], lines[2] = lines[2], lines[1]
    path.write_text("".join(lines))
    with pytest.raises(FederationError, match="the log was changed"):
        operator_log.rows(home.folder)


# --- scheduled runs -------------------------------------------------------------------------------


def scheduled(home: OperatorFolder, every: Every = Every.MONTH, tries: int = 3) -> None:
    spec = RunSpec.of("privirec-k", rank=2, rounds=2)
    schedule.write(home, Schedule(every=every, spec=spec.as_chosen().decode(), tries=tries))


def ended(home: OperatorFolder, name: str, reason: str) -> None:
    (home.run(name) / "result.json").write_text(json.dumps({"reason": reason}))


def test_a_period_has_one_run(both: Both) -> None:
    home, _ = both
    assert schedule.start_due(home, NOON) is None  # nothing is scheduled
    scheduled(home)
    name = schedule.start_due(home, NOON)
    assert name == "month-2026-11"
    assert (home.run(name) / "run.json").exists()
    ended(home, name, "")
    for later in (timedelta(minutes=1), timedelta(days=12)):
        assert schedule.start_due(home, NOON + later) is None
    assert schedule.start_due(home, NOON + timedelta(days=13)) == "month-2026-12"
    assert Every.WEEK.period(NOON) == "2026-W47"
    assert Every.DAY.period(NOON) == "2026-11-18"


def test_a_run_that_could_not_finish_is_tried_again_with_longer_pauses(both: Both) -> None:
    home, _ = both
    scheduled(home)
    now, names = NOON, []
    for minutes in (10, 20, 40):
        name = schedule.start_due(home, now)
        assert name is not None
        names.append(name)
        ended(home, name, "2 of 3 clients came")
        assert schedule.start_due(home, now) is None
        assert schedule.start_due(home, now + timedelta(minutes=minutes - 1)) is None
        now += timedelta(minutes=minutes)
    assert names == ["month-2026-11", "month-2026-11-try-2", "month-2026-11-try-3"]
    assert schedule.start_due(home, now + timedelta(days=2)) is None  # three tries are all
    found = schedule.read(home)
    assert found is not None
    assert found.said == "month-2026-11-try-3: 2 of 3 clients came"


def test_a_run_that_the_server_could_not_go_on_with_goes_on(both: Both) -> None:
    home, _ = both
    scheduled(home)
    assert schedule.start_due(home, NOON) == "month-2026-11"
    assert schedule.start_due(home, NOON) is None  # no result: the disk was full
    assert schedule.start_due(home, NOON + timedelta(minutes=11)) == "month-2026-11"


def test_a_run_that_cannot_begin_is_said_and_tried_later(both: Both) -> None:
    home, _ = both
    scheduled(home)
    home.save(home.members.revoke(1))
    with pytest.raises(FederationError, match="2 clients, and a sum needs 3"):
        schedule.start_due(home, NOON)
    assert schedule.start_due(home, NOON + timedelta(minutes=1)) is None
    home.save(home.members.approve(ClientFolder.create(home.folder / "new").card("new")))
    assert schedule.start_due(home, NOON + timedelta(minutes=11)) == "month-2026-11-try-2"


def test_the_command_refuses_at_once_what_could_never_run(both: Both) -> None:
    home, _ = both
    command = ["server", "schedule", str(home.folder)]
    done = CliRunner().invoke(app, [*command, "--every", "week", "--drop-share", "0.5"])
    assert isinstance(done.exception, UsageError)
    assert schedule.read(home) is None
    done = CliRunner().invoke(app, [*command, "--every", "week", "--epsilon", "1"])
    assert "A run of protected every week, at most 5 tries" in done.output
    CliRunner().invoke(app, [*command, "--stop"])
    assert schedule.read(home) is None


# --- rollback -------------------------------------------------------------------------------------


def with_two_models(home: OperatorFolder, small: Dataset, clients: list[Path]) -> list[str]:
    """Give the server two runs with models, and the clients both; return their hashes."""
    hashes = []
    for rank, name in ((2, "one"), (3, "two")):
        RunFolder(home, name).prepare(RunSpec.of("privirec-k", rank=rank))
        saved = GFCF(rank=rank).fit(small.train).save(home.run(name) / "model")
        hashes.append(going_back.model_hash(home, name))
        for path in clients:
            Installed(path / "model").install(saved)
    return hashes


def told(node: Node, home: OperatorFolder, model: str, number: int) -> None:
    message = Envelope("", node.client, GoBack(model=model, number=number))
    node.answer(message.seal(home.server, "to-client"))


def test_a_client_goes_back_once_and_only_to_a_model_it_had(both: Both, small: Dataset) -> None:
    home, clients = both
    one, two = with_two_models(home, small, clients[:1])
    installed, node = Installed(clients[0] / "model"), ClientFolder(clients[0]).node()
    told(node, home, "0" * 64, 5)
    assert installed.versions() == [two, one]
    told(node, home, one, 6)
    assert installed.versions() == [one, two]
    told(node, home, two, 6)  # an old request, sent again
    assert installed.versions() == [one, two]
    told(node, home, two, 7)
    assert installed.versions() == [two, one]
    forged = Envelope("", 0, GoBack(model=one, number=8))
    node.answer(forged.seal(ClientFolder(clients[1]).identity, "to-client"))
    assert installed.versions() == [two, one]
    node.close()


def test_the_owner_goes_back_without_the_server(both: Both, small: Dataset) -> None:
    home, clients = both
    one, two = with_two_models(home, small, clients[:1])
    done = CliRunner().invoke(app, ["client", "rollback", str(clients[0]), "--yes"])
    assert done.exit_code == 0
    assert Installed(clients[0] / "model").versions() == [one, two]
    done = CliRunner().invoke(app, ["client", "rollback", str(clients[1]), "--yes"])
    assert "no earlier model" in str(done.exception)


class Post:
    """A mailbox whose clients answer with what their nodes say."""

    def __init__(self, clients: list[Path]) -> None:
        self.nodes = {number: ClientFolder(path).node() for number, path in enumerate(clients)}
        self.here = {0, 1}
        self.sent: list[int] = []
        self.waiting: list[tuple[int, Any]] = []

    def connected(self) -> set[int]:
        return self.here

    def send(self, client: int, message: bytes) -> None:
        self.sent.append(client)
        self.waiting.append((client, self.nodes[client].answer(message)))

    def answers(self) -> list[tuple[int, Any]]:
        found, self.waiting = self.waiting, []
        return found


def test_all_clients_are_asked_as_they_come(both: Both, small: Dataset) -> None:
    home, clients = both
    one, two = with_two_models(home, small, clients)
    assert operating.run_to_go_back_to(home) == "one"
    done = CliRunner().invoke(app, ["server", "rollback", str(home.folder), "--yes"])
    assert done.exit_code == 0, done.output
    post = Post(clients)
    asking = Asking(home, post)  # type: ignore[arg-type]
    for _ in range(3):
        asking.step()
    request = going_back.request(home)
    assert request is not None
    assert (request.run, request.model, request.answered) == ("one", one, (0, 1))
    post.here = {0, 1, 2}
    asking.forget()
    for _ in range(2):
        asking.step()
    assert post.sent == [0, 1, 2]
    assert all(Installed(path / "model").versions() == [one, two] for path in clients)
    assert did(home)[-1] == "rollback"
    with pytest.raises(UsageError, match="nothing to go back to"):
        operating.run_to_go_back_to(home)
    again = going_back.ask(home, "two")
    assert again.number > request.number
    going_back.over(home)
    assert going_back.request(home) is None
    for node in post.nodes.values():
        node.close()


def test_an_answer_that_the_client_has_not_signed_does_not_count(
    both: Both, small: Dataset
) -> None:
    home, clients = both
    with_two_models(home, small, clients)
    going_back.ask(home, "one")
    forged = Envelope("", 1, Goodbye()).seal(ClientFolder(clients[0]).identity, "to-server")
    post = SimpleNamespace(answers=lambda: [(1, forged)], connected=set)
    Asking(home, post).step()  # type: ignore[arg-type]
    request = going_back.request(home)
    assert request is not None
    assert request.answered == ()


# --- how the server is ----------------------------------------------------------------------------


def levels(home: OperatorFolder, address: str | None = None) -> dict[str, Level]:
    found: dict[str, Level] = {}
    for each in findings(home, address):
        found[each.what] = max(each.level, found.get(each.what, each.level), key=list(Level).index)
    return found


def test_check_connects_as_a_client_does(both: Both) -> None:
    home, clients = both
    make_certificates(home.folder / "tls", days=100)
    down = levels(home)
    assert down["connection"] is Level.BAD
    port = free_port()
    with serving(home, Listening("127.0.0.1", port, 0)):
        address = f"https://localhost:{port}"
        well = levels(home, address)
        assert well.pop("roster") is Level.SOON  # operator.key lies beside it
        assert set(well.values()) == {Level.OK}
        assert {"certificate", "clock", "connection", "disk", "version"} <= well.keys()
        command = ["client", "up", str(clients[0]), "--check", "--server", address]
        (clients[0] / "ca.crt").write_bytes((home.folder / "tls/ca.crt").read_bytes())
        shown = CliRunner().invoke(app, command)
        assert f"Its server: localhost:{port} answers" in shown.output
        # Renewed on the disk, but not by the server that is up: clients refuse it.
        make_certificates(home.folder / "tls", days=5)
        renewed = findings(home, address)
        assert any("a client refuses it" in each.said for each in renewed)
        assert levels(home, address)["certificate"] is Level.SOON
    done = CliRunner().invoke(app, ["server", "check", str(home.folder)])
    assert done.exit_code == 1


def test_metrics_count_runs_and_drop_outs() -> None:
    metrics = ServerMetrics()
    states = {"0": "installed", "1": "dropped", "2": "not here"}
    clients = {number: {"state": state} for number, state in states.items()}
    metrics.count_run({"reason": "", "status": {"clients": clients}})
    metrics.count_run({"reason": "too few", "status": {"clients": {}}})
    metrics.count_run({})
    shown = metrics.text().decode()
    for line in (
        'privirec_runs_total{result="done"} 1.0',
        'privirec_runs_total{result="stopped"} 1.0',
        'privirec_runs_total{result="failed"} 1.0',
        "privirec_clients_dropped_total 1.0",
        "privirec_clients_absent_total 1.0",
        "privirec_last_run_clients 1.0",
    ):
        assert line in shown


def test_when_a_client_was_last_seen_is_told(both: Both) -> None:
    home, _ = both
    (home.folder / "https").mkdir(exist_ok=True)
    path = home.folder / "https" / gate.SEEN
    now = datetime.now(UTC).timestamp()
    path.write_text(json.dumps({"0": now - 5, "1": now - 7300}))
    rows = {row["client"]: row["last_seen"] for row in operating.everybody(home)[1]}
    assert rows == {0: "now", 1: "2 h ago", 2: ""}
    path.write_text("{")
    assert gate.read_seen(home) == {}
