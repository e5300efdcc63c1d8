"""Search for items by title, part of a title, or id."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from privirec.device.store import Store


@dataclass(frozen=True)
class FoundItem:
    item: str
    title: str | None


def find_items(store: Store, items: Iterable[str], text: str, n: int = 20) -> list[FoundItem]:
    """Return the n items that match a text best, among `items` and all with a title in the store.

    Every word of the text must be in the title or the id, ignoring case. Exact titles and ids come
    first, then titles and ids that start with the text, then titles with a later word that does.
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
    """Return the rank of a match, 0 for the best; None for no match."""
    if wanted in (item, title):
        return 0
    if title.startswith(wanted) or item.startswith(wanted):
        return 1
    if f" {wanted}" in title:
        return 2
    if all(word in title or word in item for word in wanted.split()):
        return 3
    return None
