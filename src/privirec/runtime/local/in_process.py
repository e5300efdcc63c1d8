"""One client object per participant, contribution by contribution, in one process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privirec.data.interactions import Interactions
from privirec.errors import UsageError
from privirec.federated.contributions import Contribution, Histories
from privirec.privacy.ledger import Ledger
from privirec.runtime.local.client import Client
from privirec.threads import one_kernel_thread


def clients_of(train: Interactions, n_clients: int | None = None) -> list[Client]:
    """One client per user, or the users dealt to so many silos in consecutive runs."""
    n_clients = train.n_users if n_clients is None else n_clients
    if not 1 <= n_clients <= train.n_users:
        raise UsageError(f"{n_clients} clients for {train.n_users} users")
    edges = np.linspace(0, train.n_users, n_clients + 1).astype(int).tolist()
    return [
        Client(Histories(train.matrix[start:stop], start))
        for start, stop in itertools.pairwise(edges)
    ]


class InProcess:
    """Adds up what the clients answer."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = clients

    def sum(self, ask: Contribution, ledger: Ledger) -> Any:
        with one_kernel_thread():
            total = ask.collect(self._summed_blocks(ask))
        ledger.add_sum(ask)
        return total

    def _summed_blocks(self, ask: Contribution) -> Iterator[NDArray[np.int64]]:
        """Block by block over all clients: one block is held at a time, and nobody's whole vector.
        (Contributions yield expressions, not names, or each waiting client would keep its block.)
        """
        encoding = ask.encoding
        streams = [client.answer(ask) for client in self._clients]
        for length in ask.block_lengths():
            total = np.zeros(length, np.uint64)
            for stream in streams:
                total += encoding.to_ring(next(stream))
            yield encoding.from_ring(total)
