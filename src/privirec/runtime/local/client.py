"""Clients on this machine: their histories, and their answers to registered contributions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from privirec.data.interactions import Interactions
from privirec.errors import UsageError
from privirec.federated.contributions import Contribution, Histories, Integers, answer
from privirec.federated.randomness import ClientRandomness, ClientStream
from privirec.runtime.spec import Assumptions


class LocalClient:
    """Holder of the histories of one user, or of one silo's users, and of its own randomness."""

    def __init__(self, histories: Histories, randomness: ClientRandomness) -> None:
        self.histories = histories
        self.secret_noise = randomness.secret
        self._randomness = randomness

    def __repr__(self) -> str:
        return "LocalClient(<redacted>)"

    def answer(
        self, ask: Contribution, number: int, *, with_noise: bool = True
    ) -> Iterator[Integers]:
        """Yield the blocks of the contribution to sum `number` of the run (from 1).

        Unknown contributions are refused.
        """
        stream = self._randomness.stream(number, ask.name)
        return answer(ask, self.histories, stream if with_noise else stream.without_noise())


def dealt(n_users: int, n_clients: int | None) -> list[tuple[int, int]]:
    """Return the half-open range of users of each client.

    There is one client per user by default; otherwise each client has consecutive users.
    """
    n_clients = n_users if n_clients is None else n_clients
    if not 1 <= n_clients <= n_users:
        raise UsageError(f"{n_clients} clients for {n_users} users")
    edges = np.linspace(0, n_users, n_clients + 1).astype(int).tolist()
    return list(itertools.pairwise(edges))


def clients_of(
    train: Interactions, n_clients: int | None = None, seed: int | None = 0, held_out: float = 0.0
) -> list[LocalClient]:
    """Return one client per user, or `n_clients` silos that each have consecutive users.

    The clients' noise and the share `held_out` of items that they keep back come from `seed`. This
    makes a run repeatable, so the noise hides nothing. Without a seed (None) they are secret.
    """
    check_counted(train)
    clients = []
    for client, (start, stop) in enumerate(dealt(train.n_users, n_clients)):
        own = Histories(train.matrix[start:stop], start)
        randomness = randomness_of(seed, client)
        clients.append(LocalClient(own.split_by(randomness, held_out), randomness))
    return clients


def randomness_of(seed: int | None, client: int) -> ClientRandomness:
    """Return a client's randomness: repeatable with a seed, from the system without one."""
    return ClientRandomness.fresh() if seed is None else ClientRandomness.insecure(seed, client)


def check_counted(train: Interactions) -> None:
    """Raise UsageError if the interactions have weights.

    The bounds of sums and the privacy guarantees hold because every interaction counts as one. A
    weight that a client chooses has no bound.
    """
    if train.weights is not None:
        raise UsageError(
            "a federation counts each interaction as one, since nobody can bound a client's "
            "weights: leave them out (Interactions.unweighted), or fit on one machine"
        )


def check_noise(ask: Contribution, clients: int) -> None:
    """Raise UsageError if more clients would add noise to a sum than its noise is made for."""
    planned = getattr(ask, "clients", clients)
    if planned < clients:
        raise UsageError(
            f"{clients:,} clients would add noise that is made for {planned:,}: set "
            f"clients={clients} and contributors={Assumptions().contributors(clients)} in the "
            "settings, or use PrivateRecommender.federated_fit, which does so"
        )


def split_as_dealt(
    everybody: Histories, held_out: float, n_clients: int | None, seed: int | None
) -> Histories:
    """Return all histories, with the same items held out as by the clients of `clients_of`."""
    if not held_out:
        return everybody
    indptr = everybody.matrix.indptr
    words = (
        randomness_of(seed, client).held_out_words(stop - start, int(indptr[stop] - indptr[start]))
        for client, (start, stop) in enumerate(dealt(everybody.n_users, n_clients))
    )
    return everybody.holding_out(held_out, words)


def streams_of(
    n_users: int, n_clients: int | None, seed: int | None, number: int, name: str
) -> Iterator[ClientStream]:
    """Yield the noise streams that the clients of `clients_of` use for a sum."""
    for client, (start, stop) in enumerate(dealt(n_users, n_clients)):
        stream = randomness_of(seed, client).stream(number, name)
        yield ClientStream(start, stop - start, stream)


def summed_stream(
    n_users: int, n_clients: int, seed: int | None, number: int, name: str
) -> ClientStream:
    """Return a stream that draws the sum of all clients' noise at once.

    It has the same distribution as the sum over `streams_of`, and takes the same time for any
    number of clients.
    """
    stream = randomness_of(seed, n_clients).stream(number, name)
    return ClientStream(0, n_users, stream, n_clients)
