"""Aggregation without masks: the server sees every contribution.

It is for applications that accept this, and for comparison. It uses the exchange of `bell2020` over
a graph without edges. Messages and checks are the same, but clients have no neighbours, so all
lists of shares are empty and blocks are sent in the clear. No setting of the masked protocols
disables the masks: only the classes below omit them.

A client that refuses the list of survivors cannot take back the vector that it has already sent. An
honest server still respects the refusal, and opens a sum only if enough clients agree.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privirec.secagg.bell2020 import BellClient, BellServer, Scheme, protocol_of
from privirec.secagg.bell2020.messages import Neighbours, Shares
from privirec.secagg.errors import GraphNotRegular
from privirec.secagg.keys import NONCE_BYTES
from privirec.secagg.parameters import Parameters, Statement
from privirec.secagg.protocol import Guarantee


class PlainClient(BellClient):
    """A client that sends its integers unmasked."""

    def deal_shares(self, message: Neighbours, participants: NDArray[np.uint32]) -> Shares:
        """Raise GraphNotRegular for any neighbours; there are no shares to deal."""
        if message.neighbours or message.threshold or message.keys:
            raise GraphNotRegular("neighbours in a protocol without masks")
        if message.path or any(message.root):
            raise GraphNotRegular("a tree of keys in a protocol without a graph")
        return Shares(message.run, self.client, bytes(NONCE_BYTES), ())

    def mask_seeds(self, sum_number: int, asked: bytes) -> tuple[list[bytes], list[bytes]]:
        return [], []


class PlainServer(BellServer):
    """A server that adds unmasked vectors."""

    def draw_graph(self) -> NDArray[np.int64]:
        return np.empty((len(self.participants), 0), np.int64)

    def seeds_to_remove(self, sum_number: int) -> tuple[list[bytes], list[bytes]]:
        self.check_enough(len(self.answered))
        return [], []


def _no_graph(_statement: Statement) -> Parameters:
    return Parameters(0, 0)


NONE = protocol_of(
    Scheme.of("none", 3, _no_graph, confirms=False), Guarantee.NONE, PlainClient, PlainServer
)
