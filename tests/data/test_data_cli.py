"""Tests of the command `privirec data`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from privirec.app.cli.data import app
from privirec.data import load_dataset, read_interactions
from privirec.errors import DataError, DataWarning, UsageError

Write = Callable[[str, str | bytes], Path]


def run(*arguments: object, error: type[BaseException] | None = None) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if error is None:
        assert result.exit_code == 0, result.output
    else:
        assert isinstance(result.exception, error)
        assert "\n" not in str(result.exception)
    return result


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_list(tmp_path: Path, write: Write) -> None:
    write("gowalla/train.txt", "0 1\n")
    result = run("list", "--data-dir", tmp_path, "--json", tmp_path / "out.json")
    listed = {row["dataset"]: row for row in rows(tmp_path / "out.json")}
    assert listed["gowalla"]["here"] == "other"
    assert listed["yelp2018"]["here"] == "no"
    assert listed["amazon-book"]["users"] == 52_643
    assert "synthetic:demo" in listed
    assert "privirec data get NAME" in result.stdout
    for name in listed:
        assert str(name) in result.stdout


def test_info(tmp_path: Path, write: Write) -> None:
    write("d[1]/train.txt", "0 1 2\n1 2\n")
    folder = write("d[1]/test.txt", "0 3\n").parent
    result = run("info", folder, "synthetic:small", "--json", tmp_path / "out.json")
    first, second = rows(tmp_path / "out.json")
    assert (first["dataset"], first["users"], first["density"]) == ("d[1]", 2, 4 / 6)
    assert second["dataset"] == "synthetic:small"
    assert "66.667%" in result.stdout
    assert "d[1]" in result.stdout


def test_info_of_something_missing_writes_nothing(tmp_path: Path) -> None:
    run("info", "synthetic:small", "gowalla", "--json", tmp_path / "out.json", error=DataError)
    assert list(tmp_path.iterdir()) == []


def test_convert_to_a_folder_and_back(tmp_path: Path, write: Write) -> None:
    lines = [f"u{user},i{item}" for user in range(5) for item in range(10)]
    source = write("x.csv", "\n".join(["who,what", *lines]))
    columns = ("--user-column", "who", "--item-column", "what")
    run("convert", source, tmp_path / "out", *columns, "--test", 0.3)
    dataset = load_dataset(tmp_path / "out")
    assert (dataset.train.n_interactions, dataset.test.n_interactions) == (35, 15)
    assert dataset.train.user_ids.tolist() == [f"u{user}" for user in range(5)]
    assert dataset.train.item_ids.tolist() == [f"i{item}" for item in range(10)]
    again = tmp_path / "again"
    run("convert", source, again, *columns, "--test", 0.3)
    for file in ("train.csv", "test.csv"):
        assert (again / file).read_bytes() == (tmp_path / "out" / file).read_bytes()


def test_convert_keeps_names_and_times_where_the_target_can_hold_them(
    tmp_path: Path, write: Write
) -> None:
    source = write("x.tsv", "user\titem\tdate\nann\ta, b\t2020-01-02\nbob\tc\t2020-01-01\n")
    run("convert", source, tmp_path / "out.csv")
    text = (tmp_path / "out.csv").read_text()
    assert text == 'user,item,timestamp\nann,"a, b",1577923200\nbob,c,1577836800\n'
    assert read_interactions(tmp_path / "out.csv").fingerprint() == (
        read_interactions(source).fingerprint()
    )
    run("convert", source, tmp_path / "out.csv", error=UsageError)
    result = run("convert", source, tmp_path / "out.txt")
    assert "Names are numbered" in result.stdout
    assert "Times are not in it" in result.stdout
    assert (tmp_path / "out.txt").read_text() == "0 0\n1 1\n"
    assert (tmp_path / "out.items.txt").read_text() == "a, b\t0\nc\t1\n"
    assert (tmp_path / "out.users.txt").read_text() == "ann\t0\nbob\t1\n"


def test_convert_splits_as_told(tmp_path: Path, write: Write) -> None:
    rows = [f"{user},{item},{10 * item + user}" for user in range(3) for item in range(5)]
    source = write("x.csv", "\n".join(["user,item,time", *rows]))
    run("convert", source, tmp_path / "out", "--split", "leave-one-out")
    test = load_dataset(tmp_path / "out").test
    assert test.item_ids[test.matrix.indices].tolist() == [4, 4, 4]
    run("convert", source, tmp_path / "late", "--split", "time", "--test", 0.4)
    assert sorted(load_dataset(tmp_path / "late").test.times) == [30, 31, 32, 40, 41, 42]
    (tmp_path / "late" / "test.txt").write_text("0 1\n")
    run("info", tmp_path / "late", error=DataError)
    run("convert", source, tmp_path / "late", error=UsageError)


def test_tables_are_read_as_told(tmp_path: Path, write: Write) -> None:
    source = write("x.log", "ann|x|5\nann|y|1\nbob|x|4\n")
    run("info", source, error=DataError)
    more = ("--delimiter", "|", "--no-header", "--rating-column", 3, "--min-rating", 4)
    with pytest.warns(DataWarning, match="column 1 users, column 2 items, column 3 ratings"):
        result = run("info", source, *more)
    assert "interactions                   2" in result.stdout


def test_convert_to_one_file(tmp_path: Path, write: Write) -> None:
    source = write("ratings.dat", "3::8::5::1\n3::9::5::1\n4::8::5::1\n")
    result = run("convert", source, tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == "3 8 9\n4 8\n"
    assert "written to" in result.stdout
    converted = read_interactions(tmp_path / "out.txt")
    assert converted.fingerprint() == read_interactions(source).fingerprint()


def test_bad_conversions_leave_nothing(tmp_path: Path, write: Write) -> None:
    good, bad = write("good.csv", "user,item\na,2\n"), write("bad.csv", "user,item\na,\n")
    before = sorted(tmp_path.iterdir())
    run("convert", bad, tmp_path / "out", error=DataError)
    run("convert", good, tmp_path / "out", "--test", 1.5, error=SystemExit)
    run("convert", good, bad, error=UsageError)
    run("convert", good, good / "x.txt", error=UsageError)
    run("convert", write("none.txt", "0\n1\n"), tmp_path / "out", error=DataError)
    (tmp_path / "none.txt").unlink()
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("target", "there"),
    [
        *(("thesis", f"thesis/{file}") for file in ("train.csv", "test.csv", "train.txt")),
        *(("thesis", f"thesis/{file}") for file in ("test.parquet", "train.inter")),
        *(("out.txt", file) for file in ("out.txt", "out.users.txt", "out.items.txt")),
        ("out.csv", "out.csv"),
    ],
)
def test_convert_replaces_nothing(tmp_path: Path, write: Write, target: str, there: str) -> None:
    source = write("a.csv", "user,item\nann,x\nann,y\nbob,x\n")
    mine = write(there, "mine")
    before = sorted(tmp_path.rglob("*"))
    refused = run("convert", source, tmp_path / target, error=UsageError)
    assert str(refused.exception) == f"{mine}: is there already, and nothing was written"
    assert mine.read_text() == "mine"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("more", [(), ("--shards",)])
def test_convert_makes_no_folder_that_is_called_like_a_file(
    tmp_path: Path, write: Write, more: tuple[str, ...]
) -> None:
    source = write("a.csv", "user,item\nann,x\nann,y\nbob,x\n")
    for name in ("x.parquet", "x.TSV", "x.json"):
        refused = run("convert", source, tmp_path / name, *more, error=UsageError)
        assert "give a file that ends in .txt or .csv, or a folder" in str(refused.exception)
    assert list(tmp_path.iterdir()) == [source]
    run("convert", source, tmp_path / "v1.2", *more)
    assert (tmp_path / "v1.2").is_dir()


def test_make_and_convert_to_shards(tmp_path: Path, write: Write) -> None:
    result = run("make", "synthetic:50x20", tmp_path / "made", "--users-per-shard", 20)
    assert "50 users, 20 items" in result.stdout
    assert "in 3 shards" in result.stdout
    run("info", tmp_path / "made", "--json", tmp_path / "info.json")
    (shown,) = rows(tmp_path / "info.json")
    assert (shown["dataset"], shown["users"], shown["items"]) == ("synthetic:50x20", 50, 20)
    run("make", "gowalla", tmp_path / "other", error=UsageError)

    source = write("parts/a.csv", "user,item\nx,1\ny,2\n").parent
    write("parts/b.csv", "user,item\nx,2\nx,3\n")
    result = run("convert", source, tmp_path / "out", "--test", 0)
    assert "2 users, 3 items, 4 interactions in 1 shard in" in result.stdout
    train = load_dataset(tmp_path / "out").train
    assert dict(zip(train.user_ids.tolist(), train.user_degrees.tolist(), strict=True)) == {
        "x": 3,
        "y": 1,
    }
    run("convert", source / "a.csv", tmp_path / "one", "--shards")
    assert load_dataset(tmp_path / "one").train.n_users == 2


def test_bad_conversions_to_shards_leave_nothing(tmp_path: Path, write: Write) -> None:
    source = write("parts/a.csv", "user,item\nx,1\n").parent
    bad = write("bad/a.csv", "user,item\nx,1\ny,\n").parent
    before = sorted(tmp_path.iterdir())
    run("convert", bad, tmp_path / "out", error=DataError)
    run("convert", source, tmp_path / "out", "--test", 1.5, error=SystemExit)
    run("convert", source, tmp_path / "out", "--user-column", "who", error=DataError)
    run("convert", write("t.txt", "0 1\n"), tmp_path / "out", "--shards", error=DataError)
    (tmp_path / "t.txt").unlink()
    assert sorted(tmp_path.iterdir()) == before


def test_get_refuses_unknown_names(tmp_path: Path) -> None:
    run("get", "netflix", "--data-dir", tmp_path, error=UsageError)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["list", "get", "info", "make", "convert"])
def test_every_command_explains_itself(command: str) -> None:
    assert len(run(command, "--help").stdout.splitlines()) > 10
