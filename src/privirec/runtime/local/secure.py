"""Clients in one process whose sums are computed by real secure aggregation.

The set-up exchange deals keys and shares for all sums of the run, whose shapes are known before any
client answers. The clients in the first sum are the cohort. A client that drops out after that ends
the run, because the difference of two sums would be its history.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from privirec.federated.contributions import Contribution, PlannedSum
from privirec.privacy.ledger import Ledger
from privirec.runtime.execute import total_of
from privirec.runtime.local.client import LocalClient, check_noise
from privirec.runtime.spec import (
    DROP_SHARE_ON_ONE_MACHINE,
    SERVER_ON_ONE_MACHINE,
    Assumptions,
    vector_shape,
)
from privirec.secagg import ClientPolicy, LocalFederation
from privirec.threads import one_kernel_thread


@dataclass(frozen=True)
class DropOuts:
    """Clients that drop out, by number, and when. A client that has dropped out does not return."""

    at_set_up: Mapping[str, Collection[int]] = field(default_factory=dict)
    """Stage "advertise" or "share" -> clients."""
    at_sums: Mapping[int, Mapping[str, Collection[int]]] = field(default_factory=dict)
    """Number of the sum (from 1) -> stage such as "input" or "unmask" -> clients."""

    @classmethod
    def of_share(cls, share: float, n_clients: int, seed: int) -> DropOuts:
        """Return drop-outs in which a random share of the clients leaves before the first sum."""
        rng = np.random.Generator(np.random.Philox([seed, n_clients]))
        leaving = rng.choice(n_clients, int(share * n_clients), replace=False)
        return cls(at_sums={1: {"input": {int(client) for client in leaving}}})


class SecureInProcess:
    """Sums of the clients' answers by secure aggregation, which hides the single answers."""

    def __init__(
        self,
        clients: Sequence[LocalClient],
        sums: Sequence[PlannedSum],
        protocol: str,
        *,
        assumptions: Assumptions | None = None,
        dropouts: DropOuts | None = None,
    ) -> None:
        assumptions = assumptions or Assumptions(
            drop_share=DROP_SHARE_ON_ONE_MACHINE, server_model=SERVER_ON_ONE_MACHINE
        )
        self._clients = clients
        self._sums = sums
        self._done = 0
        self._dropouts = dropouts or DropOuts()
        self._counted = (0.0, 0.0)
        self._federation = LocalFederation(
            protocol,
            len(clients),
            [vector_shape(planned) for planned in sums],
            corrupt_share=assumptions.corrupt_share,
            dropped_share=assumptions.drop_share,
            security_bits=assumptions.security_bits,
            correctness_bits=assumptions.correctness_bits,
            server=assumptions.server_model,
            policy=ClientPolicy(
                corrupt_share=assumptions.corrupt_share,
                max_dropped_share=max(0.3, assumptions.drop_share),
                proven_sums=True,
            ),
            departures=self._dropouts.at_set_up,
        )
        self.survivors: tuple[int, ...] = ()
        self.secret_noise = all(client.secret_noise for client in clients)

    @property
    def clients(self) -> int:
        return len(self.survivors or self._clients)

    def sum(self, ask: Contribution, ledger: Ledger) -> Any:
        check_noise(ask, self.clients)
        self._sums[self._done].check(ask)  # set-up dealt keys for these sums in this order
        self._done += 1
        with one_kernel_thread():
            opened = self._federation.sum(
                lambda client: self._clients[client].answer(ask, self._done),
                self._dropouts.at_sums.get(self._done),
                ask.length,
            )
        self.survivors = opened.survivors
        total = total_of(ask, opened.total, opened.shape)
        up, down = self._bytes_per_client()
        payload = ask.encoding.payload_bytes(ask.length)
        ledger.add_sum(ask, round(up) - payload, round(down), opened.deviation)
        return total

    def _bytes_per_client(self) -> tuple[float, float]:
        """Return mean bytes up and down since the last sum, over the clients in it.

        The first sum includes the traffic of set-up.
        """
        inside = list(self.survivors)
        traffic = self._federation.traffic
        up = float(traffic.up_per_client()[inside].mean())
        down = float(traffic.down_per_client()[inside].mean())
        before = self._counted
        self._counted = (up, down)
        return up - before[0], down - before[1]
