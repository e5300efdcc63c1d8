"""The items that a model knows, looked up by their external ids."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from privirec.data.ids import AT_ONCE, in_lines
from privirec.errors import DataError

_MOST_DIGITS = 18


class Catalogue:
    """External item ids in the order of a model's columns.

    A store keeps ids as text, so item 7 and item "7" are the same item here.
    """

    def __init__(self, item_ids: Iterable[object]) -> None:
        array = item_ids if isinstance(item_ids, np.ndarray) else np.array(list(item_ids))
        self.item_ids: NDArray = array

    def __len__(self) -> int:
        return len(self.item_ids)

    @cached_property
    def names(self) -> list[str]:
        """Ids as text, one per column."""
        return [str(item) for item in self.item_ids.tolist()]

    @cached_property
    def _sorted(self) -> tuple[NDArray, NDArray | None]:
        """Sorted ids and their columns (None if the ids are in ascending order already).

        A dictionary would take ten times the memory, on a device that looks up only a few items.
        """
        ids = self.item_ids
        ids = ids if ids.dtype.kind in "iuU" else ids.astype(str)
        if (ids[1:] > ids[:-1]).all():
            return ids, None
        order = np.argsort(ids, kind="stable")
        return ids[order], order

    @property
    def repeats(self) -> bool:
        """True if an id occurs in more than one column."""
        ids, _ = self._sorted
        return bool((ids[1:] == ids[:-1]).any())

    def columns(self, names: Iterable[str]) -> NDArray[np.int64]:
        """Return the column of each item, by its id as text; -1 for unknown ids."""
        ids, order = self._sorted
        if ids.dtype.kind in "iu":
            largest = int(ids[-1]) if len(ids) else 0
            numbers = [(_as_numbers([name]) or [-1])[0] for name in names]
            wanted = np.array([-1 if one > largest else one for one in numbers], np.int64)
        else:
            wanted = np.array(list(names), str)
        if not len(ids):
            return np.full(len(wanted), -1)
        places = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        columns = places if order is None else order[places]
        return np.where(ids[places] == wanted, columns, -1)

    def column(self, name: str) -> int | None:
        """Return the column of one item, or None if it is unknown."""
        found = int(self.columns([name])[0])
        return found if found >= 0 else None

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the ids in their order."""
        digest = hashlib.sha256(b"privirec/catalogue/1\0")
        for text in in_lines(self.item_ids):
            digest.update(text.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def read_catalogue(path: Path) -> Catalogue:
    """Read item ids, one per line, in column order; they become numbers if all of them are."""
    try:
        with path.open(encoding="utf-8") as file:
            found = Catalogue(_read_ids(file))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable catalogue ({error})") from None
    if not len(found) or "" in found.item_ids or found.repeats:
        raise DataError(f"{path}: a catalogue has one item id a line, each once")
    return found


def _read_ids(file: TextIO) -> NDArray:
    """Read the lines of a file in blocks.

    All lines as Python objects would take ten times the memory.
    """
    blocks: list[NDArray] = []
    numbers = True
    while lines := list(islice(file, AT_ONCE)):
        names = [line.removesuffix("\n") for line in lines]
        found = _as_numbers(names) if numbers else None
        if numbers and found is None:
            numbers = False
            blocks = [np.array(list(map(str, block.tolist()))) for block in blocks]
        blocks.append(np.array(names if found is None else found))
    return np.concatenate(blocks) if blocks else np.array([], str)


def _as_numbers(names: list[str]) -> list[int] | None:
    """Return the names as integers if all are canonical non-negative numbers that fit int64."""
    try:
        if len(max(names, key=len)) > _MOST_DIGITS:
            return None
        found = list(map(int, names))
    except ValueError:
        return None
    return found if list(map(str, found)) == names and min(found) >= 0 else None


def write_catalogue(path: Path, catalogue: Catalogue) -> None:
    """Write a catalogue in the format that `read_catalogue` reads."""
    path.write_text("".join(f"{name}\n" for name in catalogue.names), encoding="utf-8")
