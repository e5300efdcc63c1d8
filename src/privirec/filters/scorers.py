"""Anything that scores: models, other people's methods, whatever is to be ranked with."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray


class Scorer(Protocol):
    """Anything that scores all items for a batch of histories."""

    def score(self, user_items: sp.csr_array) -> NDArray[np.float32]: ...


@runtime_checkable
class UserScorer(Protocol):
    """Something that scores all items for people by their numbers: each keeps more than a history,
    so that the history does not say all."""

    def score_users(self, users: NDArray[np.int64]) -> NDArray[np.float32]: ...
