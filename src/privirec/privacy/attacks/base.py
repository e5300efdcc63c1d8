"""What an attack is: it sees a release and nothing else, and is graded afterwards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from privirec.data.interactions import Interactions
from privirec.errors import UsageError
from privirec.privacy.releases import Release

Progress = Callable[[int, int], None]
"""Called with what is done so far and what there is to do."""


@dataclass(frozen=True)
class Test:
    """Scores by which an attacker tells who took part, and who did."""

    scores: NDArray[np.float64]
    """The higher, the more likely that this person took part."""
    took_part: NDArray[np.bool_]

    __test__ = False  # not one of pytest's


@dataclass(frozen=True)
class Guesses:
    """Items that an attacker says certain people have, and what popularity alone would say."""

    truth: Sequence[NDArray[np.int32]]
    """What they really have, of what the attacker did not know before."""
    guessed: Sequence[NDArray[np.int32]]
    from_popularity: Sequence[NDArray[np.int32]]
    """As many items for each of them, by how popular they are."""
    whole: bool
    """Whether that is all of their history, and not one item of it."""


@dataclass(frozen=True)
class Control:
    """Guesses at histories from a run over some people, to be held against others as well."""

    claims: Sequence[NDArray[np.int32]]
    inside: Interactions
    outside: Interactions


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
    users_of: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)
    """Item -> numbers of the users who touched it, ascending."""
    rows_tried: int | None = None
    """How many rows or lists of users were looked at, where that is fewer than all."""
    guesses: Guesses | None = None
    control: Control | None = None
    tests: Mapping[str, Test] = field(default_factory=dict)
    """Ways to tell who took part; the first is the one that counts."""
    claims_histories: bool = True
    """Whether histories are what it is after."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else a report says."""

    @property
    def n_users(self) -> int:
        return len(self.indptr) - 1

    @classmethod
    def nothing(cls, **more: Any) -> Found:
        """No history, but perhaps something else."""
        return cls(np.zeros(1, np.int64), np.zeros(0, np.int32), **more)

    @classmethod
    def histories(cls, histories: Sequence[NDArray[np.int32]], **more: Any) -> Found:
        """Histories in a list, items ascending."""
        lengths = [len(history) for history in histories]
        indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        indices = np.concatenate([np.zeros(0, np.int32), *histories]).astype(np.int32)
        return cls(indptr, indices, **more)


Thing = TypeVar("Thing")


def there(thing: Thing | None) -> Thing:
    """What `applies_to` has found to be there."""
    if thing is None:
        raise UsageError("this attack does not apply to this release")
    return thing


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
