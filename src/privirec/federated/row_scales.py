"""Row scales with which sums of rounded numbers fit a narrow ring.

A row is the sum of the numbers that an item's people send. A bound on it, its reach, is known (see
`ScaledStep`). The numbers are rounded up or down by public coins, and the number of people bounds
the effect of that. The scale of a row is the largest with which both fit the ring.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privirec.errors import OverflowRefused
from privirec.federated.dp.normal import log, upward
from privirec.federated.noise import TAIL_BITS

Integers = NDArray[np.int64]

SCALE_BITS = 38
"""Row scales are in units of 2^-SCALE_BITS."""
MOST_SCALE = 2**31 - 1
"""Largest (finest) row scale: numbers are sent with 23 bits below the largest entry of the block,
whatever the ring."""
LEAST_WIDTH = 6
LEAST_ROOM = 0.25
"""Least share of a ring that must remain for the sum itself after rounding takes its part."""


def rounding_reach(item_degrees: Integers, width: int, entries: int) -> Integers:
    """Return the most that rounding adds to the sum of a row, except with probability 2^-64.

    The probability is for all entries together.

    Rounding moves each of V people's numbers by less than one, so the sum by at most V. Each number
    is moved by a separate coin with mean zero. Its variance is at most |x| (1 - |x|) if |x| < 1,
    and never more than 1/4. The sum of all |x| fits the ring. The variance of the sum is therefore
    at most V / 4, and at most what the ring holds, and Bernstein's inequality bounds its deviation.

    A row of rounding residuals, f times as fine, stays within f + 1 times that bound. Each person
    moves it by less than f + 1. A residual is as far from a whole number as x, so the coins of the
    second rounding have a variance of at most f times the bound on the variance of the first. Both
    together have less than (f + 1)^2 times that bound, and Bernstein's inequality applies again. If
    that exceeds a narrow ring, f is one. Then nobody sends more than one, and the variance is at
    most twice the bound on the sum of all |x|, which is less than half of the ring.
    """
    most = 2 ** (width - 1) - 1
    chance = upward(log(max(entries, 1) << TAIL_BITS + 1))
    third = chance / 3
    variance = np.minimum(item_degrees / 4, float(most))
    far = np.ceil(third + np.sqrt(2 * variance * chance + third * third))
    return np.minimum(item_degrees, far.astype(np.int64))


def narrowest_ring(largest_degree: int, entries: int) -> int:
    """Return the bits of the narrowest ring in which rounding leaves LEAST_ROOM.

    12 bits are enough for any item.
    """
    return next(
        width
        for width in range(LEAST_WIDTH, 65)
        if _room(np.array([largest_degree]), width, entries)[0] >= LEAST_ROOM * 2 ** (width - 1)
    )


def check_ring(item_degrees: Integers, width: int, entries: int) -> None:
    """Refuse a ring that would hold little more than the effect of rounding."""
    largest = int(item_degrees.max(initial=0))
    if width < (least := narrowest_ring(largest, entries)):
        raise OverflowRefused(
            f"a ring of {width} bits is too narrow for an item with {largest:,} users, who "
            f"round their numbers: take {least} bits or more"
        )


def _room(item_degrees: Integers, width: int, entries: int) -> Integers:
    return 2 ** (width - 1) - 1 - rounding_reach(item_degrees, width, entries)


def row_scales(reaches: Integers, item_degrees: Integers, width: int, entries: int) -> Integers:
    """Return, for each row, the largest scale with which its sum fits the ring."""
    check_ring(item_degrees, width, entries)
    room = _room(item_degrees, width, entries)
    scales = np.full(len(reaches), MOST_SCALE, np.int64)
    for row in np.flatnonzero(reaches):  # exact integers of any size, rounded down
        finest = (int(room[row]) << SCALE_BITS) // int(reaches[row])
        scales[row] = min(finest, MOST_SCALE)
    return scales
