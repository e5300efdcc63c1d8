"""Later runs of `protected`: they add to the sums that earlier runs released."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privirec.app.cli.server import _after
from privirec.data import Dataset, Interactions
from privirec.data.catalogue import Catalogue, write_catalogue
from privirec.errors import ArtifactError, UsageError
from privirec.evaluation import evaluate
from privirec.federated.dp.loss import Loss
from privirec.federated.programs import Protected, ProtectedSettings
from privirec.filters.components import Components
from privirec.filters.earlier import Earlier
from privirec.models.artifact import MANIFEST, RELEASED, canonical, read_manifest
from privirec.models.denoised import Denoised
from privirec.privacy.explain import explained, in_everyday_words, losses
from privirec.privacy.worth import at_least, worth
from privirec.runtime.earlier import EarlierModel, last_run, released_by, run_to_go_on_from
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.execute import Runtime, execute
from privirec.runtime.local.client import clients_of
from privirec.runtime.local.in_process import InProcess
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.run import Result, run
from privirec.runtime.runs import RunFolder
from privirec.runtime.spec import OneProcess, RunSpec


def protected(**given: Any) -> RunSpec:
    return RunSpec.of("protected", threads=1, **given)


def released(components: Components) -> Earlier:
    assert components.released is not None
    return components.released


def saved(dataset: Dataset, folder: Path, spec: RunSpec, **process: Any) -> dict[str, Any]:
    """Run, save the model and return its manifest."""
    result = run(dataset, spec, process=OneProcess(**process))
    result.recommender.save(folder, result.manifest())
    return read_manifest(folder)[1]


@pytest.fixture(scope="module")
def clusters() -> Dataset:
    """Return people of eight tastes, each with 12 of the 60 items that suit it, four held out."""
    rng = np.random.default_rng(8)
    n_users, of_taste = 6000, 60
    tastes = rng.integers(8, size=n_users)
    items = np.stack([rng.permutation(of_taste)[:12] for _ in range(n_users)])
    rows = np.repeat(np.arange(n_users), 12)
    columns = (items + of_taste * tastes[:, None]).ravel()
    held = np.tile(np.arange(12) < 4, n_users)
    ones, shape = np.ones(len(rows), np.float32), (n_users, 8 * of_taste)
    parts = [
        sp.csr_array((ones[some], (rows[some], columns[some])), shape=shape)
        for some in (~held, held)
    ]
    train, test = (Interactions.from_matrix(part) for part in parts)
    return Dataset("clusters", train, test)


@pytest.mark.parametrize(("way", "epsilon"), [("gram", 1.0), ("power", 0.5)])
def test_a_later_run_is_better_than_a_fresh_one(
    clusters: Dataset, way: str, epsilon: float
) -> None:
    """On made-up tastes, each of three runs improves on the last, and all on a run alone."""
    train, found, earlier = clusters.train, [], None
    alone = []
    settings = ProtectedSettings(epsilon=epsilon, way=way, head=480, columns=8)
    for number in range(3):
        for kept, scores in ((earlier, found), (None, alone)):
            program = Protected(settings, train.n_users, train.n_items)
            if kept is not None:
                program.go_on_from(kept)
            components, _ = execute(program.steps(), Simulation(train, 1, number))
            scores.append(evaluate(Denoised().use(components), clusters).ndcg)
            if scores is found:
                now = released(components)
        earlier = now
    assert found[0] == alone[0]
    assert found[0] < found[1] < found[2]
    assert all(more > less + 0.01 for more, less in zip(found[1:], alone[1:], strict=True))


@pytest.mark.parametrize("way", ["gram", "power"])
def test_all_runtimes_add_to_earlier_sums_alike(small: Dataset, way: str) -> None:
    """A later run in a simulation and client by client gives the same bits."""
    train = small.train
    settings = ProtectedSettings(
        epsilon=30.0, way=way, head=40, columns=5, pairs_share=0.2, clients=3, contributors=2
    )

    def twice(*runtimes: Runtime) -> Components:
        earlier = None
        for runtime in runtimes:
            program = Protected(settings, train.n_users, train.n_items)
            if earlier is not None:
                program.go_on_from(earlier)
            components, _ = execute(program.steps(), runtime)
            earlier = released(components)
        return components

    one = twice(*(Simulation(train, 3, seed) for seed in (1, 2)))
    other = twice(*(InProcess(clients_of(train, 3, seed)) for seed in (1, 2)))
    for name, array in released(one).arrays().items():
        np.testing.assert_array_equal(array, released(other).arrays()[name], err_msg=name)
    first, second = (Denoised().use(components)._derived for components in (one, other))
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)


def test_a_model_names_the_runs_it_rests_on_and_their_budgets_compose(
    small: Dataset, tmp_path: Path
) -> None:
    """The manifest of the third run lists both others, and explain-privacy adds them up."""
    spec = protected(epsilon=2.0)
    january = saved(small, tmp_path / "january", spec, secret_noise=True)
    assert "earlier" not in january
    after = {"secret_noise": True, "after": tmp_path / "january"}
    february = saved(small, tmp_path / "february", spec, **after)
    assert [run["released"] for run in february["earlier"]] == [january["released"]]
    after["after"] = tmp_path / "february"
    march = saved(small, tmp_path / "march", spec, **after)
    names = [run["released"] for run in march["earlier"]]
    assert names == [january["released"], february["released"]]
    every = [one for manifest in (january, february, march) for one in losses(manifest) or ()]
    together = Loss.together(every).epsilon(march["ledger"][0]["delta"])
    assert march["promised"].endswith(worth(Loss.together(every)))
    assert worth(Loss.together(every)) in " ".join(in_everyday_words(march))
    said = " ".join(explained(march))
    assert "Nobody who sees the sums of this run can" in said
    assert "adds to what 2 earlier runs released" in said
    assert f"whoever sees the model: epsilon {at_least(together)}" in said
    assert "earlier run" not in " ".join(explained(january))
    broken = march | {"earlier": [{"released": "x"}]}
    assert "all together promise nothing" in " ".join(explained(broken))


def test_noise_from_a_seed_promises_nothing_together(small: Dataset, tmp_path: Path) -> None:
    saved(small, tmp_path / "first", protected(epsilon=2.0))
    second = saved(small, tmp_path / "second", protected(epsilon=2.0), after=tmp_path / "first")
    assert "all together promise nothing" in " ".join(explained(second))
    assert "One of these runs promises nothing" in " ".join(in_everyday_words(second))


def test_a_damaged_or_foreign_earlier_model_is_refused(small: Dataset, tmp_path: Path) -> None:
    """Each is one line: changed sums, sums of another model, no sums, and other items."""
    folder = tmp_path / "first"
    saved(small, folder, protected(epsilon=2.0))

    def refused(words: str, model: Path = folder) -> None:
        with pytest.raises((ArtifactError, UsageError), match=words) as error:
            run(small, protected(epsilon=2.0), process=OneProcess(after=model))
        assert "\n" not in str(error.value)

    kept = (folder / RELEASED).read_bytes()
    (folder / RELEASED).write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    refused("does not match its manifest")
    (folder / RELEASED).unlink()
    refused(f"no {RELEASED} there")
    (folder / RELEASED).write_bytes(kept)
    manifest = json.loads((folder / MANIFEST).read_bytes())
    (folder / MANIFEST).write_bytes(canonical(manifest | {"released": "0" * 64}))
    refused("does not match its manifest")
    del manifest["released"]
    (folder / MANIFEST).write_bytes(canonical(manifest))
    refused("keeps no released sums")
    parts = [
        Interactions(part.matrix, part.user_ids, part.item_ids + 10_000)
        for part in (small.train, small.test)
    ]
    other = Dataset("other", *parts)
    saved(other, tmp_path / "other", protected(epsilon=2.0))
    refused("a model of other items", tmp_path / "other")


def test_a_catalogue_may_grow_between_runs(small: Dataset, tmp_path: Path) -> None:
    """Sums follow their items by id; an item that is new starts from nothing."""
    train = small.train
    parts = [
        Interactions.from_matrix(part.matrix[:, 5:], part.user_ids, part.item_ids[5:])
        for part in (train, small.test)
    ]
    saved(Dataset("some", *parts), tmp_path / "first", protected(epsilon=8.0))
    model = EarlierModel.read(tmp_path / "first")
    moved = model.over(train.item_ids)
    np.testing.assert_array_equal(moved.popularity.values[5:], model.sums.popularity.values)
    assert not moved.popularity.is_known[:5].any()
    second = saved(small, tmp_path / "second", protected(epsilon=8.0), after=tmp_path / "first")
    assert len(second["earlier"]) == 1


def test_a_run_that_adds_to_others_does_not_begin_without_them() -> None:
    program = Protected(ProtectedSettings(after="0" * 64), 10, 20)
    with pytest.raises(UsageError, match="whose released sums are not here"):
        next(program.steps())


# --- a federation ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def first_run(small: Dataset) -> Result:
    return run(small, protected(epsilon=2.0))


def publish(home: OperatorFolder, name: str, result: Result, key: Any = None) -> Path:
    """Save a model as the model of a run, signed by this server or with another key."""
    key = key or home.signing_key
    return result.recommender.save(home.run(name) / "model", result.manifest(), signing_key=key)


@pytest.fixture
def home(tmp_path: Path) -> OperatorFolder:
    return OperatorFolder.create(tmp_path / "server")


def test_a_run_of_a_federation_goes_on_from_the_last_one(
    home: OperatorFolder, first_run: Result
) -> None:
    """Nothing that was released is thrown away unless the operator says so."""
    assert run_to_go_on_from(home, None) is None
    publish(home, "monday", first_run)
    found = run_to_go_on_from(home, None)
    assert found is not None
    assert released_by(home, found.digest).folder == home.run("monday") / "model"
    publish(home, "friday", first_run)
    assert last_run(home) == "friday"
    assert run_to_go_on_from(home, "friday") is not None
    assert run_to_go_on_from(home, "none") is None
    for name, words in (("monday", "monday is not the last run"), ("sunday", "no such run")):
        with pytest.raises(UsageError, match=words) as error:
            run_to_go_on_from(home, name)
        assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match="no model has the released sums 0000"):
        released_by(home, "0" * 64)


def test_sums_that_another_server_signed_are_refused(
    home: OperatorFolder, first_run: Result
) -> None:
    publish(home, "monday", first_run, Ed25519PrivateKey.generate())
    with pytest.raises(ArtifactError, match="not by the trusted"):
        run_to_go_on_from(home, None)


def test_the_signed_settings_of_a_run_name_the_sums_it_adds_to(
    home: OperatorFolder, first_run: Result, small: Dataset
) -> None:
    """A run that was begun keeps to these sums, whatever was released since."""
    write_catalogue(home.folder / "catalogue.txt", Catalogue(small.train.item_ids))
    publish(home, "monday", first_run)
    spec = protected(epsilon=2.0)
    begun = _after(home, "friday", spec, None)
    assert (
        begun.program.given()["after"] == read_manifest(home.run("monday") / "model")[1]["released"]
    )
    assert RunFolder(home, "friday").prepare(begun)
    publish(home, "sunday", first_run)
    assert _after(home, "friday", spec, None) == begun
    assert _after(home, "tuesday", spec, "none") == spec
    exact = RunSpec.of("privirec-k")
    assert _after(home, "tuesday", exact, None) == exact
    with pytest.raises(UsageError, match="privirec-k does not go on from an earlier run"):
        _after(home, "tuesday", exact, "sunday")
