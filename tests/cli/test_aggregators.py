"""`privirec run` under every aggregator that gives exact sums saves the simulation's model."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from breadth import first
from privirec.app.cli.every import app
from privirec.secagg import protocol, protocol_names

EXACT = [name for name in protocol_names() if protocol(name).is_exact]


@pytest.mark.parametrize("aggregator", first(2, EXACT))
def test_the_model_is_that_of_the_simulation_bit_for_bit(tmp_path: Path, aggregator: str) -> None:
    asked = ["run", "--dataset", "synthetic:60x80", "--method", "privirec-k", "--rank", "8"]
    models = []
    for name, options in (
        ("simulated", ["--runtime", "simulation"]),
        ("summed", ["--runtime", "in-process", "--aggregator", aggregator]),
    ):
        result = CliRunner().invoke(app, [*asked, *options, "--save", str(tmp_path / name)])
        assert result.exit_code == 0, result.output
        models.append((tmp_path / name / "model.safetensors").read_bytes())
    assert models[0] == models[1]
