"""Tests of every model: each inherits the tests of `ModelTests`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_tests import ModelTests, full_rank

from privirec.data import Dataset, Interactions
from privirec.errors import UsageError
from privirec.evaluation import evaluate
from privirec.filters import LowRankOperator, centralized
from privirec.models import (
    BSPMEM,
    BSPMLM,
    DAN,
    EASE,
    GFCF,
    MODELS,
    BSPMConfig,
    ChebyCF,
    Denoised,
    EASEConfig,
    GFCFConfig,
    ItemKNN,
    LinkProp,
    LinkPropConfig,
    Popularity,
    Recommender,
    Ridge,
    Spectral,
    TurboCF,
    TurboCFConfig,
)


class TestGFCF(ModelTests):
    model = GFCF


class TestTurboCF(ModelTests):
    model = TurboCF
    small_rank = {}  # noqa: RUF012 - no low-pass filter, no rank


class TestEASE(ModelTests):
    model = EASE
    small_rank = {}  # noqa: RUF012
    alike = np.eye(9)  # no weights at all


class TestDAN(ModelTests):
    model = DAN
    small_rank = {}  # noqa: RUF012
    alike = np.eye(9)  # no weights at all


class TestChebyCF(ModelTests):
    model = ChebyCF


class TestRidge(ModelTests):
    model = Ridge
    small_rank = {}  # noqa: RUF012 - no low-pass filter, no rank


class TestDenoised(ModelTests):
    model = Denoised
    small_rank = {}  # noqa: RUF012
    empty_is_popular = True
    alike = np.eye(9)  # no weights at all

    def fit(self, user_items: Any, rank: int = 1) -> Recommender:
        """Fit on exact sums, which the model itself refuses."""
        return Recommender.fit(self.model(), user_items)


class TestLinkProp(ModelTests):
    model = LinkProp
    small_rank = {}  # noqa: RUF012


class TestSpectral(ModelTests):
    model = Spectral


class TestBSPMLM(ModelTests):
    model = BSPMLM


class TestBSPMEM(ModelTests):
    model = BSPMEM


class TestItemKNN(ModelTests):
    model = ItemKNN
    small_rank = {}  # noqa: RUF012
    better = 1.25

    def test_all_forms_of_the_matrix_give_the_same_scores(  # type: ignore[override]
        self, small: Dataset
    ) -> None:
        """Test with all neighbours: otherwise rounding decides which of two equal ones is kept
        last."""
        model = ItemKNN(neighbours=300)
        central = centralized(small.train, normalisation=model.config.normalisation)
        expected = model.use(central).score(small.train.matrix[:20])
        for form in (central.written_out(), full_rank(central)):
            found = ItemKNN(neighbours=300).use(form).score(small.train.matrix[:20])
            np.testing.assert_allclose(found, expected, atol=2e-4 * float(expected.max()))

    def test_cosines_by_hand(self) -> None:
        """Test item 0 with users 0, 1, 2, item 1 with users 0, 1, and item 2 with user 2."""
        touched = np.array([[1, 1, 0], [1, 1, 0], [1, 0, 1]])
        model = ItemKNN(shrinkage=1, neighbours=1).fit(touched)
        near, far = 2 / (6**0.5 + 1), 1 / (3**0.5 + 1)
        scores = model.score(np.eye(3))
        np.testing.assert_allclose(scores, [[0, near, 0], [near, 0, 0], [far, 0, 0]], rtol=1e-6)
        both = ItemKNN(shrinkage=1).fit(touched).score(np.eye(3))
        np.testing.assert_allclose(both[0], [0, near, far], rtol=1e-6)

    @pytest.mark.parametrize("count", [1, 7, 64])
    def test_the_nearest_are_kept(self, small: Dataset, count: int) -> None:
        """Test against a full sort of all cosines; of equal ones the lower item is kept."""
        r = small.train.matrix.toarray().astype(np.float64)
        common, degrees = r.T @ r, r.sum(axis=0)
        alike = common / (np.sqrt(np.outer(degrees, degrees)) + 10)
        np.fill_diagonal(alike, 0)
        order = np.argsort(-alike, axis=1, kind="stable")[:, :count]
        expected = np.zeros_like(alike)
        np.put_along_axis(expected, order, np.take_along_axis(alike, order, 1), 1)
        found = ItemKNN(neighbours=count).fit(small.train).score(np.eye(300))
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_popularity(holes: Interactions, tmp_path: Path) -> None:
    model = Popularity().fit(holes)
    for loaded in (model, Popularity.load(model.save(tmp_path / "saved"))):
        scores = loaded.score(holes.matrix)
        np.testing.assert_array_equal(scores, np.tile(holes.item_degrees, (30, 1)))
        assert not any(part for _, part in loaded.explain(3, holes, 5).because)
        with pytest.raises(UsageError, match="it knows no similar users"):
            loaded.similar_users(3, holes)


def test_no_model_escapes() -> None:
    tested = {kind.model for kind in ModelTests.__subclasses__()}
    ours = {kind for kind in MODELS.values() if kind.__module__.startswith("privirec.models")}
    assert (tested & ours) | {Popularity} == ours
    assert {name: model.name for name, model in MODELS.items()} == {n: n for n in MODELS}


def test_published_settings() -> None:
    """Test against FINDINGS 9 of the project, copied here by hand."""
    for data_set in ("gowalla", "yelp2018"):
        assert GFCF.published[data_set] == GFCFConfig(gamma=0.3, rank=256)
    assert TurboCF.published["gowalla"] == TurboCFConfig(alpha=0.6, s=0.7, filter=1)
    assert TurboCF.published["yelp2018"] == TurboCFConfig(alpha=0.6, s=1, filter=2)
    once = {"blur_steps": 1, "blur_time": 1.0, "sharpen_steps": 1}
    gowalla = BSPMConfig(**once, solver="rk4", sharpen_time=2.5, beta=0.2, rank=448, combine=False)
    yelp = BSPMConfig(**once, solver="euler", sharpen_time=1.2, beta=0.3, rank=384, combine=True)
    for model in (BSPMLM, BSPMEM):
        assert model.published["gowalla"] == gowalla
        assert model.published["yelp2018"] == yelp
    assert GFCF.published["amazon-book"].low_pass_rank == 0
    assert BSPMEM.published["amazon-book"].low_pass_rank == 0
    for model in (GFCF, TurboCF, BSPMLM, BSPMEM):
        assert set(model.published) == {"gowalla", "yelp2018", "amazon-book"}
    assert EASE.published == {
        "gowalla": EASEConfig(regularisation=80),
        "yelp2018": EASEConfig(regularisation=300),
        "amazon-book": EASEConfig(regularisation=50),
    }
    assert LinkProp.published == {
        "gowalla": LinkPropConfig(beta=0.5, gamma=0.67, delta=0.34),
        "yelp2018": LinkPropConfig(beta=0.67, gamma=0.5, delta=0.5),
    }


def test_a_power_of_entries_needs_the_entries(holes: Interactions) -> None:
    central = centralized(holes, rank=3)
    assert central.basis is not None
    low_rank = LowRankOperator(central.basis, central.basis[0].astype(float))
    components = type(central)(central.item_degrees, low_rank, central.basis)
    TurboCF(s=1).use(components)
    with pytest.raises(UsageError, match="needs the item-item matrix itself"):
        TurboCF(s=0.7).use(components)


@pytest.mark.parametrize("model", [GFCF, BSPMLM, BSPMEM, ChebyCF])
def test_a_rank_by_default_is_cut_to_the_catalogue_and_a_chosen_one_refused(
    holes: Interactions, small: Dataset, model: type[GFCF]
) -> None:
    fitted = model().fit(holes)
    assert fitted.config.rank == 17
    assert fitted.fit(small.train).config.rank == min(300, model().config.rank)
    with pytest.raises(UsageError, match="rank 40 does not fit a catalogue of 17 items"):
        model(rank=40).fit(holes)


@pytest.mark.filterwarnings("ignore:.* histories have nothing that the model knows")
@pytest.mark.parametrize("name", ["bspm-lm", "bspm-em"])
def test_rows_are_summed_where_histories_outnumber_items(name: str) -> None:
    rng = np.random.default_rng(0)
    touched = (rng.random((3000, 30)) < 0.1).astype(np.float32)
    half = rng.random(touched.shape) < 0.5
    train, test = (Interactions.from_matrix(touched * part) for part in (half, ~half))
    model = MODELS[name](rank=4).fit(train)
    before = model.score(train.matrix[:50])
    model.recommend(np.arange(20), train.matrix[:20])
    assert model._rows is None
    evaluate(model, Dataset("made", train, test))
    assert model._rows is not None
    np.testing.assert_allclose(model.score(train.matrix[:50]), before, atol=1e-5)
    model.fit(train)
    assert model._rows is None


@pytest.mark.parametrize("data_set", ["gowalla", "yelp2018"])
def test_the_low_pass_part_is_sharpened_with_the_rest(data_set: str, small: Dataset) -> None:
    """Test both ways: on the items' side for many histories, as part of the state for one."""
    config = BSPMEM.published[data_set].model_copy(update={"rank": 20})
    model = BSPMEM(config).fit(small.train)
    histories = small.train.matrix[:30]
    directly = model.score(histories)
    assert model._vectors is None
    model.ready_for(1000, 10**6)
    assert model._vectors is not None
    np.testing.assert_allclose(model.score(histories), directly, rtol=1e-4, atol=1e-5)
