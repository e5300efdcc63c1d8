"""`privirec paper protocols`: a row for every registered protocol, with its guarantee."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from privirec.app.cli.every import app
from privirec.runtime.spec import Assumptions
from privirec.secagg import protocol, protocol_names


def test_every_protocol_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    asked = ["paper", "protocols", "--clients", "12", "--entries", "300", "--json", str(out)]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    rows = {row["protocol"]: row for row in map(json.loads, out.read_text().splitlines())}
    assert list(rows) == list(protocol_names())
    for name, row in rows.items():
        assert row["payload_bytes"] == 1200
        assert row["bytes_up_per_client"] >= 1200 or not protocol(name).is_exact
        active = protocol(name).schedule_for(Assumptions().statement(12, 1))
        assert row["exchanges"].split(", ") == list(active.names)
        assert row["server"] == "active"
        assert (row["largest_error"] == 0) or not protocol(name).is_exact
        assert sum(up for up, _ in row["bytes_by_step"].values()) == row["bytes_up_per_client"]
        assert f"{name}: {protocol(name).guarantee.value}" in done.output


def test_a_server_that_keeps_to_the_protocol_saves_an_exchange(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    asked = [
        "paper",
        "protocols",
        "--clients",
        "12",
        "--entries",
        "8",
        "--server-model",
        "semi-honest",
    ]
    done = CliRunner().invoke(app, [*asked, "--json", str(out)])
    assert done.exit_code == 0, done.output
    rows = {row["protocol"]: row for row in map(json.loads, out.read_text().splitlines())}
    assert rows["secagg+"]["exchanges"] == "advertise, share, input, unmask"


def test_numbers_that_a_protocol_refuses_are_said_in_a_line(tmp_path: Path) -> None:
    asked = ["paper", "protocols", "--clients", "3", "--entries", "8", "--corrupt-share", "0.5"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert "refuses these numbers" in done.output
