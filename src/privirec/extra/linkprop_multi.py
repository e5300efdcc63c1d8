"""LinkProp-Multi (Fu et al. 2022): LinkProp with degrees that include likely links.

In each iteration the best-scoring unseen user-item pairs, `share` times as many as there are
interactions, are added to the degrees of their users and items, and LinkProp is recomputed with
these degrees. Paths still run over interactions only. Alpha matters here, the exponent of the
degree of the user who is scored: it decides whose links come first.

The model and the program that computes it with clients are both here; `likely_links` has the sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
from pydantic import Field

from privirec.data.interactions import Interactions
from privirec.extra.likely_links import (
    UPPER_HALVES,
    LinkDegrees,
    LinkItemItem,
    LinkScores,
    ScoreHistogram,
    likely_links,
    nth_from_the_top,
    threshold_bits,
)
from privirec.federated.contributions import Integers, ItemDegrees, ItemItem
from privirec.federated.programs.base import Broadcast, Planned, Program, Steps
from privirec.federated.programs.power import FILTER_ENTRY, item_degrees_told
from privirec.federated.programs.privirec import ItemItemSettings, normalized
from privirec.filters.components import Components, factored
from privirec.filters.eigen import Progress
from privirec.filters.normalize import degree_power
from privirec.filters.operators import SparseOperator
from privirec.models.base import Config
from privirec.models.link_prop import LinkProp, LinkPropConfig


class LinkPropMultiConfig(LinkPropConfig):
    alpha: float = Field(0.34, ge=0, le=1)
    """Exponent of the degree of the user who is scored."""
    iterations: int = Field(1, ge=1)
    """Number of updates of the degrees."""
    share: float = Field(0.1, gt=0)
    """t: likely links per interaction."""

    @property
    def needs(self) -> dict[str, Any]:
        links = {"updates": self.iterations, "link_share": self.share}
        return super().needs | {"own_exponent": self.alpha} | links


class LinkPropMulti(LinkProp):
    """LinkProp-Multi: LinkProp with degrees that include likely links.

    Fu et al. 2022.
    """

    name = "linkprop-multi"
    title = "LinkProp-Multi"
    config_type = LinkPropMultiConfig
    # Chosen as for LinkProp to reproduce the published NDCG@20 to four digits.
    published: ClassVar[dict[str, Config]] = {
        "gowalla": LinkPropMultiConfig(alpha=0.34, beta=0.5, gamma=0.67, delta=0.34, share=0.2),
        "yelp2018": LinkPropMultiConfig(
            alpha=0.34, beta=0.67, gamma=0.5, delta=0.5, share=0.05, iterations=2
        ),
    }
    takes_no_weights = "it counts likely links, which nobody has weighed, as interactions"
    config: LinkPropMultiConfig

    def _components_of(
        self, train: Interactions, seed: int, progress: Progress | None
    ) -> Components:
        config = self.config
        users, items = train.user_degrees, train.item_degrees
        wanted = likely_links(train.n_interactions, config.share)
        for iteration in range(config.iterations):
            if progress:
                progress(iteration, config.iterations)
            item_item = factored(train, config.normalisation, users, items).written_out()
            weights = degree_power(users, -config.alpha).astype(np.float32)
            scores = LinkScores(train.matrix, item_item, weights)
            upper, left = nth_from_the_top(scores.upper_histogram(), wanted)
            lower, _ = nth_from_the_top(scores.lower_histogram(upper), left)
            more_users, more_items = scores.links(threshold_bits(upper, lower))
            users, items = train.user_degrees + more_users, train.item_degrees + more_items
        operator = factored(train, config.normalisation, users, items)
        return Components(items, operator, normalisation=config.normalisation)


class LinkPropMultiSettings(ItemItemSettings):
    """Settings of LinkProp-Multi."""

    method: Literal["linkprop-multi"] = "linkprop-multi"
    own_exponent: float = Field(0.34, ge=0, le=1)
    """Exponent of the degree of the user for whom items are scored."""
    updates: int = Field(1, ge=1, le=8)
    """Number of updates of the degrees."""
    link_share: float = Field(0.1, gt=0)
    """Number of likely links per interaction."""


class LinkPropMultiProgram(Program[LinkPropMultiSettings]):
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

    def outline(self, item_item_entries: int | None = None) -> list[Planned]:
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

    def _steps(self, outline: list[Any]) -> Steps:
        degree_sum, degrees_told, item_item_sum, *sums, filters = outline
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
