"""All histories on one machine, each total computed at once.

Allowed only because tests hold it bit for bit equal to clients that answer one by one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from privirec.data.interactions import Interactions
from privirec.federated.contributions import Contribution, Histories, ItemItem
from privirec.federated.programs import FederatedSettings
from privirec.filters.components import Components
from privirec.filters.normalize import degree_power
from privirec.filters.operators import FactoredOperator, SparseOperator
from privirec.privacy.ledger import Ledger


class Simulation:
    """Sums over the whole matrix."""

    def __init__(self, train: Interactions) -> None:
        self._histories = Histories(train.matrix)

    def sum(self, ask: Contribution, ledger: Ledger) -> Any:
        ledger.add_sum(ask)  # first, as it refuses a ring that is too narrow
        return ask.total(self._histories)

    def with_factors(self, components: Components, settings: FederatedSettings) -> Components:
        """The same components, the released P~ joined by its factors with the released weights.

        Applying the factors to dense states is much faster, and only a simulation has them.
        """
        operator = components.item_item
        if not isinstance(operator, SparseOperator):
            return components
        degrees = components.item_degrees
        ask = ItemItem(len(degrees), int(degrees.max()), settings.alpha, settings.ring_bits)
        weights = ask.encoding.decode(ask.weights(self._histories.degrees))
        scale = degree_power(degrees, settings.alpha - 1)
        factors = FactoredOperator(self._histories.matrix, weights, scale, released=operator)
        return replace(components, item_item=factors)
