"""Tests of `privirec fit` on all interactions, and of defaults of `cost` and `sweep`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from privirec.app.cli.every import app
from privirec.app.fit import fit_all
from privirec.data import Dataset, load_dataset
from privirec.errors import OverflowRefused, UsageError
from privirec.experiments.cost import Sizes, byte_rows, most_people, ring_notes
from privirec.experiments.sweep import usual_ranks
from privirec.federated.programs import Privirec, PrivirecK, program_of
from privirec.models import ItemKNN, Recommender
from privirec.privacy.explain import explained
from privirec.runtime.execute import execute
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.run import run
from privirec.runtime.spec import RunSpec


def privirec(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_fit_takes_everything_and_keeps_names(tmp_path: Path) -> None:
    table = tmp_path / "sold.csv"
    rows = [f"ann{u},thing {(u + 3 * i) % 13:02d},{i + 1}" for u in range(30) for i in range(5)]
    table.write_text("\n".join(["customer,product,stars", *rows]))
    out = privirec(
        *("fit", table, "--min-rating", 2, "--model", "item-knn", "--save", tmp_path / "m"),
        *("--json", tmp_path / "row.json"),
    )
    assert "from 120 interactions of 30 users with 13 items" in out
    model = ItemKNN.load(tmp_path / "m")
    assert model.item_ids is not None
    assert model.item_ids.tolist() == [f"thing {number:02d}" for number in range(13)]
    row = json.loads((tmp_path / "row.json").read_text())
    assert (row["interactions"], row["method"]) == (120, "centralized")
    manifest = json.loads((tmp_path / "m" / "manifest.json").read_text())
    assert "audit" in manifest["gives_away"]
    assert "histories in one place" in " ".join(explained(manifest))


def test_no_model_carries_a_digest_of_the_histories(small: Dataset, tmp_path: Path) -> None:
    """Test that a guess at the histories cannot be checked against a manifest."""
    everything, found = small.together(), []
    fitted = fit_all(everything, small.name, RunSpec.of(model="gf-cf", rank=4))
    found.append((fitted.recommender, fitted.manifest))
    for spec in (RunSpec.of(model="gf-cf", rank=4), RunSpec.of("protected")):
        made = run(small, spec)
        found.append((made.recommender, made.manifest()))
    for number, (model, manifest) in enumerate(found):
        written = model.save(tmp_path / str(number), manifest) / "manifest.json"
        for histories in (everything, small.train, small.test):
            assert histories.fingerprint()[:8] not in written.read_text()


def test_fit_is_the_library_on_train_and_test(tmp_path: Path) -> None:
    privirec("fit", "synthetic:small", "--rank", 8, "--save", tmp_path / "m")
    data = load_dataset("synthetic:small")
    loaded = Recommender.load(tmp_path / "m")
    degrees = data.train.item_degrees + data.test.item_degrees
    np.testing.assert_array_equal(loaded.components.item_degrees, degrees)
    # The warning is true: the histories can be computed from the model.
    arguments = ("--attack", "likelihood-peeling", "--json", tmp_path / "rows.json")
    privirec("audit", "--dataset", "synthetic:small", "--release", tmp_path / "m", *arguments)
    (row,) = [json.loads(line) for line in (tmp_path / "rows.json").read_text().splitlines()]
    assert row["users_recovered"] == 200


@pytest.mark.parametrize("bits", [8, 11, 12])
@pytest.mark.parametrize("program", [Privirec, PrivirecK])
def test_costs_cover_only_programs_that_can_run(program: type[Privirec], bits: int) -> None:
    """Test that a run in the requested ring is refused exactly if its cost is not listed."""
    train = load_dataset("synthetic:small").train
    people = int(train.item_degrees.max())
    sizes = Sizes(train.n_users, train.n_items, 8, 8, 3, bits, largest_degree=people)
    listed = program.title in {row["method"] for row in byte_rows(sizes)}
    settings = program.settings_from({"ring_bits": bits, "rank": 8, "rounds": 3})
    steps = program_of(settings, train.n_users, train.n_items).steps()
    try:
        execute(steps, Simulation(train))
        runs = True
    except OverflowRefused:
        runs = False
    assert listed == runs
    noted = [note for note in ring_notes(sizes) if note.startswith(f"{program.title} does not run")]
    assert bool(noted) != runs


def test_without_data_the_ring_says_how_many_people_it_holds() -> None:
    notes = ring_notes(Sizes(29_858, 40_981, ring_bits=8))
    assert "PriviRec runs in a ring of 8 bits only if no item has more than 7 people." in notes
    assert not any(note.startswith("Protected") for note in notes)
    assert ring_notes(Sizes(29_858, 40_981)) == []
    assert most_people(Privirec, 32, 29_858) == 29_858
    (protected,) = [
        row for row in byte_rows(Sizes(100, 50, 5, 5, ring_bits=8)) if row["method"] == "Protected"
    ]
    assert protected["ring_bits"] is None  # noise decides


def test_a_sweep_by_default_fits_the_catalogue(tmp_path: Path) -> None:
    assert usual_ranks(40_981) == list(range(256, 3585, 256))
    assert usual_ranks(300) == list(range(21, 295, 21))
    assert usual_ranks(5) == [1, 2, 3, 4, 5]
    out = privirec(
        "paper", "sweep", "--dataset", "synthetic:60x40", "--rounds", "2", "--out", tmp_path
    )
    assert "not up to 28" in out or "reached from" in out


def test_the_help_says_what_each_method_is() -> None:
    text = " ".join(privirec("run", "--help").replace("│", " ").split())
    assert "protected: noise of the clients promises epsilon to every person" in text


def test_a_private_fit_promises_unless_there_is_a_seed(tmp_path: Path) -> None:
    """Test that the command, the manifest and `explain-privacy` say the same."""
    fit = ("fit", "synthetic:small", "--epsilon", 2, "--overwrite", "--save", tmp_path / "m")
    out = " ".join(privirec(*fit, "--delta", "1e-7").split())
    assert "expect" in out
    assert "Promised: epsilon 2 at delta 1e-07" in out
    said = privirec("explain-privacy", tmp_path / "m", "--details")
    assert "epsilon 2 at delta 1e-07" in " ".join(said.split())
    result = CliRunner().invoke(app, [str(word) for word in (*fit, "--seed", 4)])
    assert "Promised: nothing." in result.output
    assert "drawn from a seed" in " ".join(
        privirec("explain-privacy", tmp_path / "m", "--details").split()
    )
    for wrong in (("--model", "ease"), ("--rank", 3)):
        result = CliRunner().invoke(app, [str(word) for word in (*fit, *wrong)])
        assert isinstance(result.exception, UsageError)


@pytest.mark.parametrize("runtime", ["simulation", "in-process"])
def test_a_run_promises_only_with_secret_noise(tmp_path: Path, runtime: str) -> None:
    run = (
        *("run", "--dataset", "synthetic:small", "--method", "protected", "--epsilon", 1),
        *("--runtime", runtime, "--clients", 20, "--overwrite", "--save", tmp_path / "m"),
    )
    for noise, promised in (((), False), (("--secret-noise",), True)):
        result = CliRunner().invoke(app, [str(word) for word in (*run, *noise)])
        assert result.exit_code == 0, result.output
        said = " ".join(privirec("explain-privacy", tmp_path / "m", "--details").split())
        manifest = json.loads((tmp_path / "m" / "manifest.json").read_text())
        for text in (result.output, manifest["gives_away"]):
            assert ("Promised: epsilon" in text) is promised
            assert ("Promised: nothing." in text) is not promised
        assert ("Promised to every person: epsilon" in said) is promised
