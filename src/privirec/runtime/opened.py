"""Conversion of an opened sum from a protocol into the total that a program receives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privirec.federated.contributions import Contribution
from privirec.secagg import VectorShape


def total_of(ask: Contribution, words: NDArray[Any], shape: VectorShape) -> Any:
    """Return the total of a contribution.

    `words` is the sum in the ring in which the protocol opens it.
    """
    return ask.collect(_pieces(ask, words, shape))


def _pieces(
    ask: Contribution, words: NDArray[Any], shape: VectorShape
) -> Iterator[NDArray[np.int64]]:
    start = 0
    for length in ask.block_lengths():
        yield shape.decode(words[start : start + length])
        start += length
