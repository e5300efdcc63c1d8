"""Clients in one process whose sums come out of real secure aggregation.

The set-up exchange deals keys and shares for all sums of the run; the shapes of the sums are known
before anybody answers. The set of clients in the first sum is the cohort: a client that drops out
after that ends the run, because the difference of two sums would be its history.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from privirec.errors import FederationError, OverflowRefused
from privirec.federated.contributions import Contribution
from privirec.federated.fixed_point import FixedPoint
from privirec.privacy.ledger import Ledger
from privirec.runtime.local.client import Client
from privirec.runtime.plan import PlannedSum
from privirec.secagg import ClientPolicy, LocalFederation, VectorShape
from privirec.threads import one_kernel_thread


@dataclass(frozen=True)
class Assumptions:
    """Of whom secure aggregation assumes what."""

    corrupt_share: float = 0.05
    """Clients that may work for the server."""
    dropped_share: float = 0.05
    """Clients that may drop out."""


@dataclass(frozen=True)
class DropOuts:
    """Who leaves, by the number of the client, and when. Whoever leaves stays away."""

    at_set_up: Mapping[str, Collection[int]] = field(default_factory=dict)
    """Stage "advertise" or "share" -> clients."""
    at_sums: Mapping[int, Mapping[str, Collection[int]]] = field(default_factory=dict)
    """Number of the sum, from 1 -> stage "input" or "unmask" -> clients."""

    @classmethod
    def of_share(cls, share: float, n_clients: int, seed: int) -> DropOuts:
        """A random share of the clients leaves before the first sum."""
        rng = np.random.Generator(np.random.Philox([seed, n_clients]))
        leaving = rng.choice(n_clients, int(share * n_clients), replace=False)
        return cls(at_sums={1: {"input": {int(client) for client in leaving}}})


class SecureInProcess:
    """Adds up what the clients answer, without seeing any answer."""

    def __init__(
        self,
        clients: Sequence[Client],
        sums: Sequence[PlannedSum],
        protocol: Literal["secagg+", "secagg"],
        *,
        assumptions: Assumptions | None = None,
        dropouts: DropOuts | None = None,
    ) -> None:
        assumptions = assumptions or Assumptions()
        self._clients = clients
        self._sums = sums
        self._done = 0
        self._dropouts = dropouts or DropOuts()
        self._counted = (0.0, 0.0)
        self._federation = LocalFederation(
            protocol,
            len(clients),
            [shape_of(planned) for planned in sums],
            corrupt_share=assumptions.corrupt_share,
            dropped_share=assumptions.dropped_share,
            policy=ClientPolicy(
                corrupt_share=assumptions.corrupt_share,
                max_dropped_share=max(0.3, assumptions.dropped_share),
                proven_sums=True,
            ),
            departures=self._dropouts.at_set_up,
        )
        self.survivors: tuple[int, ...] = ()

    def sum(self, ask: Contribution, ledger: Ledger) -> Any:
        planned = self._sums[self._done]
        asked = (ask.name, ask.length, ask.encoding.width, ask.encoding.signed)
        if asked != (planned.name, planned.length, planned.ring_bits, planned.signed):
            raise FederationError(f"the sum of {ask.name} is not what was agreed at set-up")
        self._done += 1
        with one_kernel_thread():
            opened = self._federation.sum(
                lambda client: self._clients[client].answer(ask),
                self._dropouts.at_sums.get(self._done),
            )
        self.survivors = opened.survivors
        total = ask.collect(_pieces(opened.total, ask.block_lengths(), ask.encoding))
        up, down = self._bytes_per_client()
        payload = ask.encoding.payload_bytes(ask.length)
        ledger.add_sum(ask, overhead_up=round(up) - payload, overhead_down=round(down))
        return total

    def _bytes_per_client(self) -> tuple[float, float]:
        """Mean bytes since the last sum, over the clients in it; set-up counts with the first."""
        inside = list(self.survivors)
        traffic = self._federation.traffic
        up = float(traffic.up_per_client()[inside].mean())
        down = float(traffic.down_per_client()[inside].mean())
        before = self._counted
        self._counted = (up, down)
        return up - before[0], down - before[1]


def shape_of(planned: PlannedSum) -> VectorShape:
    """The bound of a sum is proven by its encoding before a client answers; set-up needs only that
    it stays inside the ring."""
    most = 2 ** (planned.ring_bits - planned.signed) - 1
    if most < 1:
        raise OverflowRefused(f"a signed sum of {planned.name} does not fit into one bit")
    return VectorShape(planned.length, planned.ring_bits, most, planned.signed, bounds_sum=True)


def _pieces(
    total: NDArray[Any], lengths: Iterable[int], encoding: FixedPoint
) -> Iterator[NDArray[np.int64]]:
    start = 0
    for length in lengths:
        yield encoding.from_ring(total[start : start + length].astype(np.uint64))
        start += length
