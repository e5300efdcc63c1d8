"""The loops behind contributions without a compiler, for few histories; see `kernels`.

Bit for bit the same: integers add up in any order, and sums of doubles are taken one after the
other (`np.add.accumulate`), as the compiled loops take them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from privirec.data.splits import mix

Array = NDArray[Any]


def sum_rows(indptr: Array, indices: Array, source: Array, out: Array) -> None:
    """out[r] = sum of source[j] over the entries j of row r, in integers."""
    for row in range(len(out)):
        out[row] = source[indices[indptr[row] : indptr[row + 1]]].sum(axis=0, dtype=out.dtype)


def mean_rows(indptr: Array, indices: Array, source: Array, scale: float, out: Array) -> None:
    """out[r] = rint(scale * mean of source[j] over the entries j of row r)."""
    for row in range(len(out)):
        count = indptr[row + 1] - indptr[row]
        out[row] = 0
        if count:
            total = source[indices[indptr[row] : indptr[row + 1]]].sum(axis=0, dtype=out.dtype)
            out[row] = np.rint(total / count * scale)


def sum_scaled_rows(
    indptr: Array,
    indices: Array,
    items: Array,
    finer: Array,
    source: Array,
    scales: Array,
    bits: int,
    seed: np.uint64,
    first_user: int,
    first_column: int,
    out: Array,
) -> None:
    """out[r] = sum over the users u of item i = items[r] of source[u] * scales[i] / 2^bits, each
    rounded by a public coin before it is added; or of what that rounding has left over."""
    columns = np.arange(first_column, first_column + source.shape[1], dtype=np.uint64)
    column_keys = mix(columns)
    item_keys = mix(np.uint64(seed) ^ items.astype(np.uint64))
    shift, odd = np.uint64(64 - bits), np.uint64(0xD1342543DE82EF95)
    people = np.diff(indptr)[items]
    out[:] = 0
    for row in np.flatnonzero(people).tolist():
        item, factor = items[row], finer[row]
        users = indices[indptr[item] : indptr[item + 1]].astype(np.int64)
        keys = mix(item_keys[row] ^ (first_user + users).astype(np.uint64))
        coins = (keys[:, None] ^ column_keys) * odd
        scaled = source[users].astype(np.int64) * scales[item]
        rounded = (scaled + (coins >> shift).astype(np.int64)) >> bits
        if factor:
            left = scaled - (rounded << bits)
            rounded = (left * factor + (mix(coins) >> shift).astype(np.int64)) >> bits
        out[row] = rounded.sum(axis=0)


def add_squares(block: Array, weights: Array, out: Array) -> None:
    """out[c] += sum over rows of weight times the square, row after row."""
    rows = 1 << 10
    for first in range(0, len(block), rows):
        values = block[first : first + rows].astype(np.float64)
        values *= values
        values *= weights[first : first + rows, None]
        values[0] += out
        out[:] = np.add.accumulate(values, axis=0)[-1]


def add_triangle_rows(
    first: int,
    last: int,
    item_indptr: Array,
    item_users: Array,
    user_indptr: Array,
    user_items: Array,
    weights: Array,
    n_items: int,
    block: Array,
) -> None:
    """Add w_u r_u^T r_u of every user to rows first..last of the upper triangle."""
    for item, user, offset in _touched(first, last, item_indptr, item_users, n_items):
        others = _from(item, user, user_indptr, user_items)
        block[offset + others - item] += weights[user]


def unit_pair_scales(indptr: Array, indices: Array, weights: Array, unit: float) -> Array:
    """For each row the scale at which the products of weights of all pairs of its entries together
    are of length `unit`, or very little less."""
    scales = np.zeros(len(indptr) - 1)
    for row in range(len(scales)):
        entries = indices[indptr[row] : indptr[row + 1]]
        if len(entries) < 2:
            continue
        square = weights[entries].astype(np.int64) ** 2
        before = np.cumsum(square) - square
        squares = np.add.accumulate(before.astype(np.float64) * square.astype(np.float64))[-1]
        if squares > 0.0:
            margin = 1.0 - (len(entries) + 16) * 2.0**-52
            scales[row] = unit / np.sqrt(squares) * margin
    return scales


def add_pair_rows(
    first: int,
    last: int,
    item_indptr: Array,
    item_users: Array,
    user_indptr: Array,
    user_items: Array,
    weights: Array,
    scales: Array,
    block: Array,
) -> None:
    """Add the scaled weights of every user's pairs, towards zero, to rows first..last of the upper
    triangle; nothing to its diagonal."""
    for item, user, offset in _touched(first, last, item_indptr, item_users, len(weights)):
        others = _from(item + 1, user, user_indptr, user_items)
        products = weights[item].astype(np.int64) * weights[others].astype(np.int64)
        block[offset + others - item] += (products * scales[user]).astype(np.int64)


def add_unit_rows(
    indptr: Array, indices: Array, block: Array, weights: Array, unit: float, out: Array
) -> None:
    """For each row of a history matrix with entries i: out[i] += scale weight[i] (sum of block[j] -
    block[i]) towards zero, at length `unit` or very little less."""
    columns = block.shape[1]
    for row in range(len(indptr) - 1):
        entries = indices[indptr[row] : indptr[row + 1]]
        if not len(entries):
            continue
        lines = block[entries].astype(np.int64)
        values = weights[entries, None] * (lines.sum(axis=0) - lines).astype(np.float64)
        squares = np.add.accumulate((values * values).reshape(-1))[-1] if columns else 0.0
        if squares == 0.0:
            continue
        margin = 1.0 - (len(entries) * columns + 16) * 2.0**-52
        scale = unit / np.sqrt(squares) * margin
        out[entries] += (values * scale).astype(np.int64)  # an item once in a row


def _touched(
    first: int, last: int, item_indptr: Array, item_users: Array, n_items: int
) -> list[tuple[int, int, int]]:
    """Items of these rows that somebody touched, who it was, and where their rows begin."""
    found = []
    counts = np.diff(item_indptr[first : last + 1])
    for item in (first + np.flatnonzero(counts)).tolist():
        rows = item - first
        offset = rows * n_items - (first + item - 1) * rows // 2
        users = item_users[item_indptr[item] : item_indptr[item + 1]]
        found += [(item, user, offset) for user in users.tolist()]
    return found


def _from(least: int, user: int, user_indptr: Array, user_items: Array) -> Array:
    """The items of a user that are not before this one."""
    items = user_items[user_indptr[user] : user_indptr[user + 1]]
    return items[np.searchsorted(items, least) :]
