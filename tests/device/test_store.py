"""Tests of the local store: content, deletion, runs and file permissions."""

from __future__ import annotations

import os
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privirec.data import Interactions, read_interactions, write_text
from privirec.device import Catalogue, Store
from privirec.device import store as store_module
from privirec.device.titles import read_titles
from privirec.errors import DataError, FederationError, PrivirecError, SitsOut, UsageError

names = st.text(max_size=12)
pairs = st.sets(st.tuples(names, names), max_size=20)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "me" / "history.db"


def files(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}*"))


def content(path: Path) -> bytes:
    """Return every byte that the store has on disk."""
    return b"".join(file.read_bytes() for file in path.parent.iterdir())


def held(store: Store) -> set[tuple[str, str]]:
    return {(user, item) for user in store.users() for item in store.items(user)}


# --- adding, listing, exporting -----------------------------------------------------------------


def test_add_and_look(path: Path) -> None:
    with Store(path, create=True) as store:
        assert store.add([("ann", "x"), ("ann", 7), ("bob", "x"), ("ann", "x")]) == 3
        assert store.add([("ann", "7"), ("ann", "y")]) == 1
        assert store.users() == ["ann", "bob"]
        assert store.items("ann") == ["7", "x", "y"]
        assert store.items("nobody") == []
        assert store.degrees() == {"ann": 3, "bob": 1}
    with Store(path) as store:
        summary = store.summary()
        assert (summary.users, summary.interactions, summary.waiting) == (2, 4, 4)
        assert summary.last_run is None
        store.check()


def test_import_equals_what_the_reader_read(path: Path, train: Interactions) -> None:
    write_text(path.parent / "in.txt", train)
    with Store(path, create=True) as store:
        read = read_interactions(path.parent / "in.txt")
        assert store.add_interactions(read) == train.n_interactions
        assert store.add_interactions(read) == 0
        catalogue = Catalogue(train.item_ids)
        found, ignored = store.interactions(catalogue)
        assert ignored == 0
        order = np.argsort(found.user_ids.astype(int))
        occupied = train.matrix[train.user_degrees > 0]
        assert (found.matrix[order] != occupied).nnz == 0


def test_one_bad_id_and_nothing_is_added(path: Path) -> None:
    with Store(path, create=True) as store:
        for bad in ("", "  ", "a\x1bb", "\ud800", "-3", "\ufeff"):
            for pair in (("ann", bad), (bad, "x")):
                with pytest.raises(DataError, match="cannot be the id") as caught:
                    store.add([("ann", "fine"), pair])
                assert "\n" not in str(caught.value)
        assert store.users() == []


def test_over_a_catalogue(path: Path) -> None:
    with Store(path, create=True) as store:
        store.add([("ann", 3), ("ann", 99), ("bob", 98), ("cy", 1), ("cy", 3)])
        found, ignored = store.interactions(Catalogue(np.array([3, 1, 2])))
        assert ignored == 2
        assert found.user_ids.tolist() == ["ann", "bob", "cy"]
        assert found.matrix.toarray().tolist() == [[1, 0, 0], [0, 0, 0], [1, 1, 0]]
        only, ignored = store.interactions(Catalogue(["3", "1"]), "cy")
        assert (only.matrix.toarray().tolist(), ignored) == ([[1, 1]], 0)
        nobody, _ = store.interactions(Catalogue([1]), "x")
        assert nobody.matrix.shape == (0, 1)


@given(pairs, st.sets(names, min_size=1, max_size=8))
def test_known_plus_ignored_is_everything(
    tmp_path_factory: pytest.TempPathFactory, some: set[tuple[str, str]], known: set[str]
) -> None:
    with Store(tmp_path_factory.mktemp("s") / "s.db", create=True) as store:
        for pair in some:
            try:
                store.add([pair])
            except DataError:
                continue
        found, ignored = store.interactions(Catalogue(sorted(known)))
        assert found.n_interactions + ignored == len(held(store))
        coordinates = found.matrix.tocoo()
        seen = {
            (str(found.user_ids[row]), str(found.item_ids[column]))
            for row, column in zip(coordinates.row, coordinates.col, strict=True)
        }
        assert seen == {pair for pair in held(store) if pair[1] in known}


@given(pairs)
def test_export_and_import_are_inverse(
    tmp_path_factory: pytest.TempPathFactory, some: set[tuple[str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("s")
    with Store(folder / "a.db", create=True) as store, Store(folder / "b.db", create=True) as other:
        for pair in [("ann", "x"), *some]:
            try:
                store.add([pair])
            except DataError:
                continue
        store.export(folder / "out.csv")
        other.add_interactions(read_interactions(folder / "out.csv"))
        assert held(other) == held(store)


def test_export(path: Path) -> None:
    with Store(path, create=True) as store:
        store.add([(10, 7), (10, 5), (9, 7)])
        target = path.parent / "out.txt"
        target.write_text("before")
        target.chmod(0o644)
        assert store.export(target) == 3
        assert target.read_text() == "9 7\n10 5 7\n"
        assert target.stat().st_mode & 0o777 == 0o600
        store.add([("ann", "x,y")])
        for name, error in (("out.txt", DataError), ("out.xls", UsageError), ("no/x.csv", None)):
            if error:
                with pytest.raises(error):
                    store.export(path.parent / name)
        assert target.read_text() == "9 7\n10 5 7\n"
        store.export(path.parent / "out.csv")
        assert '"x,y"' in (path.parent / "out.csv").read_text()
        with pytest.raises(DataError, match="cannot be written"):
            store.export(target / "below.csv")
    assert [file.name for file in path.parent.iterdir() if "part" in file.name] == []


# --- forgetting ---------------------------------------------------------------------------------


def test_forgotten_items_are_not_in_the_file(path: Path) -> None:
    with Store(path, create=True) as store:
        # Enough that pages split and merge, which can leave copies behind.
        store.add((f"user{u:03d}", f"secret-{u:03d}-{i:03d}") for u in range(60) for i in range(40))
        store.forget_items("user007", [f"secret-007-{i:03d}" for i in range(0, 40, 2)])
        store.forget_user("user033")
        store.forget_items("user050", ["secret-050-001"])
        bytes_now = content(path)
        for i in range(40):
            assert (b"secret-007-%03d" % i in bytes_now) == bool(i % 2)
            assert b"secret-033-%03d" % i not in bytes_now
        assert b"secret-050-001" not in bytes_now
        assert b"user033" not in bytes_now
        assert b"secret-050-002" in bytes_now
        store.set_titles({"secret-050-002": "The Title"})
        assert store.forget_everything() == 60 * 40 - 20 - 40 - 1
        for trace in (b"secret", b"user0", b"The Title"):
            assert trace not in content(path)
        assert not store.summary().traces


def test_forgetting_what_is_not_there_changes_nothing(path: Path) -> None:
    with Store(path, create=True) as store:
        store.add([("ann", "x"), ("ann", "y")])
        with pytest.raises(DataError, match="user ann has no item z"):
            store.forget_items("ann", ["x", "z"])
        with pytest.raises(DataError, match="no user bob"):
            store.forget_user("bob")
        assert store.items("ann") == ["x", "y"]
        assert not store.summary().traces


def test_interrupted_removal_is_completed_at_the_next_opening(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(path, create=True) as store, monkeypatch.context() as patched:
        store.add([("ann", "planted"), ("ann", "other")])
        patched.setattr(Store, "_remove_traces", lambda self: None)
        store.forget_items("ann", ["planted"])
        assert store.summary().traces
        assert b"planted" in content(path)  # so the next line can fail
    with Store(path) as store:
        assert b"planted" not in content(path)
        assert not store.summary().traces


def test_a_reader_delays_the_removal_and_the_store_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privirec.device.store_file._WAIT_SECONDS", 0.05)
    with Store(path, create=True) as store:
        store.add([("ann", "planted"), ("ann", "other")])
        with sqlite3.connect(path, isolation_level=None) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM interactions").fetchall()
            store.forget_items("ann", ["planted"])
            assert store.items("ann") == ["other"]
            assert store.summary().traces
        reader.close()
    with Store(path) as store:
        assert b"planted" not in content(path)


# --- runs ---------------------------------------------------------------------------------------

ALL = Catalogue(["a", "b", "c", "d"])


def used(store: Store, run: str) -> list[list[float]]:
    return store.begin_run(run, ALL)[0].matrix.toarray().tolist()


def test_forgetting_takes_effect_at_the_next_run(path: Path) -> None:
    with Store(path, create=True) as store:
        store.add([("ann", "a"), ("ann", "b"), ("ann", "z")])
        found, ignored = store.begin_run("one", ALL)
        assert (found.n_interactions, ignored) == (2, 1)
        store.finish_run("one")
        assert store.pending_forgets() == 0
        store.add([("ann", "c")])
        assert store.summary().waiting == 1
        store.forget_items("ann", ["c"])
        assert store.pending_forgets() == 0  # no run has seen it
        store.forget_items("ann", ["a"])
        assert store.pending_forgets() == 1
        (run,) = store.runs()
        assert (run.run, run.users, run.interactions, run.forgotten) == ("one", 1, 2, 1)
        assert used(store, "two") == [[0, 1, 0, 0]]
        assert store.pending_forgets() == 1  # until the new filters arrive
        store.finish_run("two")
        assert store.pending_forgets() == 0
        assert [run.run for run in store.runs()] == ["two"]


def test_a_run_sees_one_history_from_beginning_to_end(path: Path) -> None:
    with Store(path, create=True) as store:
        store.add([("ann", "a"), ("ann", "b")])
        first = used(store, "one")
        store.add([("ann", "c"), ("bob", "a")])
    with Store(path) as store:  # another process, after a crash
        assert used(store, "one") == first == [[1, 1, 0, 0]]
        assert used(store, "two") == [[1, 1, 1, 0], [1, 0, 0, 0]]
        store.forget_items("ann", ["c"])
        assert used(store, "one") == first  # it never had this item
        with pytest.raises(FederationError, match="forgotten since run two began"):
            store.begin_run("two", ALL)
        assert used(store, "three") == [[1, 1, 0, 0], [1, 0, 0, 0]]


def test_runs_that_are_over_or_unknown(path: Path) -> None:
    with Store(path, create=True) as store:
        store.begin_run("one", ALL)
        store.finish_run("one")
        with pytest.raises(FederationError, match="run one is over"):
            store.begin_run("one", ALL)
        with pytest.raises(UsageError, match="no run two"):
            store.finish_run("two")


def test_numbers_of_runs_are_never_used_twice(path: Path) -> None:
    with Store(path, create=True) as store:
        store.begin_run("one", ALL)
        store.add([("ann", "a")])
        store.begin_run("two", ALL)
        store.finish_run("two")
        store.add([("ann", "b")])
        assert used(store, "three") == [[1, 1, 0, 0]]
        store.forget_items("ann", ["b"])
        store.finish_run("three")
        assert store.pending_forgets() == 1


SINCE = datetime.now(UTC) - timedelta(hours=1)


def test_runs_of_one_period_use_one_history(path: Path) -> None:
    """Test that, once a vector was sent, new interactions wait until the next period."""
    with Store(path, create=True) as store:
        store.add([("ann", "a")])
        store.begin_run("unsent", ALL, SINCE)
        store.add([("ann", "b")])
        first = store.begin_run("one", ALL, SINCE)[0]
        assert first.matrix.toarray().tolist() == [[1, 1, 0, 0]]  # nothing had been sent
        store.note_sent("one")
        store.add([("ann", "c"), ("bob", "a")])
        for run in ("two", "three"):
            again = store.begin_run(run, ALL, SINCE)[0]
            assert again.fingerprint() == first.fingerprint()
            assert store.begin_run(run, ALL, SINCE)[0].fingerprint() == first.fingerprint()
            assert store.summary().waiting == 2
            store.note_sent(run)
            store.finish_run(run)
        later = store.begin_run("later", ALL, datetime.now(UTC) + timedelta(hours=1))[0]
        assert later.matrix.toarray().tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]
        assert store.summary().waiting == 0


def test_filters_of_a_run_that_sent_nothing_do_not_end_the_period(path: Path) -> None:
    """Test also that items forgotten in earlier runs no longer count once other filters arrive."""
    with Store(path, create=True) as store:
        store.add([("ann", "a"), ("ann", "b")])
        store.begin_run("old", ALL, SINCE)
        first = store.begin_run("one", ALL, SINCE)[0]
        store.note_sent("one")
        store.finish_run("one")
        assert [run.run for run in store.runs()] == ["one"]
        store.add([("ann", "c")])
        store.begin_run("early", ALL, SINCE)
        store.finish_run("early")
        assert [run.run for run in store.runs()] == ["one", "early"]
        again = store.begin_run("two", ALL, SINCE)[0]
        assert again.fingerprint() == first.fingerprint()
        store.note_sent("two")
        store.finish_run("two")
        assert [run.run for run in store.runs()] == ["two"]
        store.begin_run("unsent", ALL)
        store.finish_run("unsent")
        store.forget_items("ann", ["c"])  # which "two" has not used
        assert [run.forgotten for run in store.runs()] == [0, 1]
        store.begin_run("next", ALL)
        store.finish_run("next")
        assert store.pending_forgets() == 0


def test_users_without_an_item_of_the_catalogue_have_an_empty_history(path: Path) -> None:
    with Store(path, create=True) as store:
        store.add([("ann", "a"), ("bob", "elsewhere")])
        found, ignored = store.begin_run("one", ALL)
        assert (found.user_ids.tolist(), ignored) == (["ann", "bob"], 1)
        assert found.user_degrees.tolist() == [1, 0]
        assert store.begin_run("one", ALL)[0].fingerprint() == found.fingerprint()


def test_after_forgetting_a_store_sits_out_the_period(path: Path) -> None:
    with Store(path, create=True) as store:
        store.add([("ann", "a"), ("ann", "b")])
        store.begin_run("one", ALL, SINCE)
        store.note_sent("one")
        store.finish_run("one")
        store.add([("ann", "c")])
        store.forget_items("ann", ["c"])  # no run has used it: nothing to show
        store.begin_run("two", ALL, SINCE)
        store.forget_items("ann", ["a"])
        with pytest.raises(SitsOut, match="since run two began"):
            store.check_run("two")
        with pytest.raises(SitsOut, match="were forgotten that were there on"):
            store.begin_run("three", ALL, SINCE)
        assert [run.run for run in store.runs()] == ["one", "two"]
        later = store.begin_run("later", ALL, datetime.now(UTC) + timedelta(hours=1))[0]
        assert later.matrix.toarray().tolist() == [[0, 1, 0, 0]]


def test_a_store_of_version_1_is_taken_over(path: Path) -> None:
    """Test that every run begun in the old version counts as sent."""
    with Store(path, create=True) as store:
        store.add([("ann", "a")])
        store.begin_run("one", ALL)
        store.add([("ann", "b")])
    db = sqlite3.connect(path, isolation_level=None)
    for column in ("snapshot", "sent", "period", "as_of"):
        db.execute(f"ALTER TABLE runs DROP COLUMN {column}")
    for column in ("added", "happened"):
        db.execute(f"ALTER TABLE interactions DROP COLUMN {column}")
    db.execute("ALTER TABLE titles DROP COLUMN link")
    db.execute("DROP TABLE dislikes")
    db.execute("PRAGMA user_version = 1")
    db.close()
    with Store(path) as store:
        assert [run.sent for run in store.runs()] == [True]
        assert used(store, "one") == [[1, 0, 0, 0]]
        found = store.begin_run("two", ALL, SINCE)[0]
        assert found.matrix.toarray().tolist() == [[1, 0, 0, 0]]
        store.check()
        assert store.add_timed([("ann", "c", 5.0)]) == 1
        store.dislike("ann", "z")
        assert store.latest("ann")[0] == ("c", 5.0)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_later_run_uses_what_was_there_when_its_period_began(path: Path, guarded: bool) -> None:
    """Test at any time of request: the server must not be able to choose the moment."""
    with Store(path, create=True) as store:
        store.add([("ann", "a")])
        store.begin_run("one", ALL, SINCE)
        store.note_sent("one")
        now = datetime.now(UTC)
        with mock.patch.object(store_module, "_stamp", return_value=now_and(2)):
            store.add([("ann", "b")])
        since = now + timedelta(seconds=1)
        store.add([("bob", "c")])  # before the period begins
        if guarded:
            found = store.begin_run("two", ALL, since)[0]
            assert found.matrix.toarray().tolist() == [[1, 0, 0, 0], [0, 0, 1, 0]]
        else:
            found = store.begin_run("two", ALL)[0]
            assert found.matrix.toarray().tolist() == [[1, 1, 0, 0], [0, 0, 1, 0]]


def now_and(seconds: int) -> str:
    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    return moment.isoformat(timespec="seconds")


def test_runs_with_noise_use_everything_and_leave_the_calendar_alone(path: Path) -> None:
    with Store(path, create=True) as store:
        store.add([("ann", "a")])
        store.begin_run("exact", ALL, SINCE)
        store.note_sent("exact")
        store.add([("ann", "b")])
        assert store.begin_run("noisy", ALL)[0].n_interactions == 2
        store.note_sent("noisy")
        store.finish_run("noisy")
        assert store.begin_run("same period", ALL, SINCE)[0].n_interactions == 1
        next_period = datetime.now(UTC) + timedelta(hours=1)
        assert store.begin_run("next", ALL, next_period)[0].n_interactions == 2


def test_who_has_forgotten_before_a_run_of_the_period_sits_it_out(path: Path) -> None:
    """Test that a history from the beginning of the period cannot be used after a deletion."""
    with Store(path, create=True) as store:
        store.add([("ann", "a"), ("ann", "b")])
        store.begin_run("one", ALL, SINCE)
        store.note_sent("one")
        store.forget_items("ann", ["a"])
        with pytest.raises(SitsOut):
            store.begin_run("two", ALL, datetime.now(UTC) - timedelta(seconds=5))
        later = store.begin_run("three", ALL, datetime.now(UTC) + timedelta(hours=1))[0]
        assert later.n_interactions == 1


# --- permissions and refusals -------------------------------------------------------------------


def test_owner_only(path: Path) -> None:
    previous = os.umask(0)
    try:
        with Store(path, create=True) as store:
            store.add([("ann", "a")])
            assert [file.name for file in files(path)] == [
                "history.db",
                "history.db-shm",
                "history.db-wal",
            ]
            assert {file.stat().st_mode & 0o777 for file in files(path)} == {0o600}
            store.export(path.parent / "out.csv")
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
        path.chmod(0o644)
        with Store(path):
            assert {file.stat().st_mode & 0o777 for file in files(path)} == {0o600}
    finally:
        os.umask(previous)


def test_a_folder_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    Store(tmp_path / "x.db", create=True).close()
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_durability_settings(path: Path) -> None:
    with Store(path, create=True) as store:
        pragmas = {
            name: store._db.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "secure_delete", "temp_store")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "secure_delete": 1, "temp_store": 2}


def test_two_programs_at_once(path: Path) -> None:
    with Store(path, create=True) as first, Store(path, create=True) as second:
        first.add([("ann", "a")])
        second.add([("ann", "b")])
        assert first.items("ann") == ["a", "b"]


def test_locked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privirec.device.store_file._WAIT_SECONDS", 0.05)
    with Store(path, create=True) as store:
        writer = sqlite3.connect(path, isolation_level=None)
        writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(DataError, match="in use by another program"):
            store.add([("ann", "a")])
        writer.close()
        assert store.add([("ann", "a")]) == 1


@pytest.mark.parametrize("name", ["missing", "folder", "text", "empty", "foreign", "newer"])
def test_what_is_no_store(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    match = "not a PriviRec store"
    if name == "missing":
        match = "no store there"
    elif name == "folder":
        path.mkdir()
        match = "is a folder"
    elif name == "text":
        path.write_text("user,item\n" * 200)
    elif name == "empty":
        path.touch()
    elif name == "foreign":
        db = sqlite3.connect(path)
        db.execute("CREATE TABLE interactions (a)")
        db.close()
    else:
        Store(path, create=True).close()
        db = sqlite3.connect(path, isolation_level=None)
        db.execute("PRAGMA user_version = 5")
        db.close()
        match = "a store of version 5"
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(PrivirecError, match=match) as caught:
        Store(path)
    assert "\n" not in str(caught.value)
    assert (path.read_bytes() if path.is_file() else None) == before


def test_a_damaged_store(path: Path) -> None:
    with Store(path, create=True) as store:
        store.add((f"u{u}", f"i{i}") for u in range(50) for i in range(50))
    raw = bytearray(path.read_bytes())
    raw[8192:20000] = b"\x5a" * (20000 - 8192)
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"history\.db"), Store(path) as store:
        store.check()


# --- titles -------------------------------------------------------------------------------------


def test_titles(path: Path) -> None:
    path.parent.mkdir()
    table = path.parent / "items.csv"
    table.write_text('item_id,year,title\n1,1999,"The Net, again"\n2,2000,\x1b[31mRed\x07\n')
    with Store(path, create=True) as store:
        assert store.set_titles(read_titles(table)) == 2
        assert store.title("1") == "The Net, again"
        assert store.title("2") == "[31mRed"
        assert store.title("3") is None
        store.set_titles({"1": "Newer"})
        assert store.title("1") == "Newer"
        assert store.summary().titles == 2


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("", "the columns are none"),
        ("item_id,title\n", "no titles"),
        ("a,b\n1,2\n", "known to hold item ids; the columns are a, b"),
        ("item_id,b\n1,2\n", "known to hold titles"),
        ("item_id,title\n1,2,3\n", ":2: 3 fields where 2"),
        ('item_id,title\n1,"2\n', "."),
    ],
)
def test_bad_titles(tmp_path: Path, content: str, match: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    if match == ".":
        assert read_titles(path) == {"1": "2\n"}
        return
    with pytest.raises(DataError, match=match):
        read_titles(path)
    with pytest.raises(DataError, match="no column 'x'"):
        read_titles(path, item_column="x")


def test_what_is_of_no_interest_never_takes_part_in_a_run(path: Path) -> None:
    """Test that histories in a run have the same bits with and without it."""
    with Store(path, create=True) as store:
        store.add([("ann", "a"), ("ann", "b")])
        before = store.begin_run("one", ALL)[0]
        store.dislike("ann", "c")
        assert store.dislikes("ann") == ["c"]
        after = store.begin_run("two", ALL)[0]
        assert (before.matrix != after.matrix).nnz == 0
        assert before.user_ids.tolist() == after.user_ids.tolist()
        assert store.summary().interactions == 2
        assert b"dislikes" in path.read_bytes()  # the table, not an export
        store.export(path.with_suffix(".csv"))
        assert "c" not in path.with_suffix(".csv").read_text().split("\n", 1)[1]
        store.add([("ann", "c")])
        assert store.dislikes("ann") == []
        store.dislike("ann", "secret-item")
        store.undo_dislike("ann", "secret-item")
    assert b"secret-item" not in path.read_bytes()


def test_dislikes_are_forgotten_with_their_user(path: Path) -> None:
    with Store(path, create=True) as store:
        store.add([("ann", "a")])
        store.dislike("ann", "c")
        store.forget_user("ann")
        assert store.dislikes("ann") == []
        store.dislike("ann", "c")
        store.forget_everything()
        assert store.dislikes("ann") == []


def test_times_of_an_import_are_kept_and_the_latest_counts(path: Path) -> None:
    with Store(path, create=True) as store:
        assert store.add_timed([("ann", "a", 5.0), ("ann", "b", None), ("ann", "c", 7.0)]) == 3
        assert store.add_timed([("ann", "a", 9.0), ("ann", "b", None), ("ann", "c", 6.0)]) == 0
        assert store.latest("ann") == [("a", 9.0), ("c", 7.0), ("b", None)]


def test_links_are_addresses_of_web_pages_or_nothing(path: Path) -> None:
    with Store(path, create=True) as store:
        store.set_titles(
            {"a": "A", "b": "B", "c": "C"},
            {"a": "https://example.org/a", "b": "javascript:alert(1)"},
        )
        assert [store.link(item) for item in "abcd"] == ["https://example.org/a", "", "", ""]
