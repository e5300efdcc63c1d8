"""No masks: the server sees every contribution. For those who agree to that, and for comparison.

The exchange of `bell2020` over a graph without edges: the same messages and checks, but nobody has
neighbours, so all lists of shares are empty, and blocks travel as they are. The masked protocols
have no switch that leads here: only the classes below leave the masks out.

What a client says to the list of survivors comes too late to hide the vector it has sent. An honest
server still minds it, and opens a sum only if enough clients agree.
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
    """A client that sends its integers as they are."""

    def deal_shares(self, message: Neighbours, participants: NDArray[np.uint32]) -> Shares:
        """Refuse neighbours; there is nobody to deal shares to."""
        if message.neighbours or message.threshold or message.keys:
            raise GraphNotRegular("neighbours in a protocol without masks")
        if message.path or any(message.root):
            raise GraphNotRegular("a tree of keys in a protocol without a graph")
        return Shares(message.run, self.client, bytes(NONCE_BYTES), ())

    def mask_seeds(self, sum_number: int, asked: bytes) -> tuple[list[bytes], list[bytes]]:
        return [], []


class PlainServer(BellServer):
    """A server that adds vectors it can read."""

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
