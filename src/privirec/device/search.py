"""Finding an item by what people call it: its title, or a part of it, or its id."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from privirec.device.store import Store


@dataclass(frozen=True)
class FoundItem:
    item: str
    title: str | None


def find_items(store: Store, items: Iterable[str], text: str, n: int = 20) -> list[FoundItem]:
    """The n items that fit a text best, of these and of those that the store has titles for.

    Every word of the text must be in the title or the id, in any case of letters. Whole titles and
    ids come first, then titles that begin with the text, then words that do.
    """
    wanted = " ".join(text.casefold().split())
    if not wanted:
        return []
    titles = store.titles()
    ranked = []
    for item in dict.fromkeys([*items, *titles]):
        title = titles.get(item)
        place = _place(wanted, item.casefold(), " ".join((title or "").casefold().split()))
        if place is not None:
            ranked.append((place, len(title or item), title or item, item))
    return [FoundItem(item, titles.get(item)) for *_, item in sorted(ranked)[:n]]


def _place(wanted: str, item: str, title: str) -> int | None:
    """How well an item fits, 0 best; None: not at all."""
    if wanted in (item, title):
        return 0
    if title.startswith(wanted) or item.startswith(wanted):
        return 1
    if f" {wanted}" in title:
        return 2
    if all(word in title or word in item for word in wanted.split()):
        return 3
    return None
