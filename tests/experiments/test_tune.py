"""Tests of `privirec tune`: budget, resuming, and no use of the test split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privirec.data import Dataset
from privirec.errors import DataError, UsageError
from privirec.experiments import tune
from privirec.experiments.tune import (
    Shape,
    Tuning,
    as_polynomial,
    as_spec,
    largest_rank,
    largest_shape,
    near_polynomials,
)
from privirec.federated.programs import SpectralProgram
from privirec.models import Recommender
from privirec.models.spectral import Spectral, SpectralConfig
from privirec.runtime.run import run
from privirec.runtime.spec import RunSpec

BUDGET = 40_000


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the search to a few changes per step."""

    def some(config: SpectralConfig, step: float, most: int) -> list[SpectralConfig]:
        near = [{"history_exponent": round(config.history_exponent - step, 3)}]
        near.append({"rank": min(most, config.rank + 4)})
        return [config.model_copy(update=change) for change in near]

    monkeypatch.setattr(tune, "neighbours", some)


def tuned(small: Dataset, trace: Path, **more: Any) -> tuple[Tuning, dict[str, Any]]:
    tuning = Tuning(small, BUDGET, trace, rounds=(3,), ring_bits=(12,), users=60, **more)
    return tuning, tuning.run()


@pytest.mark.usefixtures("quick")
def test_the_best_point_can_be_run(small: Dataset, tmp_path: Path) -> None:
    tuning, best = tuned(small, tmp_path / "trace.jsonl")
    assert best["ndcg@20"] == max(point["ndcg@20"] for point in tuning.points)
    assert best["bytes_up_per_client"] <= BUDGET
    assert best["bytes_down_per_client"] <= 1.5 * best["bytes_up_per_client"]
    assert best["users"] == 60
    (tmp_path / "settings.json").write_bytes(as_spec(best).as_chosen())
    spec = RunSpec.read(tmp_path / "settings.json").changed(threads=1)
    row = run(small, spec).row
    assert row["bytes_up_per_client"] == best["bytes_up_per_client"]
    assert row["bytes_down_per_client"] == best["bytes_down_per_client"]
    assert row["rank"] == best["config"]["rank"]


@pytest.mark.usefixtures("quick")
def test_a_polynomial_is_fitted_at_the_best_point(small: Dataset, tmp_path: Path) -> None:
    """Test that the search starts at the closest polynomial and keeps all other settings."""
    tuning, best = tuned(small, tmp_path / "trace.jsonl")
    fitted = [one for one in tuning.points if one["config"]["response"] == "polynomial"]
    others = [one for one in tuning.points if one not in fitted]
    before = max(others, key=lambda point: point["ndcg@20"])
    own = ("response", "coefficients")
    for point in fitted:
        assert {key: point[key] for key in ("columns", "ring_bits", "pairs")} == {
            key: before[key] for key in ("columns", "ring_bits", "pairs")
        }
        assert point["config"] == before["config"] | {key: point["config"][key] for key in own}
    first = as_polynomial(SpectralConfig(**before["config"]))
    assert fitted[0]["config"]["coefficients"] == list(first.coefficients)
    assert best["ndcg@20"] >= max(point["ndcg@20"] for point in fitted)
    model = Spectral(**as_spec(fitted[-1]).config).fit(small.train)
    loaded = Recommender.load(model.save(tmp_path / "model"))
    assert loaded.config == model.config
    np.testing.assert_array_equal(loaded.score(small.train.matrix), model.score(small.train.matrix))


def test_polynomials_by_their_heights() -> None:
    """Test that a power that is a polynomial is its own best fit, and that a step moves one
    height."""
    heights = np.array(tune.NODES)
    square = as_polynomial(SpectralConfig(response="power", power=2.0))
    np.testing.assert_allclose(square.responses(heights)[1:], (3 * heights[1:]) ** 2, atol=1e-3)
    ideal = as_polynomial(SpectralConfig())
    assert ideal.coefficients == pytest.approx((1, 0, 0, 0), abs=1e-4)
    near = list(near_polynomials(square, 0.1))
    assert len(set(near)) == 6
    for one in near:
        (moved,) = np.flatnonzero(np.abs(heights_of(one) - heights_of(square)) > 1e-3)
        assert moved != tune.FIXED_NODE
        assert abs(heights_of(one) - heights_of(square))[moved] == pytest.approx(0.1, abs=1e-3)


def heights_of(config: SpectralConfig) -> np.ndarray:
    return np.polynomial.polynomial.polyval(np.array(tune.NODES), config.coefficients)


@pytest.mark.usefixtures("quick")
def test_it_goes_on_where_it_stopped(
    small: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace.jsonl"
    whole, best = tuned(small, trace)
    lines = trace.read_text().splitlines()
    assert len(lines) == len(whole.points)
    trace.write_text("".join(f"{line}\n" for line in lines[:4]))
    _, again = tuned(small, trace)
    assert again == best
    assert trace.read_text().splitlines() == lines

    def nobody(*_: object) -> None:
        raise AssertionError("everything is in the trace")

    monkeypatch.setattr(tune, "evaluate", nobody)
    assert tuned(small, trace)[1] == best
    trace.write_text("{}\n")
    with pytest.raises(DataError, match="1: not a row of tune;"):
        tuned(small, trace)


@pytest.mark.usefixtures("quick")
def test_the_test_split_is_not_looked_at(small: Dataset, tmp_path: Path) -> None:
    other = Dataset(
        small.name, small.train, small.test.select(np.zeros(small.test.matrix.nnz, bool))
    )
    assert tuned(small, tmp_path / "a")[1] == tuned(other, tmp_path / "b")[1]


def test_columns_fill_the_budget() -> None:
    shape = largest_shape(Shape, 8, 12, 60_000_000, 29_858, 40_981)
    assert shape == Shape((115,) * 8, 12)
    assert Shape((116,) * 8, 12).bytes(29_858, 40_981)[0] > 60_000_000
    rank = largest_rank(shape, 29_858, 40_981)
    up, down = shape.bytes(29_858, 40_981, rank)
    assert down <= 1.5 * up
    assert largest_shape(Shape, 8, 12, 10, 29_858, 40_981) is None


def test_presets_keep_to_their_budgets() -> None:
    sizes = {"gowalla": (29_858, 40_981), "yelp2018": (31_668, 38_048), "globo": (157_926, 11_832)}
    for name in SpectralProgram.presets:
        data, budget = name.split("-")
        settings = SpectralProgram.preset(name)
        shape = Shape(settings.columns, settings.ring_bits)
        up, down = shape.bytes(*sizes[data], settings.rank)
        assert up <= int(budget.removesuffix("mb")) * 10**6, name
        assert down <= 1.5 * up, name


def test_neighbours_are_possible_settings() -> None:
    config = SpectralConfig(rank=8)
    for _ in range(30):
        near = tune.neighbours(config, 0.1, 10)
        assert config not in near
        for one in near:
            assert SpectralConfig(**one.model_dump()) == one
            assert 1 <= one.rank <= 10
        config = near[-4]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"program": {"method": 1}}', '{"method": "spectral"}']
)
def test_settings_that_are_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(UsageError, match="no description of a run"):
        RunSpec.read(tmp_path / "bad.json")
