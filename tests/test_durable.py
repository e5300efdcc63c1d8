"""What is damaged on the disk is told as such, whatever the damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from privirec.durable import Database, Journal


@pytest.mark.parametrize("tail", [b"\xff" * 300, b"\x00" * 5, b"\x7f" * 12])
def test_a_tail_that_is_no_record_is_cut_off(tmp_path: Path, tail: bytes) -> None:
    journal = Journal(tmp_path / "journal")
    journal.add({"what": 1}, b"content")
    with journal.path.open("ab") as file:
        file.write(tail)
    again = Journal(journal.path)
    assert list(again.records()) == [({"what": 1}, b"content")]
    again.add({"what": 2})
    assert [what for what, _ in Journal(journal.path).records()] == [{"what": 1}, {"what": 2}]


def test_a_file_that_is_no_database_is_an_os_error(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    path.write_bytes(b"x" * 5000)
    with pytest.raises(OSError, match="not a database"):
        Database(path, "CREATE TABLE t (a)")
