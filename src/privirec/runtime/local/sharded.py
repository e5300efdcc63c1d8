"""A simulation with one shard of users in memory at a time, and bit-identical sums.

Every contribution is a sum of integers over users. The total is therefore the sum of the shards'
totals, in any order. Noise is added once, to the sum of all shards.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp

from privirec.data.shards import ShardedDataset
from privirec.durable import sync
from privirec.errors import DataError
from privirec.federated import wire
from privirec.federated.contributions import Contribution, Histories
from privirec.privacy.ledger import Ledger
from privirec.runtime.local.client import streams_of, summed_stream

KEPT = "privirec/kept-sum/1"

OnShard = Callable[[str, int, int], None]
"""Called with the name of the sum, the number of shards done and the total number of shards."""


class Engine(Protocol):
    """A way to compute sums over shards: in this process, or on several machines."""

    def total(self, data: ShardedDataset, ask: Contribution, on_shard: OnShard | None) -> Any:
        """Return the sum over all shards without noise, and report each finished shard."""
        ...


class OneByOne:
    """Sums with one shard at a time in this process."""

    def total(self, data: ShardedDataset, ask: Contribution, on_shard: OnShard | None) -> Any:
        total: Any = None
        first = 0
        for number, train in enumerate(data.trains(), start=1):
            part = ask.total(Histories(train.matrix, first), [])
            first += train.n_users
            del train
            if total is None:
                total = part
            elif isinstance(part, np.ndarray):
                total += part
            else:
                total = total + part
            del part
            if on_shard:
                on_shard(ask.name, number, len(data))
        return total


class ShardedSimulation:
    """Sums over shards, with the noise of the clients that the users are assigned to."""

    def __init__(
        self,
        data: ShardedDataset,
        n_clients: int | None = None,
        seed: int | None = 0,
        *,
        noise_at_once: bool = False,
        work: Path | None = None,
        on_shard: OnShard | None = None,
        engine: Engine | None = None,
    ) -> None:
        """Set up sums over `data`, with `n_clients`, `seed` and `noise_at_once` as in `Simulation`.

        Finished sums are kept in the folder `work` and are not computed again.
        """
        self._data = data
        self._n_clients = n_clients
        self._seed = seed
        self.secret_noise = seed is None
        self._noise_at_once = noise_at_once
        self._kept = KeptSums(work) if work is not None else None
        self._on_shard = on_shard
        self._engine = engine or OneByOne()
        self._asked = 0

    @property
    def clients(self) -> int:
        return self._n_clients or self._data.n_users

    def sum(self, ask: Contribution, ledger: Ledger) -> Any:
        ledger.add_sum(ask)  # first, because it refuses a ring that is too narrow
        self._asked += 1
        if self._kept is None:
            return self._computed(ask)
        name = self._name_of(ask)
        total = self._kept.find(name)
        if total is None:
            total = self._computed(ask)
            self._kept.keep(name, total)
        return total

    def _computed(self, ask: Contribution) -> Any:
        total = self._engine.total(self._data, ask, self._on_shard)
        if ask.noise.largest:
            nobody = Histories(sp.csr_array((1, ask.n_items), dtype=np.float32))
            total = total + ask.total(nobody, self._streams(ask))
        return _canonical(total) if isinstance(total, sp.csr_array) else total

    def _streams(self, ask: Contribution) -> Any:
        n_users = self._data.n_users
        sum_of_run = self._seed, self._asked, ask.name
        if self._noise_at_once:
            return [summed_stream(n_users, self._n_clients or n_users, *sum_of_run)]
        return streams_of(n_users, self._n_clients, *sum_of_run)

    def _name_of(self, ask: Contribution) -> str:
        """Return a name with a digest of everything that the sum depends on."""
        about = [KEPT, self._data.fingerprint, self._asked]
        if ask.noise.largest:
            about += [self._seed, self._n_clients, self._noise_at_once]
        digest = hashlib.sha256(json.dumps(about).encode() + b"\0")
        digest.update(wire.encode(ask))
        return f"{ask.name}-{digest.hexdigest()[:32]}"


class KeptSums:
    """Finished sums in a folder; each file is complete or absent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{folder}: cannot be written: {error.strerror}") from None

    def find(self, name: str) -> Any:
        """Return the sum of this name, or None if it was not finished."""
        path = self._path(name)
        if not path.is_file():
            return None
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                if "total" in arrays:
                    return arrays["total"]
                parts = tuple(arrays[part] for part in ("data", "indices", "indptr"))
                return sp.csr_array(parts, shape=tuple(arrays["shape"].tolist()))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            raise DataError(f"{path}: not a sum; remove it, and it is computed again") from None

    def keep(self, name: str, total: Any) -> None:
        if isinstance(total, np.ndarray):
            arrays = {"total": total}
        else:
            shape = np.array(total.shape)
            arrays = {part: getattr(total, part) for part in ("data", "indices", "indptr")}
            arrays |= {"shape": shape}
        path = self._path(name)
        partial = path.with_name(f".{path.name}.part")
        try:
            with partial.open("wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
            sync(path.parent)
        except OSError as error:
            raise DataError(f"{path}: cannot be written: {error.strerror}") from None

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.npz"


def _canonical(matrix: sp.csr_array) -> sp.csr_array:
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix
