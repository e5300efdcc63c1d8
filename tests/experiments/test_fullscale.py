"""The published figures on the real data. Skips, visibly, without it."""

from __future__ import annotations

import os

import pytest

from privirec.data import Dataset, load_dataset
from privirec.experiments.audit import audit_privirec
from privirec.experiments.run import Plan, run

pytestmark = [
    pytest.mark.fullscale,
    pytest.mark.skipif("PRIVIREC_DATA" not in os.environ, reason="PRIVIREC_DATA is not set"),
]

# NDCG@20 with converged singular vectors and published settings.
CENTRALISED = {
    ("gowalla", "gf-cf"): 0.1518,
    ("gowalla", "turbo-cf"): 0.1513,
    ("gowalla", "bspm-em"): 0.1597,
    ("yelp2018", "gf-cf"): 0.0571,
}


@pytest.fixture(scope="module", params=["gowalla", "yelp2018"])
def dataset(request: pytest.FixtureRequest) -> Dataset:
    return load_dataset(request.param)


@pytest.mark.parametrize("model", ["gf-cf", "turbo-cf", "bspm-em"])
def test_the_tables_figures(dataset: Dataset, model: str) -> None:
    expected = CENTRALISED.get((dataset.name, model))
    if expected is None:
        pytest.skip(f"{model} on {dataset.name} takes minutes: privirec table measures it")
    central = run(dataset, Plan(model=model)).row["ndcg@20"]
    assert central == pytest.approx(expected, abs=0.0003)
    federated = run(dataset, Plan(model=model, method="privirec")).row["ndcg@20"]
    assert federated > central - 0.0012
    if model == "turbo-cf":
        assert federated == pytest.approx(central, abs=5e-5)


def test_every_history_comes_out_of_privirec(dataset: Dataset) -> None:
    row = audit_privirec(dataset)
    assert row["users_recovered"] == row["users"] == dataset.train.n_users
    assert row["users_wrong"] == 0
