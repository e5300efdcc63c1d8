"""Head Gram: the item-item matrix between the most popular items, from two sums."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from privirec.federated.contributions import HeadItemItem, ItemDegrees
from privirec.federated.programs.base import Broadcast, Planned, Program, Steps
from privirec.federated.programs.power import FILTER_ENTRY, item_degrees_told
from privirec.federated.programs.privirec import ItemItemSettings, normalized
from privirec.federated.settings import Option
from privirec.filters.components import Components
from privirec.filters.operators import SparseOperator

DEFAULT_HEAD = 1000


class HeadGramSettings(ItemItemSettings):
    """Settings of the head's item-item matrix."""

    method: Literal["head-gram"] = "head-gram"
    head: Annotated[int, Option("N", default="the model's")] = Field(DEFAULT_HEAD, ge=1)
    """ease, denoised: most popular items to use."""


class HeadGram(Program[HeadGramSettings]):
    """V, then P' between the items of the highest degrees. All other entries stay empty."""

    name: ClassVar[str] = "head-gram"
    title: ClassVar[str] = "Head Gram"
    in_short: ClassVar[str] = "exact pairs among the most popular items, for ease"
    gives_away: ClassVar[str] = (
        "the exact item-item matrix of the most popular items is not proven safe; it is computed "
        "from the part of every history that lies among them"
    )
    settings_type = HeadGramSettings

    def outline(self, item_item_entries: int | None = None) -> list[Planned]:
        settings = self.settings
        head = min(settings.head, self.n_items)
        return [
            ItemDegrees.planned(self.n_items, self.n_users),
            item_degrees_told(self.n_items),
            HeadItemItem.planned(self.n_items, head, settings.alpha, settings.ring_bits),
            Broadcast("filters", head * (head + FILTER_ENTRY)),
        ]

    def _steps(self, outline: list[Any]) -> Steps:
        degree_sum, degrees_told, head_sum, filters = outline
        degrees = yield degree_sum.ask()
        yield degrees_told
        ask = head_sum.ask(item_degrees=degrees)
        total = yield ask
        normalisation = self.settings.normalisation
        small = normalized(total, ask.encoding, degrees[ask.items], normalisation)
        matrix = among_all(small.astype(np.float32), ask.items, self.n_items)
        yield filters
        return Components(degrees, SparseOperator(matrix), normalisation=normalisation)


def among_all(matrix: sp.csr_array, items: NDArray[np.int64], n_items: int) -> sp.csr_array:
    """Return the matrix over `items` as a sparse matrix over the whole catalogue."""
    lengths = np.zeros(n_items, np.int64)
    lengths[items] = np.diff(matrix.indptr)
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    columns = items[matrix.indices].astype(np.int32)
    return sp.csr_array((matrix.data, columns, indptr), shape=(n_items, n_items))
