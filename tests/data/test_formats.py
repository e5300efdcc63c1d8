"""Tests of tables: MovieLens, RecBole, and any file with two named columns."""

from __future__ import annotations

import csv
import gzip
import io
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privirec.data import Interactions, read_interactions
from privirec.data.columns import TableOptions, choose_columns, is_number
from privirec.data.formats import read_pieces
from privirec.data.ids import MISSING_WORDS
from privirec.errors import DataError, DataWarning, UsageError

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
    rated = "rating" in content or "::" in content
    interactions = read_interactions(write(name, content), min_rating=0 if rated else None)
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
).filter(lambda text: not is_number(text) and "\ufeff" not in text and text not in MISSING_WORDS)


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
            ([0.5, 1.5], r"column user, row 1: is not a whole number"),
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
        with pytest.raises(DataError, match=r"needs pyarrow: pip install 'pyarrow"):
            read_interactions(write("x.parquet", "PAR1"))


def test_repeated_pairs_count_once(write: Write) -> None:
    interactions = read_interactions(write("x.csv", "user,item\n1,2\n1,2\n1,3\n"))
    assert interactions.n_interactions == 2
    np.testing.assert_array_equal(interactions.matrix.data, 1)


@pytest.mark.filterwarnings("ignore:.*left alone:privirec.errors.DataWarning")
@pytest.mark.parametrize(
    ("name", "content", "more"),
    [
        ("x.csv", "user;item\n1;10\n1;20\n7;10\n", {}),
        ("x.csv", "user\titem\n1\t10\n1\t20\n7\t10\n", {}),
        ("x.csv", '"User-ID";"ISBN"\n"1";"10"\n"1";"20"\n"7";"10"\n', {}),
        ("x.csv", '"a, b";user;item\n"x, y";1;10\nz;1;20\n"p, q";7;10\n', {}),
        ("x.tsv", "user|item\n1|10\n1|20\n7|10\n", {}),
        ("x.txt", "user,item\n1,10\n1,20\n7,10\n", {}),
        ("x.dat", "userID\tmovieID\n1\t10\n1\t20\n7\t10\n", {}),
        ("x.log", "user|item\n1|10\n1|20\n7|10\n", {"delimiter": "|"}),
        ("x.txt", "user item\n1 10\n1 20\n7 10\n", {"delimiter": "space"}),
        ("x.txt", "user\titem\n1\t10\n1\t20\n7\t10\n", {"delimiter": "tab"}),
        ("x.csv", "customer,product\n1,10\n1,20\n7,10\n", {}),
        ("x.csv", "User ID,Item ID\n1,10\n1,20\n7,10\n", {}),
        ("x.csv", "user_id,user_name,item-id\n1,a,10\n1,a,20\n7,b,10\n", {}),
        ("x.csv", "user,item\n1.0,10\n1,20.0\n7.00,10\n", {}),
    ],
)
def test_delimiters_and_usual_names_are_found(
    write: Write, name: str, content: str, more: dict[str, str]
) -> None:
    assert pairs(read_interactions(write(name, content), **more)) == {(1, 10), (1, 20), (7, 10)}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "1,10\n1,20\n7,10\n", "no header, so column 1 users, column 2 items"),
        (
            "u.data",
            "1\t10\t4\t90\n1\t20\t4\t80\n7\t10\t4\t70\n",
            "column 3 ratings, column 4 times",
        ),
    ],
)
def test_tables_without_a_header(write: Write, name: str, content: str, message: str) -> None:
    with pytest.warns(DataWarning, match=message):
        found = read_interactions(write(name, content))
    assert pairs(found) == {(1, 10), (1, 20), (7, 10)}
    if name == "u.data":
        assert found.times is not None
        assert found.times.tolist() == [90, 80, 70]


def test_columns_of_a_table_without_a_header_go_by_number(write: Write) -> None:
    path = write("x.csv", "x,a,1\nx,b,2\n")
    with pytest.warns(DataWarning, match="column 2 users, column 1 items"):
        found = read_interactions(path, header=False, user_column="2", item_column="1")
    assert pairs(found) == {("a", "x"), ("b", "x")}
    with pytest.raises(DataError, match="no column '4'; the columns are 1, 2, 3"):
        read_interactions(path, header=False, user_column="4")


def test_a_persons_own_export_has_no_users(write: Write) -> None:
    path = write("x.csv", "product,bought at\n10,x\n20,y\n")
    with pytest.raises(DataError, match="no column that is known to hold user ids"):
        read_interactions(path)
    assert pairs(read_interactions(path, only_user="me")) == {("me", 10), ("me", 20)}
    with_users = write("y.csv", "user,item\n3,10\n")
    assert pairs(read_interactions(with_users, only_user="me")) == {(3, 10)}


@pytest.mark.parametrize("value", ["nan", "NaN", "None", "null", "NA", "-1"])
def test_words_for_nothing_are_no_names(write: Write, value: str) -> None:
    with pytest.raises(DataError, match=f":3: '{value}' in column user looks like a missing id"):
        read_interactions(write("x.csv", f"user,item\na,1\n{value},2\n"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", 'user,item\na,"1\nb,2\nc,3\n', ":2: a quote that is not closed"),
        ("x.csv", 'user,item\na,"1\nb,2"\nc,3\n', ":2: an id of several lines in column item"),
        ("x.csv", 'user,item\na,"1"x\n', r":2: .* expected after"),
        ("x.csv", "user,item\na,1\nb,1.0\nc,x\n", ":3: column item holds 1.0 and also 1"),
        ("x.csv", "account,member,item\n1,2,3\n", "several columns may hold user ids"),
        ("x.txt", "1\t10\t4\t881250949\n2\t10\t3\t881250950\n", "look like user, item, rating"),
        ("x.log", "user,item\n1,2\n", "any table with delimiter="),
        ("x.csv", "user,item,rating\n1,2,3\n", "no row has a rating of 4 or more"),
        ("x.csv", "user,item,rating\n1,2,\n", "row 1: has no rating|no numbers to compare"),
        ("x.csv", "user,item\n1,2\n", "no column that is known to hold ratings"),
    ],
)
def test_what_could_be_read_wrongly_is_refused(
    write: Write, name: str, content: str, message: str
) -> None:
    rated = 4 if "rating" in message or "compare" in message else None
    rated = None if name == "x.txt" else rated
    with pytest.raises(DataError, match=message) as caught:
        read_interactions(write(name, content), min_rating=rated)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("header", "column", "said"),
    [
        ("userId,user,item", "user", "column user is taken for users, and userId left alone"),
        ("user,item,product", "item", "column item is taken for items, and product left alone"),
        ("User ID,user_id,item", "User ID", "column User ID is taken for users, and user_id left"),
        ("user,item,date,timestamp", "timestamp", "column timestamp is taken for times, and date"),
    ],
)
def test_of_two_columns_the_one_that_was_taken_is_said(header: str, column: str, said: str) -> None:
    names = header.split(",")
    kind = said.split(" is taken for ")[1].split("s,", maxsplit=1)[0]
    with pytest.warns(DataWarning, match=rf'{said}.*: {kind}_column="..." names another'):
        chosen = choose_columns(Path("x.csv"), names, TableOptions())
    assert names[getattr(chosen, kind)] == column
    # A caller that names the column gets no warning.
    choose_columns(Path("x.csv"), names, TableOptions(**{f"{kind}_column": column}))


def test_two_columns_of_which_neither_has_the_exact_name_are_refused() -> None:
    with pytest.raises(DataError, match=r"\(movieId, product\): name one with item_column"):
        choose_columns(Path("x.csv"), ["user", "movieId", "product"], TableOptions())


def test_impossible_options_are_refused(write: Write) -> None:
    path = write("x.csv", "user,item\n1,2\n")
    with pytest.raises(UsageError, match="the delimiter 'ab' is neither"):
        read_interactions(path, delimiter="ab")
    with pytest.raises(UsageError, match="a minimum rating of nan is not a finite number"):
        read_interactions(path, min_rating=float("nan"))


def test_ratings_are_not_looked_at_in_silence(write: Write) -> None:
    path = write("x.csv", "user,item,rating\n1,10,5\n1,20,1\n7,10,4\n")
    with pytest.warns(DataWarning, match="column rating is not looked at"):
        assert read_interactions(path).n_interactions == 3
    assert pairs(read_interactions(path, min_rating=4)) == {(1, 10), (7, 10)}
    assert read_interactions(path, min_rating=0).n_interactions == 3
    same = write("y.csv", "user,item,rating\n1,10,1\n1,20,1\n")
    assert read_interactions(same).n_interactions == 2  # no warning at all


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (("30", "10"), [30, 10]),
        (("2020-01-02", "2020-01-01T12:00:00Z"), [1577923200, 1577880000]),
        (("2020-01-02 00:00:00.5", "2020-01-01"), [1577923200.5, 1577836800]),
    ],
)
def test_times_are_kept(write: Write, times: tuple[str, str], expected: list[float]) -> None:
    rows = "".join(f"1,{item},{time}\n" for item, time in zip((10, 20), times, strict=True))
    found = read_interactions(write("x.csv", "user,item,timestamp\n" + rows))
    assert found.times is not None
    assert found.times.tolist() == expected


def test_what_is_no_time(write: Write) -> None:
    path = write("x.csv", "user,item,date\n1,10,yesterday\n")
    with pytest.warns(DataWarning, match="column date: holds no times.*; read without times"):
        assert read_interactions(path).times is None
    with pytest.raises(DataError, match="column date: holds no times"):
        read_interactions(path, time_column="date")


PACKED: dict[str, tuple[str, Callable[[str], bytes]]] = {
    "gzip": ("x.csv.gz", lambda text: gzip.compress(text.encode())),
    "UTF-16": ("x.csv", lambda text: text.encode("utf-16")),
    "UTF-16 in gzip": ("x.csv.gz", lambda text: gzip.compress(text.encode("utf-16"))),
    "UTF-8 with a mark": ("x.csv", lambda text: text.encode("utf-8-sig")),
}


@pytest.mark.parametrize("kind", PACKED)
def test_packed_and_recoded_tables_are_read_whole_and_in_pieces(write: Write, kind: str) -> None:
    name, pack = PACKED[kind]
    text = "user,item\n" + "".join(f"J\u00fcrg {n % 7},\u03a9 {n % 11}\n" for n in range(200))
    path = write(name, pack(text))
    expected = {(f"J\u00fcrg {n % 7}", f"\u03a9 {n % 11}") for n in range(200)}
    assert pairs(read_interactions(path)) == expected
    found = {
        pair
        for rows in read_pieces(path, piece_bytes=300)
        for pair in zip(rows.users.tolist(), rows.items.tolist(), strict=True)
    }
    assert found == expected


def test_latin_1_is_read_with_a_warning_that_names_the_line(write: Write) -> None:
    path = write("x.csv", "user,item\nann,tea\nJ\u00fcrg,caf\u00e9\n".encode("latin-1"))
    with pytest.warns(DataWarning, match=r"x.csv:3: byte 0xfc is not UTF-8.*Latin-1"):
        assert pairs(read_interactions(path)) == {("ann", "tea"), ("J\u00fcrg", "caf\u00e9")}


def test_a_damaged_archive_is_refused_in_one_line(write: Write) -> None:
    whole = gzip.compress(b"user,item\n" + b"1,2\n" * 999)
    for cut in (whole[:-9], whole[:20] + b"?" + whole[21:]):
        with pytest.raises(DataError, match=r"x.csv.gz: cannot be read"):
            read_interactions(write("x.csv.gz", cut))


def test_json_lines(write: Write) -> None:
    text = (
        '{"user": "ann", "item": "tea", "stars": 5, "date": "2024-05-01"}\n\n'
        '{"item": "milk", "user": "bob", "stars": 2, "more": [1]}\n'
    )
    with pytest.warns(DataWarning):
        interactions = read_interactions(write("x.jsonl", text), min_rating=3)
    assert pairs(interactions) == {("ann", "tea")}
    for wrong, says in (
        ("[1]\n", ":1: not a JSON object, but list"),
        ('{"user": 1, "item": 2}\n{', ":2: not a JSON object"),
        ('{"user": 1, "item": 2}\n{"user": 1}', "column item, row 2: is empty"),
    ):
        with pytest.raises(DataError, match=says):
            read_interactions(write("x.jsonl", wrong))


@pytest.mark.parametrize(
    ("rating", "says"),
    [
        ("", "row 2: has no rating"),
        ('"4,5"', "row 2: '4,5' is not a rating; write a decimal point"),
        ("good", "row 2: 'good' is not a rating"),
        ("nan", "row 2: has no rating"),
    ],
)
def test_a_bad_rating_is_refused_with_its_row(write: Write, rating: str, says: str) -> None:
    path = write("x.csv", f"user,item,rating\n1,2,3\n1,3,{rating}\n")
    with pytest.raises(DataError, match=says):
        read_interactions(path, min_rating=1)


def test_time_zones_count(write: Write) -> None:
    times = ["2024-05-01T10:00:00Z", "2024-05-01 12:30:00+02:30", "2024-05-01T08:00:00-0200"]
    rows = "".join(f"1,{number},{time}\n" for number, time in enumerate(times))
    interactions = read_interactions(write("x.csv", f"user,item,time\n{rows}"))
    assert interactions.times is not None
    assert interactions.times.tolist() == [1714557600] * 3
