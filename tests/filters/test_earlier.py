"""Sums of earlier runs: inverse variance, images by least squares, and other catalogues."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privirec.errors import UsageError
from privirec.filters.earlier import (
    UNKNOWN,
    Earlier,
    Estimate,
    Image,
    combined_image,
    growth,
)

deviations = st.floats(0.1, 10)


def some(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


@given(st.integers(0, 99), st.sampled_from([1, 10, 200]), deviations, deviations)
def test_combined_sums_are_the_inverse_variance_estimate(seed, size, first, second):
    """Two sums without clear growth become their mean, weighted by inverse variance."""
    old, new = Estimate.of(some(seed, size), first), Estimate.of(some(seed + 1, size), second)
    scale = growth(old, new)
    both = old.added(new)
    weights = np.array([1 / (scale * first) ** 2, 1 / second**2])
    expected = (weights[0] * scale * old.values + weights[1] * new.values) / weights.sum()
    np.testing.assert_allclose(both.values, expected)
    np.testing.assert_allclose(both.variances, 1 / weights.sum())
    assert (both.variances < new.variances).all()


@given(st.integers(0, 20), st.floats(0.5, 3))
def test_growth_is_found_under_noise(seed, factor):
    """It is read from two noisy sums without the bias of the noise in the earlier one."""
    rng = np.random.default_rng(seed)
    exact = rng.exponential(10, 20_000)
    old = Estimate.of(exact + rng.normal(0, 10, len(exact)), 10)
    new = Estimate.of(factor * exact + rng.normal(0, 10, len(exact)), 10)
    assert growth(old, new) == pytest.approx(factor, rel=0.05)
    assert growth(Estimate.of(rng.normal(0, 10, 500), 10), new.take(np.arange(500))) == 1.0


def test_entries_that_one_run_does_not_know_come_from_the_other():
    old = Estimate(np.array([1.0, 0.0, 3.0]), np.array([1.0, np.inf, 4.0]))
    new = Estimate(np.array([0.0, 2.0, 5.0]), np.array([np.inf, 9.0, 4.0]))
    both = old.added(new)
    np.testing.assert_allclose(both.values, [1, 2, 4])
    np.testing.assert_allclose(both.variances, [1, 9, 2])
    nothing = Estimate.unknown(2).added(Estimate.unknown(2))
    assert not nothing.is_known.any()


@given(st.integers(0, 50), st.integers(2, 6), st.lists(deviations, min_size=1, max_size=4))
def test_images_of_one_block_become_their_weighted_mean(seed, columns, noise):
    items = np.arange(10)
    block = np.linalg.qr(some(seed, 10, columns))[0]
    images = [
        Image(items, block, some(seed + n, 10, columns), np.full(columns, 1 / s**2))
        for n, s in enumerate(noise)
    ]
    weights = np.array([1 / s**2 for s in noise])
    expected = sum(w * one.image for w, one in zip(weights, images, strict=True)) / weights.sum()
    np.testing.assert_allclose(combined_image(items, block, images), expected, atol=1e-9)


def test_images_of_rotated_blocks_and_other_items_tell_about_this_block():
    """Without noise, the image of a block follows from images of other blocks of its span."""
    exact = some(1, 8, 8)
    exact = exact + exact.T
    span = np.linalg.qr(some(2, 8, 3))[0]
    items = np.arange(8)
    turns = [np.linalg.qr(some(seed, 3, 3))[0] for seed in (3, 4)]
    images = [Image(items, span @ turn, exact @ span @ turn, np.ones(3)) for turn in turns]
    np.testing.assert_allclose(combined_image(items, span, images), exact @ span, atol=1e-9)
    short = Image(items[:5], images[0].block[:5], images[0].image[:5], np.ones(3))
    found = combined_image(items, span, [short])
    assert not found[5:].any()


def earlier_sums(n_items: int = 6) -> Earlier:
    rng = np.random.default_rng(5)
    made = Earlier(Estimate.of(rng.exponential(5, n_items), 1.0), 30.0)
    made = made.with_gram(np.array([0, 2, 5]), Estimate.of(np.arange(6.0), 0.5))
    made = made.with_pairs(np.array([2, 0]), np.array([3, 5]), Estimate.of(np.array([7.0, 9]), 2))
    block = np.linalg.qr(some(6, 3, 2))[0]
    image = Image(np.array([1, 2, 5]), block, some(7, 3, 2), np.ones(2))
    return Earlier(
        **{
            **vars(made),
            "images": (image,),
            "last": block,
            "last_items": image.items,
            "strengths": np.array([3.0, 1.0]),
        }
    )


def test_gram_keeps_pairs_of_items_that_left_the_head():
    """The triangles of two heads are joined pair by pair."""
    sums = earlier_sums().with_gram(np.array([2, 4]), Estimate.of(np.array([1.0, 2, 3]), 0.5))
    assert sums.gram_items.tolist() == [0, 2, 4, 5]
    of_old = sums.gram_over(np.array([0, 2, 5]))
    # (2, 2) was in both; all other pairs are as they were
    np.testing.assert_allclose(of_old.values, [0, 1, 2, (3 + 1) / 2, 4, 5])
    assert of_old.variances[3] == 0.125
    assert not sums.gram_over(np.array([0, 4])).is_known[1]


def test_sums_follow_their_items_into_another_catalogue():
    """Items may be new, gone or in another place; what is known of the others stays."""
    sums = earlier_sums()
    places = np.array([5, UNKNOWN, 2, 0])  # item 5 comes first, item 0 last
    moved = sums.over(places)
    np.testing.assert_array_equal(
        moved.popularity.values[[0, 2, 3]], sums.popularity.values[[5, 2, 0]]
    )
    assert not moved.popularity.is_known[1]
    assert moved.gram_items.tolist() == [0, 2, 3]
    np.testing.assert_allclose(moved.gram.values, [5, 4, 2, 3, 1, 0])
    assert moved.last_items.tolist() == [0, 2]
    np.testing.assert_array_equal(moved.last, sums.last[[2, 1]])
    assert (moved.pair_first.tolist(), moved.pair_second.tolist()) == ([0], [3])
    assert moved.pairs.values.tolist() == [9]


def test_arrays_hold_everything():
    sums = earlier_sums()
    again = Earlier.of_arrays(sums.arrays())
    for name, array in sums.arrays().items():
        np.testing.assert_array_equal(again.arrays()[name], array, err_msg=name)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("popularity.variances", np.zeros(6)),
        ("popularity", np.full(6, np.nan)),
        ("gram", np.zeros(5)),
        ("gram.items", np.array([0, 2, 9])),
        ("image.0.items", np.array([2, 1, 5])),
        ("strengths", np.zeros(3)),
        ("pairs.first", np.array([0, -1])),
        ("signal", np.zeros(0)),
    ],
)
def test_arrays_that_do_not_fit_are_refused(name, bad):
    with pytest.raises(UsageError, match="not the released sums"):
        Earlier.of_arrays(earlier_sums().arrays() | {name: bad})
