"""The items that a model knows, found by the ids that people use."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


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
