"""All histories on one machine, each total computed at once.

Allowed only because tests hold it bit for bit equal to clients that answer one by one.
"""

from __future__ import annotations

from typing import Any

from privirec.data.interactions import Interactions
from privirec.federated.contributions import Contribution, Histories
from privirec.federated.programs import Program
from privirec.filters.components import Components
from privirec.privacy.ledger import Ledger
from privirec.runtime.local.client import streams_of


class Simulation:
    """Sums over the whole matrix, with the noise of the clients that the users are dealt to."""

    def __init__(self, train: Interactions, n_clients: int | None = None, seed: int = 0) -> None:
        """`n_clients` and `seed` as in `clients_of`; they matter for sums with noise only."""
        self._histories = Histories(train.matrix)
        self._n_clients = n_clients
        self._seed = seed
        self._asked = 0

    def sum(self, ask: Contribution, ledger: Ledger) -> Any:
        ledger.add_sum(ask)  # first, as it refuses a ring that is too narrow
        self._asked += 1
        cohort = self._histories.n_users, self._n_clients, self._seed
        return ask.total(self._histories, streams_of(*cohort, self._asked, ask.name))

    def with_factors(self, program: Program[Any], components: Components) -> Components:
        """The same components, quicker to apply where the program knows how."""
        return program.with_factors(components, self._histories)
