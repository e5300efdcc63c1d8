"""Small version of benchmarks/devices.py: devices in separate processes, some of them killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "devices.py"


@pytest.mark.long  # the server waits for killed clients until the deadline of a step
@pytest.mark.parametrize("program", ["protected", "degrees"])
def test_devices_over_tls_some_of_them_killed(program: str, tmp_path: Path) -> None:
    command = [
        *(sys.executable, str(SCRIPT), "--program", program, "--dataset", "synthetic:small"),
        *("--clients", "40", "--kill-share", "0.05", "--processes", "1"),
        *("--step-seconds", "20", "--most-seconds", "240", "--json", str(tmp_path / "row")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    row = json.loads((tmp_path / "row").read_text())
    assert row["right"]
    assert row["cohort"] == 40 - row["killed"]
    assert row["states"]["installed"] == row["cohort"]
    assert row["server_peak_mb"] < 1000
    if program == "protected":
        assert (
            row["program_peak_mb"] < 80
        )  # `privirec client up` itself, from start to installed model
