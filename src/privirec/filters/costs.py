"""Cost estimates that compare work done once with work done for every history.

All costs count numbers touched, because memory access dominates these computations.
"""

from __future__ import annotations

# Largest dense matrix that is built for row sums, in bytes.
MOST_BYTES = 2 << 30

# Rows of that matrix come from main memory, the states of a repeated product from a cache.
_FROM_MEMORY = 3


def row_sums_pay(histories: int, interactions: int, n_items: int, a_history: int) -> bool:
    """Return True if it is cheaper to filter every item once and add up rows for each history.

    A filter is linear, so the scores of a history are the sum of those of its items. Filtering one
    history or one item touches `a_history` numbers; adding up rows touches |I| numbers per
    interaction. If histories outnumber items, the filter then runs once per item instead of once
    per history.
    """
    if 4 * n_items * n_items > MOST_BYTES:
        return False
    once = n_items * a_history
    each = _FROM_MEMORY * interactions * n_items
    return once + each < histories * a_history


def vectors_pay(histories: int, rank: int) -> bool:
    """Return True if preparing a low-rank part for bounds pays.

    The preparation costs about as much as scoring `rank` histories.
    """
    return histories >= rank
