"""Tests of sums over shards on Dask: real workers, the same bits, and a worker that is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import scipy.sparse as sp

from privirec.data.shards import ShardedDataset
from privirec.data.synthetic import make_shards
from privirec.errors import UsageError
from privirec.extra.dask_engine import DaskEngine
from privirec.federated.contributions import ItemDegrees, ItemItem
from privirec.runtime.local.sharded import OneByOne
from privirec.runtime.run_shards import engine_named, run_shards
from privirec.runtime.spec import RunSpec

distributed = pytest.importorskip("distributed", reason="Dask is not installed")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ShardedDataset:
    folder = tmp_path_factory.mktemp("data") / "shards"
    return make_shards("synthetic:400x60", folder, users_per_shard=60)


@pytest.fixture(scope="module")
def cluster() -> Iterator[object]:
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
    ) as started:
        yield started


@pytest.mark.check
def test_cluster_saves_the_model_of_one_process(
    data: ShardedDataset, cluster: object, tmp_path: Path
) -> None:
    address = cluster.scheduler_address  # type: ignore[attr-defined]
    for method, settings in (("privirec-k", {"rank": 8, "rounds": 2}), ("protected", {})):
        spec = RunSpec.of(method, **settings)
        saved = []
        for name, engine in (("alone", None), ("cluster", address)):
            found = run_shards(data, spec, sample=50, engine=engine)
            folder = found.recommender.save(tmp_path / f"{method}-{name}", found.manifest())
            saved.append((folder / "model.safetensors").read_bytes())
        assert saved[0] == saved[1]


@pytest.mark.check
def test_killed_worker_changes_no_sum(data: ShardedDataset, cluster: object) -> None:
    killed: list[int] = []
    with distributed.Client(cluster) as client:

        def kill_one(_name: str, _done: int, _total: int) -> None:
            if not killed:
                killed.append(next(iter(client.run(os.getpid).values())))
                os.kill(killed[0], signal.SIGKILL)

        ask = ItemItem(60, 400)
        total = DaskEngine(client).total(data, ask, kill_one)
        assert killed
        expected = OneByOne().total(data, ask, None)
        assert (sp.csr_array(total) != sp.csr_array(expected)).nnz == 0
        degrees = ItemDegrees(60, 400)
        found = DaskEngine(client).total(data, degrees, None)
        assert (found == OneByOne().total(data, degrees, None)).all()


def test_unknown_engine_is_refused_with_the_names_of_others() -> None:
    expected = r"no engine 'spark'; there are .*tcp://"
    with pytest.raises(UsageError, match=expected), engine_named("spark", None):
        pass
