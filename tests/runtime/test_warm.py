"""Tests of `privirec run --after`: a run that starts from an earlier model."""

from __future__ import annotations

from pathlib import Path

import pytest

from privirec.data import Dataset
from privirec.errors import UsageError
from privirec.federated.programs import SpectralSettings, program_of
from privirec.runtime.run import run
from privirec.runtime.spec import OneProcess, RunSpec


def test_a_run_begins_with_a_saved_model(small: Dataset, tmp_path: Path) -> None:
    first = run(small, RunSpec.of("spectral", rank=16, columns="6x8", threads=1))
    first.recommender.save(tmp_path / "monday", first.manifest())
    spec = RunSpec.of("spectral", rank=16, threads=1)
    again = run(small, spec, process=OneProcess(after=tmp_path / "monday"))
    assert again.row["rounds"] == 1
    assert again.row["sums"] == 3
    assert again.row["ndcg@20"] == pytest.approx(first.row["ndcg@20"], abs=0.01)
    assert again.row["bytes_up_per_client"] < 0.5 * first.row["bytes_up_per_client"]


def test_only_spectral_begins_with_a_model_and_only_with_its_own(
    small: Dataset, tmp_path: Path
) -> None:
    other = run(small, RunSpec.of(model="gf-cf", rank=8, threads=1))
    other.recommender.save(tmp_path / "other", other.manifest())
    process = OneProcess(after=tmp_path / "other")
    with pytest.raises(UsageError, match="privirec-k does not go on from an earlier model"):
        run(small, RunSpec.of("privirec-k", rank=8), process=process)
    with pytest.raises(UsageError, match="only a model of spectral has a basis"):
        run(small, RunSpec.of("spectral", rank=8, threads=1), process=process)


def test_a_warm_round_of_a_preset_is_one_round_in_a_ring_that_is_wide_enough() -> None:
    """Test the ring: the preset has eight rounds of ten bits, too few for a single round."""
    spec = RunSpec.of("spectral", preset="gowalla-60mb")
    items = 40_981
    settings = spec.in_one_round().resolved("gowalla", items, 29_858).program
    assert isinstance(settings, SpectralSettings)
    program = program_of(settings, 29_858, items)
    assert program.describe()["rounds"] == 1
    assert program.describe()["columns"] == 571 + 82
    assert settings.ring_bits == 12
    chosen = spec.changed(columns="2x300", ring_bits=14)
    settings = chosen.in_one_round().resolved("gowalla", items, 29_858).program
    assert isinstance(settings, SpectralSettings)
    assert settings.ring_bits == 14
    assert program_of(settings, 29_858, items).describe()["rounds"] == 2
