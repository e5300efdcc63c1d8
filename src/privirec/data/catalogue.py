"""The items that a model knows, found by the ids that people use."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privirec.errors import DataError

_AT_ONCE = 1 << 12
_MOST_DIGITS = 18


class Catalogue:
    """External item ids in the order of a model's columns.

    A store keeps ids as text, so item 7 and item "7" are one and the same here.
    """

    def __init__(self, item_ids: Iterable[object]) -> None:
        array = item_ids if isinstance(item_ids, np.ndarray) else np.array(list(item_ids))
        self.item_ids: NDArray = array

    def __len__(self) -> int:
        return len(self.item_ids)

    @cached_property
    def names(self) -> list[str]:
        """Ids as text, one a column."""
        return [str(item) for item in self.item_ids.tolist()]

    @cached_property
    def _sorted(self) -> tuple[NDArray, NDArray]:
        """The ids in ascending order, and their columns. A dictionary would take ten times the
        memory, on a device that looks up a few items of its own."""
        ids = self.item_ids
        ids = ids if ids.dtype.kind in "iuU" else ids.astype(str)
        order = np.argsort(ids, kind="stable")
        return ids[order], order

    def columns(self, names: Iterable[str]) -> NDArray[np.int64]:
        """The column of each item, by its id as text; -1 for those that are not known."""
        ids, order = self._sorted
        if ids.dtype.kind in "iu":
            largest = int(ids[-1]) if len(ids) else 0
            numbers = [int(name) if _is_number(name) else -1 for name in names]
            wanted = np.array([-1 if one > largest else one for one in numbers], np.int64)
        else:
            wanted = np.array(list(names), str)
        if not len(ids):
            return np.full(len(wanted), -1)
        places = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        return np.where(ids[places] == wanted, order[places], -1)

    def column(self, name: str) -> int | None:
        """The column of one item, if it is known."""
        found = int(self.columns([name])[0])
        return found if found >= 0 else None

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the ids in their order."""
        digest = hashlib.sha256(b"privirec/catalogue/1\0")
        for first in range(0, len(self), _AT_ONCE):
            text = "\n".join(map(str, self.item_ids[first : first + _AT_ONCE].tolist()))
            digest.update(("\n" * (first > 0) + text).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def read_catalogue(path: Path) -> Catalogue:
    """Item ids, one a line, in the order of the model's columns; numbers if all of them are."""
    try:
        names = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable catalogue ({error})") from None
    if names and names[-1] == "":
        names.pop()
    numbers = bool(names) and all(map(_is_number, names))
    found = Catalogue(map(int, names) if numbers else names)
    if not names or "" in names or len(np.unique(found.item_ids)) != len(names):
        raise DataError(f"{path}: a catalogue has one item id a line, each once")
    return found


def _is_number(name: str) -> bool:
    """Whether it is a whole number as one writes it, and not too large for an array of them."""
    as_written = name.isascii() and name.isdigit() and (name[0] != "0" or name == "0")
    return as_written and len(name) <= _MOST_DIGITS


def write_catalogue(path: Path, catalogue: Catalogue) -> None:
    """What `read_catalogue` reads."""
    path.write_text("".join(f"{name}\n" for name in catalogue.names), encoding="utf-8")
