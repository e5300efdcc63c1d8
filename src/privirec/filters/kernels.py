"""Compiled inner loops of filtering and ranking, on plain arrays.

A history is a row of a CSR matrix whose entries are all one, so loops take `indptr` and `indices`
only. Loops run over rows in parallel and never share a row between threads, so results do not
depend on the number of threads. No loop may reorder its sums (no fast-math), so results do not
depend on the width of the machine's vectors either.

An index from a matrix is never negative. `np.uint32` and `np.uint64` tell the compiler so.
Otherwise a test for negative indices in the innermost loop would cost as much as the rest of it.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from privirec.filters import lanes

LANES = lanes.LANES
STAGE = lanes.STAGE
"""Number of coordinates between two checks of a bound."""
ROWS_AT_ONCE = 512
"""Rows of the item-item matrix that a thread computes at a time."""
AHEAD = 8
"""Number of items ahead whose vectors are prefetched from memory."""
TRIED = 2
"""Items scored for a first threshold, per place of the list."""


@njit(parallel=True, cache=True)
def _gather_sum(indptr, indices, source, scale, onto, share, out):  # type: ignore[no-untyped-def]
    width = out.shape[1]
    many = width - width % (4 * LANES)
    few = width - width % LANES
    for row in prange(out.shape[0]):
        start, stop = np.int64(indptr[row]), np.int64(indptr[row + 1])
        factor = scale[row]
        for column in range(0, many, 4 * LANES):
            lanes.gather_wide(indices, start, stop, source, column, factor, out, row)
        for column in range(many, few, LANES):
            lanes.gather(indices, start, stop, source, column, factor, out, row)
        if few < width:
            rest = out[row, few:]
            rest[:] = 0
            for position in range(start, stop):
                line = source[np.uint64(indices[position]), few:]
                for column in range(width - few):
                    rest[column] += line[column]
            for column in range(width - few):
                rest[column] *= factor
        if share != 0:
            for column in range(width):
                out[row, column] += share * onto[row, column]


def gather_sum(indptr, indices, source, scale, out, onto=None, share=0.0):  # type: ignore[no-untyped-def]
    """Set out[r] = scale[r] * sum of source[j] over the entries j of row r, in their order.

    A `share` of the row of `onto` is added.
    """
    source = np.ascontiguousarray(source, np.float32)
    onto = source if onto is None else onto
    _gather_sum(indptr, indices, source, scale, onto, np.float32(share), out)


@njit(cache=True, nogil=True)
def spread(x_indptr, x_indices, by_indptr, by_indices, factors, weights, out):  # type: ignore[no-untyped-def]
    """Add weights[v] * factors[i] to out[v, b] over items i of history b, users v of i."""
    for column in range(len(x_indptr) - 1):
        for position in range(x_indptr[column], x_indptr[column + 1]):
            item = np.uint64(x_indices[position])
            factor = factors[item]
            for place in range(by_indptr[item], by_indptr[item + np.uint64(1)]):
                user = np.uint64(by_indices[place])
                out[user, column] += weights[user] * factor


def aligned(shape: tuple[int, int]) -> np.ndarray:
    """Return an array whose first entry starts a cache line, as do then rows of LANES columns.

    Rows that span two cache lines take twice as long to gather.
    """
    size, line = 4 * shape[0] * shape[1], 4 * LANES
    memory = np.empty(size + line, np.uint8)
    start = -memory.ctypes.data % line
    return memory[start : start + size].view(np.float32).reshape(shape)


@njit(parallel=True, cache=True)
def add_sparse_rows(x_indptr, x_indices, indptr, indices, data, out):  # type: ignore[no-untyped-def]
    """Add to out[b], for the items i of history b, the rows i of a sparse matrix.

    A row names a column once, so four entries can be loaded before the first of them is stored.
    """
    for user in prange(out.shape[0]):
        scores = out[user]
        for position in range(x_indptr[user], x_indptr[user + 1]):
            item = x_indices[position]
            start, stop = np.int64(indptr[item]), np.int64(indptr[item + 1])
            names, numbers = indices[start:stop], data[start:stop]
            whole = (stop - start) & ~3
            for first in range(0, whole, 4):
                i = np.uint64(first)
                j, k, m = i + np.uint64(1), i + np.uint64(2), i + np.uint64(3)
                a, b = np.uint64(names[i]), np.uint64(names[j])
                c, d = np.uint64(names[k]), np.uint64(names[m])
                at_a, at_b = scores[a] + numbers[i], scores[b] + numbers[j]
                at_c, at_d = scores[c] + numbers[k], scores[d] + numbers[m]
                scores[a], scores[b], scores[c], scores[d] = at_a, at_b, at_c, at_d
            for entry in range(whole, stop - start):
                scores[np.uint64(names[entry])] += numbers[entry]


@njit(parallel=True, cache=True)
def sparse_times_columns(indptr, indices, data, source, out):  # type: ignore[no-untyped-def]
    """Compute out = M source for a sparse M and a dense block of columns."""
    for row in prange(out.shape[0]):
        target = out[row]
        target[:] = 0
        for entry in range(indptr[row], indptr[row + 1]):
            line = source[indices[entry]]
            weight = data[entry]
            for column in range(line.shape[0]):
                target[column] += weight * line[column]


@njit(parallel=True, cache=True)
def count_neighbours(indptr, indices, by_indptr, by_indices, counts):  # type: ignore[no-untyped-def]
    """Set counts[i] to the number of items that share a user with item i.

    `by_` marks the transposed matrix.
    """
    n_items = len(counts)
    strips = (n_items + ROWS_AT_ONCE - 1) // ROWS_AT_ONCE
    for strip in prange(strips):
        seen_by = np.full(n_items, -1, np.int32)
        for item in range(strip * ROWS_AT_ONCE, min((strip + 1) * ROWS_AT_ONCE, n_items)):
            count = 0
            for place in range(by_indptr[item], by_indptr[item + 1]):
                user = by_indices[place]
                for position in range(indptr[user], indptr[user + 1]):
                    other = np.uint64(indices[position])
                    count += seen_by[other] != item
                    seen_by[other] = item
            counts[item] = count


@njit(parallel=True, cache=True)
def weighted_gram(  # type: ignore[no-untyped-def]
    indptr, indices, by_indptr, by_indices, weights, left, right, out_indptr, names, numbers
):
    """Compute diag(left) R^T diag(weights) R diag(right) into rows of known lengths.

    Users are added up in ascending order; rows are filled from the end, as items occur.
    """
    n_items = len(out_indptr) - 1
    strips = (n_items + ROWS_AT_ONCE - 1) // ROWS_AT_ONCE
    for strip in prange(strips):
        place_of = np.full(n_items, -1, np.int64)
        for item in range(strip * ROWS_AT_ONCE, min((strip + 1) * ROWS_AT_ONCE, n_items)):
            start, free = np.int64(out_indptr[item]), np.int64(out_indptr[item + 1])
            stop = free
            for place in range(by_indptr[item], by_indptr[item + 1]):
                user = by_indices[place]
                weight = weights[user]
                for position in range(indptr[user], indptr[user + 1]):
                    other = np.uint64(indices[position])
                    at = place_of[other]
                    if at < start:  # set for an earlier row, or never
                        free -= 1
                        place_of[other] = free
                        names[np.uint64(free)] = other
                        numbers[np.uint64(free)] = weight
                    else:
                        numbers[np.uint64(at)] += weight
            factor = left[item]
            for entry in range(start, stop):
                numbers[entry] *= factor * right[np.uint64(names[entry])]


@njit(parallel=True, cache=True)
def scale_sparse(indptr, indices, data, left, right):  # type: ignore[no-untyped-def]
    """Scale data[i, j] *= left[i] * right[j], in place on a CSR matrix."""
    for row in prange(len(indptr) - 1):
        factor = left[row]
        for entry in range(indptr[row], indptr[row + 1]):
            data[entry] *= factor * right[indices[entry]]


@njit(parallel=True, cache=True)
def weights_of_inverse(matrix, diagonal):  # type: ignore[no-untyped-def]
    """Compute I - P diag(1/P_jj) in place, from the lower triangle of a symmetric P.

    `diagonal` is that of P. The loop runs over pairs of mirrored tiles, so that both stay in the
    cache.
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
def nearest_items(indptr, indices, data, squares, shrinkage, names, cosines, counts):  # type: ignore[no-untyped-def]
    """List the items with the highest shrunk cosine to each item, in the order of a heap.

    `data` has the inner products of items and `squares` their diagonal. The root of the heap is the
    least similar item in the list; of two equal ones, that with the higher number.
    """
    most = names.shape[1]
    for item in prange(len(counts)):
        heap, numbers, size = names[item], cosines[item], 0
        for entry in range(indptr[item], indptr[item + 1]):
            name = indices[entry]
            alike = data[entry] / (np.sqrt(squares[item] * squares[name]) + shrinkage)
            if name == item or not alike > 0:
                continue
            if size < most:  # a new leaf rises
                place, size = size, size + 1
                while place > 0:
                    above = (place - 1) // 2
                    lower = numbers[above] < alike
                    if lower or (numbers[above] == alike and heap[above] > name):
                        break
                    heap[place], numbers[place] = heap[above], numbers[above]
                    place = above
            elif numbers[0] > alike or (numbers[0] == alike and heap[0] < name):
                continue
            else:  # a new root sinks
                place = 0
                while 2 * place + 1 < size:
                    below = 2 * place + 1
                    if below + 1 < size and (
                        numbers[below + 1] < numbers[below]
                        or (numbers[below + 1] == numbers[below] and heap[below + 1] > heap[below])
                    ):
                        below += 1
                    if numbers[below] > alike or (numbers[below] == alike and heap[below] < name):
                        break
                    heap[place], numbers[place] = heap[below], numbers[below]
                    place = below
            heap[place], numbers[place] = name, alike
        counts[item] = size


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
    """Add the lower 16 bits of each positive number with upper bits `upper` to a histogram."""
    for row in range(bits.shape[0]):
        for column in range(bits.shape[1]):
            number = bits[row, column]
            if number > 0 and number >> 16 == upper:
                counts[number & 0xFFFF] += 1


@njit(cache=True, nogil=True)
def count_links(bits, threshold, users, items):  # type: ignore[no-untyped-def]
    """Count the numbers of each row and of each column that reach the threshold."""
    for row in range(bits.shape[0]):
        for column in range(bits.shape[1]):
            if bits[row, column] >= threshold:
                users[row] += 1
                items[column] += 1


@njit(cache=True, inline="always")
def insert(score, item, best, names):  # type: ignore[no-untyped-def]
    """Insert an item after all that score at least as much, and drop the last one.

    Returns the new last score.
    """
    place = len(best) - 1
    while place > 0 and best[place - 1] < score:
        best[place] = best[place - 1]
        names[place] = names[place - 1]
        place -= 1
    best[place] = score
    names[place] = item
    return best[-1]


@njit(cache=True, inline="always")
def _consider(line, first, last, worst, best, names):  # type: ignore[no-untyped-def]
    for item in range(first, last):
        # Items come in ascending order, so an equal score already in the list stays first.
        if line[item] > worst:
            worst = insert(line[item], item, best, names)
    return worst


@njit(cache=True, inline="always")
def _list_best(line, best, names):  # type: ignore[no-untyped-def]
    best[:] = -np.inf
    names[:] = -1
    worst = np.float32(-np.inf)
    whole = len(line) - len(line) % LANES
    for first in range(0, whole, LANES):
        if lanes.above(line, first, worst):
            worst = _consider(line, first, first + LANES, worst, best, names)
    _consider(line, whole, len(line), worst, best, names)


@njit(parallel=True, cache=True)
def top_items(scores, items, values):  # type: ignore[no-untyped-def]
    """List the best items of each row, best first; equal scores by lower item number.

    Rows with too few candidates (all others minus infinity) end in -1.
    """
    for row in prange(scores.shape[0]):
        _list_best(scores[row], values[row], items[row])


@njit(parallel=True, cache=True)
def add_inner_products(coordinates, vectors, out):  # type: ignore[no-untyped-def]
    """Add coordinates[u] . vector of item j to out[u, j].

    The vectors are stored stage by stage: row s |I| + j holds stage s of the vector of item j.
    """
    n_items, stages = out.shape[1], coordinates.shape[1] // STAGE
    strip = 256  # items whose vectors stay in the cache
    for first in prange((n_items + strip - 1) // strip):
        for user in range(out.shape[0]):
            for item in range(first * strip, min((first + 1) * strip, n_items)):
                out[user, item] += lanes.inner_product(
                    coordinates, user, vectors, item, n_items, stages
                )


@njit(cache=True, inline="always")
def _list_reaching(line, lengths, factor, least, names):  # type: ignore[no-untyped-def]
    """List the entries of line + factor * lengths that reach `least`; return their number."""
    count = 0
    whole = len(line) - len(line) % LANES
    for first in range(0, whole, LANES):
        which = lanes.reaching(line, lengths, first, factor, least)
        while which:
            names[count] = first + np.int64(lanes.lowest(which))
            count += 1
            which &= which - np.uint64(1)
    for item in range(whole, len(line)):
        if line[item] + factor * lengths[item] >= least:
            names[count] = item
            count += 1
    return count


@njit(parallel=True, cache=True)
def best_of_sums(base, coordinates, reaches, vectors, tails, slack, items, values):  # type: ignore[no-untyped-def]
    """Compute `top_items` of base[u, j] + coordinates[u] . vector of item j without all scores.

    `reaches` (users, stages) and `tails` (stages, items) are the lengths of coordinates and vectors
    from each stage on; `slack` bounds the rounding error: see `parts.ItemVectors`.
    """
    stages, n_items = tails.shape
    for user in prange(base.shape[0]):
        line, best, names, reach = base[user], values[user], items[user], reaches[user]
        # The scores of any items give a lower bound of the last score in the list. Items with the
        # highest base give a good one.
        tried = np.empty(TRIED * len(best), np.int64)
        _list_best(line, np.empty(len(tried), np.float32), tried)
        best[:] = -np.inf
        for item in tried:
            if item >= 0:
                score = line[item] + lanes.inner_product(
                    coordinates, user, vectors, item, n_items, stages
                )
                if score > best[-1]:
                    insert(score, item, best, names)
        least = best[-1]
        left = np.empty(n_items, np.int32)
        count = _list_reaching(line, tails[0], reach[0] * (np.float32(1) + slack), least, left)
        totals = np.empty(count, np.float32)
        sums = np.zeros((count, LANES), np.float32)
        for stage in range(stages):
            before, count = count, 0
            for place in range(before):
                soon = left[min(place + AHEAD, before - 1)]
                lanes.fetch(vectors, stage * n_items + soon)
                item = left[place]
                at = stage * n_items + item
                total = lanes.next_stage(coordinates, user, vectors, at, stage, sums, place, count)
                most = total
                if stage + 1 < stages:
                    rest = reach[stage + 1] * tails[stage + 1, np.uint64(item)]
                    most += rest + slack * reach[0] * tails[0, np.uint64(item)]
                left[count] = item
                totals[count] = total
                count += line[np.uint64(item)] + most >= least
        best[:] = -np.inf
        names[:] = -1
        for place in range(count):
            score = line[np.uint64(left[place])] + totals[place]
            # Items come in ascending order, so an equal score already in the list stays first.
            if score > best[-1]:
                insert(score, left[place], best, names)
