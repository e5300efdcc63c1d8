"""Tests of budgets over several runs, and of the table in the documentation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privirec.app.cli.every import app
from privirec.app.planner.schedule import lifetime_rows, run_rows, shortened
from privirec.errors import UsageError
from privirec.federated.dp.loss import Loss
from privirec.federated.programs.calibration import Promise
from privirec.privacy.policy import Policy
from privirec.privacy.worth import right_guesses

PAGE = Path(__file__).parents[2] / "docs/explanation/budget.md"


def test_the_table_of_the_documentation_is_what_the_command_prints() -> None:
    page = PAGE.read_text()
    for row in shortened(lifetime_rows()):
        assert f"| {' | '.join(map(str, row.values()))} |" in page
    life, year = Policy().limits
    assert f"at most {right_guesses(year.cap)} of 100 guesses are right" in page
    assert f"a life's budget, at most {right_guesses(life.cap)}" in page


def test_runs_share_a_budget_and_use_it_up() -> None:
    rows = run_rows(12, 8.0, 30_000, 41_000)
    assert {row["epsilon"] for row in rows} == {1.97}
    assert "(1.97)" in PAGE.read_text()
    each = Loss(Promise(1.97, 1e-6, 1, 1).mu)
    assert Loss.together([each] * 12).fits(Loss.allowed(8.0, 1e-6))
    assert 7.9 < rows[-1]["epsilon_together"] <= 8.0
    together = [row["epsilon_together"] for row in rows]
    assert together == sorted(together)
    assert rows[-1]["right_guesses"] == 78
    with pytest.raises(UsageError, match="too little for 10000 runs"):
        run_rows(10_000, 0.01, 100, 100)


def test_a_large_federation_has_a_smaller_delta() -> None:
    (row,) = run_rows(1, 8.0, 1_000_000, 1000)
    assert row["delta"] <= 1e-7


def test_the_command_prints_and_writes_the_schedule(tmp_path: Path) -> None:
    wanted = "plan --users 30000 --items 41000 --runs 3 --epsilon-in-total 4 --json"
    done = CliRunner().invoke(app, [*wanted.split(), str(tmp_path / "rows.jsonl")])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["run"] for row in rows] == [1, 2, 3]
    assert "is right in at most 67 of 100 cases" in done.output.replace("\n", " ")
    done = CliRunner().invoke(app, ["plan", "--runs", "3", "--users", "9", "--items", "9"])
    assert isinstance(done.exception, UsageError)
    assert "go together" in str(done.exception)
