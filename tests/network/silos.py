"""A federation with given histories, and a server that records the sums it opens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from privirec.data import Interactions
from privirec.device import Catalogue, Store
from privirec.federated.contributions import Contribution
from privirec.federated.programs import PrivirecKSettings
from privirec.privacy.policy import Policy
from privirec.runtime.coordinator import Stage, computation
from privirec.runtime.spec import RunSpec
from privirec.secagg.keys import Identity, Roster

from .chaos import OPERATOR, Federation
from .test_node import Talk

Touched = NDArray[np.bool_]
"""Boolean matrix (users, items)."""


class Silos(Federation):
    """Clients 0, 1, ... with these histories."""

    def __init__(self, folder: Path, parts: Sequence[Touched], policy: Policy, **spec: Any) -> None:
        self.folder = folder
        self.policy = policy
        self.parts = [np.asarray(part, bool) for part in parts]
        given = {"program": PrivirecKSettings(rank=2, rounds=2), "drop_share": 0.0}
        self.spec = RunSpec(**(given | spec))
        self.catalogue = Catalogue(np.array([f"item-{i}" for i in range(parts[0].shape[1])]))
        self.train = Interactions.from_matrix(np.concatenate(parts).astype(np.float32))
        self.operator = Identity(OPERATOR)
        self.identities = [Identity(bytes([50 + c]) * 32) for c in range(len(parts))]
        self.use_roster(range(len(parts)))
        for client in range(len(parts)):
            self.fill(client)

    def use_roster(self, clients: Sequence[int]) -> None:
        """Set the roster that the operator distributes from now on."""
        self.roster = Roster({client: self.identities[client].public for client in clients})

    def fill(self, client: int) -> None:
        """Fill the store of a client."""
        home = self.folder / f"client-{client}"
        with Store(home / "history.db", create=True) as store:
            users, items = self.parts[client].nonzero()
            store.add(
                (f"user-{client}-{user}", f"item-{item}")
                for user, item in zip(users.tolist(), items.tolist(), strict=True)
            )

    def store(self, client: int) -> Store:
        return Store(self.folder / f"client-{client}/history.db")

    def degrees(self, *clients: int) -> NDArray[np.int64]:
        """Return V over these clients alone."""
        return np.concatenate([self.parts[client] for client in clients]).sum(axis=0)


@contextmanager
def sums_opened() -> Iterator[list[tuple[Contribution, Any]]]:
    """Record everything the server learns: each ask and its total."""
    seen: list[tuple[Contribution, Any]] = []
    total_of = computation.total_of

    def noting(ask: Contribution, *rest: Any) -> Any:
        total = total_of(ask, *rest)
        seen.append((ask, total))
        return total

    with mock.patch.object(computation, "total_of", noting):
        yield seen


def run(federation: Federation, name: str, **changes: Any) -> tuple[list[Any], Talk]:
    """Drive a run as far as its clients allow; return what the server has learned."""
    talk = Talk(federation, name=name, **changes)
    with sums_opened() as seen:
        for _ in range(100):
            if talk.server.stage in (Stage.COMPUTED, Stage.STOPPED):
                break
            talk.step()
            refusing = [c for c in talk.server.clients.values() if c.last_refusal]
            if talk.server.stage is Stage.GATHERING and refusing:
                break
    return seen, talk


def refusals(talk: Talk) -> set[str]:
    """Return the refusals of clients that do not take part."""
    said = (client.gone or client.last_refusal for client in talk.server.clients.values())
    return {each for each in said if each}
