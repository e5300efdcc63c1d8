"""Tests of the text format: accepted and refused files, and write-read round trips."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privirec.data import Interactions, read_text, write_text
from privirec.data.text import LARGEST_ID, write_lines
from privirec.errors import DataError

Write = Callable[[str, str | bytes], Path]


def as_dict(interactions: Interactions) -> dict[int, set[int]]:
    return {
        int(user): set(interactions.item_ids[interactions.matrix[[row]].indices].tolist())
        for row, user in enumerate(interactions.user_ids)
    }


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("0 1 2\n1 2\n", {0: {1, 2}, 1: {2}}),
        ("0 1 2\n1 2", {0: {1, 2}, 1: {2}}),
        ("5 7\n3\n", {5: {7}, 3: set()}),
        ("1 4 4 4\n", {1: {4}}),
        ("1 4\n2 5\n1 6 4\n", {1: {4, 6}, 2: {5}}),
        ("\n1 4\n\n \n2 5\n\n", {1: {4}, 2: {5}}),
        ("1 4\r\n2\t5 \r\n", {1: {4}, 2: {5}}),
        ("1 4\r", {1: {4}}),
        ("\ufeff1 4\n", {1: {4}}),
        (f"0 {LARGEST_ID} 007\n", {0: {LARGEST_ID, 7}}),
        ("0 000000000000000000\n", {0: {0}}),
        ("3\n4\n", {3: set(), 4: set()}),
    ],
)
def test_reads(write: Write, content: str, expected: dict[int, set[int]]) -> None:
    assert as_dict(read_text(write("a.txt", content))) == expected


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ("0 1\n1 x2\n", 2, "'x2' is not an id"),
        ("0 1\n1 2,3\n", 2, "'2,3' is not an id"),
        ("0 1.0\n", 1, "'1.0' is not an id"),
        ("user item\n0 1\n", 1, "'user' is not an id"),
        ("0 1\n\n2 -7 3\n", 3, "negative id -7"),
        ("-1 3\n", 1, "negative id -1"),
        ("0 1\n1 2147483648\n", 2, "id 2147483648 is above the largest, 2147483647"),
        ("0 1\n1 " + "9" * 400 + "\n", 2, "is above the largest"),
        ("18446744073709551617 1\n", 1, "is above the largest"),
        (b"0 1\n1 \xff\xfe2\n", 2, "byte 0xff is not part of a plain text file"),
        ("0 1\n".encode("utf-16-le"), 1, "byte 0x00 is not part"),
        ("0 1\n1 \u0663\n", 2, "byte 0xd9 is not part"),
        ("0 1\r1 2\n", 1, "carriage return inside a line"),
    ],
)
def test_refuses_with_file_line_and_reason(
    write: Write, content: str | bytes, line: int, message: str
) -> None:
    path = write("bad.txt", content)
    with pytest.raises(DataError) as caught:
        read_text(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 120


@pytest.mark.parametrize("content", ["", "\n", " \r\n\n"])
def test_refuses_an_empty_file(write: Write, content: str) -> None:
    path = write("empty.txt", content)
    with pytest.raises(DataError, match="the file is empty"):
        read_text(path)


def test_refuses_what_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        read_text(tmp_path / "none.txt")
    with pytest.raises(DataError, match="Is a directory"):
        read_text(tmp_path)


histories = st.dictionaries(
    st.integers(0, LARGEST_ID), st.sets(st.integers(0, LARGEST_ID), max_size=6), min_size=1
)


@settings(deadline=None)
@given(histories)
def test_writing_and_reading_agree(history: dict[int, set[int]]) -> None:
    pairs = [(user, item) for user, items in history.items() for item in items]
    users, items = np.array(pairs, np.int64).reshape(-1, 2).T
    original = Interactions.from_pairs(users, items, user_ids=np.array(sorted(history)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.txt"
        write_text(path, original)
        assert [file.name for file in Path(folder).iterdir()] == ["a.txt"]
        read = read_text(path)
    assert as_dict(read) == history
    assert read.fingerprint() == original.fingerprint()


def test_names_cannot_be_written_as_text(tmp_path: Path) -> None:
    named = Interactions.from_pairs(["ann", "bob"], [1, 2])
    with pytest.raises(DataError, match="user ids must be whole numbers"):
        write_text(tmp_path / "a.txt", named)
    assert list(tmp_path.iterdir()) == []


def test_interrupted_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old\n")

    def lines() -> object:
        yield "new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_lines(path, lines())  # type: ignore[arg-type]
    assert path.read_text() == "old\n"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def test_writing_where_one_cannot_is_one_line(write: Write) -> None:
    path = write("file", "") / "below.txt"
    with pytest.raises(DataError, match="cannot be written"):
        write_lines(path, ["x"])


def test_devices_are_written_to_and_stay() -> None:
    null = Path("/dev/null")
    if not null.is_char_device():
        pytest.skip("no /dev/null here")
    write_lines(null, ["x"])
    assert null.is_char_device()
