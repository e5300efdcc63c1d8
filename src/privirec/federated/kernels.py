"""The compiled loops behind contributions: integer sums over histories."""

from __future__ import annotations

import numpy as np
from numba import njit, prange


@njit(parallel=True, cache=True)
def sum_rows(indptr, indices, source, out):  # type: ignore[no-untyped-def]
    """out[r] = sum of source[j] over the entries j of row r, in integers."""
    for row in prange(out.shape[0]):
        target = out[row]
        target[:] = 0
        for position in range(indptr[row], indptr[row + 1]):
            line = source[indices[position]]
            for column in range(line.shape[0]):
                target[column] += line[column]


@njit(parallel=True, cache=True)
def mean_rows(indptr, indices, source, scale, out):  # type: ignore[no-untyped-def]
    """out[r] = rint(scale * mean of source[j] over the entries j of row r); scale a power of two.

    The sum is of integers below 2^53, the division is correctly rounded and the scaling exact:
    one rounding, the same on every machine.
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
    """The finaliser of SplitMix64: 64 bits of which each depends on all that came in."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@njit(parallel=True, cache=True)
def sum_scaled_rows(  # type: ignore[no-untyped-def]
    indptr, indices, items, finer, source, scales, bits, seed, first_user, first_column, out
):
    """out[r] = sum over the users u of item i = items[r] of source[u] * scales[i] / 2^bits, each
    rounded up or down before it is added, so that it is right on average: in integers.

    Where finer[r] is not zero, it is the sum of what that rounding has left over, so many times as
    fine, and rounded likewise.

    Which way is rounded follows from a number between 0 and 1 that a public seed gives to each
    user, item and column, all counted in the whole cohort: it does not matter who sits with whom.
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
    """out[c] += sum over rows of weight times the square, row after row: the same bits anywhere."""
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
    """For each row of a history matrix the scale at which the products of weights of all pairs of
    its entries together are of length `unit`, or very little less: never more."""
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
    """Add the scaled weights of every user's pairs, towards zero, to rows first..last of the upper
    triangle; nothing to its diagonal."""
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
    """For each row of a history matrix with entries i: out[i] += scale weight[i] (sum of block[j] -
    block[i]) towards zero, with the scale at which all these numbers together are of length `unit`,
    or very little less: never more."""
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
