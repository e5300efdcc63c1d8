"""NumPy versions of the loops used by contributions, for few histories; see `kernels`.

The results are the same bit for bit. Integers can be added in any order, and doubles are added one
after the other (`np.add.accumulate`), as in the compiled loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from privirec.data.splits import mix

Array = NDArray[Any]


def sum_rows(indptr: Array, indices: Array, source: Array, out: Array) -> None:
    """Set out[r] to the sum of source[j] over the entries j of row r, in integers."""
    for row in range(len(out)):
        out[row] = source[indices[indptr[row] : indptr[row + 1]]].sum(axis=0, dtype=out.dtype)


def mean_rows(indptr: Array, indices: Array, source: Array, scale: float, out: Array) -> None:
    """Set out[r] to rint(scale * mean of source[j] over the entries j of row r)."""
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
    """Set out[r] to the sum of source[u] * scales[i] / 2^bits over the users u of item i =
    items[r].

    Each term is rounded by a public coin before it is added. If finer[r] is not zero, out[r] is the
    sum of the residuals of that rounding instead.
    """
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
    """Add to out[c] the sum over rows of weight times square, in the order of the rows."""
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
    """Return, for each row, the scale of the products of its pairs of weights.

    Scaled by it, the products of all pairs of entries together have length `unit` or very slightly
    less.
    """
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
    """Add the scaled products of every user's pairs to rows first..last of the upper triangle.

    Products are rounded towards zero. Nothing is added to the diagonal.
    """
    for item, user, offset in _touched(first, last, item_indptr, item_users, len(weights)):
        others = _from(item + 1, user, user_indptr, user_items)
        products = weights[item].astype(np.int64) * weights[others].astype(np.int64)
        block[offset + others - item] += (products * scales[user]).astype(np.int64)


def add_unit_rows(
    indptr: Array, indices: Array, block: Array, weights: Array, unit: float, out: Array
) -> None:
    """Add scale weight[i] (sum of block[j] - block[i]) to out[i] for each row with entries i.

    The numbers are rounded towards zero. Those of a row together have length `unit` or very
    slightly less.
    """
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
        out[entries] += (values * scale).astype(np.int64)  # each item occurs once per row


def _touched(
    first: int, last: int, item_indptr: Array, item_users: Array, n_items: int
) -> list[tuple[int, int, int]]:
    """Return (item, user, offset of the item's row) for each item of these rows that has users."""
    found = []
    counts = np.diff(item_indptr[first : last + 1])
    for item in (first + np.flatnonzero(counts)).tolist():
        rows = item - first
        offset = rows * n_items - (first + item - 1) * rows // 2
        users = item_users[item_indptr[item] : item_indptr[item + 1]]
        found += [(item, user, offset) for user in users.tolist()]
    return found


def _from(least: int, user: int, user_indptr: Array, user_items: Array) -> Array:
    """Return the user's items from `least` on."""
    items = user_items[user_indptr[user] : user_indptr[user + 1]]
    return items[np.searchsorted(items, least) :]
