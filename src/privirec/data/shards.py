"""Sharded data sets: a folder of blocks of users, of which one is in memory at a time.

    manifest.json            users, items, interactions; counts and SHA-256 of each shard
    item_ids.npy             ids of the catalogue, in ascending order (absent: 0, 1, 2 ...)
    00000/                   a shard: train-indptr.npy, train-indices.npy, test-indptr.npy,
    00001/ ...               test-indices.npy, user_ids.npy (absent: numbers that continue those
                             of the previous shard), counts.json

A shard is written to a temporary folder and renamed, and the manifest is written last. A shard is
therefore complete or absent, and a folder without a manifest is one whose writing was interrupted.
Writing the same data again continues with the first missing shard. The held-out items of a user
depend on ids and seed alone, so each shard is split by itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.data.interactions import Dataset, Interactions
from privirec.data.splits import check_share, split
from privirec.durable import LOCK, alone, file_sha256, sync, write_whole
from privirec.errors import DataError, FederationError, UsageError

FAMILY = "privirec/shards/"
FORMAT = FAMILY + "1"
MANIFEST = "manifest.json"
BEGUN = "begun.json"
"""File that describes the shards being written, until the manifest exists."""
USERS_PER_SHARD = 1 << 17
HELD_OUT = 0.2
LARGEST_AT_ONCE = 100_000_000
"""Most interactions that `at_once` reads into memory together."""

_COUNTS = "counts.json"
_ITEM_IDS = "item_ids.npy"
_USER_IDS = "user_ids.npy"

MakeBlock = Callable[[int], Interactions]
"""Function from the number of a shard to all interactions of its users."""


@dataclass(frozen=True)
class Counts:
    """Record of a shard in the manifest."""

    users: int
    train: int
    test: int
    tested: int
    """Number of users with test items."""
    sha256: str
    """Digest over the digests of its arrays."""


class ShardedDataset:
    """An open sharded data set. Each shard is read from disk when it is used."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        record = _read_json(self.folder / MANIFEST)
        try:
            if record["format"] != FORMAT:
                _refuse(self.folder / MANIFEST, f"format {record['format']!r}, not {FORMAT}")
            self.name = str(record["name"])
            self.n_items = int(record["items"])
            self.fingerprint = str(record["fingerprint"])
            self.shards = tuple(Counts(**counts) for counts in record["shards"])
            self._item_ids_sha256: str | None = record["item_ids_sha256"]
        except (KeyError, TypeError, ValueError):
            _refuse(self.folder / MANIFEST, "not a manifest of shards")
        self._checked: set[int] = set()

    def __len__(self) -> int:
        return len(self.shards)

    @property
    def n_users(self) -> int:
        return sum(shard.users for shard in self.shards)

    @property
    def n_interactions(self) -> int:
        """Number of interactions, train and test together."""
        return sum(shard.train + shard.test for shard in self.shards)

    def first_user(self, number: int) -> int:
        """Return the number of the first user of a shard, counted over all shards."""
        return sum(shard.users for shard in self.shards[:number])

    @cached_property
    def item_ids(self) -> NDArray:
        if self._item_ids_sha256 is None:
            return np.arange(self.n_items)
        path = self.folder / _ITEM_IDS
        if not path.is_file() or file_sha256(path) != self._item_ids_sha256:
            _refuse(path, "missing, or not what the manifest names")
        ids = _load(path)
        if ids.shape != (self.n_items,):
            _refuse(path, "ids of another catalogue")
        return ids

    def shard(self, number: int) -> Dataset:
        """Load one shard. Its files are compared with the manifest when first read."""
        folder, counts = _shard_folder(self.folder, number), self.shards[number]
        if number not in self._checked:
            try:
                found = _digest(folder)
            except OSError as error:
                _refuse(folder, str(error.strerror))
            if found != counts.sha256:
                _refuse(folder, "not the shard that the manifest names")
            self._checked.add(number)
        first = self.first_user(number)
        return read_shard(folder, counts, first, self.item_ids, self.name)

    def trains(self) -> Iterator[Interactions]:
        """Yield the train part of every shard, in order."""
        for number in range(len(self)):
            yield self.shard(number).train

    def sample(self, users: int, seed: int = 0) -> Dataset:
        """Return `users` random users with test items, or all of them if there are fewer."""
        tested = np.cumsum([0, *(shard.tested for shard in self.shards)])
        total = int(tested[-1])
        if not total:
            raise DataError(f"{self.name}: no user has a test item")
        rng = np.random.Generator(np.random.Philox(seed))
        drawn = np.sort(rng.choice(total, min(users, total), replace=False, shuffle=False))
        parts = []
        for number in range(len(self)):
            low, high = np.searchsorted(drawn, tested[number : number + 2])
            if low == high:
                continue
            data = self.shard(number)
            rows = np.flatnonzero(data.test.user_degrees)[drawn[low:high] - tested[number]]
            parts.append(
                Dataset(self.name, *(_rows(part, rows) for part in (data.train, data.test)))
            )
        return joined(parts)

    def at_once(self) -> Dataset:
        """Load all shards into memory, users in the order of the shards."""
        if self.n_interactions > LARGEST_AT_ONCE:
            raise DataError(
                f"{self.folder}: {self.n_interactions:,} interactions are more than fit into "
                "memory here; privirec run and privirec data info take shards one by one"
            )
        return joined([self.shard(number) for number in range(len(self))])


def is_sharded(path: str | Path) -> bool:
    """Return True if a folder holds shards, finished or not. Other folders have manifests too."""
    if (Path(path) / BEGUN).is_file():
        return True
    try:
        record = json.loads((Path(path) / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and str(record.get("format")).startswith(FAMILY)


def write_shards(
    folder: str | Path,
    name: str,
    item_ids: NDArray | None,
    n_shards: int,
    make: MakeBlock,
    *,
    made_from: Mapping[str, Any],
    n_items: int,
    test: float = HELD_OUT,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> ShardedDataset:
    """Write shards 0 ... n_shards - 1, each from `make(number)`, split into train and test.

    `item_ids` None stands for 0, 1, 2 ... Interrupted writing of the same data, as identified by
    `made_from`, continues with the missing shards. A folder with any other content is refused and
    left unchanged.
    """
    folder = Path(folder)
    check_share(test)
    begin(folder, {"name": name, "test": test, "seed": seed, **made_from})
    if (folder / MANIFEST).is_file():
        return ShardedDataset(folder)
    digest = None
    if item_ids is not None:
        _save(folder / _ITEM_IDS, item_ids)
        digest = file_sha256(folder / _ITEM_IDS)
    counts, first_user = [], 0
    for number in range(n_shards):
        place = _shard_folder(folder, number)
        if not place.is_dir():
            block = make(number)
            _write_shard(place, split(block, test=test, seed=seed, name=name), first_user)
        counts.append(Counts(**_read_json(place / _COUNTS)))
        first_user += counts[-1].users
        if progress:
            progress(number + 1, n_shards)
    record = {
        "format": FORMAT,
        "name": name,
        "users": first_user,
        "items": n_items,
        "interactions": sum(one.train + one.test for one in counts),
        "made_from": dict(made_from) | {"test": test, "seed": seed},
        "item_ids_sha256": digest,
        "fingerprint": _fingerprint(folder, counts, item_ids, n_items),
        "shards": [asdict(one) for one in counts],
    }
    write_whole(folder / MANIFEST, (json.dumps(record, indent=1) + "\n").encode(), mode=0o644)
    (folder / BEGUN).unlink(missing_ok=True)
    return ShardedDataset(folder)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, so that only one process at a time writes its shards."""
    existed = folder.exists()
    if folder.is_dir() and not is_sharded(folder):
        _check_empty(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with alone(folder, wait=False):
            yield
    except OSError as error:
        raise DataError(f"{folder}: cannot be written: {error.strerror}") from None
    except FederationError as error:
        raise DataError(str(error)) from None
    except (DataError, UsageError):
        if not existed and [path.name for path in folder.iterdir()] == [LOCK]:
            shutil.rmtree(folder)  # it holds nothing but our lock
        raise


def _check_empty(folder: Path) -> None:
    if any(path.name != LOCK for path in folder.iterdir()):
        raise UsageError(f"{folder}: holds something else; give a new or an empty folder")


def begin(folder: Path, what: Mapping[str, Any]) -> None:
    """Make the folder and record what is being written; refuse a folder with other content."""
    record = json.loads(json.dumps(dict(what)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / MANIFEST).is_file():
            found = _read_json(folder / MANIFEST)
            known = {"name": found.get("name"), **found.get("made_from", {})}
        elif (folder / BEGUN).is_file():
            known = _read_json(folder / BEGUN)
        else:
            _check_empty(folder)
            write_whole(folder / BEGUN, json.dumps(record).encode(), mode=0o644)
            return
    except OSError as error:
        raise DataError(f"{folder}: cannot be written: {error.strerror}") from None
    if known != record:
        raise UsageError(f"{folder}: holds shards made from something else; give another folder")


def read_shard(folder: Path, counts: Counts, first: int, item_ids: NDArray, name: str) -> Dataset:
    """Read one shard from its folder."""
    named = (folder / _USER_IDS).is_file()
    ids = _load(folder / _USER_IDS) if named else np.arange(first, first + counts.users)
    parts = []
    for part in ("train", "test"):
        indptr, indices = (_load(folder / f"{part}-{each}.npy") for each in ("indptr", "indices"))
        entries = getattr(counts, part)
        if indptr.shape != (counts.users + 1,) or indices.shape != (entries,):
            _refuse(folder, f"{part} of another size than the manifest says")
        # Compiled loops do not check array bounds.
        if (
            int(indptr[0]) != 0
            or int(indptr[-1]) != entries
            or (np.diff(indptr) < 0).any()
            or int(indices.min(initial=0)) < 0
            or int(indices.max(initial=0)) >= len(item_ids)
        ):
            _refuse(folder, f"{part} refers to items outside the catalogue")
        shape = (counts.users, len(item_ids))
        ones = np.ones(entries, np.float32)
        parts.append(
            Interactions(sp.csr_array((ones, indices, indptr), shape=shape), ids, item_ids)
        )
    return Dataset(name, *parts)


def joined(parts: list[Dataset]) -> Dataset:
    """Return the users of several shards as one data set."""

    def join(each: list[Interactions]) -> Interactions:
        matrix = sp.csr_array(sp.vstack([one.matrix for one in each], format="csr"))
        return Interactions(
            matrix, np.concatenate([one.user_ids for one in each]), each[0].item_ids
        )

    return Dataset(parts[0].name, join([p.train for p in parts]), join([p.test for p in parts]))


def _rows(part: Interactions, rows: NDArray[np.int64]) -> Interactions:
    return Interactions(part.matrix[rows], part.user_ids[rows], part.item_ids)


def _shard_folder(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}"


def _write_shard(place: Path, data: Dataset, first_user: int) -> None:
    """Write a shard to a temporary folder and rename it once all of it is on disk."""
    partial = place.with_name(f".{place.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    train, test = data.train, data.test
    try:
        partial.mkdir()
        for name, part in (("train", train), ("test", test)):
            _save(partial / f"{name}-indptr.npy", part.matrix.indptr.astype(np.int32))
            _save(partial / f"{name}-indices.npy", part.matrix.indices.astype(np.int32))
        if not np.array_equal(train.user_ids, np.arange(first_user, first_user + train.n_users)):
            _save(partial / _USER_IDS, train.user_ids)
        counts = Counts(
            train.n_users,
            train.n_interactions,
            test.n_interactions,
            int(np.count_nonzero(test.user_degrees)),
            _digest(partial),
        )
        write_whole(partial / _COUNTS, json.dumps(asdict(counts)).encode(), mode=0o644)
        sync(partial)
        os.replace(partial, place)
        sync(place.parent)
    except OSError as error:
        raise DataError(f"{place}: cannot be written: {error.strerror}") from None


def _digest(folder: Path) -> str:
    """Return the digest over the names and digests of a shard's arrays."""
    lines = [f"{path.name} {file_sha256(path)}\n" for path in sorted(folder.glob("*.npy"))]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _fingerprint(folder: Path, counts: list[Counts], item_ids: NDArray | None, n_items: int) -> str:
    """Compute `Interactions.fingerprint` of the train part, shard by shard."""
    digest = hashlib.sha256(b"privirec/interactions/1\0")
    ids = np.arange(n_items) if item_ids is None else item_ids
    firsts = np.cumsum([0, *(one.users for one in counts)]).tolist()
    entries = np.cumsum([0, *(one.train for one in counts)]).tolist()
    folders = [_shard_folder(folder, number) for number in range(len(counts))]
    separator = b""
    for place, first, last in zip(folders, firsts[:-1], firsts[1:], strict=True):
        named = (place / _USER_IDS).is_file()
        users = (_load(place / _USER_IDS) if named else np.arange(first, last)).tolist()
        if users:
            digest.update(separator + "\n".join(map(str, users)).encode())
            separator = b"\n"
    digest.update(b"\0" + "\n".join(map(str, ids.tolist())).encode() + b"\0")
    digest.update(np.zeros(1, "<i8").tobytes())
    for place, before in zip(folders, entries[:-1], strict=True):
        digest.update((_load(place / "train-indptr.npy")[1:].astype("<i8") + before).tobytes())
    for place in folders:
        digest.update(_load(place / "train-indices.npy").astype("<i4").tobytes())
    return digest.hexdigest()


def _save(path: Path, array: NDArray) -> None:
    partial = path.with_name(f".{path.name}.part")
    with partial.open("wb") as file:
        np.save(file, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def _load(path: Path) -> NDArray:
    """Load an array as a in-memory copy: compiled loops expect ordinary arrays, not memory maps."""
    try:
        return np.array(np.load(path, mmap_mode="r", allow_pickle=False))
    except OSError as error:
        _refuse(path, f"cannot be read: {error.strerror or error}")
    except ValueError:
        _refuse(path, "not an array")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        if path.name == MANIFEST and (path.parent / BEGUN).is_file():
            raise DataError(
                f"{path.parent}: its shards are not finished; run the command that makes them "
                "again to continue"
            ) from None
        _refuse(path, "missing")
    except OSError as error:
        _refuse(path, f"cannot be read: {error.strerror}")
    except ValueError:
        _refuse(path, "not JSON")
    if not isinstance(record, dict):
        _refuse(path, "not a JSON object")
    return record


def _refuse(path: Path, why: str) -> NoReturn:
    raise DataError(f"{path}: {why}")
