"""Tests of `federate` around a run: where it saves, and which clients count as missing."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
from typer.testing import CliRunner

from privirec.app.cli.every import app
from privirec.data import Dataset
from privirec.errors import UsageError
from privirec.models import GFCF, Recommender
from privirec.runtime import federate as workflow
from privirec.runtime.federate import _copy, drop_outs, federate
from privirec.runtime.spec import RunSpec


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_saving_leaves_alone_what_is_more_than_a_model(small: Dataset, tmp_path: Path) -> None:
    """Test a folder with a manifest.json and other files, which is not a saved model."""
    precious = GFCF(rank=4).fit(small.train).save(tmp_path / "mine")
    (precious / "thesis.tex").write_text("years of work")
    before = files(precious)
    with (
        mock.patch.object(workflow, "_federate") as run,
        pytest.raises(UsageError, match="not a saved model: nothing was written"),
    ):
        federate(small, RunSpec.of("privirec-k"), 3, save=precious)
    run.assert_not_called()  # the refusal comes before the run, not after
    with pytest.raises(UsageError, match="not a saved model"):
        _copy(precious, precious)
    assert files(precious) == before


def test_the_command_asks_first_too(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "thesis.tex").write_text("years of work")
    command = ["federate", "--dataset", "synthetic:small", "--clients", "3"]
    with mock.patch.object(workflow, "_federate") as run:
        result = CliRunner().invoke(app, [*command, "--save", str(tmp_path)])
    assert isinstance(result.exception, UsageError)
    run.assert_not_called()
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_saved_model_takes_the_place_of_an_earlier_one(small: Dataset, tmp_path: Path) -> None:
    new = GFCF(rank=5).fit(small.train).save(tmp_path / "new")
    for place in (tmp_path / "there", tmp_path / "deep" / "not there"):
        if place.name == "there":
            GFCF(rank=4).fit(small.train).save(place)
        _copy(new, place)
        assert files(place) == files(new)
        assert Recommender.load(place).config == GFCF(rank=5).config
    assert {path.name for path in tmp_path.iterdir()} == {"new", "there", "deep"}


def test_a_copy_that_fails_leaves_the_earlier_one(small: Dataset, tmp_path: Path) -> None:
    new = GFCF(rank=5).fit(small.train).save(tmp_path / "new")
    old = GFCF(rank=4).fit(small.train).save(tmp_path / "old")
    before = files(old)
    full = OSError(28, "No space left on device")
    with mock.patch("shutil.copytree", side_effect=full), pytest.raises(OSError, match="No space"):
        _copy(new, old)
    assert files(old) == before
    assert {path.name for path in tmp_path.iterdir()} == {"new", "old"}


def test_whoever_is_not_in_the_sums_counts_as_missing(small: Dataset, tmp_path: Path) -> None:
    """Test clients that refused from the start and clients that left: only the cohort counts."""
    federation = {"clients": 7, "cohort": 4}
    saved = GFCF(rank=4).fit(small.train).save(tmp_path / "model", {"federation": federation})
    assert drop_outs(saved) == 3


def test_a_method_with_noise_cannot_be_checked_bit_for_bit(small: Dataset) -> None:
    with (
        mock.patch.object(workflow, "_federate") as run,
        pytest.raises(UsageError, match="clients of protected add noise that nobody else knows"),
    ):
        federate(small, RunSpec.of("protected"), 3, check=True)
    run.assert_not_called()
