"""Tests of `privirec run` on shards: the model of a run in memory, a sample, and the device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from privirec.app.cli.every import app
from privirec.data import load_dataset
from privirec.data.shards import ShardedDataset
from privirec.data.synthetic import make_shards
from privirec.device import Device, Store, load_model
from privirec.errors import UsageError
from privirec.runtime.run import run
from privirec.runtime.run_shards import run_shards
from privirec.runtime.spec import OneProcess, RunSpec

METHODS: dict[str, dict[str, Any]] = {
    "protected": {},
    "privirec-k": {"rank": 8, "rounds": 2},
    "spectral": {"rank": 8, "columns": "2x8"},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ShardedDataset:
    folder = tmp_path_factory.mktemp("data") / "shards"
    return make_shards("synthetic:400x60", folder, users_per_shard=150)


@pytest.mark.parametrize("method", METHODS)
def test_shards_save_the_model_of_a_run_in_memory(
    data: ShardedDataset, method: str, tmp_path: Path
) -> None:
    spec = RunSpec.of(method, seed=3, **METHODS[method])
    sharded = run_shards(data, spec, sample=10**6, work=tmp_path / "w")
    whole = run(load_dataset(data.folder), spec)
    saved = [
        result.recommender.save(tmp_path / name, result.manifest()) / "model.safetensors"
        for name, result in (("sharded", sharded), ("whole", whole))
    ]
    assert saved[0].read_bytes() == saved[1].read_bytes()
    # For a sample of users, only the metrics that tables compare are printed.
    more = {f"{name}@20" for name in ("mrr", "hit_rate", "coverage", "novelty", "precision", "map")}
    same = whole.row.keys() - {"peak_rss_mb"} - more
    same = {name for name in same if not name.endswith("seconds")}
    assert {name: sharded.row[name] for name in same} == {name: whole.row[name] for name in same}
    assert sharded.row["evaluated_users"] == sharded.metrics.users == whole.metrics.users
    sample = run_shards(data, spec, sample=50, work=tmp_path / "w")
    assert sample.row["evaluated_users"] == 50
    assert 0 < sample.row["ndcg@20"] <= 1


def test_from_shards_to_the_device(data: ShardedDataset, tmp_path: Path) -> None:
    out, row = tmp_path / "model", tmp_path / "row.json"
    arguments = ["run", "--dataset", data.folder, "--method", "protected", "--sample", 40]
    arguments += ["--work", tmp_path / "w", "--save", out, "--json", row, "--threads", 1]
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    assert "40 users, drawn at random" in result.output
    assert json.loads(row.read_text())["evaluated_users"] == 40
    history = data.shard(0).train.matrix[[5]].indices
    with Store(tmp_path / "me.db", create=True) as store:
        store.add(("me", str(item)) for item in history.tolist())
        found = Device(store, load_model(out)).recommend("me", 5)
    assert len(found) == 5
    assert not {int(each.item) for each in found} & set(history.tolist())


def test_what_does_not_go_with_shards(data: ShardedDataset) -> None:
    with pytest.raises(UsageError, match="a method with clients computes on them"):
        run_shards(data, RunSpec.of())
    with pytest.raises(UsageError, match="the simulation only"):
        run_shards(data, RunSpec.of("protected"), process=OneProcess(runtime="in-process"))
    arguments = ["run", "--dataset", "synthetic:small", "--sample", "5"]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, UsageError)
