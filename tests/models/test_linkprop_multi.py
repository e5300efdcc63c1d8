"""Tests of LinkProp-Multi, an addition: its formula, and its sums with clients."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from model_tests import ModelTests
from test_formulas import Dense, assert_scores, train

from privirec.data import Dataset, Interactions
from privirec.errors import UsageError
from privirec.extra.linkprop_multi import (
    LinkPropMulti,
    LinkPropMultiConfig,
    LinkPropMultiProgram,
    LinkPropMultiSettings,
)
from privirec.federated.programs import PROGRAMS
from privirec.models import MODELS, LinkProp
from privirec.runtime.execute import execute
from privirec.runtime.local.simulation import Simulation

__all__ = ["train"]
pytestmark = pytest.mark.check


class TestLinkPropMulti(ModelTests):
    model = LinkPropMulti
    small_rank = {}  # noqa: RUF012


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("exponents", [(0.34, 0.5, 0.67, 0.34), (1.0, 0.67, 0.5, 0.5)])
@pytest.mark.parametrize("share", [0.05, 0.3])
def test_link_prop_multi(
    train: Interactions, iterations: int, exponents: tuple[float, ...], share: float
) -> None:
    """Test that the best pairs of all change the degrees, and nothing else."""
    alpha, beta, gamma, delta = exponents
    r = train.matrix.toarray().astype(np.float64)
    users, items = r.sum(axis=1), r.sum(axis=0)

    def divisor(degrees: Dense, exponent: float) -> Dense:
        return np.where(degrees > 0, np.maximum(degrees, 1) ** -exponent, 0)

    for last in [*[False] * iterations, True]:
        user_item = divisor(users, gamma)[:, None] * r * divisor(items, delta)
        scores = (r * divisor(items, beta)) @ r.T @ user_item
        if not last:
            links = np.where(r > 0, 0, divisor(users, alpha)[:, None] * scores)
            best = np.argsort(-links, axis=None)[: round(share * r.sum())]
            new = np.zeros(r.size)
            new[best] = 1
            new = new.reshape(r.shape)
            users, items = (r + new).sum(axis=1), (r + new).sum(axis=0)
    settings = {"alpha": alpha, "beta": beta, "gamma": gamma, "delta": delta}
    model = LinkPropMulti(**settings, iterations=iterations, share=share)
    assert_scores(model, train, scores)
    np.testing.assert_array_equal(model.components.item_degrees, items)
    plain = LinkProp(beta=beta, gamma=gamma, delta=delta).fit(train).score(train.matrix)
    assert np.abs(plain - scores).max() > 0.01


def test_published_settings() -> None:
    assert LinkPropMulti.published == {
        "gowalla": LinkPropMultiConfig(alpha=0.34, beta=0.5, gamma=0.67, delta=0.34, share=0.2),
        "yelp2018": LinkPropMultiConfig(
            alpha=0.34, beta=0.67, gamma=0.5, delta=0.5, share=0.05, iterations=2
        ),
    }


def test_entry_points_lead_to_it() -> None:
    assert MODELS["linkprop-multi"] is LinkPropMulti
    assert PROGRAMS["linkprop-multi"] is LinkPropMultiProgram


def test_it_takes_no_weights() -> None:
    with pytest.raises(UsageError, match="linkprop-multi takes no weights: it "):
        LinkPropMulti().fit(sp.csr_array(np.array([[1.0, 2.0]])), weighted=True)


def test_federated_sums_give_the_model_of_one_machine(small: Dataset) -> None:
    model = LinkPropMulti(alpha=0.4, beta=0.6, gamma=0.5, delta=0.3, iterations=2, share=0.2)
    central = LinkPropMulti(model.config).fit(small.train)
    settings = LinkPropMultiSettings(**model.config.needs, ring_bits=48)
    program = LinkPropMultiProgram(settings, small.train.n_users, small.train.n_items)
    components, _ = execute(program.steps(), Simulation(small.train))
    np.testing.assert_array_equal(components.item_degrees, central.components.item_degrees)
    assert (components.item_degrees > small.train.item_degrees).any()
    expected = central.score(small.train.matrix)
    assert np.abs(expected).max() > 0.1
    federated = model.use(components).score(small.train.matrix)
    np.testing.assert_allclose(federated, expected, atol=1e-5 * np.abs(expected).max())
