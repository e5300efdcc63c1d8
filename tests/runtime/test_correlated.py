"""Tests of programs over averaging with correlated noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from privirec.app.cli.every import app
from privirec.data import load_dataset
from privirec.federated.contributions import Contribution
from privirec.federated.programs import PrivirecKSettings, PrivirecSettings, program_of
from privirec.models.artifact import read_manifest
from privirec.privacy.ledger import Ledger
from privirec.runtime.execute import execute
from privirec.runtime.local.client import clients_of
from privirec.runtime.local.in_process import InProcess
from privirec.runtime.local.secure import DropOuts, SecureInProcess


class Compared:
    """A runtime that sums with and without noise, and gives the program the noisy sum."""

    def __init__(self, noisy: SecureInProcess, clients: list[Any], gone: set[int]) -> None:
        self._noisy = noisy
        self._exact = InProcess([one for place, one in enumerate(clients) if place not in gone])
        self.ratios: dict[str, float] = {}

    def sum(self, ask: Contribution, ledger: Ledger) -> Any:
        noisy, exact = self._noisy.sum(ask, ledger), self._exact.sum(ask, Ledger())
        deviation = ledger.entries[-1].residual_deviation * 2.0**ask.encoding.fraction_bits
        error = noisy - exact
        values = error.toarray() if hasattr(error, "toarray") else error
        self.ratios[ask.name] = float(values.std() / deviation)
        return noisy


@pytest.mark.parametrize("gone", [set(), {3, 17}], ids=["nobody drops", "two drop"])
@pytest.mark.parametrize(
    "settings",
    [PrivirecKSettings(rank=8, rounds=2), PrivirecSettings(rank=4, rounds=2)],
    ids=["privirec-k", "privirec"],
)
def test_totals_are_the_simulations_within_the_stated_error(
    settings: PrivirecKSettings | PrivirecSettings, gone: set[int]
) -> None:
    train = load_dataset("synthetic:small").train.rows(0, 60)
    clients = clients_of(train)
    program = program_of(settings, train.n_users, train.n_items)
    noisy = SecureInProcess(
        clients, program.sums(), "correlated-noise", dropouts=DropOuts(at_sums={1: {"input": gone}})
    )
    runtime = Compared(noisy, clients, gone)
    components, _ = execute(program.steps(), runtime)
    assert len(noisy.survivors) == 60 - len(gone)
    assert components.item_degrees.min() >= 0
    assert components.item_degrees.max() <= 60
    for name, ratio in runtime.ratios.items():
        if name == "item-degrees":
            assert ratio <= 1.1  # counts: less than stated, because they are clipped
        else:
            assert 0.9 < ratio < 1.1, name


def test_the_command_line(tmp_path: Path) -> None:
    """Test that the model is close to the exact one, and that the ledger states the error of
    sums."""
    asked = ["run", "--dataset", "synthetic:small", "--method", "privirec-k", "--rank", "16"]
    scores = []
    for name, options in (
        ("simulated", []),
        ("summed", ["--runtime", "in-process", "--aggregator", "correlated-noise"]),
    ):
        result = CliRunner().invoke(app, [*asked, *options, "--save", str(tmp_path / name)])
        assert result.exit_code == 0, result.output
        _, manifest = read_manifest(tmp_path / name)
        scores.append(manifest["run"]["ndcg@20"])
        left = [row["residual_deviation"] for row in manifest["ledger"] if row["entries"]]
        assert all((deviation > 0) == (name == "summed") for deviation in left)
    assert abs(scores[0] - scores[1]) < 0.02
