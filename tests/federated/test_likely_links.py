"""Tests of likely links: histograms give the result of sorting all pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privirec.data import Interactions
from privirec.extra import likely_links
from privirec.extra.likely_links import LinkScores, nth_from_the_top, threshold_bits
from privirec.filters import factored

pytestmark = pytest.mark.check


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.integers(1, 70))
def test_the_nth_number_from_the_top(counts: list[int], count: int) -> None:
    histogram = np.array(counts, np.int64)
    numbers = np.repeat(np.arange(len(counts)), histogram)[::-1]
    found, place = nth_from_the_top(histogram, count)
    if count > len(numbers):
        assert (found, place) == (0, count)
        return
    assert found == numbers[count - 1]
    assert place == count - np.count_nonzero(numbers > found)


@given(st.integers(0, 2**32), st.integers(1, 300), st.sampled_from([1, 7, 256]))
def test_links_are_the_best_unseen_pairs(seed: int, wanted: int, block: int) -> None:
    rng = np.random.default_rng(seed)
    touched = rng.random((14, 11)) < rng.choice([0.1, 0.4])
    train = Interactions.from_matrix(touched.astype(np.float32))
    operator = factored(train).written_out()
    weights = rng.random(14).astype(np.float32)
    dense = operator.rows(train.matrix) * weights[:, None]
    dense[touched] = -1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(likely_links, "USERS_AT_ONCE", block)
        scores = LinkScores(train.matrix, operator, weights)
        upper, left = nth_from_the_top(scores.upper_histogram(), wanted)
        lower, _ = nth_from_the_top(scores.lower_histogram(upper), left)
        users, items = scores.links(threshold_bits(upper, lower))
    positive = np.sort(dense[dense > 0])[::-1]
    least = positive[min(wanted, len(positive)) - 1] if len(positive) else np.inf
    chosen = dense >= least
    np.testing.assert_array_equal(users, chosen.sum(axis=1))
    np.testing.assert_array_equal(items, chosen.sum(axis=0))
