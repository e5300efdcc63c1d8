"""Deterministic splits by ids and seed alone, or by the times of the interactions."""

from __future__ import annotations

import hashlib
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from privirec.data.given import UserItems, as_interactions
from privirec.data.interactions import Dataset, Interactions
from privirec.errors import DataError, UsageError, warn_of_data

Seed: TypeAlias = "int | np.random.Generator"  # a string avoids importing numpy.random
By = Literal["random", "time", "leave-one-out"]
Held = Literal["random", "block"]
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
    """Split interactions into train and test; every user in test keeps at least one train item.

    Parameters
    ----------
    user_items
        Interactions, or any other input that `fit` accepts.
    test
        Share to hold out.
    seed
        Seed of the random choice; the choice depends on it and on the ids alone.
    name
        Name of the data set, for reports.
    by
        "random": the share `test` of every user's items. "time": the latest share of all
        interactions; users without an earlier interaction are in neither part. "leave-one-out": one
        item of every user with two or more, the latest if times are known, otherwise a random one.
    weighted
        If true, keep the values of a matrix as weights; for a DataFrame, the name of the column
        that holds them. Interactions keep their weights in any case.
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
    train: UserItems, *, share: float = 0.1, seed: Seed = 0, by: Held = "random"
) -> tuple[Interactions, Interactions]:
    """Cut a validation set from train: (rest of train, validation).

    With "random", it is a random share of every history. With "block", it is items of a history
    that follow each other in number, from a random one on. Data sets that number items as they
    occur, as Gowalla and Yelp2018 do, have items of one time side by side, so a block is more like
    a test set of later items. It is no model of it: see docs/results.
    """
    if by not in get_args(Held):
        raise UsageError(f"no validation by {by!r}; there are {', '.join(get_args(Held))}")
    return _hold_out(_as_given(train), share, seed, b"validation", in_blocks=by == "block")


def _as_given(user_items: UserItems, weighted: bool | str = False) -> Interactions:
    if isinstance(user_items, Interactions) and not weighted:
        return user_items  # with its weights, if it has any
    return as_interactions(user_items, weighted)


def check_way(by: str) -> None:
    """Raise UsageError unless `by` is a known way to split."""
    if by not in WAYS:
        raise UsageError(f"no way to split by {by!r}; there are {', '.join(WAYS)}")


def check_share(share: float) -> None:
    """Raise UsageError unless the share can be held out."""
    if not 0 <= share < 1:
        raise UsageError(f"a share of {share} cannot be held out: it must be in [0, 1)")


def _hold_out(
    interactions: Interactions,
    share: float,
    seed: Seed,
    purpose: bytes,
    *,
    in_blocks: bool = False,
) -> tuple[Interactions, Interactions]:
    """Hold out a share of every user's items, side by side if `in_blocks`.

    Every (user, item) pair gets a keyed random number; a user's smallest ones are held out. The
    result therefore depends neither on the order of rows nor on the other users in the data.
    """
    check_share(share)
    user_keys, pair_keys = _keys(interactions, seed, purpose)
    row_keys = mix(user_keys + np.uint64(1))
    if in_blocks:
        pair_keys = _places_from(interactions.user_degrees, mix(user_keys + np.uint64(2)))
    held = held_out_entries(interactions.matrix.indptr, share, row_keys, pair_keys)
    return interactions.select(~held), interactions.select(held)


def _places_from(lengths: NDArray[np.int64], row_keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the place of every entry in its row, counted round from a random one."""
    many = np.repeat(np.maximum(lengths, 1), lengths)
    place = np.arange(len(many)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    first = (row_keys % np.maximum(lengths, 1).astype(np.uint64)).astype(np.int64)
    return ((place - np.repeat(first, lengths)) % many).astype(np.uint64)


def _leave_one_out(interactions: Interactions, seed: Seed) -> tuple[Interactions, Interactions]:
    """Hold out the latest item of each user; a random one if times are equal or unknown."""
    _, pair_keys = _keys(interactions, seed, b"leave one out")
    times = () if interactions.times is None else (-interactions.times,)
    some = interactions.user_degrees >= 2
    held = _smallest(interactions.matrix.indptr, some, (pair_keys, *times))
    return interactions.select(~held), interactions.select(held)


def _latest(interactions: Interactions, share: float) -> tuple[Interactions, Interactions]:
    """Hold out the latest share of all interactions; equal times stay together."""
    check_share(share)
    times = interactions.times
    if times is None:
        raise DataError("a split by time needs times: a column timestamp, or another that you name")
    wanted = round(share * len(times))
    held = np.zeros(len(times), bool)
    if wanted:
        held = times >= np.partition(times, len(times) - wanted)[len(times) - wanted]
    if held.all():
        raise DataError("a split by time leaves nothing in train: too many times are equal")
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
    """Return a keyed random number for each user, and one for each interaction."""
    if isinstance(seed, np.random.Generator):
        seed = int(seed.integers(2**63))
    digest = hashlib.blake2b(purpose + b"\0" + str(seed).encode(), digest_size=8).digest()
    user_keys = mix(_id_keys(interactions.user_ids) ^ np.uint64(int.from_bytes(digest, "little")))
    rows = np.repeat(np.arange(interactions.n_users), interactions.user_degrees)
    items = _id_keys(interactions.item_ids)[interactions.matrix.indices]
    return user_keys, mix(user_keys[rows] ^ items)


def at_most(interactions: Interactions, most: int, seed: Seed = 0) -> Interactions:
    """Return the interactions with at most this many items of each user, chosen at random."""
    _, pair_keys = _keys(interactions, seed, b"at most")
    spare = np.maximum(interactions.user_degrees - most, 0)
    return interactions.select(~_smallest(interactions.matrix.indptr, spare, (pair_keys,)))


def held_out_entries(
    indptr: NDArray[Any], share: float, row_keys: NDArray[np.uint64], pair_keys: NDArray[np.uint64]
) -> NDArray[np.bool_]:
    """Return a mask of the held-out entries of a sparse matrix.

    In each row the share with the smallest keys is held out, never the whole row. `row_keys` are
    random numbers per row, `pair_keys` per entry.
    """
    degrees = np.diff(indptr)
    # Rounding up or down at random keeps the expected share right for users with few items, too.
    uniform = (row_keys >> np.uint64(11)) * 2.0**-53
    n_held = np.minimum(np.floor(share * degrees + uniform), np.maximum(degrees - 1, 0))
    return _smallest(indptr, n_held, (pair_keys,))


def _smallest(
    indptr: NDArray[Any], n_held: NDArray, keys: tuple[NDArray, ...]
) -> NDArray[np.bool_]:
    """Mark the `n_held` smallest entries of each row; the last of the keys is the primary one."""
    degrees = np.diff(indptr)
    rows = np.repeat(np.arange(len(degrees)), degrees)
    order = np.lexsort((*keys, rows))
    rank = np.arange(len(rows)) - indptr[:-1][rows]
    held = np.zeros(len(rows), bool)
    held[order] = rank < n_held[rows]
    return held


def _id_keys(ids: NDArray) -> NDArray[np.uint64]:
    """Return one 64-bit number per id, the same on every machine."""
    if ids.dtype.kind in "iu":
        return mix(ids.astype(np.uint64))
    digests = b"".join(hashlib.blake2b(str(i).encode(), digest_size=8).digest() for i in ids)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finaliser of SplitMix64.

    It is a bijection in which every input bit affects every output bit.
    """
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
