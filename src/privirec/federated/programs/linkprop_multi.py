"""LinkProp-Multi: item-item matrices whose degrees count likely links, updated in stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
from pydantic import Field

from privirec.federated.contributions import (
    Integers,
    ItemDegrees,
    ItemItem,
    LinkDegrees,
    LinkItemItem,
    ScoreHistogram,
)
from privirec.federated.contributions.links import UPPER_HALVES
from privirec.federated.programs.base import Broadcast, Planned, Program, Steps
from privirec.federated.programs.power import FILTER_ENTRY, item_degrees_told
from privirec.federated.programs.privirec import ItemItemSettings, normalized
from privirec.filters.components import Components
from privirec.filters.links import likely_links, nth_from_the_top, threshold_bits
from privirec.filters.operators import SparseOperator


class LinkPropMultiSettings(ItemItemSettings):
    """Settings of LinkProp-Multi."""

    method: Literal["linkprop-multi"] = "linkprop-multi"
    own_exponent: float = Field(0.34, ge=0, le=1)
    """Exponent of the degree of the user for whom items are scored."""
    updates: int = Field(1, ge=1, le=8)
    """Number of updates of the degrees."""
    link_share: float = Field(0.1, gt=0)
    """Number of likely links per interaction."""


class LinkPropMulti(Program[LinkPropMultiSettings]):
    """V and P', followed by updates.

    Each update finds the threshold of the best scores in two sums, then sums V and P' again.
    """

    name: ClassVar[str] = "linkprop-multi"
    title: ClassVar[str] = "LinkProp-Multi"
    in_short: ClassVar[str] = "linkprop-multi with the clients"
    gives_away: ClassVar[str] = (
        "exact item-item matrices give every history away, to the server and to every client"
    )
    settings_type = LinkPropMultiSettings
    only_for_models_with: ClassVar[frozenset[str]] = frozenset({"updates"})

    def plan(self, item_item_entries: int | None = None) -> list[Planned]:
        settings, normalisation = self.settings, self.settings.normalisation
        entries = self.n_items**2 if item_item_entries is None else item_item_entries
        fixed: Mapping[str, Any] = {
            "n_items": self.n_items,
            "n_users": self.n_users,
            "alpha": settings.own_exponent,
            "left": normalisation.left,
            "right": normalisation.right,
            "user_exponent": normalisation.user,
            "width": settings.ring_bits,
        }
        planned: list[Planned] = [
            ItemDegrees.planned(self.n_items, self.n_users),
            item_degrees_told(self.n_items),
            ItemItem.planned(self.n_items, settings.alpha, settings.ring_bits),
        ]
        for stages in range(1, settings.updates + 1):
            kinds = (ScoreHistogram, ScoreHistogram, LinkDegrees, LinkItemItem)
            planned += [kind.planned(stages, entries, **fixed) for kind in kinds]
        return [*planned, Broadcast("filters", self._filter_bytes(entries))]

    def _steps(self, plan: list[Any]) -> Steps:
        degree_sum, degrees_told, item_item_sum, *sums, filters = plan
        first = yield degree_sum.ask()
        yield degrees_told
        ask = item_item_sum.ask(largest_degree=int(first.max(initial=0)))
        total = yield ask
        places = total
        degrees, entries = [first], [total.data]
        thresholds: list[int] = []
        wanted = likely_links(int(first.sum()), self.settings.link_share)

        def public() -> dict[str, Integers]:
            return {
                "item_degrees": np.concatenate(degrees),
                "indptr": places.indptr,
                "indices": places.indices,
                "entries": np.concatenate(entries),
                "thresholds": np.array(thresholds, np.int64),
            }

        for at in range(0, len(sums), 4):
            upper_sum, lower_sum, counts_sum, matrix_sum = sums[at : at + 4]
            counts = yield upper_sum.ask(**public(), upper=UPPER_HALVES)
            upper, left = nth_from_the_top(counts, wanted)
            counts = yield lower_sum.ask(**public(), upper=upper)
            lower, _ = nth_from_the_top(counts, left)
            thresholds.append(threshold_bits(upper, lower))
            counts = yield counts_sum.ask(**public())
            total = yield matrix_sum.ask(**public())
            degrees.append(first + counts)
            entries.append(_at(places, total))
        shape = (self.n_items, self.n_items)
        last = sp.csr_array((entries[-1], places.indices, places.indptr), shape=shape)
        matrix = normalized(last, ask.encoding, degrees[-1], self.settings.normalisation)
        yield filters.measured(self._filter_bytes(matrix.nnz))
        operator = SparseOperator(matrix.astype(np.float32))
        return Components(degrees[-1], operator, normalisation=self.settings.normalisation)

    def _filter_bytes(self, entries: int) -> int:
        """Return the size of a sparse matrix: a value and a column number per entry, an offset per
        row."""
        return (FILTER_ENTRY + 4) * entries + 4 * (self.n_items + 1)


def _at(places: sp.csr_array, matrix: sp.csr_array) -> Integers:
    """Return the values of `matrix` at the positions of `places`, zero where it has none."""
    if matrix.nnz == places.nnz:
        return matrix.data

    def keys(of: sp.csr_array) -> Integers:
        rows = np.repeat(np.arange(of.shape[0], dtype=np.int64), np.diff(of.indptr))
        return rows * of.shape[1] + of.indices

    data = np.zeros(places.nnz, np.int64)
    data[np.searchsorted(keys(places), keys(matrix))] = matrix.data
    return data
