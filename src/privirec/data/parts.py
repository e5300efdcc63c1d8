"""Conversion of tables in parts to shards, in bounded memory.

Users may occur in several parts. A first pass reads all parts in pieces and appends each row to the
partition given by a hash of the user's id, so that all rows of a user are in one partition. A
second pass makes a shard from each partition. An interrupted second pass continues with the shards
that are missing.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privirec.data.columns import TableOptions
from privirec.data.formats import TABLES, read_pieces
from privirec.data.interactions import Interactions
from privirec.data.shards import (
    BEGUN,
    HELD_OUT,
    MANIFEST,
    ShardedDataset,
    begin,
    is_sharded,
    write_shards,
    writing,
)
from privirec.data.splits import check_share, mix
from privirec.durable import sync, write_whole
from privirec.errors import DataError, UsageError

ROWS_PER_SHARD = 1 << 22
"""Approximate target: a whole partition is in memory at a time."""
BYTES_PER_ROW = {".parquet": 4}
BYTES_PER_TEXT_ROW = 12
MOST_PARTITIONS = 512
"""Upper limit, because each partition is an open file."""

_PARTITIONS = "partitions"
_DONE = "partitions.json"


def convert_parts(
    source: Path,
    folder: Path,
    *,
    options: TableOptions | None = None,
    test: float = HELD_OUT,
    seed: int = 0,
    rows_per_shard: int = ROWS_PER_SHARD,
    progress: Callable[[int, int], None] | None = None,
) -> ShardedDataset:
    """Make shards from a table or a folder of tables.

    Users are in the order of a hash of their ids, and within a shard in ascending order.
    """
    check_share(test)
    options = options or TableOptions()
    parts = parts_of(source)
    sizes = {part.name: part.stat().st_size for part in parts}
    rows = sum(
        size // BYTES_PER_ROW.get(Path(name).suffix.lower(), BYTES_PER_TEXT_ROW)
        for name, size in sizes.items()
    )
    n_shards = min(MOST_PARTITIONS, max(1, -(-rows // rows_per_shard)))
    made_from = {
        "parts": sizes,
        "table": {name: value for name, value in asdict(options).items() if value is not None},
        "shards": n_shards,
    }
    name = source.resolve().stem
    with writing(folder):
        return _convert(parts, folder, name, n_shards, made_from, options, test, seed, progress)


def _convert(
    parts: list[Path],
    folder: Path,
    name: str,
    n_shards: int,
    made_from: dict[str, Any],
    options: TableOptions,
    test: float,
    seed: int,
    progress: Callable[[int, int], None] | None,
) -> ShardedDataset:
    begin(folder, {"name": name, "test": test, "seed": seed, **made_from})
    if (folder / MANIFEST).is_file():
        return ShardedDataset(folder)
    place = folder / _PARTITIONS
    try:
        if not (folder / _DONE).is_file():
            try:
                _partition(parts, place, folder / _DONE, n_shards, options)
            except DataError:  # raised by the tables: the partial partitions are useless
                shutil.rmtree(place, ignore_errors=True)
                (folder / BEGUN).unlink()
                raise
        kinds = json.loads((folder / _DONE).read_bytes())
        item_ids = np.load(place / "items.npy", allow_pickle=False)
    except OSError as error:
        raise DataError(f"{folder}: cannot be written or read: {error.strerror}") from None

    def block(number: int) -> Interactions:
        pieces = list(_pieces_of(place / f"{number:05d}"))
        users, items = (
            np.concatenate(
                [np.zeros(0, np.int64).astype(kind), *(_as(kind, p[at]) for p in pieces)]
            )
            for at, kind in enumerate((kinds["users"], kinds["items"]))
        )
        return Interactions.from_pairs(users, items, item_ids=item_ids)

    made = write_shards(
        folder,
        name,
        item_ids,
        n_shards,
        block,
        made_from=made_from,
        n_items=len(item_ids),
        test=test,
        seed=seed,
        progress=progress,
    )
    shutil.rmtree(place, ignore_errors=True)
    (folder / _DONE).unlink(missing_ok=True)
    return made


def parts_of(source: Path) -> list[Path]:
    """Return the file itself, or all tables in a folder, by name."""
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise DataError(f"{source}: no such file or folder")
    if is_sharded(source):
        raise DataError(f"{source}: in shards already; privirec run --dataset {source} reads them")
    found = [path for path in sorted(source.iterdir()) if path.suffix.lower() in TABLES]
    if not found:
        raise DataError(f"{source}: holds no tables ({', '.join(TABLES)})")
    kinds = {path.suffix.lower() for path in found}
    if len(kinds) > 1:
        raise UsageError(f"{source}: holds tables of several kinds: {', '.join(sorted(kinds))}")
    return found


def _partition(
    parts: list[Path],
    place: Path,
    done: Path,
    n_partitions: int,
    options: TableOptions,
) -> None:
    """Append every row to the partition of its user, and collect the catalogue."""
    shutil.rmtree(place, ignore_errors=True)  # left by an interrupted first pass
    place.mkdir()
    item_ids = np.zeros(0, np.int64)
    users_are = "int64"
    with ExitStack() as stack:
        files = [
            stack.enter_context((place / f"{number:05d}").open("wb"))
            for number in range(n_partitions)
        ]
        for part in parts:
            for rows in read_pieces(part, options):
                users, items = rows.users, rows.items
                if not len(rows):
                    continue
                if users.dtype.kind == "U":
                    users_are = "str"
                seen = np.unique(items)
                kind = "str" if "U" in (seen.dtype.kind, item_ids.dtype.kind) else "int64"
                item_ids = np.union1d(_as(kind, item_ids), _as(kind, seen))
                partition = (user_hashes(users) % np.uint64(n_partitions)).astype(np.int64)
                order = np.argsort(partition, kind="stable")
                edges = np.searchsorted(partition[order], np.arange(n_partitions + 1))
                for number, file in enumerate(files):
                    chosen = order[edges[number] : edges[number + 1]]
                    if len(chosen):
                        np.save(file, users[chosen], allow_pickle=False)
                        np.save(file, items[chosen], allow_pickle=False)
    if not len(item_ids):
        raise DataError(f"{parts[0].parent}: no row has a rating of {options.min_rating:g} or more")
    np.save(place / "items.npy", item_ids, allow_pickle=False)
    sync(place)
    items_are = "str" if item_ids.dtype.kind == "U" else "int64"
    write_whole(done, json.dumps({"users": users_are, "items": items_are}).encode(), mode=0o644)


def _pieces_of(path: Path) -> Iterator[tuple[NDArray, NDArray]]:
    size = path.stat().st_size
    with path.open("rb") as file:
        while file.tell() < size:
            users = np.load(file, allow_pickle=False)
            yield users, np.load(file, allow_pickle=False)


def user_hashes(ids: NDArray) -> NDArray[np.uint64]:
    """Return one hash per id.

    A name that is a whole number has the hash of that number, because a piece of a table in which
    all ids are numbers cannot know that another piece has names.
    """
    if ids.dtype.kind in "iu":
        return mix(ids.astype(np.uint64))
    known, where = np.unique(ids, return_inverse=True)
    hashes = np.empty(len(known), np.uint64)
    for number, name in enumerate(known.tolist()):
        if name.isascii() and name.isdigit() and len(name) <= 18 and str(int(name)) == name:
            hashes[number] = mix(np.array([int(name)], np.uint64))[0]
        else:
            digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
            hashes[number] = int.from_bytes(digest, "little")
    return hashes[where.reshape(-1)]


def _as(kind: str, ids: NDArray) -> NDArray:
    return ids if ids.dtype.kind == np.dtype(kind).kind else ids.astype(kind)
