"""Tests of runs by two servers: the bits of the simulation, noise, limits and options."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privirec.data import Dataset
from privirec.data.splits import at_most
from privirec.errors import UsageError
from privirec.runtime.run import Result, run
from privirec.runtime.spec import MOST_ITEMS, OneProcess, RunSpec

SETTINGS = {
    "privirec": {"model": "turbo-cf"},
    "privirec-k": {"rank": 8, "model": "gf-cf"},
    "spectral": {"rank": 6, "columns": "2x4"},
    "protected": {"epsilon": 8.0, "way": "power", "head": 30, "columns": 4, "pairs_share": 0.2},
}


@pytest.fixture(scope="module")
def few(small: Dataset) -> Dataset:
    """Return a data set of 24 people."""
    return replace(small, train=small.train.rows(0, 24), test=small.test.rows(0, 24))


def result(few: Dataset, method: str, runtime: str, **process: object) -> Result:
    spec = RunSpec.of(method, aggregator="two-server", **SETTINGS[method])
    return run(few, spec, process=OneProcess(runtime=runtime, **process))


def same_bits(one: Result, other: Result) -> bool:
    """Return True if both models are saved as the same bytes."""
    with tempfile.TemporaryDirectory() as folder:
        saved = []
        for number, found in enumerate((one, other)):
            found.recommender.save(Path(folder) / str(number))
            saved.append((Path(folder) / str(number) / "model.safetensors").read_bytes())
    return saved[0] == saved[1]


@pytest.mark.parametrize("method", SETTINGS)
def test_two_servers_give_the_bits_of_the_simulation(few: Dataset, method: str) -> None:
    simulated = result(few, method, "simulation", most_items=12)
    real = result(few, method, "in-process", most_items=12)
    assert same_bits(simulated, real)
    assert real.row["aggregator"] == simulated.row["aggregator"] == "two-server"


def test_silos_send_dense_reports(few: Dataset) -> None:
    real = result(few, "privirec-k", "in-process", clients=4)
    spec = RunSpec.of("privirec-k", **SETTINGS["privirec-k"])
    assert same_bits(real, run(few, spec))
    assert real.ledger is not None
    for entry in real.ledger.entries:
        packed = -(-entry.entries * entry.ring_bits // 8)
        assert entry.bytes_up_per_client == (packed + 281 if entry.entries else 0)


def test_limit_of_items_is_that_of_every_runtime(few: Dataset) -> None:
    limited = at_most(few.train, 5)
    assert limited.user_degrees.max() == 5
    assert limited.n_users == few.train.n_users
    kept = limited.matrix.toarray().astype(bool)
    assert not (kept & ~few.train.matrix.toarray().astype(bool)).any()
    assert (limited.user_degrees == np.minimum(few.train.user_degrees, 5)).all()


def test_a_limit_is_the_default_for_one_person_per_client() -> None:
    spec = RunSpec.of("privirec", aggregator="two-server")
    assert OneProcess().limit_of(spec) == MOST_ITEMS
    assert OneProcess(clients=5).limit_of(spec) is None
    assert OneProcess().limit_of(RunSpec.of("privirec")) is None


def test_each_server_adds_all_of_the_noise(few: Dataset) -> None:
    spec = RunSpec.of("protected", aggregator="two-server").resolved("few", few.train.n_items, 24)
    assert (spec.program.clients, spec.program.contributors) == (2, 1)


def test_drop_outs_do_not_go_with_two_servers(few: Dataset) -> None:
    with pytest.raises(UsageError, match="drop-outs need secure aggregation"):
        result(few, "privirec", "in-process", drop_share=0.1)
