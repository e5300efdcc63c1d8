"""What an attack is: it sees a release and nothing else, and is graded afterwards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from privirec.privacy.releases import Release

Progress = Callable[[int, int], None]
"""Called with what is done so far and what there is to do."""


@dataclass(frozen=True)
class Found:
    """What an attack claims to have found."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    """History u is `indices[indptr[u]:indptr[u + 1]]`: item numbers, ascending."""
    visible_items: NDArray[np.bool_] | None = None
    """Items that the release contains, where it leaves some out: histories are found on these."""
    rows: Mapping[int, NDArray[np.int32]] = field(default_factory=dict)
    """Item -> items of its row of the item-item matrix, ascending: who shares a user with it."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else a report says."""

    @property
    def n_users(self) -> int:
        return len(self.indptr) - 1


class Attack(ABC):
    """One way to find out what a release does not say openly."""

    name: ClassVar[str]
    needs: ClassVar[str]
    """What a release must contain for it, in words."""

    @abstractmethod
    def applies_to(self, release: Release) -> bool:
        """Whether the release has what this attack needs."""

    @abstractmethod
    def run(self, release: Release, progress: Progress | None = None) -> Found:
        """Attack a release to which this applies."""
