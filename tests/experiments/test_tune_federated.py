"""Tests of `privirec tune --federated`: trace and settings from the mean metrics of clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from privirec.app.cli.every import app
from privirec.data import Dataset
from privirec.errors import DataError, UsageError
from privirec.experiments import tune_federated
from privirec.experiments.tune import as_spec
from privirec.experiments.tune_federated import FederatedTuning, ValidatedShape
from privirec.federated.programs import SpectralValidation, SpectralValidationSettings
from privirec.federated.programs.spectral_validation import usual_candidates
from privirec.runtime.run import run
from privirec.runtime.spec import RunSpec

BUDGET = 20_000


def tuning(small: Dataset, trace: Path, **more: Any) -> FederatedTuning:
    given = {"rounds": (3,), "threads": 1} | more
    return FederatedTuning(small, BUDGET, trace, **given)


def metrics(point: dict[str, Any]) -> tuple[Any, ...]:
    return point["config"], point["ndcg@20"], point["recall@20"], point["users"]


def test_the_best_point_can_be_run_and_the_run_that_found_it_is_within_the_budget(
    small: Dataset, tmp_path: Path
) -> None:
    tuned = tuning(small, tmp_path / "trace.jsonl")
    best = tuned.run()
    lines = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert lines == tuned.points
    most = max(point["config"]["rank"] for point in lines)
    assert [point["config"] for point in lines] == [
        one.model_dump() for one in usual_candidates(most)
    ]
    assert best["ndcg@20"] == max(point["ndcg@20"] for point in lines)
    assert best["bytes_up_per_client"] < best["run_bytes_up_per_client"] <= BUDGET
    assert best["run_bytes_down_per_client"] <= 1.5 * best["run_bytes_up_per_client"]
    shape = ValidatedShape(tuple(best["columns"]), best["ring_bits"])
    sizes = small.train.n_users, small.train.n_items
    assert tuned.paid == shape.bytes(*sizes, most)  # the plan equals the ledger
    one_more = ValidatedShape(tuple(each + 1 for each in best["columns"]), best["ring_bits"])
    assert one_more.bytes(*sizes)[0] > BUDGET
    difference = best["run_bytes_up_per_client"] - best["bytes_up_per_client"]
    assert difference == best["metrics_bytes_up_per_client"] < 1000
    (tmp_path / "settings.json").write_bytes(as_spec(best).as_chosen())
    spec = RunSpec.read(tmp_path / "settings.json").changed(threads=1)
    assert run(small, spec).row["bytes_up_per_client"] == best["bytes_up_per_client"]


def test_a_finished_run_is_not_run_again(
    small: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace.jsonl"
    best = tuning(small, trace).run()
    lines = trace.read_text()
    trace.write_text("".join(lines.splitlines(keepends=True)[:5]))
    assert tuning(small, trace).run() == best
    assert trace.read_text() == lines
    monkeypatch.setattr(FederatedTuning, "_validated", None)
    assert tuning(small, trace).run() == best
    trace.write_text("[]\n")
    with pytest.raises(DataError, match="1: not a row of tune --federated"):
        tuning(small, trace).run()


def test_clients_under_secure_aggregation_give_the_simulation_s_points(
    small: Dataset, tmp_path: Path
) -> None:
    secure = tuning(small, tmp_path / "a", clients=4, runtime="in-process", aggregator="secagg+")
    simulated = tuning(small, tmp_path / "b", clients=4)
    assert metrics(secure.run()) == metrics(simulated.run())
    assert list(map(metrics, secure.points)) == list(map(metrics, simulated.points))
    assert secure.paid[0] > simulated.paid[0]  # masks and keys cost bytes


def test_points_of_processes_come_from_the_server(
    small: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def federated(dataset: Dataset, chosen: RunSpec, clients: int, **_: Any) -> dict[str, Any]:
        spec = chosen.resolved(dataset.name, dataset.train.n_items, clients)
        settings = spec.program
        assert isinstance(settings, SpectralValidationSettings)
        asked.append((clients, spec.aggregator))
        program = SpectralValidation(settings, dataset.train.n_users, dataset.train.n_items)
        validated = [
            {"config": one.model_dump(), "ndcg@20": i / 1000, "recall@20": 0.5, "users": 9}
            for i, one in enumerate(program.candidates)
        ]
        cost = {"bytes_up_per_client": 30_000, "bytes_down_per_client": 40_000}
        return {"validated": validated, **cost}

    monkeypatch.setattr(tune_federated, "federate", federated)
    tuned = tuning(
        small, tmp_path / "a", clients=4, runtime="processes", aggregator="secagg+", ring_bits=(16,)
    )
    best = tuned.run()
    assert asked == [(4, "secagg+")]
    assert best == tuned.points[-1]
    assert tuned.paid == (30_000, 40_000)
    assert best["ring_bits"] == 16


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"runtime": "cloud"}, "no runtime 'cloud'"),
        ({"aggregator": "secagg+"}, "an aggregator needs --runtime"),
        ({"runtime": "processes"}, "needs --clients"),
    ],
)
def test_impossible_settings_are_refused(
    small: Dataset, tmp_path: Path, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        tuning(small, tmp_path / "a", **given)


def test_too_small_a_budget(small: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="600 bytes are too few for a single column"):
        FederatedTuning(small, 600, tmp_path / "a").run()


def test_the_command(tmp_path: Path) -> None:
    given = [
        "paper",
        "tune",
        "--dataset",
        "synthetic:small",
        "--budget",
        "12KB",
        "--out",
        str(tmp_path),
    ]
    done = CliRunner().invoke(app, [*given, "--federated", "--rounds", "2", "--threads", "1"])
    assert done.exit_code == 0, done.output
    assert "can ask whether people have an item" in " ".join(done.output.split())
    assert "best of 108 points" in done.output
    assert (tmp_path / "tune-federated-synthetic-small.jsonl").is_file()
    assert RunSpec.read(tmp_path / "spectral-federated-synthetic-small.json")
    for wrong, says in (
        (["--clients", "5"], "--clients goes with --federated"),
        (["--federated", "--users", "5"], "--users does not go with --federated"),
        (["--federated", "--aggregator", "secagg"], "an aggregator needs --runtime"),
    ):
        failed = CliRunner().invoke(app, [*given, *wrong])
        assert isinstance(failed.exception, UsageError)
        assert says in str(failed.exception)
