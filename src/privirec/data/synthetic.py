"""Synthetic interactions with communities and a long-tailed popularity."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privirec.data.interactions import Dataset, Interactions
from privirec.data.shards import USERS_PER_SHARD, ShardedDataset, write_shards, writing
from privirec.data.splits import split
from privirec.errors import UsageError

DEFAULT_SEED = 2024
LARGEST = 10_000_000
PREFIX = "synthetic:"


@dataclass(frozen=True)
class Size:
    """Target sizes; degrees count train and test together."""

    users: int
    items: int
    mean_degree: float
    smallest_degree: int


# The last two imitate the standard data sets of the same name: their sizes, and the minimum and
# mean of their degrees once a fifth is held out for test.
NAMED_SIZES = {
    "small": Size(200, 300, 24.0, 8),
    "demo": Size(2_000, 2_400, 30.0, 10),
    "town": Size(30_000, 1_000, 32.0, 10),  # many users per item, as differential privacy needs
    "gowalla": Size(29_858, 40_981, 1_027_370 / 29_858, 10),
    "amazon-book": Size(52_643, 91_599, 2_984_108 / 52_643, 20),
}

# Too large for memory; generated in shards.
SHARDED_SIZES = {"ten-million": Size(10_000_000, 200_000, 30.0, 8)}

# Degrees above their minimum are log-normal; this spread fits the quantiles of both the users and
# the items of Gowalla.
_SPREAD = 1.34
_LARGEST_SHARE_OF_CATALOGUE = 0.25
_INTERESTS = 3  # communities per user
_SHARE_OF_NOISE = 0.1  # share of draws from the whole catalogue, by popularity alone


def synthetic(name: str, seed: int = DEFAULT_SEED) -> Dataset:
    """Generate `synthetic:small`, `:town`, another of `NAMED_SIZES`, or `synthetic:USERSxITEMS`."""
    size = _size(name)
    if name.removeprefix(PREFIX) in SHARDED_SIZES:
        raise UsageError(
            f"{name} is made in shards: privirec data make {name} FOLDER, and then --dataset FOLDER"
        )
    return split(generate(size, seed), test=0.2, seed=seed, name=name)


def make_shards(
    name: str,
    folder: str | Path,
    seed: int = DEFAULT_SEED,
    *,
    users_per_shard: int = USERS_PER_SHARD,
    progress: Callable[[int, int], None] | None = None,
) -> ShardedDataset:
    """Generate `synthetic:ten-million`, or any other size, block by block into shards.

    For the named sizes that fit into memory the users differ from those of `synthetic`, which draws
    all of them together.
    """
    size = _size(name)
    blocks = SyntheticBlocks(size, seed, users_per_shard)
    with writing(Path(folder)):
        return write_shards(
            folder,
            name,
            None,
            len(blocks),
            blocks.block,
            made_from={"synthetic": asdict(size), "users_per_shard": users_per_shard},
            n_items=size.items,
            seed=seed,
            progress=progress,
        )


def generate(size: Size, seed: int = DEFAULT_SEED) -> Interactions:
    """Let users draw distinct items, mostly from a few communities, in proportion to popularity."""
    rng = np.random.Generator(np.random.PCG64(seed))
    above = _long_tail(rng, size.users)
    degrees = _degrees(size, above / above.mean())
    catalogue = _Catalogue.drawn(rng, size.items, degrees.sum() / size.items)
    keys = catalogue.draw(rng, degrees)
    # Item numbers break ties, so they must not depend on communities.
    shuffled = rng.permutation(size.items)
    return _from_keys(keys, shuffled, np.arange(size.users))


class SyntheticBlocks:
    """Synthetic data in blocks of users, each generated from its own seed.

    Popularity and communities are shared, and no block needs another. The data depends only on the
    size, the seed and the number of users in a block.
    """

    def __init__(self, size: Size, seed: int, users_per_block: int) -> None:
        self._size = size
        self._seed = seed
        self._users = users_per_block
        rng = self._generator(0)
        self._catalogue = _Catalogue.drawn(
            rng, size.items, size.users * size.mean_degree / size.items
        )
        self._shuffled = rng.permutation(size.items)

    def __len__(self) -> int:
        return (self._size.users + self._users - 1) // self._users

    def block(self, number: int) -> Interactions:
        """Generate the users from number * users_per_block on."""
        first = number * self._users
        users = np.arange(first, min(first + self._users, self._size.users))
        rng = self._generator(1 + number)
        # A block divides by the mean of the distribution; `generate` knows the mean of all users.
        above = _long_tail(rng, len(users)) / np.exp(_SPREAD**2 / 2)
        keys = self._catalogue.draw(rng, _degrees(self._size, above))
        return _from_keys(keys, self._shuffled, users)

    def _generator(self, stream: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64([self._seed, stream]))


@dataclass(frozen=True)
class _Catalogue:
    """Popularity and communities of the items.

    Items lie on a line, community by community, so that a community is an interval of their
    cumulative popularity and drawing from it is one binary search.
    """

    cumulative: NDArray[np.float64]
    borders: NDArray[np.float64]

    @classmethod
    def drawn(cls, rng: np.random.Generator, n_items: int, mean_popularity: float) -> _Catalogue:
        above = _long_tail(rng, n_items)
        popularity = _from_minimum(0.4 * mean_popularity, mean_popularity, above / above.mean())
        cumulative = np.concatenate(([0.0], np.cumsum(popularity)))
        n_communities = max(1, round(n_items**0.5 / 2))
        return cls(
            cumulative, cumulative[np.linspace(0, n_items, n_communities + 1).astype(np.int64)]
        )

    def draw(self, rng: np.random.Generator, degrees: NDArray[np.int64]) -> NDArray[np.int64]:
        """Draw `degrees` distinct items per user, as ascending keys user * items + item."""
        cumulative, borders = self.cumulative, self.borders
        n_users, n_items = len(degrees), len(cumulative) - 1
        # A community attracts members in proportion to the total popularity of its items.
        interests = np.searchsorted(
            borders[1:-1], rng.random((n_users, _INTERESTS)) * cumulative[-1]
        )
        # Dirichlet weights below one: one interest of a user usually outweighs the others.
        weights = np.cumsum(rng.dirichlet(np.full(_INTERESTS, 0.5), n_users), axis=1)
        keys = np.empty(0, np.int64)
        missing = degrees
        while missing.any():
            users = np.repeat(np.arange(n_users), missing)
            chosen = (rng.random(len(users))[:, None] > weights[users, :-1]).sum(axis=1)
            community = interests[users, chosen]
            # Users who find nothing new in a small community draw from the whole catalogue.
            anywhere = (rng.random(len(users)) < _SHARE_OF_NOISE) | (len(keys) > 0)
            low = np.where(anywhere, 0.0, borders[community])
            high = np.where(anywhere, cumulative[-1], borders[community + 1])
            drawn = low + rng.random(len(users)) * (high - low)
            items = np.minimum(np.searchsorted(cumulative, drawn, side="right") - 1, n_items - 1)
            keys = np.sort(np.concatenate((keys, users * n_items + items)))
            keys = keys[np.diff(keys, prepend=-1) != 0]
            missing = degrees - np.bincount(keys // n_items, minlength=n_users)
        return keys


def _degrees(size: Size, above: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return degrees from the smallest on, as long-tailed as `above`, whose mean is one."""
    largest = max(1, int(size.items * _LARGEST_SHARE_OF_CATALOGUE))
    degrees = np.rint(_from_minimum(size.smallest_degree, size.mean_degree, above))
    return np.clip(degrees, 1, largest).astype(np.int64)


def _from_keys(
    keys: NDArray[np.int64], shuffled: NDArray[np.int64], user_ids: NDArray[np.int64]
) -> Interactions:
    n_items = len(shuffled)
    return Interactions.from_indices(
        keys // n_items, shuffled[keys % n_items], user_ids, np.arange(n_items)
    )


def _long_tail(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    """Return n log-normal numbers."""
    return np.exp(_SPREAD * rng.standard_normal(n))


def _from_minimum(minimum: float, mean: float, above: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return numbers from `minimum` on with the given mean; `above` has mean one."""
    return minimum + above * (mean - minimum)


def _size(name: str) -> Size:
    label = name.removeprefix(PREFIX)
    known_sizes = NAMED_SIZES | SHARDED_SIZES
    if label in known_sizes:
        return known_sizes[label]
    match = re.fullmatch(r"([1-9]\d{0,8})x([1-9]\d{0,8})", label)
    if match is None:
        known = ", ".join(PREFIX + known for known in known_sizes)
        raise UsageError(
            f"{name}: no such synthetic data set; known are {known}, "
            f"and any {PREFIX}USERSxITEMS such as {PREFIX}1000x2000"
        )
    users, items = int(match[1]), int(match[2])
    if users > LARGEST or items > LARGEST:
        raise UsageError(f"{name}: at most {LARGEST:,} users and as many items can be generated")
    mean = min(32.0, max(1.0, items / 8))
    return Size(users, items, mean, max(1, int(mean / 3)))
