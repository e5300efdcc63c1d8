"""Compiled loops used by contributions: integer sums over histories."""

from __future__ import annotations

import numpy as np
from numba import njit, prange


@njit(parallel=True, cache=True)
def sum_rows(indptr, indices, source, out):  # type: ignore[no-untyped-def]
    """Set out[r] to the sum of source[j] over the entries j of row r, in integers."""
    for row in prange(out.shape[0]):
        target = out[row]
        target[:] = 0
        for position in range(indptr[row], indptr[row + 1]):
            line = source[indices[position]]
            for column in range(line.shape[0]):
                target[column] += line[column]


@njit(parallel=True, cache=True)
def mean_rows(indptr, indices, source, scale, out):  # type: ignore[no-untyped-def]
    """Set out[r] to rint(scale * mean of source[j] over the entries j of row r).

    `scale` is a power of two. The sum is of integers below 2^53, the division is correctly rounded
    and the scaling is exact, so there is one rounding, the same on every machine.
    """
    for row in prange(out.shape[0]):
        target = out[row]
        target[:] = 0
        count = indptr[row + 1] - indptr[row]
        if count == 0:
            continue
        for position in range(indptr[row], indptr[row + 1]):
            line = source[indices[position]]
            for column in range(line.shape[0]):
                target[column] += line[column]
        for column in range(target.shape[0]):
            target[column] = np.int64(np.rint(target[column] / count * scale))


@njit(cache=True)
def mixed(value):  # type: ignore[no-untyped-def]
    """Return the SplitMix64 finaliser of a value: each output bit depends on all input bits."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@njit(parallel=True, cache=True)
def sum_scaled_rows(  # type: ignore[no-untyped-def]
    indptr, indices, items, finer, source, scales, bits, seed, first_user, first_column, out
):
    """Set out[r] to the sum of source[u] * scales[i] / 2^bits over the users u of item i =
    items[r].

    Each term is rounded up or down to an integer before it is added, so that its mean is exact.

    If finer[r] is not zero, out[r] is the sum of the residuals of that rounding instead, multiplied
    by finer[r] and rounded the same way.

    The direction of rounding follows from a number between 0 and 1 that a public seed gives to each
    user, item and column. All are numbered in the whole cohort, so the result does not depend on
    how users are grouped into clients.
    """
    columns = source.shape[1]
    column_keys = np.empty(columns, np.uint64)
    for column in range(columns):
        column_keys[column] = mixed(np.uint64(first_column + column))
    shift = np.uint64(64 - bits)
    for row in prange(out.shape[0]):
        target = out[row]
        target[:] = 0
        item = items[row]
        scale = scales[item]
        factor = finer[row]
        item_key = mixed(seed ^ np.uint64(item))
        for position in range(indptr[item], indptr[item + 1]):
            user = indices[position]
            line = source[user]
            key = mixed(item_key ^ np.uint64(first_user + user))
            if factor == 0:
                for column in range(columns):
                    coin = (key ^ column_keys[column]) * np.uint64(0xD1342543DE82EF95)
                    target[column] += (line[column] * scale + np.int64(coin >> shift)) >> bits
                continue
            for column in range(columns):
                scaled = line[column] * scale
                coin = (key ^ column_keys[column]) * np.uint64(0xD1342543DE82EF95)
                left = scaled - (((scaled + np.int64(coin >> shift)) >> bits) << bits)
                coin = mixed(coin)
                target[column] += (left * factor + np.int64(coin >> shift)) >> bits


@njit(cache=True)
def add_squares(block, weights, out):  # type: ignore[no-untyped-def]
    """Add to out[c] the sum over rows of weight times square.

    Rows are added in order, so the result has the same bits on every machine.
    """
    for row in range(block.shape[0]):
        weight = weights[row]
        line = block[row]
        for column in range(line.shape[0]):
            value = np.float64(line[column])
            out[column] += weight * (value * value)


@njit(cache=True)
def add_triangle_rows(  # type: ignore[no-untyped-def]
    first, last, item_indptr, item_users, user_indptr, user_items, weights, n_items, block
):
    """Add w_u r_u^T r_u of every user to rows first..last of the upper triangle."""
    offset = 0
    for item in range(first, last):
        for position in range(item_indptr[item], item_indptr[item + 1]):
            user = item_users[position]
            weight = weights[user]
            for entry in range(user_indptr[user + 1] - 1, user_indptr[user] - 1, -1):
                other = user_items[entry]
                if other < item:
                    break
                block[offset + other - item] += weight
        offset += n_items - item


@njit(cache=True)
def unit_pair_scales(indptr, indices, weights, unit):  # type: ignore[no-untyped-def]
    """Return, for each row of a history matrix, the scale of the products of its pairs of weights.

    Scaled by it, the products of all pairs of entries together have length `unit` or very slightly
    less, never more.
    """
    scales = np.zeros(len(indptr) - 1)
    for row in range(len(scales)):
        first, last = indptr[row], indptr[row + 1]
        before, squares = np.int64(0), 0.0
        for position in range(first, last):
            square = np.int64(weights[indices[position]]) ** 2
            squares += np.float64(before) * np.float64(square)
            before += square
        if squares > 0.0:
            margin = 1.0 - (last - first + 16) * 2.0**-52
            scales[row] = unit / np.sqrt(squares) * margin
    return scales


@njit(cache=True)
def add_pair_rows(  # type: ignore[no-untyped-def]
    first, last, item_indptr, item_users, user_indptr, user_items, weights, scales, block
):
    """Add the scaled products of every user's pairs to rows first..last of the upper triangle.

    Products are rounded towards zero. Nothing is added to the diagonal.
    """
    offset = 0
    for item in range(first, last):
        for position in range(item_indptr[item], item_indptr[item + 1]):
            user = item_users[position]
            for entry in range(user_indptr[user + 1] - 1, user_indptr[user] - 1, -1):
                other = user_items[entry]
                if other <= item:
                    break
                product = np.float64(weights[item] * weights[other])
                block[offset + other - item] += np.int64(product * scales[user])
        offset += len(weights) - item


@njit(cache=True)
def add_unit_rows(indptr, indices, block, weights, unit, out):  # type: ignore[no-untyped-def]
    """Add scale weight[i] (sum of block[j] - block[i]) to out[i] for each row with entries i.

    Rows are those of a history matrix, and the numbers are rounded towards zero. The scale is such
    that all numbers of a row together have length `unit` or very slightly less, never more.
    """
    columns = block.shape[1]
    total = np.empty(columns, np.int64)
    for row in range(len(indptr) - 1):
        first, last = indptr[row], indptr[row + 1]
        total[:] = 0
        for position in range(first, last):
            line = block[indices[position]]
            for column in range(columns):
                total[column] += line[column]
        squares = 0.0
        for position in range(first, last):
            line = block[indices[position]]
            for column in range(columns):
                value = weights[indices[position]] * np.float64(total[column] - line[column])
                squares += value * value
        if squares == 0.0:
            continue
        margin = 1.0 - ((last - first) * columns + 16) * 2.0**-52
        scale = unit / np.sqrt(squares) * margin
        for position in range(first, last):
            line = block[indices[position]]
            target = out[indices[position]]
            for column in range(columns):
                value = weights[indices[position]] * np.float64(total[column] - line[column])
                target[column] += np.int64(value * scale)
