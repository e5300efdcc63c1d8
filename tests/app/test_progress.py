"""Tests of progress bars: each reaches 100 % before it disappears, except after an error."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from privirec import progress
from privirec.app.cli.every import app

FRAME = re.compile(r"(\S[^\r\n]*?)\s+[━╸╺ ]*\s+(\d+)%")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    seen = io.StringIO()
    console = Console(file=seen, force_terminal=True, width=120, color_system=None)
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    return seen


def last_seen(terminal: io.StringIO) -> dict[str, int]:
    """Return the last percentage shown for each phase, by name."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", terminal.getvalue())
    return {name: int(percent) for name, percent in FRAME.findall(plain)}


def test_a_phase_that_stops_early_or_reports_nothing_is_seen_whole(terminal: io.StringIO) -> None:
    with progress.shown_progress() as phases:
        phases("converges")(3, 10)
        phases("says nothing")
        phases("begins")(0, 1)
        phases("ends")(7, 7)
    assert last_seen(terminal) == dict.fromkeys(
        ["converges", "says nothing", "begins", "ends"], 100
    )


def test_a_failed_phase_does_not_reach_100_percent(terminal: io.StringIO) -> None:
    def work() -> None:
        with progress.shown_progress() as phases:
            phases("breaks")(3, 10)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    assert last_seen(terminal) == {"breaks": 30}


@pytest.mark.parametrize(
    "command",
    [
        "fit synthetic:small --save model",
        "run --dataset synthetic:small --method privirec-k --rank 8",
        "audit --dataset synthetic:small --attack likelihood-peeling",
    ],
)
def test_bars_of_commands_end_at_100(
    command: str, terminal: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 0, done.output
    seen = last_seen(terminal)
    assert seen
    assert set(seen.values()) == {100}, seen
