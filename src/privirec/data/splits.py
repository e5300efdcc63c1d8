"""Deterministic splits: which of a user's items are held out depends on ids and seed alone, or on
the times of the interactions."""

from __future__ import annotations

import hashlib
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from privirec.data.given import UserItems, as_interactions
from privirec.data.interactions import Dataset, Interactions
from privirec.errors import DataError, UsageError, warn_of_data

Seed: TypeAlias = "int | np.random.Generator"  # text, as few of those who import this need it
By = Literal["random", "time", "leave-one-out"]
WAYS: tuple[str, ...] = get_args(By)


def split(
    user_items: UserItems,
    *,
    test: float = 0.2,
    seed: Seed = 0,
    name: str = "split",
    by: By = "random",
    weighted: bool | str = False,
) -> Dataset:
    """Train and test; whoever is in test keeps at least one item in train.

    Parameters
    ----------
    user_items
        What is to be split: Interactions, or anything else that `fit` takes.
    test
        The share to hold out.
    seed
        Decides what is held out at random, together with the ids alone.
    name
        Of the data set, for reports.
    by
        "random": the share `test` of every user's items. "time": of all interactions the latest
        share; who begins later than that is in neither part. "leave-one-out": one item of every
        user with two or more, the latest if there are times and one at random otherwise.
    weighted
        Keep the values of a matrix as weights, or those in the column of a DataFrame of which this
        is the name. Interactions keep their weights in any case.
    """
    check_way(by)
    interactions = _as_given(user_items, weighted)
    if by == "random":
        train, held_out = _hold_out(interactions, test, seed, b"test")
    elif by == "leave-one-out":
        train, held_out = _leave_one_out(interactions, seed)
    else:
        train, held_out = _latest(interactions, test)
    return Dataset(name, train, held_out)


def validation_split(
    train: UserItems, *, share: float = 0.1, seed: Seed = 0
) -> tuple[Interactions, Interactions]:
    """Cut a validation set from train: (rest of train, validation)."""
    return _hold_out(_as_given(train), share, seed, b"validation")


def _as_given(user_items: UserItems, weighted: bool | str = False) -> Interactions:
    if isinstance(user_items, Interactions) and not weighted:
        return user_items  # with its weights, if it has any
    return as_interactions(user_items, weighted)


def check_way(by: str) -> None:
    """Refuse a way to split that there is not."""
    if by not in WAYS:
        raise UsageError(f"no way to split by {by!r}; there are {', '.join(WAYS)}")


def check_share(share: float) -> None:
    """Refuse a share that cannot be held out."""
    if not 0 <= share < 1:
        raise UsageError(f"a share of {share} cannot be held out: it must be in [0, 1)")


def _hold_out(
    interactions: Interactions, share: float, seed: Seed, purpose: bytes
) -> tuple[Interactions, Interactions]:
    """Every (user, item) pair gets a keyed random number; a user's smallest ones are held out.

    So the outcome depends neither on the order of rows nor on who else is in the data.
    """
    check_share(share)
    user_keys, pair_keys = _keys(interactions, seed, purpose)
    row_keys = mix(user_keys + np.uint64(1))
    held = held_out_entries(interactions.matrix.indptr, share, row_keys, pair_keys)
    return interactions.select(~held), interactions.select(held)


def _leave_one_out(interactions: Interactions, seed: Seed) -> tuple[Interactions, Interactions]:
    """The latest item of each user, among equal times and without any a random one."""
    _, pair_keys = _keys(interactions, seed, b"leave one out")
    times = () if interactions.times is None else (-interactions.times,)
    some = interactions.user_degrees >= 2
    held = _smallest(interactions.matrix.indptr, some, (pair_keys, *times))
    return interactions.select(~held), interactions.select(held)


def _latest(interactions: Interactions, share: float) -> tuple[Interactions, Interactions]:
    """The latest share of all interactions, those of one moment together."""
    check_share(share)
    times = interactions.times
    if times is None:
        raise DataError("a split by time needs times: a column timestamp, or one that is named")
    wanted = round(share * len(times))
    held = np.zeros(len(times), bool)
    if wanted:
        held = times >= np.partition(times, len(times) - wanted)[len(times) - wanted]
    if held.all():
        raise DataError("a split by time leaves nothing in train: too many are of one moment")
    train, test = interactions.select(~held), interactions.select(held)
    late = (train.user_degrees == 0) & (test.user_degrees > 0)
    if late.any():
        warn_of_data(
            f"{int(late.sum()):,} of {interactions.n_users:,} users begin after the split and are "
            "left out"
        )
        train, test = train.of_users(~late), test.of_users(~late)
    return train, test


def _keys(
    interactions: Interactions, seed: Seed, purpose: bytes
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """A keyed random number for each user, and one for each interaction."""
    if isinstance(seed, np.random.Generator):
        seed = int(seed.integers(2**63))
    digest = hashlib.blake2b(purpose + b"\0" + str(seed).encode(), digest_size=8).digest()
    user_keys = mix(_id_keys(interactions.user_ids) ^ np.uint64(int.from_bytes(digest, "little")))
    rows = np.repeat(np.arange(interactions.n_users), interactions.user_degrees)
    items = _id_keys(interactions.item_ids)[interactions.matrix.indices]
    return user_keys, mix(user_keys[rows] ^ items)


def held_out_entries(
    indptr: NDArray[Any], share: float, row_keys: NDArray[np.uint64], pair_keys: NDArray[np.uint64]
) -> NDArray[np.bool_]:
    """Which entries of a sparse matrix are held out, by random numbers for its rows and entries:
    the share of each row with the smallest numbers, and never all of a row."""
    degrees = np.diff(indptr)
    # Rounding up or down at random keeps the share right also for users with few items.
    uniform = (row_keys >> np.uint64(11)) * 2.0**-53
    n_held = np.minimum(np.floor(share * degrees + uniform), np.maximum(degrees - 1, 0))
    return _smallest(indptr, n_held, (pair_keys,))


def _smallest(
    indptr: NDArray[Any], n_held: NDArray, keys: tuple[NDArray, ...]
) -> NDArray[np.bool_]:
    """So many entries of each row, the smallest by their keys (the last one first)."""
    degrees = np.diff(indptr)
    rows = np.repeat(np.arange(len(degrees)), degrees)
    order = np.lexsort((*keys, rows))
    rank = np.arange(len(rows)) - indptr[:-1][rows]
    held = np.zeros(len(rows), bool)
    held[order] = rank < n_held[rows]
    return held


def _id_keys(ids: NDArray) -> NDArray[np.uint64]:
    """One 64-bit number an id, the same on every machine."""
    if ids.dtype.kind in "iu":
        return mix(ids.astype(np.uint64))
    digests = b"".join(hashlib.blake2b(str(i).encode(), digest_size=8).digest() for i in ids)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64: a bijection in which every input bit moves every output bit."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
