"""The compiled inner loops of filtering and ranking. Arrays in, arrays out, no decisions.

A history is a row of a CSR matrix whose entries are all one, so only `indptr` and `indices`
travel. Every loop runs over rows in parallel and never shares a row between threads: results do
not depend on the number of threads.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange


@njit(parallel=True, cache=True)
def gather_sum(indptr, indices, source, scale, out):  # type: ignore[no-untyped-def]
    """out[r] = scale[r] * sum of source[j] over the entries j of row r."""
    for row in prange(out.shape[0]):
        target = out[row]
        target[:] = 0
        for position in range(indptr[row], indptr[row + 1]):
            line = source[indices[position]]
            for column in range(line.shape[0]):
                target[column] += line[column]
        factor = scale[row]
        for column in range(target.shape[0]):
            target[column] *= factor


@njit(parallel=True, cache=True)
def add_sparse_rows(x_indptr, x_indices, indptr, indices, data, out):  # type: ignore[no-untyped-def]
    """out[b] += sum over the items i of history b of row i of a sparse matrix."""
    for user in prange(out.shape[0]):
        scores = out[user]
        for position in range(x_indptr[user], x_indptr[user + 1]):
            item = x_indices[position]
            for entry in range(indptr[item], indptr[item + 1]):
                scores[indices[entry]] += data[entry]


@njit(parallel=True, cache=True)
def sparse_times_columns(indptr, indices, data, source, out):  # type: ignore[no-untyped-def]
    """out = M source for a sparse M and a dense block of columns."""
    for row in prange(out.shape[0]):
        target = out[row]
        target[:] = 0
        for entry in range(indptr[row], indptr[row + 1]):
            line = source[indices[entry]]
            weight = data[entry]
            for column in range(line.shape[0]):
                target[column] += weight * line[column]


@njit(parallel=True, cache=True)
def scale_sparse(indptr, indices, data, left, right):  # type: ignore[no-untyped-def]
    """data[i, j] *= left[i] * right[j], in place on a CSR matrix."""
    for row in prange(len(indptr) - 1):
        factor = left[row]
        for entry in range(indptr[row], indptr[row + 1]):
            data[entry] *= factor * right[indices[entry]]


@njit(parallel=True, cache=True)
def weights_of_inverse(matrix, diagonal):  # type: ignore[no-untyped-def]
    """I - P diag(1/P_jj) in place, from the lower triangle of a symmetric P and its diagonal.

    By pairs of tiles that mirror each other, so that both stay in the cache.
    """
    n = matrix.shape[0]
    tile = 64
    for strip in prange((n + tile - 1) // tile):
        top = strip * tile
        for left in range(0, top + 1, tile):
            for row in range(top, min(top + tile, n)):
                for column in range(left, min(left + tile, row)):
                    value = -matrix[row, column]
                    matrix[row, column] = value / diagonal[column]
                    matrix[column, row] = value / diagonal[row]
        for row in range(top, min(top + tile, n)):
            matrix[row, row] = 0


@njit(parallel=True, cache=True)
def mask_entries(indptr, indices, scores):  # type: ignore[no-untyped-def]
    """Set the entries of each row's history to minus infinity."""
    for row in prange(scores.shape[0]):
        for position in range(indptr[row], indptr[row + 1]):
            scores[row, indices[position]] = -np.inf


@njit(cache=True, nogil=True)
def count_upper_halves(bits, counts):  # type: ignore[no-untyped-def]
    """Add the upper 16 bits of each positive number to a histogram."""
    for row in range(bits.shape[0]):
        for column in range(bits.shape[1]):
            number = bits[row, column]
            if number > 0:
                counts[number >> 16] += 1


@njit(cache=True, nogil=True)
def count_lower_halves(bits, upper, counts):  # type: ignore[no-untyped-def]
    """Add the lower 16 bits of each positive number with these upper ones to a histogram."""
    for row in range(bits.shape[0]):
        for column in range(bits.shape[1]):
            number = bits[row, column]
            if number > 0 and number >> 16 == upper:
                counts[number & 0xFFFF] += 1


@njit(cache=True, nogil=True)
def count_links(bits, threshold, users, items):  # type: ignore[no-untyped-def]
    """Add to the counts of a row and of a column for each number that reaches the threshold."""
    for row in range(bits.shape[0]):
        for column in range(bits.shape[1]):
            if bits[row, column] >= threshold:
                users[row] += 1
                items[column] += 1


@njit(parallel=True, cache=True)
def top_items(scores, items, values):  # type: ignore[no-untyped-def]
    """The best items of each row, best first; equal scores by lower item number.

    Rows with fewer candidates than asked for (the rest minus infinity) end in -1.
    """
    width = items.shape[1]
    for row in prange(scores.shape[0]):
        line = scores[row]
        best = values[row]
        names = items[row]
        best[:] = -np.inf
        names[:] = -1
        worst = -np.inf
        for item in range(line.shape[0]):
            score = line[item]
            if score > worst:
                # Items come in ascending order, so an equal score already in the list stays ahead.
                place = width - 1
                while place > 0 and best[place - 1] < score:
                    best[place] = best[place - 1]
                    names[place] = names[place - 1]
                    place -= 1
                best[place] = score
                names[place] = item
                worst = best[width - 1]
