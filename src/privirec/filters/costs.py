"""What pays: work that is done once against work that is done for every history.

All counts are of numbers touched, which is what these computations wait for.
"""

from __future__ import annotations

# Largest matrix that is written out for row sums.
MOST_BYTES = 2 << 30

# A row of that matrix comes from memory, the states of a repeated product from a cache.
_FROM_MEMORY = 3


def row_sums_pay(histories: int, interactions: int, n_items: int, a_history: int) -> bool:
    """Whether to filter every item once and to add up rows of the result for each history.

    A filter is linear, so the scores of a history are the sum of those of its items. Filtering one
    history touches `a_history` numbers, one item as many; adding up rows touches |I| numbers for
    each interaction. Where histories outnumber items, the work then does not grow like histories
    times interactions.
    """
    if 4 * n_items * n_items > MOST_BYTES:
        return False
    once = n_items * a_history
    each = _FROM_MEMORY * interactions * n_items
    return once + each < histories * a_history


def vectors_pay(histories: int, rank: int) -> bool:
    """Whether to prepare a part of low rank for bounds: it costs about as much as so many
    histories."""
    return histories >= rank
