"""Tests of a simulation over shards: the bits of a run in memory, and resumed computation."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_runtimes import PROGRAMS as EXACT
from test_runtimes import a_model

from privirec.data import Interactions
from privirec.data.shards import ShardedDataset, write_shards
from privirec.data.synthetic import make_shards
from privirec.errors import DataError
from privirec.federated.contributions import Contribution, ItemDegrees
from privirec.federated.programs import ProgramSettings, ProtectedSettings, program_of
from privirec.filters import Components
from privirec.models import MODELS
from privirec.privacy.ledger import Ledger
from privirec.runtime.execute import Runtime, execute
from privirec.runtime.local.sharded import ShardedSimulation
from privirec.runtime.local.simulation import Simulation

PROGRAMS: dict[str, ProgramSettings] = EXACT | {
    "protected, gram": ProtectedSettings(way="gram", head=5),
    "protected, power": ProtectedSettings(way="power", head=6, columns=3),
}


def run(train: Any, wanted: ProgramSettings, runtime: Runtime) -> tuple[Components, Ledger]:
    return execute(program_of(wanted, train.n_users, train.n_items).steps(), runtime)


def in_shards(train: Interactions, folder: Path, per_shard: int) -> ShardedDataset:
    """Write all interactions to shards as training data."""
    return write_shards(
        folder,
        "train",
        None,
        -(-train.n_users // per_shard),
        lambda number: train.rows(number * per_shard, (number + 1) * per_shard),
        made_from={},
        n_items=train.n_items,
        test=0.0,
    )


def saved(components: Components, folder: Path) -> bytes:
    protected = components.normalisation == MODELS["denoised"]().config.normalisation
    model = MODELS["denoised"]().use(components) if protected else a_model(components)
    return (model.save(folder) / "model.safetensors").read_bytes()


@settings(max_examples=20)
@given(
    st.integers(0, 2**32),
    st.sampled_from(sorted(PROGRAMS)),
    st.integers(2, 12),
    st.integers(6, 12),
    st.integers(1, 12),
    st.booleans(),
)
def test_shards_give_the_bits_of_everything_at_once(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    name: str,
    n_users: int,
    n_items: int,
    per_shard: int,
    at_once: bool,
) -> None:
    rng = np.random.default_rng(seed)
    touched = rng.random((n_users, n_items)) < rng.choice([0.1, 0.4, 0.9])
    train = Interactions.from_matrix(touched.astype(np.float32))
    folder = tmp_path_factory.mktemp("s")
    data = in_shards(train, folder / "shards", per_shard)
    wanted = PROGRAMS[name]
    noise: dict[str, Any] = {"seed": seed, "noise_at_once": at_once}
    whole, whole_ledger = run(train, wanted, Simulation(train, **noise))
    sharded, ledger = run(data, wanted, ShardedSimulation(data, work=folder / "w", **noise))
    assert ledger.as_rows() == whole_ledger.as_rows()
    expected = saved(whole, folder / "a")
    assert saved(sharded, folder / "b") == expected
    # Run again from the stored sums: nothing is computed.
    kept = ShardedSimulation(data, work=folder / "w", on_shard=_refuse, **noise)
    assert saved(run(data, wanted, kept)[0], folder / "c") == expected


def _refuse(name: str, done: int, total: int) -> None:
    raise AssertionError(f"{name} is computed again")


def test_what_is_kept_belongs_to_one_question(tmp_path: Path) -> None:
    """Test that other data, another request or another noise seed has its own stored sum."""
    first, second = (
        make_shards("synthetic:30x9", tmp_path / str(seed), seed, users_per_shard=8)
        for seed in (1, 2)
    )
    wanted = ProtectedSettings(way="gram", head=4)

    def popularity(data: ShardedDataset, **given: Any) -> Any:
        runtime = ShardedSimulation(data, work=tmp_path / "w", **given)
        ask = next(program_of(wanted, 30, 9).steps())
        assert isinstance(ask, Contribution)
        return runtime.sum(ask, Ledger()).tolist()

    sums = [
        popularity(first),
        popularity(second),
        popularity(first, seed=1),
        popularity(first, n_clients=3),
        popularity(first, noise_at_once=True),
    ]
    assert len({tuple(each) for each in sums}) == 5
    degrees = ShardedSimulation(first, work=tmp_path / "w").sum(ItemDegrees(9, 30), Ledger())
    np.testing.assert_array_equal(degrees, first.at_once().train.item_degrees)
    assert len(list((tmp_path / "w").glob("*.npz"))) == 6


def test_a_damaged_kept_sum_is_refused(tmp_path: Path) -> None:
    data = make_shards("synthetic:30x9", tmp_path / "d", users_per_shard=8)
    ask = ItemDegrees(9, 30)
    ShardedSimulation(data, work=tmp_path / "w").sum(ask, Ledger())
    (path,) = (tmp_path / "w").glob("*.npz")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="remove it, and it is computed again"):
        ShardedSimulation(data, work=tmp_path / "w").sum(ask, Ledger())


WORKER = """
import sys
from pathlib import Path
from privirec import threads
from privirec.data.shards import ShardedDataset
from privirec.federated.programs import PrivirecKSettings, program_of
from privirec.models import GFCF
from privirec.runtime.execute import execute
from privirec.runtime.local.sharded import ShardedSimulation

def say(name, done, total):
    print(name, done, flush=True)
    if sys.argv[4:]:
        sys.stdin.readline()

data, work, out = map(Path, sys.argv[1:4])
shards = ShardedDataset(data)
program = program_of(PrivirecKSettings(rank=4, rounds=2), shards.n_users, shards.n_items)
with threads.limit(1):
    runtime = ShardedSimulation(shards, work=work, on_shard=say)
    components, _ = execute(program.steps(), runtime)
    GFCF(rank=4).use(components, shards.item_ids).save(out)
"""


@pytest.mark.check
def test_a_killed_run_goes_on_with_the_next_sum(tmp_path: Path) -> None:
    make_shards("synthetic:60x20", tmp_path / "d", users_per_shard=25)
    command = [sys.executable, "-c", WORKER, *(str(tmp_path / part) for part in ("d", "w"))]
    child = subprocess.Popen(
        [*command, str(tmp_path / "killed"), "step by step"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stdin is not None
        for expected in ("item-degrees 1", "item-degrees 2", "item-degrees 3", "seeded-step 1"):
            assert child.stdout.readline().strip() == expected
            if expected != "seeded-step 1":
                print(file=child.stdin, flush=True)
        os.kill(child.pid, signal.SIGKILL)
    assert not (tmp_path / "killed").exists()
    again = subprocess.run(
        [*command, str(tmp_path / "out")], capture_output=True, text=True, check=True
    )
    assert again.stdout.split("\n")[0] == "seeded-step 1"  # the degrees were finished
    command[-1] = str(tmp_path / "fresh")
    subprocess.run([*command, str(tmp_path / "whole")], capture_output=True, check=True)
    model = "model.safetensors"
    assert (tmp_path / "out" / model).read_bytes() == (tmp_path / "whole" / model).read_bytes()
