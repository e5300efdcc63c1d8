"""Tests of damaged files: any damage is reported as damage."""

from __future__ import annotations

import fcntl
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from privirec import durable
from privirec.durable import LOCK, Database, Journal, alone, is_taken
from privirec.errors import FederationError


@pytest.mark.parametrize("tail", [b"\x00" * 5, b"\x7f" * 12, b"\x00" * 16, b"\x00" * 4096])
def test_a_tail_that_was_never_written_is_cut_off(tmp_path: Path, tail: bytes) -> None:
    journal = Journal(tmp_path / "journal")
    journal.add({"what": 1}, b"content")
    with journal.path.open("ab") as file:
        file.write(tail)
    again = Journal(journal.path)
    assert list(again.records()) == [({"what": 1}, b"content")]
    again.add({"what": 2})
    assert [what for what, _ in Journal(journal.path).records()] == [{"what": 1}, {"what": 2}]


def test_damage_is_not_taken_for_the_end(tmp_path: Path) -> None:
    """Test every flipped bit: neither the last event nor later ones may silently disappear."""
    journal = Journal(tmp_path / "journal")
    for number in range(3):
        journal.add({"number": number}, bytes([number]) * 20)
    whole = journal.path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        journal.path.write_bytes(damaged)
        with pytest.raises(FederationError, match="this run cannot go on"):
            list(Journal(journal.path).records())
    journal.path.write_bytes(whole + b"\xff" * 300)
    with pytest.raises(FederationError, match="damaged"):
        list(Journal(journal.path).records())


def test_a_file_that_is_no_database_is_an_os_error(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    path.write_bytes(b"x" * 5000)
    with pytest.raises(OSError, match="not a database"):
        Database(path, "CREATE TABLE t (a)")


def test_a_database_of_another_version_is_refused_in_one_line(tmp_path: Path) -> None:
    Database(tmp_path / "t.db", "CREATE TABLE t (a)", 2).close()
    Database(tmp_path / "t.db", "CREATE TABLE t (a)", 2).close()
    with pytest.raises(FederationError, match=r"another version; throw it away") as error:
        Database(tmp_path / "t.db", "CREATE TABLE t (a)", 3, otherwise="throw it away")
    assert "\n" not in str(error.value)


def test_a_transaction_is_whole_or_not_there(tmp_path: Path) -> None:
    database = Database(tmp_path / "memory.db", "CREATE TABLE t (a)")
    with database.transaction() as inside:
        inside.execute("INSERT INTO t VALUES (1)")
    with suppress(KeyError), database.transaction() as inside:
        inside.execute("INSERT INTO t VALUES (2)")
        raise KeyError
    with database.transaction() as inside:
        inside.execute("INSERT INTO t VALUES (3)")
    assert database.read("SELECT a FROM t ORDER BY a") == [(1,), (3,)]


def test_what_was_cut_off_does_not_come_back_behind_a_shorter_record(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.add({"what": 1})
    journal.add({"what": "long"}, bytes(range(256)) * 4)
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole[:-10])  # killed in the middle of a write
    again = Journal(journal.path)
    assert [what for what, _ in again.records()] == [{"what": 1}]
    again.add({"what": 2})
    assert [what for what, _ in Journal(journal.path).records()] == [{"what": 1}, {"what": 2}]


def test_one_at_a_time_in_a_folder(tmp_path: Path) -> None:
    with (
        alone(tmp_path),
        pytest.raises(FederationError, match="another process is at work"),
        alone(tmp_path, wait=False),
    ):
        raise AssertionError("two at once")
    with alone(tmp_path, wait=False):
        pass


def test_looking_whether_a_folder_is_taken_writes_nothing_and_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_taken(tmp_path)
    assert not is_taken(tmp_path / "none")
    assert not any(tmp_path.iterdir())
    with alone(tmp_path):
        assert is_taken(tmp_path)
    assert not is_taken(tmp_path)
    with (tmp_path / LOCK).open("rb") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        # The other reader has left after the pause.
        monkeypatch.setattr(durable, "time", SimpleNamespace(sleep=lambda _: look.close()))
        with alone(tmp_path, wait=False):
            assert is_taken(tmp_path)
