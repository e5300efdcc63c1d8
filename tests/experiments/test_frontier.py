"""Tests of `privirec frontier`: resuming, the bytes of the ledger, and columns of the CSV file."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from privirec.app.cli.every import app
from privirec.data import load_dataset
from privirec.data.interactions import Dataset
from privirec.errors import DataError, UsageError
from privirec.experiments import frontier
from privirec.experiments.frontier import (
    CSV_COLUMNS,
    FAMILIES,
    TrainingRun,
    cheapest_that_reaches,
    measured_rows,
    points_of,
    summary_of,
)
from privirec.experiments.measured import write_csv_table
from privirec.experiments.peers.light_gcn import LightGCN
from privirec.experiments.peers.training import TUNED, Tuned
from privirec.federated.contributions import Histories
from privirec.federated.programs import HeadGramSettings, program_of
from privirec.privacy.ledger import Ledger
from privirec.runtime.execute import execute_steps
from privirec.runtime.local.simulation import Simulation

RUNNER = CliRunner()
QUICK = {
    "mf": Tuned({"columns": 4}, 3),
    "lightgcn": Tuned({"columns": 4, "layers": 1}, 3),
}


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load_dataset("synthetic:small")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontier, "tuned_settings", lambda method, *_: QUICK[method])


def test_a_second_run_measures_only_what_is_new(data: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    points = points_of([data], ["mf", "lightgcn"])
    measured_rows(path).measure_missing(points, threads=1)
    whole = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["family"], row["epochs"]) for row in whole] == [
        (family, epochs) for family in ("mf", "lightgcn") for epochs in (1, 2, 3)
    ]
    # Stopped after the second of six points: the rest is as in an uninterrupted run.
    path.write_text("".join(json.dumps(row) + "\n" for row in whole[:2]))
    again, fresh = measured_rows(path), points_of([data], ["mf", "lightgcn"])
    assert len(again.missing(fresh)) == 4
    again.measure_missing(fresh, threads=1)
    assert [timeless(row) for row in again.of(fresh)] == [timeless(row) for row in whole]
    assert not measured_rows(path).missing(fresh)
    assert len(measured_rows(path).missing(points_of([data], ["mf"], seeds=2))) == 3


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "cpu_seconds"}


def test_a_training_goes_forward_and_begins_anew_for_the_past(data: Dataset) -> None:
    training = TrainingRun("mf", data, {"columns": 4}, seed=1)
    first = training.up_to(1).scorer().score(data.train.matrix)
    bytes_of_one = training.ledger.bytes_up
    training.up_to(3)
    assert training.ledger.bytes_up > 2 * bytes_of_one
    assert (training.up_to(1).scorer().score(data.train.matrix) == first).all()
    assert training.ledger.bytes_up == bytes_of_one


def test_bytes_are_those_of_the_ledgers(data: Dataset) -> None:
    users, items = data.train.n_users, data.train.n_items
    row = FAMILIES["head-ease"].points(data, 0)[0].measure()
    program = program_of(HeadGramSettings(head=250), users, items)
    planned = Ledger.planned(program.outline())
    assert row["label"] == "m = 250"
    assert (row["bytes_up_per_client"], row["bytes_down_per_client"]) == (
        planned.bytes_up,
        planned.bytes_down,
    )
    training = LightGCN(Histories(data.train.matrix), seed=0, **QUICK["lightgcn"].settings)
    ledger, simulation = Ledger(), Simulation(data.train)
    execute_steps(training.start(), simulation, ledger)
    execute_steps(training.epoch(), simulation, ledger)
    row = FAMILIES["lightgcn"].points(data, 0)[0].measure()
    assert row["bytes_up_per_client"] == ledger.bytes_up
    assert row["bytes_down_per_client"] == ledger.bytes_down
    assert row["bytes_per_client"] == ledger.bytes_up + ledger.bytes_down


def test_a_catalogue_too_small_for_all_ranks_still_has_points(data: Dataset) -> None:
    ranks = [point.spec.program.rank for point in FAMILIES["privirec-k"].points(data, 0)]
    assert ranks == [256]
    assert FAMILIES["central"].level
    assert all(point.spec.program.seed == 4 for point in FAMILIES["protected"].points(data, 4))


def made_up(family: str, label: str, ndcg: float, size: int, seed: int = 0) -> dict[str, Any]:
    return {
        "dataset": "d",
        "family": family,
        "label": label,
        "epochs": None,
        "epsilon": None,
        "seed": seed,
        "ndcg@20": ndcg,
        "recall@20": 0.5,
        "bytes_up_per_client": size,
        "bytes_down_per_client": size,
        "bytes_per_client": 2 * size,
    }


def test_means_spreads_and_the_cheapest() -> None:
    rows = [
        made_up("privirec-k", "k = 512", 0.14, 100),
        made_up("privirec-k", "k = 512", 0.16, 100, seed=1),
        made_up("privirec-k", "k = 256", 0.12, 50),
        made_up("head-ease", "m = 10", 0.2, 300),
        made_up("central", "GF-CF", 0.3, 0),
    ]
    summary = summary_of(rows)
    assert [row["label"] for row in summary] == ["k = 256", "k = 512", "m = 10", "GF-CF"]
    assert summary[1]["ndcg@20"] == pytest.approx(0.15)
    assert summary[1]["spread"] == pytest.approx(0.02 / 2**0.5)
    assert summary[1]["seeds"] == 2
    assert [row["label"] for row in cheapest_that_reaches(summary, 0.13)] == ["k = 512", "m = 10"]
    assert [row["label"] for row in cheapest_that_reaches(summary, 0.1)] == ["k = 256", "m = 10"]
    assert not cheapest_that_reaches(summary, 0.25)


def test_figures_have_their_columns(tmp_path: Path) -> None:
    summary = summary_of([made_up("mf", "1 epoch", 0.1, 7)])
    path = write_csv_table(tmp_path / "a.csv", CSV_COLUMNS, summary)
    with path.open(newline="") as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == list(CSV_COLUMNS)
    assert table[0]["bytes_per_client"] == "14"
    assert table[0]["spread"] == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--methods", "mf,magic"], "no method 'magic'"),
        (["--datasets", "nowhere"], "no such file"),
        (["--datasets", "synthetic:small", "--draw-only"], "no rows of synthetic:small"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = RUNNER.invoke(app, ["paper", "frontier", "--out", str(tmp_path), *arguments])
    assert isinstance(done.exception, UsageError | DataError)
    assert words in str(done.exception)
    assert "\n" not in str(done.exception)


def test_a_file_of_something_else_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "frontier.jsonl"
    path.write_text('{"method": "protected", "ndcg@20": 1}\n')
    done = RUNNER.invoke(app, ["paper", "frontier", "--out", str(tmp_path)])
    assert f"{path}:1: not a row of frontier" in str(done.exception)
    assert path.read_text().startswith('{"method"')


def test_the_command(tmp_path: Path) -> None:
    arguments = ["paper", "frontier", "--datasets", "synthetic:small", "--out", str(tmp_path)]
    arguments += ["--methods", "head-ease,mf,central", "--threads", "1"]
    done = RUNNER.invoke(app, arguments)
    assert done.exception is None, done.output
    assert "synthetic:small, 200 people" in done.output
    stem = tmp_path / "frontier-synthetic-small"
    assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    picture = stem.with_suffix(".svg").read_text()
    assert "<svg" in picture
    rows = (tmp_path / "frontier.jsonl").read_text()
    figures = stem.with_suffix(".csv").read_text()
    assert len(figures.splitlines()) == 1 + len(rows.splitlines()) == 1 + 1 + 3 + 3
    for again in (arguments, [*arguments, "--draw-only"]):
        assert RUNNER.invoke(app, again).exception is None
    assert (tmp_path / "frontier.jsonl").read_text() == rows
    assert stem.with_suffix(".csv").read_text() == figures
    assert stem.with_suffix(".svg").read_text() == picture


def test_every_trained_method_has_settings() -> None:
    assert set(TUNED) <= set(FAMILIES)


def test_spectral_uses_tuned_presets_that_fit_the_catalogue(data: Dataset) -> None:
    specs = [point.spec for point in FAMILIES["spectral"].points(data, 0)]
    assert [spec.given()["columns"] for spec in specs] == [(8,) * 4, (16,) * 4, (32,) * 4]
    named = Dataset("gowalla", *(load_dataset("synthetic:demo").train,) * 2)
    presets = {point.label: point.spec.preset for point in FAMILIES["spectral"].points(named, 0)}
    assert presets["1,104"] == "gowalla-60mb"
    assert presets["512"] == "published"
