"""Tests of the commands for runs, tables, sweeps and costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privirec.data import Dataset, load_dataset
from privirec.errors import UsageError
from privirec.evaluation import evaluate
from privirec.experiments.cost import Sizes, byte_rows, formula_rows
from privirec.experiments.sweep import PRIVIREC, Sweep, reaches
from privirec.experiments.table import NDCG, table_rows
from privirec.extra.linkprop_multi import LinkPropMultiSettings
from privirec.federated.programs import (
    PROGRAMS,
    HeadGramSettings,
    Privirec,
    PrivirecK,
    PrivirecKSettings,
    PrivirecSettings,
    ProgramSettings,
    SpectralProgram,
    program_of,
)
from privirec.filters import SparseOperator
from privirec.models import GFCF, MODELS
from privirec.privacy.ledger import Ledger
from privirec.runtime.execute import execute
from privirec.runtime.federate import federate
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.run import run
from privirec.runtime.spec import RunSpec, computes


@pytest.fixture(scope="module")
def small() -> Dataset:
    return load_dataset("synthetic:small")


@pytest.mark.parametrize(
    "model", [name for name in MODELS if computes(Privirec, MODELS[name]().config)]
)
def test_simulation_scores_as_the_released_filters_do(small: Dataset, model: str) -> None:
    """Test that the factors used for speed in a simulation give the scores of the release."""
    kind = MODELS[model]
    config = kind(**({"rank": 32} if "rank" in kind.config_type.model_fields else {})).config
    settings = PrivirecSettings(**{"rank": 0} | config.needs)
    simulation = Simulation(small.train)
    program = program_of(settings, small.train.n_users, small.train.n_items)
    released, _ = execute(program.steps(), simulation)
    quick = simulation.with_factors(program, released)
    histories = small.train.matrix[:40]
    expected = kind(config).use(released).score(histories)
    found = kind(config).use(quick).score(histories)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        Privirec.preset("paper", rank=16),
        PrivirecK.preset("paper", rank=16, rounds=3),
        PrivirecSettings(rank=16),
        PrivirecSettings(rank=16, low_pass_from="server"),
        PrivirecSettings(rank=0, alpha=0.6),
        PrivirecKSettings(rank=24, ring_bits=24),
        PrivirecSettings(rank=0, alpha=0, left=0, right=0),
        HeadGramSettings(head=40),
        HeadGramSettings(head=1000),
        LinkPropMultiSettings(alpha=0.25, left=0.5, right=0.3, updates=2),
    ],
    ids=repr,
)
def test_planned_bytes_are_the_bytes_of_the_run(small: Dataset, settings: ProgramSettings) -> None:
    train = small.train
    program = program_of(settings, train.n_users, train.n_items)
    components, ledger = execute(program.steps(), Simulation(train))
    released = components.item_item
    entries = released.matrix.nnz if isinstance(released, SparseOperator) else None
    planned = Ledger.planned(program.outline(entries))
    for ours, theirs in zip(planned.entries, ledger.entries, strict=True):
        assert (ours.what, ours.entries, ours.ring_bits) == (
            theirs.what,
            theirs.entries,
            theirs.ring_bits,
        )
        assert ours.bytes_up_per_client == theirs.bytes_up_per_client
        assert ours.bytes_down_per_client == theirs.bytes_down_per_client


def test_costs_are_the_papers() -> None:
    sizes = Sizes(29_858, 40_981)
    millions = [round(row["floats_per_client"] / 1e6) for row in formula_rows(sizes)]
    assert millions == [1679, 246, 4534]
    rows = {row["method"]: row for row in byte_rows(sizes)}
    triangle = 4 * 40_981 * 40_982 // 2
    assert rows["PriviRec"]["bytes_up_per_client"] > triangle
    with_clients = rows["PriviRec"]["bytes_up_per_client"]
    alone = rows["PriviRec, S_k by the server"]["bytes_up_per_client"]
    assert with_clients - alone == 5 * 4 * 40_981 * 256
    paper = rows["PriviRec-k, paper"]
    assert (paper["rank"], paper["rounds"]) == (2000, 3)


@pytest.mark.parametrize("method", [Privirec.name, PrivirecK.name, SpectralProgram.name])
def test_costs_by_default_are_of_what_runs_by_default(small: Dataset, method: str) -> None:
    train = small.train
    kind = PROGRAMS[method]
    spec = RunSpec.of(method).resolved(small.name, train.n_items, train.n_users)
    settings: Any = spec.program
    sent = Ledger.planned(kind(settings, train.n_users, train.n_items).outline())
    rows = {row["method"]: row for row in byte_rows(Sizes(train.n_users, train.n_items))}
    assert rows[kind.title]["rank"] == settings.rank
    assert rows[kind.title]["bytes_up_per_client"] == sent.bytes_up
    assert rows[kind.title]["bytes_down_per_client"] == sent.bytes_down


def test_costs_have_what_secure_aggregation_adds() -> None:
    bare, added = (
        {row["method"]: row for row in byte_rows(Sizes(500, 300, 16, 16, aggregator=name))}
        for name in ("none", "secagg+")
    )
    for method, row in added.items():
        more = row["aggregation_bytes_up_per_client"]
        assert more > 10_000 > bare[method]["aggregation_bytes_up_per_client"] == 0
        assert row["bytes_up_per_client"] == bare[method]["bytes_up_per_client"]
        assert row["bytes_server_receives"] == 500 * (row["bytes_up_per_client"] + more)
    for users, items, words in ((2, 300, "too few"), (2**32, 300, "more than"), (9, 10**8, "")):
        refused = byte_rows(Sizes(users, items, 16, 16, aggregator="secagg+"))[0]
        assert words in refused["refused"]
        assert refused["aggregation_bytes_up_per_client"] is None


def test_table_has_three_rows_a_model_and_one_less_without_low_pass(small: Dataset) -> None:
    rows = list(table_rows(small, ["turbo-cf"]))
    assert [row["method"] for row in rows] == ["centralized", "privirec"]
    assert abs(rows[1]["central_difference"]) < 5e-5
    named = Dataset("gowalla", small.train, small.test)
    for model in ("ease", "linkprop", "linkprop-multi"):
        central, federated = table_rows(named, [model])
        assert central["method"] == "centralized"
        assert federated["method"] == (model if model == "linkprop-multi" else "privirec")
        assert central["paper_ndcg"] == NDCG["gowalla"][model][0]
        assert federated["paper_ndcg"] is None
        assert abs(federated["central_difference"]) < 5e-5
    tiny = Dataset("tiny", small.train, small.test)
    specs = [RunSpec.of(method, rank=16) for method in ("centralized", "privirec", "privirec-k")]
    central, whole, low_rank = (run(tiny, spec).row for spec in specs)
    assert whole["multiplications"] == 5
    assert whole["ndcg@20"] > central["ndcg@20"] - 0.02
    assert low_rank["bytes_up_per_client"] < whole["bytes_up_per_client"]


@pytest.mark.parametrize("rounds", [2, 3])
def test_sweep_points_are_runs_of_their_own(small: Dataset, tmp_path: Path, rounds: int) -> None:
    """Test that the nested evaluation equals a separate run at that k and L."""
    points = Sweep(small, tmp_path, [16, 32, 48], [2, 3]).run()
    settings = PrivirecK.preset("paper", rank=32, rounds=rounds)
    train = small.train
    components, _ = execute(
        program_of(settings, train.n_users, train.n_items).steps(), Simulation(train)
    )
    alone = evaluate(GFCF(rank=32).use(components), small)
    (point,) = (p for p in points if (p["rounds"], p["rank"]) == (rounds, 32))
    assert point["ndcg@20"] == pytest.approx(alone.ndcg, abs=2e-3)
    assert point["recall@20"] == pytest.approx(alone.recall, abs=2e-3)
    target, least = reaches(points, rounds)
    assert target == next(
        p["ndcg@20"] for p in points if (p["rounds"], p["rank"]) == (rounds, PRIVIREC)
    )
    assert least is None or least in (16, 32, 48)


def test_sweep_reads_finished_points_instead_of_measuring(small: Dataset, tmp_path: Path) -> None:
    first = Sweep(small, tmp_path, [16], [2]).run()
    again = Sweep(small, tmp_path, [16], [2])
    assert not again.missing(2)
    assert again.run() == first
    assert Sweep(small, tmp_path, [16, 32], [2]).missing(2) == [32]
    assert Sweep(small, tmp_path, [16], [2], seed=1).missing(2) == [PRIVIREC, 16]


def test_sweep_does_not_mix_or_lose_points(small: Dataset, tmp_path: Path) -> None:
    first = Sweep(small, tmp_path, [8], [2]).run()
    Sweep(small, tmp_path, [8], [2], seed=1).run()
    assert Sweep(small, tmp_path, [8], [2]).run() == first
    # PriviRec's level does not depend on the ranks of the sweep.
    wider = Sweep(small, tmp_path / "other", [8, 64], [2]).run()
    assert [p for p in wider if p["rank"] in (PRIVIREC, 8)] == first
    changed = Dataset(small.name, small.train.rows(0, 100), small.test.rows(0, 100))
    fewer = Sweep(changed, tmp_path, [8], [2]).run()
    assert {row["fingerprint"] for row in fewer} != {row["fingerprint"] for row in first}
    assert Sweep(small, tmp_path, [8], [2]).run() == first


@pytest.mark.parametrize("model", ["turbo-cf", "linkprop", "gf-cf"])
def test_a_program_that_would_change_a_model_is_refused(small: Dataset, model: str) -> None:
    with pytest.raises(UsageError, match="linkprop-multi does not compute what"):
        run(small, RunSpec.of("linkprop-multi", model=model))


def test_bits_are_not_compared_where_noise_stays_in_the_sums(small: Dataset) -> None:
    spec = RunSpec.of("privirec-k", aggregator="correlated-noise")
    with pytest.raises(UsageError, match="leaves noise in its sums"):
        federate(small, spec, 3, check=True)
