"""Participants on this machine: histories that stay, and answers that are in the registry."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from privirec.data.interactions import Interactions
from privirec.errors import UsageError
from privirec.federated.contributions import Contribution, Histories, Integers, answer


class LocalClient:
    """Holds the histories of one user, or of the users of one silo."""

    def __init__(self, histories: Histories) -> None:
        self.histories = histories

    def __repr__(self) -> str:
        return "LocalClient(<redacted>)"

    def answer(self, ask: Contribution) -> Iterator[Integers]:
        """The contribution, block by block; anything unknown is refused."""
        return answer(ask, self.histories)


def clients_of(train: Interactions, n_clients: int | None = None) -> list[LocalClient]:
    """One client per user, or the users dealt to so many silos in consecutive runs."""
    n_clients = train.n_users if n_clients is None else n_clients
    if not 1 <= n_clients <= train.n_users:
        raise UsageError(f"{n_clients} clients for {train.n_users} users")
    edges = np.linspace(0, train.n_users, n_clients + 1).astype(int).tolist()
    return [
        LocalClient(Histories(train.matrix[start:stop], start))
        for start, stop in itertools.pairwise(edges)
    ]
