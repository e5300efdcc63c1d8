"""Participants on this machine: histories that stay, and answers that are in the registry."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from privirec.data.interactions import Interactions
from privirec.errors import UsageError
from privirec.federated.contributions import Contribution, Histories, Integers, answer
from privirec.federated.randomness import ClientRandomness, ClientStream


class LocalClient:
    """Holds the histories of one user, or of the users of one silo, and randomness of its own."""

    def __init__(self, histories: Histories, randomness: ClientRandomness) -> None:
        self.histories = histories
        self._randomness = randomness

    def __repr__(self) -> str:
        return "LocalClient(<redacted>)"

    def answer(self, ask: Contribution, number: int) -> Iterator[Integers]:
        """The contribution to sum `number` of the run (from 1), block by block; anything unknown is
        refused."""
        return answer(ask, self.histories, self._randomness.stream(number, ask.name))


def dealt(n_users: int, n_clients: int | None) -> list[tuple[int, int]]:
    """First and last user of each client: one client per user, or consecutive runs for so many."""
    n_clients = n_users if n_clients is None else n_clients
    if not 1 <= n_clients <= n_users:
        raise UsageError(f"{n_clients} clients for {n_users} users")
    edges = np.linspace(0, n_users, n_clients + 1).astype(int).tolist()
    return list(itertools.pairwise(edges))


def clients_of(
    train: Interactions, n_clients: int | None = None, seed: int = 0, held_out: float = 0.0
) -> list[LocalClient]:
    """One client per user, or the users dealt to so many silos in consecutive runs.

    Their noise, and which share `held_out` of their items they keep back, come from `seed`, so that
    a run can be repeated: it hides nothing.
    """
    check_counted(train)
    clients = []
    for client, (start, stop) in enumerate(dealt(train.n_users, n_clients)):
        own = Histories(train.matrix[start:stop], start)
        randomness = ClientRandomness.insecure(seed, client)
        clients.append(LocalClient(own.split_by(randomness, held_out), randomness))
    return clients


def check_counted(train: Interactions) -> None:
    """Refuse weights: sums have proven bounds, and people promises, because everybody counts alike;
    a weight that a client chooses has no bound."""
    if train.weights is not None:
        raise UsageError(
            "a federation counts each interaction as one, since nobody can bound a client's "
            "weights: leave them out (Interactions.unweighted), or fit on one machine"
        )


def split_as_dealt(
    everybody: Histories, held_out: float, n_clients: int | None, seed: int
) -> Histories:
    """All histories with what the clients of `clients_of` keep back."""
    if not held_out:
        return everybody
    indptr = everybody.matrix.indptr
    words = (
        ClientRandomness.insecure(seed, client).held_out_words(
            stop - start, int(indptr[stop] - indptr[start])
        )
        for client, (start, stop) in enumerate(dealt(everybody.n_users, n_clients))
    )
    return everybody.holding_out(held_out, words)


def streams_of(
    n_users: int, n_clients: int | None, seed: int, number: int, name: str
) -> Iterator[ClientStream]:
    """The streams that the clients of `clients_of` use for a sum, made as they are read."""
    for client, (start, stop) in enumerate(dealt(n_users, n_clients)):
        stream = ClientRandomness.insecure(seed, client).stream(number, name)
        yield ClientStream(start, stop - start, stream)


def summed_stream(n_users: int, n_clients: int, seed: int, number: int, name: str) -> ClientStream:
    """The noise of so many clients in one draw: of the same distribution as what `streams_of` adds
    up, and as quick however many they are."""
    stream = ClientRandomness.insecure(seed, n_clients).stream(number, name)
    return ClientStream(0, n_users, stream, n_clients)
