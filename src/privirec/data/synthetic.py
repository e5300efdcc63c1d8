"""Made-up interactions with the features that matter: communities and a long-tailed popularity."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privirec.data.interactions import Dataset, Interactions
from privirec.data.splits import split
from privirec.errors import UsageError

DEFAULT_SEED = 2024
LARGEST = 10_000_000
PREFIX = "synthetic:"


@dataclass(frozen=True)
class Size:
    """Numbers to imitate; degrees count train and test together."""

    users: int
    items: int
    mean_degree: float
    smallest_degree: int


# The large two follow the standard data sets of the same name: their sizes, and degrees that,
# after a fifth went to test, start and lie on average where those of the originals do.
NAMED_SIZES = {
    "small": Size(200, 300, 24.0, 8),
    "demo": Size(2_000, 2_400, 30.0, 10),
    "town": Size(30_000, 1_000, 32.0, 10),  # many people for each item, as noise needs them
    "gowalla": Size(29_858, 40_981, 1_027_370 / 29_858, 10),
    "amazon-book": Size(52_643, 91_599, 2_984_108 / 52_643, 20),
}

# Degrees above their minimum are log-normal; this spread fits the quantiles of Gowalla, of its
# users and of its items alike.
_SPREAD = 1.34
_LARGEST_SHARE_OF_CATALOGUE = 0.25
_INTERESTS = 3  # communities a user belongs to
_SHARE_OF_NOISE = 0.1  # draws by popularity alone, from the whole catalogue


def synthetic(name: str, seed: int = DEFAULT_SEED) -> Dataset:
    """`synthetic:small`, `:town`, another of `NAMED_SIZES`, or `synthetic:USERSxITEMS`."""
    size = _size(name)
    return split(generate(size, seed), test=0.2, seed=seed, name=name)


def generate(size: Size, seed: int = DEFAULT_SEED) -> Interactions:
    """Users draw distinct items, mostly from a few communities, in proportion to popularity.

    Items lie on a line, community by community, so that a community is an interval of their
    cumulative popularity and drawing from it is one binary search.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    n_users, n_items = size.users, size.items
    largest = max(1, int(n_items * _LARGEST_SHARE_OF_CATALOGUE))
    degrees = np.rint(_long_tailed(rng, n_users, size.smallest_degree, size.mean_degree))
    degrees = np.clip(degrees, 1, largest).astype(np.int64)

    mean_popularity = degrees.sum() / n_items
    popularity = _long_tailed(rng, n_items, 0.4 * mean_popularity, mean_popularity)
    cumulative = np.concatenate(([0.0], np.cumsum(popularity)))
    n_communities = max(1, round(n_items**0.5 / 2))
    borders = cumulative[np.linspace(0, n_items, n_communities + 1).astype(np.int64)]
    # A community draws members in proportion to the popularity of what it holds.
    interests = np.searchsorted(borders[1:-1], rng.random((n_users, _INTERESTS)) * cumulative[-1])
    # Broken sticks: one interest of a user usually outweighs the others.
    weights = np.cumsum(rng.dirichlet(np.full(_INTERESTS, 0.5), n_users), axis=1)

    keys = np.empty(0, np.int64)  # user * n_items + item, unique
    missing = degrees
    while missing.any():
        users = np.repeat(np.arange(n_users), missing)
        chosen = (rng.random(len(users))[:, None] > weights[users, :-1]).sum(axis=1)
        community = interests[users, chosen]
        # Whom a small community leaves without anything new draws from the whole catalogue.
        anywhere = (rng.random(len(users)) < _SHARE_OF_NOISE) | (len(keys) > 0)
        low = np.where(anywhere, 0.0, borders[community])
        high = np.where(anywhere, cumulative[-1], borders[community + 1])
        drawn = low + rng.random(len(users)) * (high - low)
        items = np.minimum(np.searchsorted(cumulative, drawn, side="right") - 1, n_items - 1)
        keys = np.sort(np.concatenate((keys, users * n_items + items)))
        keys = keys[np.diff(keys, prepend=-1) != 0]
        missing = degrees - np.bincount(keys // n_items, minlength=n_users)

    # Item numbers must tell nothing about communities: ties are broken by them.
    shuffled = rng.permutation(n_items)
    return Interactions.from_indices(
        keys // n_items, shuffled[keys % n_items], np.arange(n_users), np.arange(n_items)
    )


def _long_tailed(rng: np.random.Generator, n: int, minimum: float, mean: float) -> NDArray:
    """n numbers from `minimum` on with the given mean: a shifted log-normal."""
    above = np.exp(_SPREAD * rng.standard_normal(n))
    return minimum + above * (mean - minimum) / above.mean()


def _size(name: str) -> Size:
    label = name.removeprefix(PREFIX)
    if label in NAMED_SIZES:
        return NAMED_SIZES[label]
    match = re.fullmatch(r"([1-9]\d{0,8})x([1-9]\d{0,8})", label)
    if match is None:
        known = ", ".join(PREFIX + known for known in NAMED_SIZES)
        raise UsageError(
            f"{name}: no such synthetic data set; known are {known}, "
            f"and any {PREFIX}USERSxITEMS such as {PREFIX}1000x2000"
        )
    users, items = int(match[1]), int(match[2])
    if users > LARGEST or items > LARGEST:
        raise UsageError(f"{name}: at most {LARGEST:,} users and as many items can be made up")
    mean = min(32.0, max(1.0, items / 8))
    return Size(users, items, mean, max(1, int(mean / 3)))
