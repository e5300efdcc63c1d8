"""Tests of the folder of a run: its settings, its end, requests to stop, and logs."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from privirec.durable import alone
from privirec.errors import UsageError
from privirec.federated.programs import PrivirecKSettings
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.logs import logged_to
from privirec.runtime.runs import SILENCE, RunFolder
from privirec.runtime.spec import RunSpec

FILE, OTHER = (RunSpec(program=PrivirecKSettings(rank=3, rounds=rounds)) for rounds in (2, 3))


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(OperatorFolder.create(tmp_path / "server"), "monday")


def test_a_run_goes_on_with_the_settings_it_was_begun_with(run: RunFolder) -> None:
    assert run.prepare(FILE)
    begun = (run.folder / "run.json").read_bytes()
    assert run.prepare(FILE)
    with pytest.raises(UsageError, match="was begun with other settings"):
        run.prepare(OTHER)
    assert (run.folder / "run.json").read_bytes() == begun


def test_a_run_that_has_ended_stays_as_it_is(run: RunFolder) -> None:
    assert run.prepare(FILE)
    (run.folder / "result.json").write_text("{}")
    before = sorted(run.folder.iterdir())
    assert not run.prepare(FILE)
    with pytest.raises(UsageError, match="has ended; give a new one another name"):
        run.prepare(OTHER)
    assert sorted(run.folder.iterdir()) == before


def test_what_an_earlier_attempt_said_goes_when_nobody_is_at_work(run: RunFolder) -> None:
    assert run.prepare(FILE)
    said = {"failure.json", "stop", "server.log"}
    for name in said:
        (run.folder / name).write_text("{}")
    with alone(run.folder, wait=False):
        assert not run.prepare(FILE)
        assert said <= set(os.listdir(run.folder))
    assert run.prepare(FILE)
    assert not said & set(os.listdir(run.folder))
    assert (run.folder / "server.log.1").exists()


def test_only_a_run_that_is_going_on_is_asked_to_stop(run: RunFolder) -> None:
    """Accept requests only for a run that a server works on, or was just asked to."""
    with pytest.raises(UsageError, match="is not going on"):
        run.ask_to_stop()
    assert run.prepare(FILE)
    assert run.is_going_on
    long_ago = (run.folder / "alive").stat().st_mtime - SILENCE - 1
    os.utime(run.folder / "alive", (long_ago, long_ago))
    assert not run.is_going_on
    with alone(run.folder, wait=False):
        assert run.is_going_on
        run.ask_to_stop()
        assert (run.folder / "stop").exists()
        for name in ("result.json", "failure.json"):
            (run.folder / name).touch()
            assert not run.is_going_on
            (run.folder / name).unlink()
    os.utime(run.folder / "alive")
    (run.folder / "failure.json").touch()
    with pytest.raises(UsageError, match="is not going on"):
        run.ask_to_stop()


def test_a_log_that_cannot_be_written_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    log = logging.getLogger("privirec.server")
    with logged_to(tmp_path / "gone" / "server.log"):
        log.warning("the folder does not exist")
    with logged_to(tmp_path / "server.log"):
        log.warning("said")
    log.warning("said later")
    assert (tmp_path / "server.log").read_text().endswith("WARNING said\n")
