"""Base of all attacks: an attack sees only a release, and is graded afterwards."""

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
"""Callback with the amount of work done so far and the total."""


@dataclass(frozen=True)
class Test:
    """Membership scores of an attacker, and who really took part."""

    scores: NDArray[np.float64]
    """Score of each person; higher means more likely to have taken part."""
    took_part: NDArray[np.bool_]

    __test__ = False  # not a pytest class


@dataclass(frozen=True)
class Guesses:
    """Items that an attacker attributes to certain people, and what popularity alone would
    guess."""

    truth: Sequence[NDArray[np.int32]]
    """Items that each person has and that the attacker did not know."""
    guessed: Sequence[NDArray[np.int32]]
    from_popularity: Sequence[NDArray[np.int32]]
    """Equally many items for each person, chosen by popularity."""
    whole: bool
    """True if the guesses are about whole histories, false if about a single item of each."""


@dataclass(frozen=True)
class Control:
    """Guessed histories from a run over some people, to be compared with other people as well."""

    claims: Sequence[NDArray[np.int32]]
    inside: Interactions
    outside: Interactions


@dataclass(frozen=True)
class Found:
    """Claims of an attack."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    """History u is `indices[indptr[u]:indptr[u + 1]]`: item numbers, ascending."""
    visible_items: NDArray[np.bool_] | None = None
    """Items that the release contains, if it leaves some out; histories are recovered on these."""
    rows: Mapping[int, NDArray[np.int32]] = field(default_factory=dict)
    """Item -> items of its row of the item-item matrix, ascending: those that share a user with
    it."""
    users_of: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)
    """Item -> numbers of its users, ascending."""
    rows_tried: int | None = None
    """Number of rows or user lists that the attack tried, if not all."""
    guesses: Guesses | None = None
    control: Control | None = None
    tests: Mapping[str, Test] = field(default_factory=dict)
    """Membership tests; the first is the main one."""
    claims_histories: bool = True
    """True if the attack tries to recover histories."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further facts for the report."""

    @property
    def n_users(self) -> int:
        return len(self.indptr) - 1

    @classmethod
    def nothing(cls, **more: Any) -> Found:
        """Return a result without histories, but possibly with other claims."""
        return cls(np.zeros(1, np.int64), np.zeros(0, np.int32), **more)

    @classmethod
    def histories(cls, histories: Sequence[NDArray[np.int32]], **more: Any) -> Found:
        """Return a result with these histories, items ascending."""
        lengths = [len(history) for history in histories]
        indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        indices = np.concatenate([np.zeros(0, np.int32), *histories]).astype(np.int32)
        return cls(indptr, indices, **more)


Thing = TypeVar("Thing")


def there(thing: Thing | None) -> Thing:
    """Return a value that `applies_to` has found, or raise UsageError if it is None."""
    if thing is None:
        raise UsageError("this attack does not apply to this release")
    return thing


class Attack(ABC):
    """A way to derive information that a release does not state openly."""

    name: ClassVar[str]
    needs: ClassVar[str]
    """Description of what a release must contain."""

    @abstractmethod
    def applies_to(self, release: Release) -> bool:
        """Return True if the release has what this attack needs."""

    @abstractmethod
    def run(self, release: Release, progress: Progress | None = None) -> Found:
        """Attack a release to which this attack applies."""
