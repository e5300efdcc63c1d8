"""Tests of private models from central data: the promise, the noise source, the saved files."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from privirec import (
    GFCF,
    Denoised,
    Interactions,
    PrivacyWarning,
    PrivateRecommender,
    Recommender,
    UsageError,
    evaluate,
)
from privirec.data import Dataset
from privirec.data.synthetic import synthetic
from privirec.federated.contributions import Histories
from privirec.federated.programs import Privirec, program_of
from privirec.federated.programs.protected import Protected, ProtectedSettings
from privirec.federated.randomness import ClientRandomness
from privirec.filters import centralized
from privirec.models.artifact import read_manifest
from privirec.privacy.explain import explained
from privirec.runtime.execute import execute
from privirec.runtime.local.client import LocalClient, clients_of
from privirec.runtime.local.in_process import InProcess
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


def test_a_simulated_federation_has_the_sums_of_its_clients(small: Dataset) -> None:
    """Test that users dealt evenly give the bits of clients of any sizes, with all their noise."""
    model = PrivateRecommender(epsilon=4.0, seed=3)
    parts = [small.train.rows(0, 30), small.train.rows(30, 190), small.train.rows(190, 200)]
    clients = [
        LocalClient(Histories(part.matrix, first), ClientRandomness.insecure(3, number))
        for number, (part, first) in enumerate(zip(parts, (0, 30, 190), strict=True))
    ]
    program = model._program(200, small.train.n_items, 3)
    assert (program.settings.clients, program.settings.contributors) == (3, 2)
    one_by_one, _ = execute(program.steps(), InProcess(clients))
    dealt, _ = execute(program.steps(), Simulation(small.train, 3, 3))
    np.testing.assert_array_equal(one_by_one.item_degrees, dealt.item_degrees)
    at_once, _ = execute(program.steps(), Simulation(small.train, 3, 3, noise_at_once=True))
    found = model.federated_fit(parts)
    np.testing.assert_array_equal(found.components.item_degrees, at_once.item_degrees)


def test_a_federation_of_everybody_promises_and_costs_accuracy(town: Dataset) -> None:
    model = PrivateRecommender(epsilon=4.0).federated_fit(town.train)
    assert 3.9 < model.epsilon_ <= 4.0
    alone = PrivateRecommender(epsilon=4.0).fit(town.train)
    assert model.ledger_.entries[0].noise.largest > alone.ledger_.entries[0].noise.largest


def test_clients_with_other_items_are_joined(small: Dataset) -> None:
    shops = [
        Interactions.from_pairs(["ann", "bob"], ["tea", "milk"]),
        Interactions.from_pairs(["ann", "eve"], ["tea", "bread"]),
    ]
    model = PrivateRecommender(epsilon=8.0).federated_fit(shops)
    assert np.asarray(model.item_ids).tolist() == ["bread", "milk", "tea"]
    with pytest.raises(UsageError, match="no clients"):
        PrivateRecommender().federated_fit([])
    with pytest.raises(UsageError, match="make all ids text"):
        PrivateRecommender().federated_fit([shops[0], small.train])


def test_more_clients_than_the_noise_is_made_for_are_refused_at_once(small: Dataset) -> None:
    program = Protected(ProtectedSettings(epsilon=1), 200, small.train.n_items)
    with pytest.raises(UsageError, match=r"200 clients .* made for 1: set clients=200 and contrib"):
        execute(program.steps(), InProcess(clients_of(small.train)))


def test_components_say_where_they_come_from(small: Dataset, tmp_path: Path) -> None:
    train = small.train

    def said(model: Recommender, name: str) -> str:
        model.save(tmp_path / name)
        return " ".join(explained(read_manifest(tmp_path / name)[1]))

    with pytest.warns(PrivacyWarning, match="computed on one machine from all histories"):
        assert "histories in one place, exactly" in said(GFCF(rank=4).fit(train), "central")
    exact = program_of(Privirec.settings_from({}, {"rank": 4}), train.n_users, train.n_items)
    components, _ = execute(exact.steps(), Simulation(train))
    with pytest.warns(PrivacyWarning, match="made from exact sums"):
        assert "Promised: nothing. These sums are exact" in said(
            GFCF(rank=4).use(components), "exact"
        )
    noisy = Protected(ProtectedSettings(epsilon=2), train.n_users, train.n_items)
    for seed, words in ((0, "drawn from a seed"), (None, "Promised to every person: epsilon 2")):
        components, _ = execute(noisy.steps(), Simulation(train, 1, seed))
        assert words in said(Denoised().use(components), f"noisy-{seed}")
    with pytest.warns(PrivacyWarning, match="nobody said"):
        assert "does not say where" in said(GFCF(gamma=0).use(centralized(train)), "unknown")


def test_a_private_model_warns_of_nothing_and_keeps_its_origin(
    small: Dataset, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    PrivateRecommender(epsilon=3.0).fit(small.train).save(tmp_path / "once")
    Recommender.load(tmp_path / "once").save(tmp_path / "twice")
    first, second = (read_manifest(tmp_path / name)[1] for name in ("once", "twice"))
    released = first.pop("released")  # devices and copies do without these sums
    assert len(released) == 64
    assert first == second
    assert not recwarn.list
