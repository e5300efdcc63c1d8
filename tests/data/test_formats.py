"""Tables: MovieLens, RecBole, and any file with two named columns."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privirec.data import Interactions, read_interactions
from privirec.errors import DataError

Write = Callable[[str, str | bytes], Path]


def pairs(interactions: Interactions) -> set[tuple[object, object]]:
    rows, columns = interactions.matrix.nonzero()
    return set(
        zip(
            interactions.user_ids[rows].tolist(),
            interactions.item_ids[columns].tolist(),
            strict=True,
        )
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "ratings.csv",
            "userId,movieId,rating,timestamp\n1,10,4.5,964982703\n1,20,3,9\n7,10,1,9\n",
        ),
        ("ratings.csv", "userId,movieId\r\n1,10\r\n1,20\r\n7,10\r\n1,10"),
        ("ratings.dat", "1::10::5::978300760\n1::20::3::978302109\n7::10::3::978301968\n"),
        ("x.inter", "user_id:token\titem_id:token\trating:float\n1\t10\t1\n1\t20\t1\n7\t10\t2\n"),
        ("x.tsv", "when\titem\tuser\n\t10\t1\n\t20\t1\n5\t10\t7\n"),
        ("x.csv", "user, item\n1, 10\n1 , 20\n\n7,10\n\n"),
        ("x.csv", 'title,user_id,item_id\n"a, b",1,10\n"two\nlines","1",20\n"say ""x""",7,10\n'),
        ("x.txt", "1 10 20\n7 10\n"),
    ],
)
def test_same_interactions_from_every_format(write: Write, name: str, content: str) -> None:
    interactions = read_interactions(write(name, content))
    assert pairs(interactions) == {(1, 10), (1, 20), (7, 10)}
    assert interactions.user_ids.tolist() == [1, 7]


def test_named_columns_and_names_as_ids(write: Write) -> None:
    path = write("x.csv", "reader,book,user\nJürg,007,5\nann,7,5\nann,Ω,5\n")
    interactions = read_interactions(path, user_column="reader", item_column="book")
    assert pairs(interactions) == {("Jürg", "007"), ("ann", "7"), ("ann", "Ω")}


def test_large_numbers_are_ids_too(write: Write) -> None:
    path = write("x.csv", "user,item\n900000000000000001,1\n900000000000000002,1\n")
    assert read_interactions(path).user_ids.tolist() == [900000000000000001, 900000000000000002]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "user,item\n1,2\n3\n", ":3: 1 fields where 2 are expected"),
        ("x.csv", "user,item\n1,2\n3,4,5\n", ":3: 3 fields where 2 are expected"),
        ("x.csv", "user,item\n1,2\n,4\n", ":3: column user is empty"),
        ("x.csv", "user,item\n1,2\n5,  \n", ":3: column item is empty"),
        ("x.csv", "user,item\n1,2\n-5,4\n", ":3: negative id -5 in column user"),
        ("x.csv", 'user,item\n"1\n\n",2\n-5,4\n', ":5: negative id -5 in column user"),
        ("x.csv", "user,item\n", ": a header and no rows"),
        ("x.csv", "", ": the file is empty"),
        ("x.csv", "user,rating\n1,2\n", ": no column that is known to hold item ids"),
        ("x.csv", b"user,item\n1,\xff\n", ":2: byte 0xff is not UTF-8"),
        ("x.csv", "user,item\n1,2\n".encode("utf-16-le"), ":1: byte 0x00 is not part"),
        ("ratings.dat", "1::2::3::4\n1::2\n", ":2: 2 fields where 4 are expected"),
        ("x.json", "{}", ": unknown kind of file; known are .txt, .csv"),
        ("x.parquet", "no parquet at all", ": not a Parquet file"),
    ],
)
def test_refuses(write: Write, name: str, content: str | bytes, message: str) -> None:
    path = write(name, content)
    with pytest.raises(DataError) as caught:
        read_interactions(path)
    assert str(caught.value).startswith(str(path) + message)
    assert "\n" not in str(caught.value)


def test_missing_column_lists_those_there_are(write: Write) -> None:
    path = write("x.csv", "user,item\n1,2\n")
    with pytest.raises(DataError, match="no column 'nobody'; the columns are user, item"):
        read_interactions(path, user_column="nobody")


fields = st.text(
    st.characters(exclude_categories=["Cc", "Cs", "Zs", "Zl", "Zp"]), min_size=1, max_size=5
).filter(lambda text: not text.lstrip("-").isdigit() and "\ufeff" not in text)


@settings(deadline=None)
@given(st.lists(st.tuples(fields, fields), min_size=1, max_size=20))
def test_any_names_survive_csv(tmp_path_factory: pytest.TempPathFactory, rows: list) -> None:
    buffer = io.StringIO()
    csv.writer(buffer).writerows([("user", "item"), *rows])
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    path.write_text(buffer.getvalue(), encoding="utf-8", newline="")
    assert pairs(read_interactions(path)) == set(rows)


class TestParquet:
    def write(self, path: Path, **columns: object) -> Path:
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pa.table(columns), path)
        return path

    def test_numbers_and_names(self, tmp_path: Path) -> None:
        path = self.write(
            tmp_path / "x.parquet", user_id=[1, 1, 7], item_id=["a", "b", "a"], score=[0.1, 0.2, 1]
        )
        assert pairs(read_interactions(path)) == {(1, "a"), (1, "b"), (7, "a")}

    @pytest.mark.parametrize(
        ("users", "message"),
        [
            ([1, -2], "row 2: negative id -2 in column user"),
            ([1, None], "row 2: column user is empty"),
            ([0.5, 1.5], "column user holds double"),
            ([], "a header and no rows"),
        ],
    )
    def test_refuses(self, tmp_path: Path, users: list, message: str) -> None:
        path = self.write(tmp_path / "x.parquet", user=users, item=list(range(len(users))))
        with pytest.raises(DataError, match=message):
            read_interactions(path)

    def test_missing_file(self, tmp_path: Path) -> None:
        pytest.importorskip("pyarrow")
        with pytest.raises(DataError, match=r"none\.parquet: cannot be read"):
            read_interactions(tmp_path / "none.parquet")

    def test_without_pyarrow_says_what_to_install(
        self, write: Write, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(DataError, match=r"needs pyarrow: pip install 'privirec\[parquet\]'"):
            read_interactions(write("x.parquet", "PAR1"))


def test_repeated_pairs_count_once(write: Write) -> None:
    interactions = read_interactions(write("x.csv", "user,item\n1,2\n1,2\n1,3\n"))
    assert interactions.n_interactions == 2
    np.testing.assert_array_equal(interactions.matrix.data, 1)
