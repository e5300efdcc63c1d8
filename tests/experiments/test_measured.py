"""Tests of resumed experiments: rows on disk, crashes within a row, files of other commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from privirec.data import Dataset, load_dataset
from privirec.errors import DataError
from privirec.experiments import frontier, privacy_table, table
from privirec.experiments.measured import MeasuredRows
from privirec.experiments.sweep import Sweep
from privirec.experiments.table import table_rows
from privirec.experiments.tune import Tuning

IDENTITY = ("dataset", "settings")


def rows_in(path: Path | None, experiment: str = "test") -> MeasuredRows:
    return MeasuredRows(path, experiment, IDENTITY)


def row(number: int) -> dict[str, Any]:
    return {"dataset": "a", "settings": {"number": number}, "ndcg@20": 0.1 * number}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a file with two rows."""
    measured = rows_in(tmp_path / "rows.jsonl")
    measured.add(row(1))
    measured.add(row(2))
    return tmp_path / "rows.jsonl"


def test_a_row_is_found_by_its_settings(path: Path) -> None:
    measured = rows_in(path)
    found = measured.find({"dataset": "a", "settings": {"number": 2}})
    assert found == {"experiment": "test", **row(2)}
    assert measured.find({"dataset": "b", "settings": {"number": 2}}) is None
    assert measured.find({"dataset": "a", "settings": {"number": 3}}) is None
    assert len(measured.rows_with({"dataset": "a"})) == 2
    assert not measured.rows_with({"dataset": "b"})


def test_a_row_cut_off_anywhere_is_dropped_and_the_others_survive(path: Path) -> None:
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole) - 1):
        path.write_bytes(whole[:end])
        measured = rows_in(path)
        assert measured.rows == [{"experiment": "test", **row(1)}]
        assert path.read_bytes() == whole[:end], "reading changes nothing"
        measured.add(row(2))
        assert path.read_bytes() == whole


def test_a_complete_row_without_line_feed_is_kept(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])
    measured = rows_in(path)
    assert len(measured.rows) == 2
    measured.add(row(3))
    assert [each["settings"]["number"] for each in rows_in(path).rows] == [1, 2, 3]


def test_a_killed_process_leaves_its_finished_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    program = f"""
import os, signal
from pathlib import Path
from privirec.experiments.measured import MeasuredRows
measured = MeasuredRows(Path({str(path)!r}), "test", {IDENTITY!r})
measured.add({row(1)!r})
with open({str(path)!r}, "ab") as file:
    file.write(b'{{"experiment": "test", "dataset": ')
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == -9
    measured = rows_in(path)
    assert len(measured.rows) == 1
    measured.add(row(2))
    assert [json.loads(line)["ndcg@20"] for line in path.read_text().splitlines()] == [0.1, 0.2]


@pytest.mark.parametrize(
    "content",
    [
        '{"experiment": "other", "dataset": "a", "settings": {}, "ndcg@20": 1}\n',
        '{"experiment": "other", "dataset": "a"',
        '{"experiment": "test", "dataset": "a", "ndcg@20": 1}\n',
        '{"experiment": "test", "dataset": "a", "settings": {}}\n',
        '{"experiment": "test", "dataset": \n{"experiment"',
        "[]\n",
        "a note",
    ],
)
def test_a_file_of_something_else_is_refused_and_kept(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match="1: not a row of test; name another file"):
        rows_in(path)
    assert path.read_text() == content


def test_without_a_path_rows_are_kept_in_memory(tmp_path: Path) -> None:
    measured = rows_in(None)
    measured.add(row(1))
    assert measured.find(row(1)) is not None
    assert not list(tmp_path.iterdir())


def test_a_pipe_gets_the_rows() -> None:
    program = f"""
from pathlib import Path
from privirec.experiments.measured import MeasuredRows
MeasuredRows(Path("/dev/stdout"), "test", {IDENTITY!r}).add({row(1)!r})
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    assert json.loads(done.stdout) == {"experiment": "test", **row(1)}


@pytest.fixture(scope="module")
def small() -> Dataset:
    return load_dataset("synthetic:small")


def test_a_second_table_measures_nothing(
    small: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.jsonl"
    first = list(table_rows(small, ["turbo-cf"], measured=table.measured_rows(path)))
    monkeypatch.setattr(table, "run", None)
    assert list(table_rows(small, ["turbo-cf"], measured=table.measured_rows(path))) == first
    with pytest.raises(TypeError):
        list(table_rows(small, ["turbo-cf"], measured=table.measured_rows(path), seed=1))


def test_experiments_refuse_the_rows_of_each_other(small: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "sweep-synthetic-small.jsonl"
    measured = table.measured_rows(path)
    list(table_rows(small, ["turbo-cf"], measured=measured))
    with pytest.raises(DataError, match="not a row of sweep"):
        Sweep(small, tmp_path, [8], [2])
    with pytest.raises(DataError, match="not a row of tune"):
        Tuning(small, 10**6, path).run()
    for module, name in ((frontier, "frontier"), (privacy_table, "privacy-table")):
        with pytest.raises(DataError, match=f"not a row of {name}"):
            module.measured_rows(path)
