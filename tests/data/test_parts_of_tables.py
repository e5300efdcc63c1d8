"""Tests of conversion from several tables to shards: equal to one table, whatever the parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privirec.data import Dataset, read_interactions
from privirec.data import formats as formats_module
from privirec.data.columns import TableOptions
from privirec.data.formats import read_pieces
from privirec.data.parts import convert_parts, user_hashes
from privirec.data.shards import BEGUN, ShardedDataset
from privirec.data.splits import split
from privirec.errors import DataError, UsageError


def rows_of(data: Dataset, part: str) -> set[tuple[str, str]]:
    interactions = getattr(data, part)
    rows, columns = interactions.matrix.nonzero()
    users, items = interactions.user_ids[rows], interactions.item_ids[columns]
    return set(zip(users.astype(str).tolist(), items.astype(str).tolist(), strict=True))


def write_tables(folder: Path, pairs: list[tuple[str, str]], parts: int) -> None:
    """Write one table of all rows, and the same rows spread over several tables."""
    folder.mkdir()
    header = "item,rating,user\n"
    lines = [
        f'"{item}",5,{user}\n' if "," in item else f"{item},5,{user}\n" for user, item in pairs
    ]
    (folder / "all.csv").write_text(header + "".join(lines))
    (folder / "parts").mkdir()
    for number in range(parts):
        if mine := lines[number::parts]:
            (folder / "parts" / f"part-{number}.csv").write_text(header + "".join(mine))


names = st.sampled_from(["7", "12", "3", "007", "Zoë", "a b", "1000"])
numbers = st.integers(0, 30).map(str)


@settings(max_examples=20)
@given(
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=40)
    | st.lists(st.tuples(names, names | st.just("x, y")), min_size=1, max_size=40),
    st.integers(1, 4),
    st.integers(1, 40),
)
def test_parts_are_the_whole_table(
    tmp_path_factory: pytest.TempPathFactory,
    pairs: list[tuple[str, str]],
    parts: int,
    rows_per_shard: int,
) -> None:
    folder = tmp_path_factory.mktemp("t") / "tables"
    write_tables(folder, pairs, parts)
    together = split(read_interactions(folder / "all.csv"), test=0.3, seed=5)
    made = convert_parts(
        folder / "parts", folder / "out", test=0.3, seed=5, rows_per_shard=rows_per_shard
    )
    found = made.at_once()
    assert made.n_users == together.train.n_users
    np.testing.assert_array_equal(found.train.item_ids, together.train.item_ids)
    for part in ("train", "test"):
        assert rows_of(found, part) == rows_of(together, part)
    assert not (folder / "out" / "partitions").exists()


def test_pieces_are_the_table(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [(f"u{number % 7}", f'say ""{number}""', "two\nlines") for number in range(50)]
    path.write_text(
        "\ufeffuser,item,note\n" + "".join(f'{u},"{i}","{note}"\n' for u, i, note in rows), "utf-8"
    )
    whole = read_interactions(path)
    pieces = list(read_pieces(path, piece_bytes=60))
    assert len(pieces) > 10
    assert sum(len(piece) for piece in pieces) == 50
    assert set(np.concatenate([piece.items for piece in pieces]).tolist()) == set(
        whole.item_ids.tolist()
    )


@pytest.mark.parametrize("header", ["user,item\n", ""], ids=["csv", "dat"])
def test_errors_name_the_line_of_the_file(tmp_path: Path, header: str) -> None:
    between = "," if header else "::"
    path = tmp_path / ("t.csv" if header else "t.dat")
    rest = "" if header else "::5::0"
    lines = [f"{number}{between}{number}{rest}\n" for number in range(30)]
    lines[20] = f"20{between}-4{rest}\n"
    path.write_text(header + "".join(lines))
    line = 22 if header else 21
    with pytest.raises(DataError, match=f"{path.name}:{line}: negative id -4"):
        list(read_pieces(path, piece_bytes=40))


def test_rows_without_an_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats_module, "LONGEST_ROW", 100)
    (tmp_path / "t.csv").write_text('user,item\n1,"2' + "x\n" * 100)
    with pytest.raises(DataError, match="a row of more than 100 bytes"):
        list(read_pieces(tmp_path / "t.csv", piece_bytes=50))


def test_parquet_parts(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 50, 400), rng.integers(0, 30, 400)
    (tmp_path / "parts").mkdir()
    for name, chosen in (("a", slice(0, 150)), ("b", slice(150, 400)), ("../all", slice(0, 400))):
        table = pa.table({"user_id": users[chosen], "item_id": items[chosen]})
        parquet.write_table(table, tmp_path / "parts" / f"{name}.parquet")
    pieces = list(read_pieces(tmp_path / "all.parquet", piece_bytes=16 * 64))
    assert len(pieces) == 7
    made = convert_parts(tmp_path / "parts", tmp_path / "out", rows_per_shard=200)
    whole = split(read_interactions(tmp_path / "all.parquet"), seed=0)
    assert rows_of(made.at_once(), "train") == rows_of(whole, "train")


def test_an_interrupted_conversion_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(str(number % 17), str(number % 11)) for number in range(100)]
    write_tables(tmp_path / "t", pairs, 3)
    source, out = tmp_path / "t" / "parts", tmp_path / "out"
    calls = 0

    def convert() -> ShardedDataset:
        return convert_parts(source, out, rows_per_shard=20)

    def crash(*arguments: object, **named: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return split(*arguments, **named)  # type: ignore[arg-type, return-value]

    with monkeypatch.context() as patch:
        patch.setattr("privirec.data.shards.split", crash)
        with pytest.raises(KeyboardInterrupt):
            convert()
    with monkeypatch.context() as patch:
        patch.setattr("privirec.data.parts.read_pieces", None)  # the first pass is not repeated
        made = convert()
    clean = convert_parts(source, tmp_path / "clean", rows_per_shard=20)
    assert made.fingerprint == clean.fingerprint
    with pytest.raises(UsageError, match="made from something else"):
        convert_parts(source, out, rows_per_shard=10)


def test_folders_that_hold_no_parts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        convert_parts(tmp_path / "none", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no tables"):
        convert_parts(tmp_path / "empty", tmp_path / "out")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / BEGUN).touch()
    with pytest.raises(DataError, match="in shards already"):
        convert_parts(tmp_path / "begun", tmp_path / "out")
    for name in ("a.csv", "b.tsv"):
        (tmp_path / "empty" / name).write_text("user,item\n1,2\n".replace(",", "\t"))
    with pytest.raises(UsageError, match="several kinds"):
        convert_parts(tmp_path / "empty", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_number_has_one_hash_however_it_came() -> None:
    numbers, written = np.array([0, 7, 12345]), np.array(["0", "7", "12345", "007", "x"])
    np.testing.assert_array_equal(user_hashes(numbers), user_hashes(written)[:3])
    assert len(set(user_hashes(written).tolist())) == 5


def test_parts_are_read_as_told(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "a.csv").write_text("who;what;stars\nann;x;5\nann;y;1\n")
    (tmp_path / "parts" / "b.csv").write_text("who;what;stars\nbob;x;4\n")
    options = TableOptions(user_column="who", item_column="what", min_rating=4)
    made = convert_parts(tmp_path / "parts", tmp_path / "out", options=options, test=0)
    assert (made.n_users, made.n_items, made.n_interactions) == (2, 1, 2)
    strict = TableOptions(user_column="who", item_column="what", min_rating=9)
    with pytest.raises(DataError, match=r"no row has a rating of 9 or more"):
        convert_parts(tmp_path / "parts", tmp_path / "none", options=strict)
