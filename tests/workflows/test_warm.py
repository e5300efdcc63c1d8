"""`privirec run --warm`: a run that begins with an earlier model."""

from __future__ import annotations

from pathlib import Path

import pytest

from privirec.data import Dataset
from privirec.errors import UsageError
from privirec.workflows.plan import Plan
from privirec.workflows.run import run


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
