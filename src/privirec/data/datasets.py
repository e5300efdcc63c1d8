"""Data sets by name: their folders, loading and statistics."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privirec.data.columns import TableOptions
from privirec.data.formats import SUFFIXES, read_file, suffix_of
from privirec.data.interactions import Dataset, Interactions, UnknownUsers
from privirec.data.shards import ShardedDataset, is_sharded
from privirec.data.splits import By, check_way, split
from privirec.data.synthetic import DEFAULT_SEED, PREFIX, synthetic
from privirec.data.text import first_line_of, read_bytes, read_text, text_lines
from privirec.errors import DataError, UsageError


@dataclass(frozen=True)
class PublishedFile:
    """Checksums by which a file is recognised.

    `md5` is the published checksum of the bytes. `canonical_sha256` is the checksum of the same
    content with items in ascending order, as `write_text` writes it, so that a copy whose items
    were sorted is recognised as the same data.
    """

    md5: str
    canonical_sha256: str | None = None

    def matches(self, path: Path) -> bool:
        content = read_bytes(path)
        if hashlib.md5(content, usedforsecurity=False).hexdigest() == self.md5:
            return True
        if self.canonical_sha256 is None:
            return False
        if hashlib.sha256(content).hexdigest() == self.canonical_sha256:
            return True
        try:
            interactions = read_text(path)
        except DataError:
            return False
        canonical = "".join(line + "\n" for line in text_lines(interactions))
        return hashlib.sha256(canonical.encode()).hexdigest() == self.canonical_sha256


@dataclass(frozen=True)
class PublishedDataset:
    """Sizes and files of a standard split."""

    users: int
    items: int
    train: int
    test: int
    files: Mapping[str, PublishedFile]


PUBLISHED: Mapping[str, PublishedDataset] = {
    "gowalla": PublishedDataset(
        29_858,
        40_981,
        810_128,
        217_242,
        {
            "train.txt": PublishedFile(
                "5eec1eb2edb8dd648377d348b8e136cf",
                "0f086326b28a56c2e6dcb81d86ee72d4ccb7eed3a8d26788392356d8f51111cc",
            ),
            "test.txt": PublishedFile(
                "c04e2c4bcd2389f53ed8281816166149",
                "95a7e4ee029370c4ccac0d6a0c8cc0615b574ac89642081cdf946090e0dd5bda",
            ),
        },
    ),
    "yelp2018": PublishedDataset(
        31_668,
        38_048,
        1_237_259,
        324_147,
        {
            "train.txt": PublishedFile(
                "1b8b5d22a227e01d6de002c53d32b4c4",
                "5588ebbcbf9ab10cdf7a70aa300f2ef781030daa2a94ef0685598ed051a398da",
            ),
            "test.txt": PublishedFile(
                "0d57d7399862c32152b045ec5d2698e7",
                "b085561974bf62aaa99279ac5572b0f7540990e6fdbea0d607a0c3f4ca1271cb",
            ),
        },
    ),
    "amazon-book": PublishedDataset(
        52_643,
        91_599,
        2_380_730,
        603_378,
        {
            "train.txt": PublishedFile("c916ecac04ca72300a016228258b41ed"),
            "test.txt": PublishedFile("30f8ccfea18d25007ba9fb9aba4e174d"),
        },
    ),
}


def load_dataset(
    name_or_path: str | Path,
    data_dir: str | Path | None = None,
    *,
    seed: int = DEFAULT_SEED,
    test_file: str | Path | None = None,
    by: By = "random",
    table: TableOptions | None = None,
    **of_table: Any,
) -> Dataset:
    """Load a data set from a name, a folder or a file.

    A folder of shards is read into memory unless it is too large; `load_sharded` opens it without
    loading it.

    Parameters
    ----------
    name_or_path
        `synthetic:small` or another synthetic set, gowalla, yelp2018, amazon-book, any folder with
        train.txt and test.txt (or such tables), or a single file of any known format.
    data_dir
        Folder in which names are looked up first; then $PRIVIREC_DATA and the user's cache folder.
    seed
        Seed of synthetic data and of the split of a single file; it affects nothing else.
    test_file
        A second file to test on; the first file is then the train set.
    by
        How a single file is split: "random", "time" or "leave-one-out", see `split`.
    table
        Settings of a table that cannot be detected.
    **of_table
        The same settings one by one: `load_dataset("log.csv", user_column="who", min_rating=4)`.
    """
    check_way(by)
    table = _options_of(table, of_table)
    name = str(name_or_path)
    path = Path(name_or_path)
    if test_file is not None:
        _refuse_split(name, by)
        return _of_files(path, Path(test_file), path.stem, table)
    if name.startswith(PREFIX):
        _refuse_split(name, by)
        return synthetic(name, seed)
    if name not in PUBLISHED and path.exists():
        return _load_path(path, seed, by, table)
    _refuse_split(name, by)
    return _load_folder(find(name, data_dir), name, table)


def _options_of(table: TableOptions | None, settings: Mapping[str, Any]) -> TableOptions:
    known = [field.name for field in fields(TableOptions)]
    for name in settings:
        if name not in known:
            raise UsageError(f"load_dataset takes no {name}; of tables it takes {', '.join(known)}")
    if table is not None and settings:
        raise UsageError(f"give table=TableOptions(...) or {next(iter(settings))}=, not both")
    return table or TableOptions(**settings)


def load_everything(
    name_or_path: str | Path,
    data_dir: str | Path | None = None,
    *,
    seed: int = DEFAULT_SEED,
    table: TableOptions | None = None,
) -> Interactions:
    """Load train and test together, for fitting a model that is to be used."""
    path = Path(name_or_path)
    if str(name_or_path) not in PUBLISHED and (file := _single_file(path)) is not None:
        interactions = read_file(file, table or TableOptions())
        _require_interactions(interactions, file)
        return interactions
    return load_dataset(name_or_path, data_dir, seed=seed, table=table).together()


def load_sharded(name_or_path: str | Path) -> ShardedDataset | None:
    """Open the folder as a sharded data set; return None for any other folder, file or name."""
    by_name = str(name_or_path) in PUBLISHED or str(name_or_path).startswith(PREFIX)
    return ShardedDataset(name_or_path) if not by_name and is_sharded(name_or_path) else None


def data_folders(data_dir: str | Path | None = None) -> list[Path]:
    """Return the folders searched for data sets: `data_dir`, $PRIVIREC_DATA, the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    places = [data_dir, os.environ.get("PRIVIREC_DATA"), Path(cache) / "privirec" / "data"]
    return [Path(place) for place in places if place]


def names_here(data_dir: str | Path | None = None) -> list[str]:
    """Return the names of all data sets in the data folders."""
    found = {
        train.parent.name
        for folder in data_folders(data_dir)
        for train in folder.glob("*/train.*")
        if _part_of(train.parent, "test") is not None
    }
    return sorted(found)


def find(name: str, data_dir: str | Path | None = None) -> Path:
    """Return the folder of a data set, or raise DataError naming the folders searched."""
    folders = data_folders(data_dir)
    for folder in folders:
        if _part_of(folder / name, "train") is not None:
            return folder / name
    looked = ", ".join(str(folder / name) for folder in folders)
    if name in PUBLISHED:
        raise DataError(f"{name} is not here (looked in {looked}); run: privirec data get {name}")
    known = ", ".join(PUBLISHED)
    raise DataError(
        f"{name}: no such file, folder or data set (looked in {looked}); known names are {known} "
        f"(privirec data get NAME) and {PREFIX}small, {PREFIX}demo ..."
    )


OFTEN = 20
"""Interactions of an item from which on its count in test says something."""


@dataclass(frozen=True)
class Statistics:
    """The columns of the paper's table of data sets, and more. Degrees are those of train."""

    dataset: str
    users: int
    items: int
    interactions: int
    density: float
    train: int
    test: int
    smallest_user: int
    median_user: float
    largest_user: int
    items_under_5_users: int
    items_without_users: int
    users_without_test: int
    test_drift: float | None
    """Variance of the items' counts in test, in units of that of a random test split. Far above 1,
    test differs from train, and a random validation split is no model of it. None: not known."""

    def row(self) -> dict[str, str | int | float | None]:
        """Return the fields as one flat JSON object."""
        return asdict(self)


def statistics(dataset: Dataset) -> Statistics:
    """Compute statistics; `interactions` is train plus test, `density` their share of all pairs."""
    train, test = dataset.train, dataset.test
    interactions = train.n_interactions + test.n_interactions
    degrees = train.user_degrees
    return Statistics(
        dataset=dataset.name,
        users=train.n_users,
        items=train.n_items,
        interactions=interactions,
        density=interactions / (train.n_users * train.n_items),
        train=train.n_interactions,
        test=test.n_interactions,
        smallest_user=int(degrees.min()),
        median_user=float(np.median(degrees)),
        largest_user=int(degrees.max()),
        items_under_5_users=int((train.item_degrees < 5).sum()),
        items_without_users=int((train.item_degrees == 0).sum()),
        users_without_test=int((test.user_degrees == 0).sum()),
        test_drift=drift(train.item_degrees, test.item_degrees),
    )


def drift(train: NDArray[np.int64], test: NDArray[np.int64]) -> float | None:
    """Return the variance of the items' test counts, in units of that of a random test split."""
    total = train + test
    often = total >= OFTEN
    share = float(test.sum()) / max(int(total.sum()), 1)
    if often.sum() < 2 or not 0 < share < 1:
        return None
    expected = share * total[often]
    return float(np.mean((test[often] - expected) ** 2 / (expected * (1 - share))))


def sharded_statistics(data: ShardedDataset) -> Statistics:
    """Compute the statistics of a sharded data set with one shard in memory at a time."""
    item_degrees, tested = np.zeros((2, data.n_items), np.int64)
    with_degree = np.zeros(data.n_items + 1, np.int64)
    for shard in map(data.shard, range(len(data))):
        item_degrees += shard.train.item_degrees
        tested += shard.test.item_degrees
        with_degree += np.bincount(shard.train.user_degrees, minlength=data.n_items + 1)
    degrees = np.flatnonzero(with_degree)
    users, interactions = data.n_users, data.n_interactions
    # The median of n users in ascending order is the middle one, or the mean of the middle two.
    middle = np.searchsorted(np.cumsum(with_degree), [(users - 1) // 2, users // 2], side="right")
    return Statistics(
        dataset=data.name,
        users=users,
        items=data.n_items,
        interactions=interactions,
        density=interactions / (users * data.n_items),
        train=sum(shard.train for shard in data.shards),
        test=sum(shard.test for shard in data.shards),
        smallest_user=int(degrees[0]),
        median_user=float(middle.mean()),
        largest_user=int(degrees[-1]),
        items_under_5_users=int((item_degrees < 5).sum()),
        items_without_users=int((item_degrees == 0).sum()),
        users_without_test=users - sum(shard.tested for shard in data.shards),
        test_drift=drift(item_degrees, tested),
    )


def _load_path(path: Path, seed: int, by: By, table: TableOptions) -> Dataset:
    if (file := _single_file(path)) is not None:
        interactions = read_file(file, table)
        _require_interactions(interactions, file)
        name = path.stem if path.is_file() else path.resolve().name
        return split(interactions, test=0.2, seed=seed, name=name, by=by)
    _refuse_split(str(path), by)
    if _part_of(path, "train") is not None:
        return _load_folder(path, path.resolve().name, table)
    if is_sharded(path):
        return ShardedDataset(path).at_once()
    raise DataError(
        f"{path}: holds no train.txt and test.txt; give such a folder or one file "
        f"({', '.join(SUFFIXES)})"
    )


def _refuse_split(name: str, by: By) -> None:
    if by != "random":
        raise UsageError(f"{name} is split already: a split by {by} needs a single file")


def _single_file(path: Path) -> Path | None:
    """Return the path if it is a file, or the one file that holds a MovieLens or RecBole folder."""
    if path.is_file():
        return path
    if path.is_dir() and _part_of(path, "train") is None and not is_sharded(path):
        for candidate in ("ratings.csv", "ratings.dat", "u.data", f"{path.resolve().name}.inter"):
            if (path / candidate).is_file():
                return path / candidate
    return None


def _part_of(folder: Path, part: str) -> Path | None:
    """Return the file of a folder that is its train or test set."""
    names = [part + suffix + packed for suffix in SUFFIXES for packed in ("", ".gz")]
    found = [folder / name for name in names if (folder / name).is_file()]
    if len(found) > 1:
        raise DataError(f"{folder}: holds both {found[0].name} and {found[1].name}")
    return found[0] if found else None


def _load_folder(folder: Path, name: str, table: TableOptions) -> Dataset:
    train, test = _part_of(folder, "train"), _part_of(folder, "test")
    if train is None or test is None:
        there = train.name if train is not None else "neither a train.txt"
        raise DataError(f"{folder}: {there} without a test.txt")
    return _of_files(train, test, name, table)


def _of_files(train_file: Path, test_file: Path, name: str, table: TableOptions) -> Dataset:
    """Load train and test files; rows are the users of train, columns the items of both."""
    train, test = read_file(train_file, table), read_file(test_file, table)
    _require_interactions(train, train_file)
    try:
        data = Dataset.of(train, test, name=name)
    except UnknownUsers as error:
        where, user = str(test_file), error.users[0]
        if suffix_of(test_file) == ".txt" and test.user_ids.dtype.kind in "iu":
            line, user = first_line_of(test_file, error.users)
            where = f"{test_file}:{line}"
        raise DataError(f"{where}: user {user} is not in {train_file.name}") from None
    data.check_apart()
    return data


def _require_interactions(interactions: Interactions, path: Path) -> None:
    if interactions.n_interactions == 0:
        raise DataError(f"{path}: users and no items")
