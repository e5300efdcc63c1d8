"""A runtime with one client object per participant, all in one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privirec.federated.contributions import Contribution
from privirec.privacy.ledger import Ledger
from privirec.runtime.local.client import LocalClient, check_noise
from privirec.threads import one_kernel_thread


class InProcess:
    """Sums of the clients' answers, without cryptography."""

    def __init__(self, clients: Sequence[LocalClient]) -> None:
        self._clients = clients
        self._asked = 0
        self.secret_noise = all(client.secret_noise for client in clients)

    @property
    def clients(self) -> int:
        return len(self._clients)

    def sum(self, ask: Contribution, ledger: Ledger) -> Any:
        self._asked += 1
        check_noise(ask, len(self._clients))
        with one_kernel_thread():
            total = ask.collect(self._summed_blocks(ask))
        ledger.add_sum(ask)
        return total

    def _summed_blocks(self, ask: Contribution) -> Iterator[NDArray[np.int64]]:
        """Yield each block summed over all clients, so that only one block is in memory at a time.

        Contributions must yield expressions, not names; otherwise each waiting client would keep
        its block alive.
        """
        encoding = ask.encoding
        streams = [client.answer(ask, self._asked) for client in self._clients]
        for length in ask.block_lengths():
            total = np.zeros(length, np.uint64)
            for stream in streams:
                total += encoding.to_ring(next(stream))
            yield encoding.from_ring(total)
