"""A simulation with all histories on one machine, which computes each total directly.

It is a valid substitute because tests hold it bit-identical to clients that answer one by one.
"""

from __future__ import annotations

from typing import Any

from privirec.data.interactions import Interactions
from privirec.federated.contributions import Contribution, Histories
from privirec.federated.programs import Program
from privirec.filters.components import Components
from privirec.privacy.ledger import Ledger
from privirec.runtime.local.client import (
    check_counted,
    split_as_dealt,
    streams_of,
    summed_stream,
)


class Simulation:
    """Sums over the whole matrix, with the noise of the clients that the users are assigned to."""

    def __init__(
        self,
        train: Interactions,
        n_clients: int | None = None,
        seed: int | None = 0,
        *,
        noise_at_once: bool = False,
        held_out: float = 0.0,
    ) -> None:
        """Set up sums over `train`, with `n_clients`, `seed` and `held_out` as in `clients_of`.

        `n_clients` and `seed` matter only for sums with noise, or if items are held out. If
        `noise_at_once` is true, draw the sum of all clients' noise instead of each client's noise.
        The result has the same distribution, but not the same bits.
        """
        check_counted(train)
        self._histories = split_as_dealt(Histories(train.matrix), held_out, n_clients, seed)
        self._n_clients = n_clients
        self._seed = seed
        self.secret_noise = seed is None
        self._noise_at_once = noise_at_once
        self._asked = 0

    @property
    def clients(self) -> int:
        return self._n_clients or self._histories.n_users

    def sum(self, ask: Contribution, ledger: Ledger) -> Any:
        ledger.add_sum(ask)  # first, because it refuses a ring that is too narrow
        self._asked += 1
        n_users = self._histories.n_users
        sum_of_run = self._seed, self._asked, ask.name
        if self._noise_at_once:
            together = summed_stream(n_users, self._n_clients or n_users, *sum_of_run)
            return ask.total(self._histories, [together])
        return ask.total(self._histories, streams_of(n_users, self._n_clients, *sum_of_run))

    def with_factors(self, program: Program[Any], components: Components) -> Components:
        """Return the same components in a form that is faster to apply, if the program has one."""
        return program.with_factors(components, self._histories)
