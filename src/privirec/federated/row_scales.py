"""How sums of rounded numbers fit a narrow ring: a scale for each row of a matrix.

A row is what the people of an item send, added up. How far it can reach is known (`ScaledStep` says
from where); what is sent is rounded up or down by public coins, and how far that can go follows
from how many people there are. The scale of a row is the largest with which both fit the ring.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privirec.dp.normal import log, upward
from privirec.errors import OverflowRefused
from privirec.federated.noise import TAIL_BITS

Integers = NDArray[np.int64]

SCALE_BITS = 38
"""Row scales are in units of 2^-SCALE_BITS."""
MOST_SCALE = 2**31 - 1
"""The finest: what is sent has 23 bits below the largest entry of the block, whatever the ring."""
LEAST_WIDTH = 6
LEAST_ROOM = 0.25
"""Of a ring for what is summed, beside what rounding adds."""


def rounding_reach(item_degrees: Integers, width: int, entries: int) -> Integers:
    """What rounding adds to the sum of a row at most, but with probability 2^-64 for all entries.

    Of V people each moves by less than one: by V at most. Each is moved by a coin of its own with
    mean zero and variance |x| (1 - |x|) at most if |x| < 1, and never more than 1/4; the sum of all
    |x| fits the ring. So the variance of the sum is at most V / 4, and at most what the ring holds,
    and Bernstein's inequality tells how far it goes.

    A row of what was left over, f times as fine, stays within f + 1 times that. Each of its people
    moves by less than f + 1. What was left over is as far from a whole number as x, so that the
    coins of the second rounding have a variance of at most f times the bound on that of the first,
    and both together of less than (f + 1)^2 times it: Bernstein's inequality once more. Where that
    is more than a narrow ring has, f is one: nobody sends more than one then, and the variance is
    at most twice what the sum of all |x| may be, which is less than half of the ring.
    """
    most = 2 ** (width - 1) - 1
    chance = upward(log(max(entries, 1) << TAIL_BITS + 1))
    third = chance / 3
    variance = np.minimum(item_degrees / 4, float(most))
    far = np.ceil(third + np.sqrt(2 * variance * chance + third * third))
    return np.minimum(item_degrees, far.astype(np.int64))


def narrowest_ring(largest_degree: int, entries: int) -> int:
    """Bits of the narrowest ring in which rounding leaves some room; 12 are enough for any item."""
    return next(
        width
        for width in range(LEAST_WIDTH, 65)
        if _room(np.array([largest_degree]), width, entries)[0] >= LEAST_ROOM * 2 ** (width - 1)
    )


def check_ring(item_degrees: Integers, width: int, entries: int) -> None:
    """Refuse a ring that would hold little but what rounding adds."""
    largest = int(item_degrees.max(initial=0))
    if width < (least := narrowest_ring(largest, entries)):
        raise OverflowRefused(
            f"a ring of {width} bits is too narrow for an item with {largest:,} users, who round: "
            f"take {least} bits or more"
        )


def _room(item_degrees: Integers, width: int, entries: int) -> Integers:
    return 2 ** (width - 1) - 1 - rounding_reach(item_degrees, width, entries)


def row_scales(reaches: Integers, item_degrees: Integers, width: int, entries: int) -> Integers:
    """The largest scale of each row with which its sum fits the ring."""
    check_ring(item_degrees, width, entries)
    room = _room(item_degrees, width, entries)
    scales = np.full(len(reaches), MOST_SCALE, np.int64)
    for row in np.flatnonzero(reaches):  # whole numbers of any size, rounded down
        finest = (int(room[row]) << SCALE_BITS) // int(reaches[row])
        scales[row] = min(finest, MOST_SCALE)
    return scales
