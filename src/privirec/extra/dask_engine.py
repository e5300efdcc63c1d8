"""Sums over shards on Dask: a map over shards, then a tree of additions of integers.

Workers read the shards themselves, from a folder that they see under the same path. A worker that
dies loses nothing: Dask computes its shards again on another one.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from privirec import threads
from privirec.compiled import Later
from privirec.data.shards import ShardedDataset
from privirec.errors import FederationError, UsageError
from privirec.federated import wire
from privirec.federated.contributions import Contribution, Histories
from privirec.runtime.local.sharded import OnShard

distributed = Later("distributed")

HERE = "dask"
"""The engine that starts workers on this machine."""


class DaskEngine:
    """Sums over shards by the workers of a Dask client."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def total(self, data: ShardedDataset, ask: Contribution, on_shard: OnShard | None) -> Any:
        """Return the sum over all shards without noise."""
        encoded = wire.encode(ask)
        folder = str(data.folder.resolve())
        asked = self._client.scatter(encoded, broadcast=True)
        name = f"{ask.name}-{hashlib.sha256(folder.encode() + encoded).hexdigest()[:16]}"
        parts = [
            self._client.submit(shard_total, folder, number, asked, key=f"{name}-{number}")
            for number in range(len(data))
        ]
        whole = list(parts)
        while len(whole) > 1:
            pairs = zip(whole[::2], whole[1::2], strict=False)
            odd = whole[len(whole) // 2 * 2 :]
            whole = [self._client.submit(_added, one, other) for one, other in pairs] + odd
        if on_shard:
            for done, _ in enumerate(distributed.as_completed(parts), start=1):
                on_shard(ask.name, done, len(data))
        del parts
        try:
            return whole[0].result()
        except OSError as error:
            raise FederationError(f"the workers cannot be reached: {error}") from None


def shard_total(folder: str, number: int, encoded: bytes) -> Any:
    """Return the sum of a contribution over the users of one shard; a worker calls it."""
    data, ask = _opened(folder), wire.decode(encoded)
    with threads.limit(1):
        return ask.total(Histories(data.shard(number).train.matrix, data.first_user(number)), [])


@lru_cache(maxsize=4)
def _opened(folder: str) -> ShardedDataset:
    return ShardedDataset(Path(folder))


def _added(one: Any, other: Any) -> Any:
    return one + other


@contextmanager
def opened(address: str, workers: int | None) -> Iterator[DaskEngine]:
    """Open the engine `dask`, with workers on this machine, or that of a cluster's address."""
    try:
        client_of, cluster_of = distributed.Client, distributed.LocalCluster
    except ImportError:
        needed = "pip install 'distributed>=2024.8'"
        raise UsageError(f"--engine {address} needs Dask: {needed}") from None
    if address != HERE:
        try:
            client = client_of(address, timeout="10s")
        except (OSError, ValueError) as error:
            raise UsageError(f"--engine {address}: no scheduler answers there ({error})") from None
        with client:
            yield DaskEngine(client)
        return
    quiet = logging.CRITICAL
    with (
        cluster_of(
            n_workers=workers or threads.available(),
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=None,
            silence_logs=quiet,
        ) as cluster,
        client_of(cluster) as client,
    ):
        yield DaskEngine(client)
