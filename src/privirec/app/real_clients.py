"""Sums of artificial people through real clients, as an attacker hears them.

The clients draw their own noise, encode and mask their vectors, and secure aggregation opens the
sums. As many of them drop out and work for the server as the promise allows. What is left is the
least noise that the promise relies on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from privirec.data.interactions import Interactions
from privirec.federated.contributions import Histories, NoiseShare, PlannedSum
from privirec.federated.contributions.noisy import NormedSum
from privirec.federated.dp.mechanism import MECHANISMS, NoiseSampler
from privirec.federated.randomness import ClientRandomness, RandomStream
from privirec.privacy.ledger import Ledger
from privirec.privacy.releases import HeardSum
from privirec.runtime.local.client import LocalClient, dealt
from privirec.runtime.local.secure import DropOuts, SecureInProcess
from privirec.runtime.spec import Assumptions

CLIENTS = 20
PROTOCOL = "secagg+"


def through_clients(
    asks: Sequence[NormedSum], people: Interactions, seed: int, *, noise: bool = True
) -> list[HeardSum]:
    """Return sums over these people, without the noise that the attacker knows.

    The people belong to clients that neither drop out nor work for the attacker. `noise=False`
    leaves out all noise.
    """
    assumed = Assumptions()
    leaving = range(int(assumed.drop_share * CLIENTS))
    corrupt = range(len(leaving), len(leaving) + assumed.statement(CLIENTS, len(asks)).corrupt)
    first = corrupt.stop
    asks = [_for_few_clients(ask, assumed.contributors(CLIENTS)) for ask in asks]
    randomness = [
        ClientRandomness.insecure(seed, client) if noise else _Silence()
        for client in range(CLIENTS)
    ]
    nobody = Histories(people.matrix[:0])
    shares = dealt(people.n_users, min(CLIENTS - first, people.n_users))
    own = [nobody] * first + [Histories(people.matrix[a:b], a) for a, b in shares]
    own += [nobody] * (CLIENTS - len(own))
    clients = [LocalClient(*each) for each in zip(own, randomness, strict=True)]
    planned = [PlannedSum(type(ask), ask.shape, asdict(ask.share)) for ask in asks]
    gone = DropOuts(at_sums={1: {"input": set(leaving)}})
    federation = SecureInProcess(clients, planned, PROTOCOL, assumptions=assumed, dropouts=gone)
    heard = []
    for number, ask in enumerate(asks, 1):
        left = federation.sum(ask, Ledger())
        for client in corrupt:  # without people, a client sends its noise alone
            left = left - ask.collect(clients[client].answer(ask, number))
        secret = len(federation.survivors) - len(corrupt)
        heard.append(HeardSum(ask, left, ask.deviation * math.sqrt(secret) if noise else 1.0))
    return heard


def _for_few_clients(ask: NormedSum, contributors: int) -> NormedSum:
    """Return the same request with the noise of fewer clients, at the same level of privacy."""
    loss = ask.share.protection(ask.length).loss
    deviation, bits = MECHANISMS.named(ask.mechanism).least_noise(
        Fraction(loss.mu) ** 2, ask.length, contributors, loss.gap
    )
    share = NoiseShare(deviation, CLIENTS, contributors, bits, ask.mechanism)
    return replace(ask, **asdict(share))


class _Silence(ClientRandomness):
    """Randomness of a client that leaves out its noise."""

    def __init__(self) -> None:
        super().__init__(bytes(32))

    def stream(self, number: int, name: str) -> RandomStream:
        return _NoNoise(bytes(32), b"")


class _NoNoise(RandomStream):
    def add_noise(self, sampler: NoiseSampler, block: NDArray[np.int64], start: int) -> None:
        return None
