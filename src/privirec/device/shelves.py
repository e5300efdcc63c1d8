"""Recommendations in groups: the best, because of one item, new to the person, hidden gems."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from privirec.device.recommend import Cause, Device, Recommendation

CANDIDATES = 200
"""Number of recommendations that are grouped."""
BEST, ON_A_SHELF = 10, 8
FEWEST = 3
"""Fewest items of a group; smaller ones are not shown."""
ANCHORS = 2
"""Number of items of the history that get a group of their own."""


class Kind(StrEnum):
    """Reason for which items stand together."""

    BEST = "best"
    BECAUSE = "because"
    NEW = "new"
    GEMS = "gems"


@dataclass(frozen=True)
class Shelf:
    """Recommendations for one reason, the best first."""

    kind: Kind
    items: tuple[Recommendation, ...]
    cause: Cause | None = None
    """Item of the history that the recommendations of `Kind.BECAUSE` follow from."""


def shelves(device: Device, user: str) -> list[Shelf]:
    """Return groups of recommendations; no item is in two of them.

    "Because" groups follow the items that lead to most recommendations, the latest of equals first.
    What is new is far from every single item of the history: each item's contributions are compared
    with its own largest one. Gems are the items with the fewest people among the candidates.
    """
    found = device.recommend(user, CANDIDATES, explain=True)
    best, rest = found[:BEST], found[BEST:]
    made = [Shelf(Kind.BEST, tuple(best))]
    order = {item: at for at, (item, _) in enumerate(device.store.latest(user))}
    for cause, items in _by_cause(rest, order)[:ANCHORS]:
        made.append(Shelf(Kind.BECAUSE, tuple(items[:ON_A_SHELF]), cause))
        rest = _without(rest, items[:ON_A_SHELF])
    near = _closeness(found)
    new = sorted(rest, key=lambda each: (near[each.item], -each.score, each.item))[:ON_A_SHELF]
    made.append(Shelf(Kind.NEW, tuple(sorted(new, key=lambda each: -each.score))))
    people = device.people([each.item for each in rest])
    rare = sorted(_without(rest, new), key=lambda each: (people[each.item], -each.score, each.item))
    gems = sorted(rare[:ON_A_SHELF], key=lambda each: -each.score)
    made.append(Shelf(Kind.GEMS, tuple(gems)))
    return [each for each in made if len(each.items) >= (1 if each.kind is Kind.BEST else FEWEST)]


def _without(
    items: Sequence[Recommendation], taken: Sequence[Recommendation]
) -> list[Recommendation]:
    gone = {each.item for each in taken}
    return [each for each in items if each.item not in gone]


def _by_cause(
    items: Sequence[Recommendation], order: dict[str, int]
) -> list[tuple[Cause, list[Recommendation]]]:
    """Return the items by their strongest cause, the largest groups first."""
    groups: dict[str, list[Recommendation]] = defaultdict(list)
    causes: dict[str, Cause] = {}
    for each in items:
        for cause, _ in each.strongest(1):
            groups[cause.item].append(each)
            causes[cause.item] = cause
    ranked = sorted(
        (item for item in groups if len(groups[item]) >= FEWEST),
        key=lambda item: (-min(len(groups[item]), ON_A_SHELF), order.get(item, len(order)), item),
    )
    return [(causes[item], groups[item]) for item in ranked]


def _closeness(items: Sequence[Recommendation]) -> dict[str, float]:
    """Return how close each recommendation is to the nearest item of the history, from 0 to 1."""
    largest: dict[str, float] = defaultdict(float)
    for each in items:
        for cause in each.because:
            largest[cause.item] = max(largest[cause.item], cause.contribution)
    return {
        each.item: max(
            (c.contribution / largest[c.item] for c in each.because if largest[c.item] > 0),
            default=0.0,
        )
        for each in items
    }
