"""Cuckoo hashing: which tree of a report holds a row, so that few trees carry a few of many rows.

Every row may be in one of three *buckets*, by public hashes. A bucket's tree has a leaf for each
row that may be in it. A client puts each of its rows into a bucket of its own; a row for which no
bucket is left is *cut*. The rows of a client alone decide that, so a simulation cuts the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from privirec.secagg.ring import Words
from privirec.secagg.two_server.point_function import Trees

HASHES = 3
SPARE_BUCKETS = 4
_KEY_BYTES = 32


def buckets_for(most_rows: int) -> int:
    """Return the number of buckets in which `most_rows` rows nearly always find a place."""
    return 5 * most_rows // 4 + SPARE_BUCKETS


@dataclass(frozen=True)
class Table:
    """Buckets of all rows of a sum, derived from public bytes."""

    rows: int
    buckets: int
    key: bytes
    """32 bytes that are different for each run, so that no rows are cut in all runs."""

    def __post_init__(self) -> None:
        if not (1 <= self.rows < 1 << 30 and 1 <= self.buckets < 1 << 20):
            raise ValueError(f"{self.rows} rows in {self.buckets} buckets")
        if len(self.key) != _KEY_BYTES:
            raise ValueError(f"the key of a table has {_KEY_BYTES} bytes")

    @cached_property
    def choices(self) -> NDArray[np.int64]:
        """Buckets of each row, of shape (rows, 3)."""
        stream = Cipher(algorithms.AES256(self.key), modes.CTR(bytes(16))).encryptor()
        words = np.frombuffer(stream.update(bytes(8 * HASHES * self.rows)), "<u8")
        return (words % np.uint64(self.buckets)).astype(np.int64).reshape(self.rows, HASHES)

    @cached_property
    def _held(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Buckets and rows of all leaves in use, in order, and the first leaf of each bucket."""
        named = np.unique(self.choices * self.rows + np.arange(self.rows)[:, None])
        bucket, row = named // self.rows, named % self.rows
        return bucket, row, np.searchsorted(bucket, np.arange(self.buckets))

    @cached_property
    def trees(self) -> Trees:
        """Sizes of the trees: as many leaves as the fullest bucket has rows."""
        bucket, _, _ = self._held
        return Trees(self.buckets, max(1, int(np.bincount(bucket).max())))

    def leaf(self, bucket: int, row: int) -> int:
        """Return the place of a row in one of its buckets."""
        _, rows, begins = self._held
        end = begins[bucket + 1] if bucket + 1 < self.buckets else len(rows)
        return int(np.searchsorted(rows[begins[bucket] : end], row))

    def place(self, rows: Sequence[int]) -> dict[int, int]:
        """Return a bucket for each of these rows, as far as there are buckets.

        Earlier rows are preferred: a later one may move them, but never takes their place.
        """
        taken: dict[int, int] = {}
        for row in rows:
            self._insert(int(row), taken)
        return {row: bucket for bucket, row in taken.items()}

    def _insert(self, row: int, taken: dict[int, int]) -> None:
        """Find buckets for one more row by a search in breadth; leave all as it is if none is."""
        came_from: dict[int, tuple[int, int | None]] = {}
        waiting: list[tuple[int, int | None]] = [(row, None)]
        for moved, bucket in waiting:
            for choice in self.choices[moved].tolist():
                if choice in came_from:
                    continue
                came_from[choice] = moved, bucket
                if choice in taken:
                    waiting.append((taken[choice], choice))
                    continue
                free: int | None = choice
                while free is not None:
                    taken[free], free = came_from[free]
                return

    def folded(self, leaves: Words) -> Words:
        """Return the sums of all leaves of each row, of shape (rows, entries)."""
        bucket, row, begins = self._held
        at = bucket * self.trees.leaves + np.arange(len(row)) - begins[bucket]
        order = np.argsort(row, kind="stable")
        found = np.zeros((self.rows, leaves.shape[1]), leaves.dtype)
        for nth in range(HASHES):
            # The nth leaf of each row that has so many: rows are distinct, so plain addition works.
            some = _nth_of_each(row[order], nth)
            found[row[order][some]] += leaves[at[order][some]]
        return found


def _nth_of_each(ascending: NDArray[np.int64], nth: int) -> NDArray[np.int64]:
    """Return the places of the values that are the nth of their kind, from 0."""
    first = np.searchsorted(ascending, ascending)
    return np.flatnonzero(np.arange(len(ascending)) - first == nth)
