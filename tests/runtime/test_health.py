"""Tests of what a server and its operator are told about disk, certificates and keys."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from privirec.app import operating
from privirec.errors import FederationError, UsageError
from privirec.runtime import health
from privirec.runtime.carriers import Listening
from privirec.runtime.child_processes import free_port
from privirec.runtime.enrolment.certificates import make_certificates
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.health import Level, disk, until
from privirec.runtime.https import server as server_module
from privirec.runtime.https.gate import Gate
from privirec.runtime.https.limits import Limits
from privirec.runtime.https.mailbox import Mailbox
from privirec.runtime.https.runs import starts
from privirec.runtime.lines import Lines
from privirec.runtime.runs import RunFolder
from privirec.runtime.spec import RunSpec

DAY = 86_400


@pytest.fixture
def home(tmp_path: Path) -> OperatorFolder:
    return OperatorFolder.create(tmp_path / "server")


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health.shutil, "disk_usage", lambda _path: SimpleNamespace(free=1000))


def test_a_certificate_is_reported_before_it_ends() -> None:
    now = time.time()
    levels = {days: until(now + days * DAY, "it", now=now).level for days in (-1, 1, 20, 22, 90)}
    assert list(levels.values()) == [Level.BAD, Level.SOON, Level.SOON, Level.OK, Level.OK]
    assert "it is valid for 20 more days" in until(now + 20 * DAY, "it", now=now).said


def test_a_key_that_does_not_fit_its_certificate_is_refused(home: OperatorFolder) -> None:
    tls = home.folder / "tls"
    make_certificates(tls)
    shutil.copyfile(tls / "server.key", tls / "old.key")
    make_certificates(tls)
    shutil.copyfile(tls / "old.key", tls / "server.key")
    with pytest.raises(UsageError, match="not the key of the certificate server"):
        server_module.serve(home, Listening("127.0.0.1", free_port(), 0))
    (tls / "server.key").write_text("nothing")
    with pytest.raises(UsageError, match="not a private key without a password"):
        server_module.serve(home, Listening("127.0.0.1", free_port(), 0))


def test_a_listener_that_fails_does_not_end_without_a_word(
    home: OperatorFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_certificates(home.folder / "tls")

    async def failing(_self: Any) -> None:
        raise OSError("no such thing")

    monkeypatch.setattr(server_module.uvicorn.Server, "serve", failing)
    with pytest.raises(FederationError, match="no such thing"):
        server_module.serve(home, Listening("127.0.0.1", free_port(), 0))


def health_of(home: OperatorFolder, tmp_path: Path) -> Any:
    limits = Limits()
    gate = Gate(home, Mailbox(tmp_path / "spool", limits), limits, Lines(limits.within))
    return asyncio.run(gate._health(None))  # type: ignore[arg-type]


def test_a_server_with_room_is_well(home: OperatorFolder, tmp_path: Path) -> None:
    assert health_of(home, tmp_path).body == b"ok\n"


@pytest.mark.usefixtures("full")
def test_a_full_disk_is_told_by_health(home: OperatorFolder, tmp_path: Path) -> None:
    answer = health_of(home, tmp_path)
    assert answer.status_code == 503
    assert answer.body.startswith(b"the disk is full")
    assert disk(home.folder).level is Level.BAD


@pytest.mark.usefixtures("full")
def test_a_full_disk_is_the_reason_of_a_run_that_waits(
    home: OperatorFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operating.serving, "carrier_up", lambda _home: "https")
    RunFolder(home, "one").prepare(RunSpec.of("privirec-k"))
    assert operating.overview(home, "one").row["reason"].startswith("the disk is full")


def test_a_run_that_the_server_gave_up_does_not_keep_its_follower(
    home: OperatorFolder, full: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test a disk so full that the server could not even write why it gave up."""
    run = RunFolder(home, "one")
    run.prepare(RunSpec.of("privirec-k"))
    start = starts(home) / "one"

    def no_room(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("privirec.runtime.runs.write_whole", no_room)
        patch.setattr(RunFolder, "_serve", no_room)
        with pytest.raises(FederationError, match="No space left on device"):
            run.serve(lambda spec: None)  # type: ignore[arg-type, return-value]
    assert not (run.folder / "failure.json").exists()
    with pytest.raises(FederationError, match=r"the disk is full.*then start the run one again"):
        run.follow(lambda status: None, lambda: False, lambda: not start.exists())
