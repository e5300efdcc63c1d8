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
from privirec.secagg.errors import GraphNotRegular
from privirec.secagg.keys import NONCE_BYTES
from privirec.secagg.messages import Neighbours, Shares, encode
from privirec.secagg.parameters import Parameters, Statement


class PlainClient(BellClient):
    """A client that sends its integers as they are."""

    def _share(self, message: Neighbours) -> bytes:
        """Check who takes part; there is nobody to deal shares to."""
        participants, _ = self._read_cohort(message)
        if message.neighbours or message.threshold or message.keys:
            raise GraphNotRegular("neighbours in a protocol without masks")
        self._check_difference(participants)
        self._state.stage += 1
        return encode(Shares(self._announce.run, self.client, bytes(NONCE_BYTES), ()))

    def _mask_seeds(self) -> tuple[list[bytes], list[bytes]]:
        return [], []


class PlainServer(BellServer):
    """A server that adds vectors it can read."""

    def _draw_graph(self, participants: bytes) -> NDArray[np.int64]:
        return np.empty((len(self._ids), 0), np.int64)

    def _seeds_to_remove(self) -> tuple[list[bytes], list[bytes]]:
        self._check_enough(len(self._answered))
        return [], []


def _no_graph(_statement: Statement) -> Parameters:
    return Parameters(0, 0)


NONE = protocol_of(Scheme("none", 3, _no_graph, complete=False), PlainClient, PlainServer)
