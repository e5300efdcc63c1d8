"""Cliques: the best guesses of an attacker that must guess, at any level of noise.

A person raises all pairs of a history together, by 1/d each. The attack grows sets of items in
which all pairs are larger than popularity explains, as long as the likelihood of one more person
with exactly this set rises. It then subtracts the set and continues. The results are guesses, and
some hit a short history by chance. They are therefore graded next to guesses of the same lengths by
popularity, and again with half of the people left out, whom chance hits as well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privirec.data.interactions import Interactions
from privirec.errors import UsageError
from privirec.privacy.attacks.base import Attack, Control, Found, Progress, there
from privirec.privacy.attacks.views import MatrixView, item_item_view
from privirec.privacy.releases import Federation, Release

GUESSES = 500
CONTROL_GUESSES = 5_000
LONGEST = 200
MOST_ITEMS = 6000
"""Largest matrix that is made dense. Larger ones come without noise, and other attacks are better
for them."""
_RUN = 400_001


class Cliques(Attack):
    """Best guesses from a noisy item-item matrix."""

    name: ClassVar[str] = "cliques"
    needs: ClassVar[str] = "an item-item matrix with noise"

    def applies_to(self, release: Release) -> bool:
        return _noisy(release) is not None

    def run(self, release: Release, progress: Progress | None = None) -> Found:
        view = _noisy(release)
        if view is None or view.items is None:
            raise UsageError(f"{self.name} needs {self.needs}")
        found = guessed(view, release, progress)
        if release.federation is None:
            return found
        return replace(found, control=_with_half_left_out(release.federation))


def guessed(view: MatrixView, release: Release, progress: Progress | None = None) -> Found:
    """Return the best guesses of histories on the items of a noisy matrix."""
    items = there(view.items)
    count = min(GUESSES, release_people(release))
    sets = grow(beyond_popularity(view.matrix.toarray()), count, progress)
    visible = np.zeros(n_items_of(release), np.bool_)
    visible[items] = True
    found = [np.sort(items[members]).astype(np.int32) for members in sets]
    return Found.histories(found, visible_items=visible, facts={"guesses": len(found)})


def _with_half_left_out(federation: Federation) -> Control | None:
    people = federation.people
    order = np.random.Generator(np.random.Philox(6)).permutation(people.n_users)
    halves = [order[: len(order) // 2], order[len(order) // 2 : len(order) // 2 * 2]]
    inside, outside = (
        Interactions.from_matrix(people.matrix[np.sort(half)], None, people.item_ids)
        for half in halves
    )
    view = _noisy(federation.run(inside, _RUN)) if inside.n_users else None
    if view is None or view.items is None:
        return None
    items = view.items
    sets = grow(beyond_popularity(view.matrix.toarray()), CONTROL_GUESSES)
    claims = [np.sort(items[members]).astype(np.int32) for members in sets]
    return Control(claims, inside, outside)


def beyond_popularity(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the difference of the matrix from its expectation for independent items.

    Rows of sum_u r_u^T r_u / d_u add up to the number of users of each item, which determines the
    expectation.
    """
    users = np.maximum(gram.sum(axis=1), 0.0)
    expected = np.outer(users, users) / max(float(users.sum()), 1e-12)
    left: NDArray[np.float64] = gram - expected
    return left


def grow(
    left: NDArray[np.float64], count: int, progress: Progress | None = None
) -> list[NDArray[np.int64]]:
    """Return sets of items, the likeliest first; `left` is modified."""
    pairs = left.copy()
    np.fill_diagonal(pairs, -np.inf)
    best_of = pairs.max(axis=1)
    sets = []
    for number in range(count):
        if progress is not None and number % 32 == 0:
            progress(number, count)
        first = int(best_of.argmax())
        if not np.isfinite(best_of[first]):
            break
        second = int(pairs[first].argmax())
        pairs[first, second] = pairs[second, first] = -np.inf  # no pair starts two sets
        for item in (first, second):
            best_of[item] = pairs[item].max()
        sets.append(_grown(left, [first, second]))
        members = sets[-1]
        left[np.ix_(members, members)] -= 1 / len(members)
    return sets


def _grown(left: NDArray[np.float64], members: list[int]) -> NDArray[np.int64]:
    """Add items as long as 2 <left, x x^T / d>, and with it the likelihood, rises."""
    towards = left[members].sum(axis=0)
    inside = float(left[np.ix_(members, members)].sum())
    own = left.diagonal()
    while len(members) < min(LONGEST, len(left)):
        gains = 2 * towards + own
        gains[members] = -np.inf
        item = int(gains.argmax())
        if (inside + gains[item]) / (len(members) + 1) <= inside / len(members):
            break
        inside += float(gains[item])
        members.append(item)
        towards = towards + left[item]
    return np.sort(np.array(members))


def n_items_of(release: Release) -> int:
    if release.filters is not None:
        return release.filters.components.n_items
    return release.sums[0].ask.n_items


def release_people(release: Release) -> int:
    """Return the number of participants stated by a noisy sum, or GUESSES if none states it."""
    told = [int(getattr(one.ask, "n_users", 0)) for one in release.sums]
    return max(told, default=0) or GUESSES


def _noisy(release: Release) -> MatrixView | None:
    view = item_item_view(release)
    if view is None or not view.noisy or view.matrix.shape[0] > MOST_ITEMS:
        return None
    return view
