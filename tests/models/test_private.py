"""Tests of private models from central data: the promise, the noise source, the saved files."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from privirec import Interactions, PrivateRecommender, Recommender, UsageError, evaluate
from privirec.data import Dataset
from privirec.data.synthetic import synthetic
from privirec.federated.programs.protected import Protected, ProtectedSettings
from privirec.models.artifact import read_manifest
from privirec.privacy.explain import explained
from privirec.runtime.execute import execute
from privirec.runtime.local.simulation import Simulation


@pytest.fixture(scope="module")
def town() -> Dataset:
    return synthetic("synthetic:4000x120")


def test_it_keeps_its_promise_and_beats_popularity(town: Dataset) -> None:
    model = PrivateRecommender(epsilon=2.0, delta=1e-7).fit(town.train)
    assert 1.9 < model.epsilon_ <= 2.0
    assert model.delta_ == 1e-7
    assert all(entry.loss for entry in model.ledger_.entries if entry.entries)
    popular = evaluate(type(model)(epsilon=2.0, head=1, seed=0).fit(town.train), town).ndcg
    assert evaluate(model, town).ndcg > 1.2 * popular


def test_noise_is_fresh_unless_there_is_a_seed(small: Dataset) -> None:
    def degrees(**given: int) -> list[int]:
        model = PrivateRecommender(epsilon=4.0, **given).fit(small.train)
        return model.components.item_degrees.tolist()

    assert degrees() != degrees()
    assert degrees(seed=3) == degrees(seed=3) != degrees(seed=4)


def test_the_sums_are_those_of_the_program_with_one_client(small: Dataset) -> None:
    train = small.train
    program = Protected(ProtectedSettings(epsilon=4.0), train.n_users, train.n_items)
    expected, _ = execute(program.steps(), Simulation(train, 1, seed=5))
    found = PrivateRecommender(epsilon=4.0, seed=5).fit(train).components
    np.testing.assert_array_equal(found.item_degrees, expected.item_degrees)


def test_a_seed_voids_the_promise(small: Dataset, tmp_path: Path) -> None:
    model = PrivateRecommender(epsilon=1.0, seed=7).fit(small.train)
    assert math.isinf(model.epsilon_)
    model.save(tmp_path / "seeded")
    said = " ".join(explained(read_manifest(tmp_path / "seeded")[1]))
    assert "This is a simulation: the noise was drawn from a seed" in said


def test_what_is_saved_says_what_was_promised(small: Dataset, tmp_path: Path) -> None:
    model = PrivateRecommender(epsilon=3.0).fit(small.train)
    model.save(tmp_path / "model")
    loaded = Recommender.load(tmp_path / "model")
    np.testing.assert_array_equal(
        loaded.recommend(3, small.train)[0], model.recommend(3, small.train)[0]
    )
    manifest = read_manifest(tmp_path / "model")[1]
    assert "Promised to every person: epsilon 3 at delta 1e-06" in " ".join(explained(manifest))


def test_ids_and_duplicates_of_a_frame(small: Dataset) -> None:
    pandas = pytest.importorskip("pandas")
    rows, columns = small.train.matrix.nonzero()
    frame = pandas.DataFrame(
        {"user": [f"u{row}" for row in rows], "item": [f"i{column}" for column in columns]}
    )
    twice = pandas.concat([frame, frame])
    once, again = (
        PrivateRecommender(epsilon=8.0, seed=1).fit(given).components.item_degrees
        for given in (frame, twice)
    )
    np.testing.assert_array_equal(once, again)  # one person's influence stays bounded


def test_what_cannot_be_promised_is_refused(small: Dataset) -> None:
    for given in ({"epsilon": 0.0}, {"epsilon": -1.0}, {"delta": 0.0}, {"way": "magic"}):
        with pytest.raises(UsageError):
            PrivateRecommender(**given)
    with pytest.raises(UsageError, match="takes no weights"):
        PrivateRecommender().fit(small.train, weighted=True)
    with pytest.raises(UsageError, match="voids the promise"):
        PrivateRecommender().fit(small.train, seed=1)
    with pytest.raises(UsageError, match="nothing to learn from"):
        PrivateRecommender().fit(Interactions.from_matrix(np.zeros((3, 4), np.float32)))
    assert "expect" in PrivateRecommender(epsilon=1).outlook(100_000, 5_000)
