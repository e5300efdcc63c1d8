"""Tests of `privirec privacy-table`: resuming, error messages, and NDCG by fifths of the items."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from typer.testing import CliRunner

from privirec.app.cli.every import app
from privirec.data import Interactions, load_dataset
from privirec.data.interactions import Dataset
from privirec.errors import DataError, UsageError
from privirec.evaluation import evaluate, evaluate_by_fifths, fifth_of_items
from privirec.experiments import privacy_table
from privirec.experiments.peers.base import ByPopularity
from privirec.experiments.privacy_table import (
    METHODS,
    Point,
    behind_a_peer,
    measured_rows,
    points_of,
    samples_of,
    summary_of,
)
from privirec.version import __version__

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load_dataset("synthetic:small")


def test_a_second_run_measures_only_what_is_new(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Point] = []
    real = Point.measure
    monkeypatch.setattr(Point, "measure", lambda point: measured.append(point) or real(point))
    path = tmp_path / "rows.jsonl"
    first = points_of([data], ["protected", "popularity"], [8.0], 1)
    measured_rows(path).measure_missing(first, threads=1)
    assert [point.method for point in measured] == ["protected", "popularity"]
    kept = path.read_text()
    more = points_of([data], ["protected", "popularity"], [8.0], 2)
    again = measured_rows(path)
    again.measure_missing(more, threads=1)
    assert [(point.method, point.seed) for point in measured[2:]] == [
        ("protected", 1),
        ("popularity", 1),
    ]
    assert path.read_text().startswith(kept)
    assert len(again.of(more)) == 4
    assert len(again.of(first)) == 2
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert {row.pop("version") for row in rows} == {__version__}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))  # rows of an earlier version
    assert not measured_rows(path).missing(more)


def test_a_row_that_is_measured_again_is_the_same(data: Dataset) -> None:
    for method in METHODS:
        point = Point(data, method, 8.0, 3)
        one, two = point.measure(), point.measure()
        one.pop("cpu_seconds"), two.pop("cpu_seconds")
        assert one == two
        assert 0.9 * 8 <= one["epsilon_kept"] <= 8
        assert one["bytes_up_per_client"] > 0
        json.dumps(one)


def test_other_settings_are_another_measurement(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = points_of([data], ["private-power"], [8.0], 1)
    measured = measured_rows(tmp_path / "rows.jsonl")
    measured.measure_missing(points, threads=1)
    assert not measured.missing(points)
    monkeypatch.setattr(privacy_table, "tuned_settings", lambda *_: {"columns": 3})
    assert measured.missing(points) == points


def test_summary_has_mean_spread_and_the_leading_method() -> None:
    def row(method: str, seed: int, ndcg: float) -> dict[str, object]:
        return {
            "dataset": "d",
            "people": 10,
            "epsilon": 1.0,
            "method": method,
            "seed": seed,
            "ndcg@20": ndcg,
            "recall@20": 0.5,
            "ndcg@20_by_fifths": [ndcg] * 5,
            "bytes_up_per_client": 100,
        }

    rows = [row("protected", 0, 0.1), row("protected", 1, 0.3), row("dpals", 0, 0.25)]
    summary = summary_of(rows)
    assert [one["method"] for one in summary] == ["protected", "dpals"]
    assert summary[0]["ndcg@20"] == pytest.approx(0.2)
    assert summary[0]["spread"] == pytest.approx(0.1 * 2**0.5)
    assert summary[1]["spread"] is None
    assert behind_a_peer(summary) == ["d, 10 people, epsilon 1: dpals 0.2500, protected 0.2000"]
    assert not behind_a_peer(summary_of([*rows[:2], row("dpals", 0, 0.19)]))


def test_samples_are_nested_and_keep_the_catalogue(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [one.train.n_users for one in samples_of(data)] == [200]
    monkeypatch.setattr(privacy_table, "LEAST_TO_SUBSAMPLE", 100)
    monkeypatch.setattr(privacy_table, "SMALLEST_SAMPLE", 30)
    found = list(samples_of(data))
    assert [one.train.n_users for one in found] == [200, 100, 50]
    for larger, smaller in pairwise(found):
        assert set(smaller.train.user_ids) < set(larger.train.user_ids)
        assert (smaller.train.item_ids == data.train.item_ids).all()
        where = np.searchsorted(larger.train.user_ids, smaller.train.user_ids)
        assert (larger.test.matrix[where] != smaller.test.matrix).nnz == 0


def test_fifths_have_equal_interactions_and_hits() -> None:
    degrees = np.array([1, 20, 2, 20, 20, 19, 18])
    assert fifth_of_items(degrees).tolist() == [4, 0, 4, 1, 2, 3, 3]
    train = np.zeros((4, 10))
    train[0, :5] = train[1, :3] = train[2, 5:] = train[3, 7] = 1
    test = np.zeros((4, 10))
    test[0, 9] = test[1, 4] = test[3, 1] = test[3, 2] = 1
    both = [Interactions.from_matrix(sp.csr_array(one)) for one in (train, test)]
    data = Dataset("d", *both)
    scorer = ByPopularity(np.arange(10.0))
    found, overall = evaluate_by_fifths(scorer, data), evaluate(scorer, data)
    assert found.overall.as_row() == overall.as_row()
    assert found.overall.users == overall.users
    where = fifth_of_items(data.train.item_degrees)
    # Item 9 is user 0's best unseen item; no other user has a test item in its fifth.
    assert [user for user in range(4) if (test[user] * (where == where[9])).any()] == [0]
    assert found.ndcg[where[9]] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--epsilon", "1,x"], "not a list of numbers"),
        (["--epsilon", "0"], "must be between"),
        (["--epsilon", "nan"], "must be between"),
        (["--methods", "protected,magic"], "no method 'magic'"),
        (["--datasets", "nowhere"], "no such file"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], words: str) -> None:
    done = RUNNER.invoke(app, ["paper", "privacy-table", *arguments])
    assert isinstance(done.exception, UsageError | DataError)
    assert words in str(done.exception)
    assert "\n" not in str(done.exception)


def test_a_file_of_something_else_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for content in ('{"method": "protected"}\n', "hello\n", "[]\n"):
        path.write_text(content)
        done = RUNNER.invoke(app, ["paper", "privacy-table", "--json", str(path)])
        assert isinstance(done.exception, DataError)
        assert f"{path}:1: not a row" in str(done.exception)
        assert path.read_text() == content


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy_table, "LEAST_TO_SUBSAMPLE", 100)
    monkeypatch.setattr(privacy_table, "SMALLEST_SAMPLE", 60)
    rows, picture = tmp_path / "rows.jsonl", tmp_path / "curve.png"
    arguments = [
        "paper",
        "privacy-table",
        "--datasets",
        "synthetic:small",
        "--epsilon",
        "8",
        "--seeds",
        "2",
    ]
    arguments += ["--methods", "protected,popularity", "--threads", "1"]
    arguments += ["--json", str(rows), "--curve", str(picture)]
    done = RUNNER.invoke(app, arguments)
    assert done.exception is None, done.output
    assert "synthetic:small, 200 people" in done.output
    assert "ahead" in done.output.lower()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert len(rows.read_text().splitlines()) == 8  # 2 methods, 2 seeds, 200 and 100 people
    before = rows.read_text()
    assert RUNNER.invoke(app, arguments).exception is None
    assert rows.read_text() == before
