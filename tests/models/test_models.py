"""Every model inherits the tests of what all models must do."""

from __future__ import annotations

import numpy as np
import pytest
from model_tests import ModelTests

from privirec.data import Interactions
from privirec.errors import UsageError
from privirec.filters import LowRankOperator, centralized
from privirec.models import (
    BSPMEM,
    BSPMLM,
    EASE,
    GFCF,
    MODELS,
    BSPMConfig,
    Denoised,
    EASEConfig,
    GFCFConfig,
    LinkProp,
    LinkPropConfig,
    LinkPropMulti,
    LinkPropMultiConfig,
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


class TestDenoised(ModelTests):
    model = Denoised
    small_rank = {}  # noqa: RUF012
    alike = np.eye(9)  # no weights at all


class TestLinkProp(ModelTests):
    model = LinkProp
    small_rank = {}  # noqa: RUF012


class TestLinkPropMulti(ModelTests):
    model = LinkPropMulti
    small_rank = {}  # noqa: RUF012


class TestSpectral(ModelTests):
    model = Spectral


class TestBSPMLM(ModelTests):
    model = BSPMLM


class TestBSPMEM(ModelTests):
    model = BSPMEM


def test_no_model_escapes() -> None:
    tested = {kind.model for kind in ModelTests.__subclasses__()}
    assert tested == set(MODELS.values())
    assert {name: model.name for name, model in MODELS.items()} == {n: n for n in MODELS}


def test_published_settings() -> None:
    """FINDINGS 9 of the project, copied here by hand."""
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
    assert LinkPropMulti.published == {
        "gowalla": LinkPropMultiConfig(alpha=0.34, beta=0.5, gamma=0.67, delta=0.34, share=0.2),
        "yelp2018": LinkPropMultiConfig(
            alpha=0.34, beta=0.67, gamma=0.5, delta=0.5, share=0.05, iterations=2
        ),
    }


def test_a_power_of_entries_needs_the_entries(holes: Interactions) -> None:
    central = centralized(holes, rank=3)
    assert central.basis is not None
    low_rank = LowRankOperator(central.basis, central.basis[0].astype(float))
    components = type(central)(central.item_degrees, low_rank, central.basis)
    TurboCF(s=1).use(components)
    with pytest.raises(UsageError, match="needs the item-item matrix itself"):
        TurboCF(s=0.7).use(components)


@pytest.mark.parametrize("model", [GFCF, BSPMLM, BSPMEM])
def test_a_catalogue_smaller_than_the_rank_is_refused_in_words(
    holes: Interactions, model: type[GFCF]
) -> None:
    with pytest.raises(UsageError, match="does not fit a catalogue of 17 items"):
        model().fit(holes)
