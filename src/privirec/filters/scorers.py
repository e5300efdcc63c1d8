"""Protocols of scorers: models and any other methods that items can be ranked with."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray


class Scorer(Protocol):
    """An object that scores all items for a batch of histories."""

    def score(self, user_items: sp.csr_array) -> NDArray[np.float32]: ...


@runtime_checkable
class UserScorer(Protocol):
    """An object that scores all items for users by their numbers.

    Such a method keeps state per user, so that a history alone does not determine the scores.
    """

    def score_users(self, users: NDArray[np.int64]) -> NDArray[np.float32]: ...
