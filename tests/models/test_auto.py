"""Tests of the choice of a model on a validation split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from privirec import AutoRecommender, evaluate
from privirec.data import Dataset
from privirec.data.splits import Held
from privirec.errors import UsageError
from privirec.models import GFCF, Recommender

HELD: tuple[Held, ...] = ("random", "block")
FEW = [("popularity", {}), ("gf-cf", {"rank": 20}), ("cheby-cf", {"rank": 30, "exponent": 0.2})]


def test_the_best_on_validation_is_fitted_on_everything(small: Dataset, tmp_path: Path) -> None:
    auto = AutoRecommender(candidates=FEW, users=150).fit(small.train)
    assert [trial.model for trial in auto.trials_] == [name for name, _ in FEW]
    best = max(auto.trials_, key=lambda trial: trial.ndcg or 0)
    assert auto.model_.name == best.model
    same = type(auto.model_)(**best.settings).fit(small.train)
    x = small.train.matrix
    np.testing.assert_array_equal(auto.score(x), same.score(x))
    assert evaluate(auto, small).ndcg == evaluate(same, small).ndcg
    ids, _ = auto.recommend(7, small.train, N=5)
    np.testing.assert_array_equal(ids, same.recommend(7, small.train, N=5)[0])
    loaded = Recommender.load(auto.save(tmp_path / "saved"))
    assert type(loaded) is type(same)


def test_shared_eigenvectors_give_what_a_model_of_its_own_gives(small: Dataset) -> None:
    auto = AutoRecommender(candidates=FEW[1:])
    alone = AutoRecommender(candidates=[FEW[1]])
    both, one = auto.choose(small.train), alone.choose(small.train)
    assert auto.trials_[0].ndcg == pytest.approx(one.ndcg, abs=1e-3)
    assert both.ndcg == max(trial.ndcg or 0 for trial in auto.trials_)


def test_blocks_are_held_out_where_asked(small: Dataset) -> None:
    trials = [AutoRecommender(candidates=FEW[:1], by=by).choose(small.train) for by in HELD]
    assert trials[0].ndcg != trials[1].ndcg


def test_without_time_only_the_first_is_tried(small: Dataset) -> None:
    auto = AutoRecommender(1e-9, candidates=FEW).fit(small.train)
    assert [trial.ndcg is None for trial in auto.trials_] == [False, True, True]
    assert auto.model_.name == "popularity"


def test_a_small_catalogue_cuts_ranks(small: Dataset) -> None:
    auto = AutoRecommender(candidates=[("gf-cf", {})]).fit(small.train)
    assert isinstance(auto.model_, GFCF)
    assert auto.model_.config.rank <= small.train.n_items


def test_wrong_questions(small: Dataset) -> None:
    with pytest.raises(UsageError, match="seconds above 0"):
        AutoRecommender(0)
    with pytest.raises(UsageError, match="no model 'nothing'"):
        AutoRecommender(candidates=[("nothing", {})])
    with pytest.raises(UsageError, match="auto has not been fitted"):
        AutoRecommender().recommend(0, small.train)
