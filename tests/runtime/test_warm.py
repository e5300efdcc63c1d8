"""Tests of `privirec run --warm`: a run that starts from an earlier model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from privirec.data import Dataset
from privirec.errors import UsageError
from privirec.federated.programs import program_of
from privirec.runtime.plan import Plan
from privirec.runtime.run import run


def test_a_run_begins_with_a_saved_model(small: Dataset, tmp_path: Path) -> None:
    first = run(small, Plan(method="spectral", rank=16, federated={"columns": "6x8"}, threads=1))
    first.recommender.save(tmp_path / "monday", first.manifest())
    again = run(small, Plan(method="spectral", rank=16, warm=tmp_path / "monday", threads=1))
    assert again.row["rounds"] == 1
    assert again.row["sums"] == 3
    assert again.row["ndcg@20"] == pytest.approx(first.row["ndcg@20"], abs=0.01)
    assert again.row["bytes_up_per_client"] < 0.5 * first.row["bytes_up_per_client"]


def test_only_spectral_begins_with_a_model_and_only_with_its_own(
    small: Dataset, tmp_path: Path
) -> None:
    other = run(small, Plan(model="gf-cf", rank=8, threads=1))
    other.recommender.save(tmp_path / "other", other.manifest())
    with pytest.raises(UsageError, match="privirec-k does not begin with an earlier model"):
        run(small, Plan(method="privirec-k", rank=8, warm=tmp_path / "other"))
    with pytest.raises(UsageError, match="only a model of spectral has a basis"):
        run(small, Plan(method="spectral", rank=8, warm=tmp_path / "other", threads=1))


def test_a_warm_round_of_a_preset_is_one_round_in_a_ring_that_is_wide_enough() -> None:
    """Test the ring: the preset has eight rounds of ten bits, too few for a single round."""
    plan = Plan(method="spectral", preset="gowalla-60mb", warm=Path("monday"))
    items = 40_981
    settings = plan.settings(plan.recommender("gowalla", items), items, 29_858)
    program = program_of(settings, 29_858, items)
    assert program.describe()["rounds"] == 1
    assert program.describe()["columns"] == 571 + 82
    assert settings.ring_bits == 12
    chosen = replace(plan, federated={"columns": "2x300", "ring_bits": 14})
    settings = chosen.settings(chosen.recommender("gowalla", items), items, 29_858)
    assert settings.ring_bits == 14
    assert program_of(settings, 29_858, items).describe()["rounds"] == 2
