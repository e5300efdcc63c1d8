"""The remainder of P': reading it, subtracting users, and queueing items.

Compiled code of this package calls across its modules, but a cache of compiled code detects changes
only in its own file. After editing one module, clear the cache of the others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[Any]  # any integer width
History = tuple[Ints, int]  # item numbers, weight

CLOSE_TO_INTEGER = 0.25  # exactly recoverable values stay far below; with a wrong scale they do not


class Matrix(NamedTuple):
    """Remainder of P', in compressed rows with ascending columns."""

    starts: Ints
    columns: Ints
    entries: Ints


@njit(cache=True)
def no_histories(matrix: Matrix) -> list[History]:
    return [(matrix.columns[:0].copy(), 0) for _ in range(0)]


@njit(cache=True)
def round_back(
    normalized: tuple[Ints, Ints, NDArray[np.float64]],
    scales: tuple[NDArray[np.float64], NDArray[np.float64]],
    unit: float,
    precision: float,
    out: Ints,
) -> bool:
    """Undo the normalisation; return False if precise enough entries are not integers."""
    starts, columns, entries = normalized
    left, right = scales
    for i in range(len(left)):
        for p in range(starts[i], starts[i + 1]):
            value = entries[p] * left[i] * right[columns[p]] * unit
            if not np.isfinite(value):
                return False
            precise = abs(value) * precision < CLOSE_TO_INTEGER
            if precise and not abs(value - np.rint(value)) < CLOSE_TO_INTEGER:
                return False
            out[p] = np.int64(np.rint(value))
    return True


@njit(cache=True)
def queue_all(degrees: Ints, queue: Ints, queued: Ints) -> None:
    """Queue every item with few enough users left, by the number of users."""
    for i in range(len(degrees)):
        queue_item(i, degrees, queue, queued)


@njit(cache=True)
def queue_item(item: int, degrees: Ints, queue: Ints, queued: Ints) -> None:
    left = degrees[item]
    if 0 < left < len(queued):
        queue[left, queued[left]] = item
        queued[left] += 1


@njit(cache=True)
def subtract(matrix: Matrix, degrees: Ints, profile: Ints, weight: int) -> bool:
    """Subtract one user from V and P'.

    Return False, and change nothing, if they do not contain the user.
    """
    length = len(profile)
    positions = np.empty((length, length), np.int64)
    for a in range(length):
        if degrees[profile[a]] < 1:
            return False
        p = matrix.starts[profile[a]]
        stop = matrix.starts[profile[a] + 1]
        for b in range(length):
            p = seek(matrix.columns, p, stop, profile[b])
            if p == stop or matrix.columns[p] != profile[b] or matrix.entries[p] < weight:
                return False
            positions[a, b] = p
    for a in range(length):
        degrees[profile[a]] -= 1
        for b in range(length):
            matrix.entries[positions[a, b]] -= weight
    return True


@njit(cache=True)
def seek(columns: Ints, start: int, stop: int, column: int) -> int:
    """Return the first position from `start` on whose column is not below `column`.

    Search by galloping, then by bisection.
    """
    step = 1
    low = high = start
    while high < stop and columns[high] < column:
        low = high + 1
        high += step
        step *= 2
    high = min(high, stop)
    while low < high:
        middle = (low + high) >> 1
        if columns[middle] < column:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True)
def entry_of(matrix: Matrix, row: int, column: int) -> int:
    stop = matrix.starts[row + 1]
    p = seek(matrix.columns, matrix.starts[row], stop, column)
    return matrix.entries[p] if p < stop and matrix.columns[p] == column else 0
