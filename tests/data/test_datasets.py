"""Tests of data set names, folders and files: lookup, and messages if something is missing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from privirec.data import (
    Dataset,
    Interactions,
    load_dataset,
    load_everything,
    split,
    statistics,
    write_text,
)
from privirec.data.datasets import PUBLISHED, PublishedFile, data_folders
from privirec.errors import DataError, UsageError

Write = Callable[[str, str | bytes], Path]


@pytest.fixture
def folder(write: Write) -> Path:
    write("d/train.txt", "0 1 2\n5 2\n7\n")
    return write("d/test.txt", "0 9\n7 1\n").parent


def test_folder(folder: Path) -> None:
    dataset = load_dataset(folder)
    assert dataset.name == "d"
    assert dataset.train.user_ids.tolist() == dataset.test.user_ids.tolist() == [0, 5, 7]
    assert dataset.train.item_ids.tolist() == [1, 2, 9]
    np.testing.assert_array_equal(dataset.train.matrix.toarray(), [[1, 1, 0], [0, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(dataset.test.matrix.toarray(), [[0, 0, 1], [0, 0, 0], [1, 0, 0]])


def test_names_are_looked_for_in_order(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(place: str, item: int) -> None:
        write(f"{place}/gowalla/train.txt", f"0 {item}\n")
        write(f"{place}/gowalla/test.txt", f"0 {item + 1}\n")

    monkeypatch.setenv("PRIVIREC_DATA", str(tmp_path / "env"))
    assert data_folders("here")[0] == Path("here")
    for place, item in (("cache/privirec/data", 10), ("env", 20), ("option", 30)):
        put(place, item)
        dataset = load_dataset("gowalla", tmp_path / "option")
        assert dataset.train.item_ids.tolist() == [item, item + 1]
        assert dataset.name == "gowalla"


def test_own_names_in_a_data_folder(folder: Path) -> None:
    assert load_dataset("d", folder.parent).train.n_users == 3


def test_missing_known_data_set_says_where_and_how(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_dataset("yelp2018", tmp_path / "mine")
    message = str(caught.value)
    assert str(tmp_path / "mine" / "yelp2018") in message
    assert str(tmp_path / "cache" / "privirec" / "data" / "yelp2018") in message
    assert "privirec data get yelp2018" in message
    assert "\n" not in message


def test_unknown_name_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="known names are gowalla, yelp2018, amazon-book"):
        load_dataset("ml-20m", tmp_path)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ("0 1\n", "0 2\n\n4 1\n3 1\n", "test.txt:3: user 4 is not in train.txt"),
        ("0 1\n2 x\n", "0 2\n", "train.txt:2: 'x' is not an id"),
        ("0 1\n", "0 -2\n", "test.txt:1: negative id -2"),
        ("0 1\n", "", "test.txt: the file is empty"),
        ("0\n1\n", "0 2\n", "train.txt: users and no items"),
    ],
)
def test_bad_folders(write: Write, train: str, test: str, message: str) -> None:
    write("d/train.txt", train)
    folder = write("d/test.txt", test).parent
    with pytest.raises(DataError) as caught:
        load_dataset(folder)
    assert str(caught.value).startswith(f"{folder}/{message}")


def test_incomplete_folders(write: Write) -> None:
    folder = write("d/train.txt", "0 1\n").parent
    with pytest.raises(DataError, match=r"train\.txt without a test\.txt"):
        load_dataset(folder)
    with pytest.raises(DataError, match=r"holds no train\.txt and test\.txt"):
        load_dataset(write("e/other.txt", "0 1\n").parent)


@pytest.mark.parametrize("name", ["ml/ratings.csv", "ml/ml.inter", "ml/some.csv"])
def test_single_files_are_split_the_same_way_every_time(write: Write, name: str) -> None:
    rows = [f"{user}\t{item}" for user in range(20) for item in range(user, user + 10)]
    table = "\n".join(["user_id\titem_id", *rows])
    path = write(name, table if name.endswith("inter") else table.replace("\t", ","))
    place = path if "some" in name else path.parent
    dataset = load_dataset(place)
    assert dataset.train.n_interactions == 160
    assert dataset.test.n_interactions == 40
    assert dataset.test.fingerprint() == load_dataset(place).test.fingerprint()
    assert dataset.test.fingerprint() != load_dataset(place, seed=1).test.fingerprint()


def test_statistics(folder: Path) -> None:
    row = statistics(load_dataset(folder)).row()
    assert row == {
        "dataset": "d",
        "users": 3,
        "items": 3,
        "interactions": 5,
        "density": 5 / 9,
        "train": 3,
        "test": 2,
        "smallest_user": 0,
        "median_user": 1.0,
        "largest_user": 2,
        "items_under_5_users": 3,
        "items_without_users": 1,
        "users_without_test": 1,
        "test_drift": None,
    }


def test_the_drift_tells_a_random_test_split_from_another() -> None:
    data = load_dataset("synthetic:small").together()
    random = split(data, test=0.2)
    assert 0.5 < (statistics(random).test_drift or 0) < 2
    even = data.matrix.indices % 2 == 0
    apart = Dataset("apart", data.select(even), data.select(~even))
    assert (statistics(apart).test_drift or 0) > 10


def test_a_sorted_copy_is_the_published_file(write: Write, tmp_path: Path) -> None:
    import hashlib

    original = "0 5 3 9\n1 2\n2 \n"
    write_text(tmp_path / "sorted.txt", Interactions.from_pairs([0, 0, 0, 1], [5, 3, 9, 2],
               user_ids=np.arange(3)))  # fmt: skip
    known = PublishedFile(
        md5=hashlib.md5(original.encode(), usedforsecurity=False).hexdigest(),
        canonical_sha256=hashlib.sha256((tmp_path / "sorted.txt").read_bytes()).hexdigest(),
    )
    assert known.matches(write("a.txt", original))
    assert known.matches(tmp_path / "sorted.txt")
    assert known.matches(write("b.txt", "0 9 3 5\n1 2\n2\n"))
    assert not known.matches(write("c.txt", "0 9 3 6\n1 2\n2\n"))
    assert not known.matches(write("d.txt", "<html>not found</html>"))


FULL_DATA = os.environ.get("PRIVIREC_DATA")  # read before the tests hide it


@pytest.mark.fullscale
@pytest.mark.parametrize(
    ("name", "paper", "more"),
    [
        ("gowalla", (29_858, 40_981, 1_027_370, "0.084%"), (810_128, 217_242, 8, 811, 197)),
        ("yelp2018", (31_668, 38_048, 1_561_406, "0.130%"), (1_237_259, 324_147, 16, 1_848, 667)),
        ("amazon-book", (52_643, 91_599, 2_984_108, "0.062%"), None),
    ],
)
def test_published_statistics(name: str, paper: tuple, more: tuple | None) -> None:
    """Test the statistics in the paper's table and other published facts about the splits."""
    if FULL_DATA is None:
        pytest.skip("set PRIVIREC_DATA to the folder with the real data sets")
    folder = Path(FULL_DATA) / name
    if not folder.is_dir():
        pytest.skip(f"{name} is not in PRIVIREC_DATA")
    found = statistics(load_dataset(name, FULL_DATA))
    assert (found.users, found.items, found.interactions, f"{found.density:.3%}") == paper
    if more is not None:
        assert more == (
            found.train,
            found.test,
            found.smallest_user,
            found.largest_user,
            found.items_under_5_users,
        )
    published = PUBLISHED[name]
    assert (found.train, found.test) == (published.train, published.test)
    assert all(known.matches(folder / file) for file, known in published.files.items())


def test_separate_files_of_train_and_test(write: Write) -> None:
    train = write("a.csv", "user,item\nann,1\nbob,2\n")
    test = write("b.tsv", "user\titem\nann\tx\n")
    data = load_dataset(train, test_file=test)
    assert data.train.item_ids.tolist() == ["1", "2", "x"]  # numbers with names are names
    assert data.train.n_interactions == 2
    assert data.test.item_ids[data.test.matrix.indices].tolist() == ["x"]
    assert data.together().n_interactions == 3
    with pytest.raises(DataError, match=r"b\.tsv: user zoe is not in a\.csv"):
        load_dataset(train, test_file=write("b.tsv", "user\titem\nzoe\tx\n"))
    with pytest.raises(DataError, match="a: the whole test set is in train too"):
        load_dataset(train, test_file=train)
    with pytest.raises(UsageError, match="split already"):
        load_dataset(train, test_file=test, by="time")
    with pytest.raises(UsageError, match="no way to split by 'foo'; there are random, time, leave"):
        load_dataset("synthetic:small", by="foo")  # type: ignore[arg-type]


def test_everything_of_a_data_set(write: Write) -> None:
    path = write("x.csv", "user,item,time\n1,2,5\n1,3,6\n2,3,7\n")
    everything = load_everything(path)
    assert everything.n_interactions == 3
    assert everything.times is not None
    whole = load_dataset("synthetic:small")
    together = load_everything("synthetic:small")
    assert together.n_interactions == whole.train.n_interactions + whole.test.n_interactions
