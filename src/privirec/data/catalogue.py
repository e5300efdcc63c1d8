"""The items that a model knows, found by the ids that people use."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privirec.errors import DataError


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
    def columns(self) -> dict[str, int]:
        """Column of each id."""
        return {name: column for column, name in enumerate(self.names)}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the ids in their order."""
        text = "\n".join(self.names).encode("utf-8", "surrogatepass")
        return hashlib.sha256(b"privirec/catalogue/1\0" + text).hexdigest()


def read_catalogue(path: Path) -> Catalogue:
    """Item ids, one a line, in the order of the model's columns; numbers if all of them are."""
    try:
        names = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable catalogue ({error})") from None
    if names and names[-1] == "":
        names.pop()
    if not names or len(set(names)) != len(names) or "" in names:
        raise DataError(f"{path}: a catalogue has one item id a line, each once")
    if all(name.isascii() and name.isdigit() and str(int(name)) == name for name in names):
        return Catalogue([int(name) for name in names])
    return Catalogue(names)


def write_catalogue(path: Path, catalogue: Catalogue) -> None:
    """What `read_catalogue` reads."""
    path.write_text("".join(f"{name}\n" for name in catalogue.names), encoding="utf-8")
